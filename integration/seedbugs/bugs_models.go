package seedbugs

// modelBugs let code make changes that the models of lanes and positions do not make.
var modelBugs = []Bug{
	{
		Name: "an-epoch-is-not-compared",
		Why:  "a process that was overtaken moves the position of another one, and handles what that one handles",
		File: "store/memstore/position.go",
		Old:  "	return a.Epoch == b.Epoch && a.Log == b.Log",
		New:  "	return a.Log == b.Log",
		Test: Test{"./store/memstore", "^TestConformance$"},
	},
	{
		Name: "position-forgets-the-shelf",
		Why:  "a process that takes a partition over handles messages before earlier ones of their ordering key",
		File: "inbox/position.go",
		Old:  "shelfInUse: at.Shelved}",
		New:  "shelfInUse: at.Shelved && at.Offset < 0}",
		Test: Test{"./inbox", "^TestAProcessThatOpensAPositionKnowsTheShelf$"},
	},
	{
		Name: "a-relay-without-the-lane-changes-messages",
		Why:  "a relay that has lost a lane ends or holds messages that another one publishes",
		File: "store/memstore/lane.go",
		Old:  "	return relay == [16]byte{} || relay == o.leases[lane].relay",
		New:  "	return relay == [16]byte{} || lane >= 0",
		Test: Test{"./store/memstore", "^TestConformance$"},
	},
}
