package seedbugs

const eventHubs = "./broker/eventhubsbroker"

var eventHubsBugs = []Bug{
	{
		Name: "eventhubs-overtakes-what-failed", Why: "a message is stored before an earlier one of its ordering key",
		File: "broker/eventhubsbroker/publisher.go",
		Old:  `errs[i] = fmt.Errorf("%w: %w", errEarlier, err)` + "\n\t\t\t}\n\t\t\treturn",
		New:  `_ = i` + "\n\t\t\t}\n\t\t\terr = nil",
		Test: Test{eventHubs, "^TestNoMessageOvertakesOneThatFailed$"},
	},
	{
		Name: "eventhubs-ignores-ordering-keys", Why: "messages of a key are in several partitions, and are handled in any order",
		File: "broker/eventhubsbroker/publisher.go",
		Old:  `options = &azeventhubs.EventDataBatchOptions{PartitionKey: &partition}`,
		New:  `_ = partition`,
		Test: Test{"./integration/brokers", "^TestEventHubsConformance$/^order$/^calls$"},
	},
	{
		Name: "eventhubs-hides-what-retention-deleted", Why: "messages are skipped without an error",
		File: "broker/eventhubsbroker/session.go",
		Old:  `if start := has.BeginningSequenceNumber; start > next {`,
		New:  `if start := has.BeginningSequenceNumber; false {`,
		Test: Test{eventHubs, "^TestMessagesThatRetentionHasDeletedAreNotSkipped$"},
	},
	{
		Name: "eventhubs-reads-on-in-another-hub", Why: "the first messages of a recreated hub are taken for handled",
		File: "broker/eventhubsbroker/session.go",
		Old:  `if !hub.CreatedOn.Equal(s.created) {`,
		New:  `if false {`,
		Test: Test{eventHubs, "^TestARecreatedHubEndsTheSession$"},
	},
	{
		Name: "eventhubs-counts-only-what-was-begun", Why: "nobody learns that a partition is not read",
		File: "broker/eventhubsbroker/source.go",
		Old:  `	next := int64(0)` + "\n",
		New:  `	next := has.LastEnqueuedSequenceNumber + 1` + "\n",
		Test: Test{eventHubs, "^TestTheLagIsCountedFromPositions$"},
	},
	{
		Name: "eventhubs-counts-in-another-hub", Why: "a consumer that is stopped seems to have handled all",
		File: "broker/eventhubsbroker/source.go",
		Old:  `strings.HasPrefix(partition, s.hub+"/") && p.Log != log {`,
		New:  `strings.HasPrefix(partition, s.hub+"/") && p.Log == "" && log != "" {`,
		Test: Test{eventHubs, "^TestTheLagIsCountedFromPositions$"},
	},
	{
		Name: "eventhubs-seeks-past-the-end", Why: "after a forced failover, new messages are taken for handled",
		File: "broker/eventhubsbroker/session.go",
		Old:  `if has.LastEnqueuedSequenceNumber < to.Offset {`,
		New:  `if false {`,
		Test: Test{eventHubs, "^TestSeekContinuesAfterAPosition$"},
	},
	{
		Name: "inbox-passes-over-a-log-that-lost-its-end", Why: "new messages with the numbers of lost ones are taken for handled",
		File: "inbox/position.go",
		Old:  `near = -1`,
		New:  `near = rereadDistance`,
		Test: Test{"./integration/brokers", "^TestEventHubsHubThatLostItsEndStopsItsConsumer$"},
	},
	{
		Name: "eventhubs-settles-what-has-moved", Why: "a process believes that it has settled what another one handles",
		File: "broker/eventhubsbroker/session.go",
		Old:  `r.buffer.Reset(r.buffer.Next(), errMoved)`,
		New:  `r.buffer.Reset(r.buffer.Next(), nil)`,
		Test: Test{eventHubs, "^TestASessionThatHoldsOnIsOvertaken$"},
	},
	{
		Name: "eventhubs-lets-go-of-running-messages", Why: "each change of the members rolls handlers back",
		File: "broker/eventhubsbroker/session.go",
		Old:  `return r.buffer.InFlight() == 0 })`,
		New:  `return true })`,
		Test: Test{eventHubs, "^TestAPartitionMovesWhenItsDeliveriesAreSettled$"},
	},
	{
		Name: "eventhubs-asks-with-the-level-of-an-owner", Why: "a new process cuts off the one that is giving its partition up",
		File: "broker/eventhubsbroker/reader.go",
		Old:  `asking = int64(0)`,
		New:  `asking = int64(1)`,
		Test: Test{eventHubs, "^TestAPartitionMovesWhenItsDeliveriesAreSettled$"},
	},
	{
		Name: "eventhubs-knows-no-refusal", Why: "a process that comes to a group ends its sessions with errors",
		File: "broker/eventhubsbroker/eventhubsbroker.go",
		Old:  `azeventhubs.ErrorCodeOwnershipLost || refused(err)`,
		New:  `azeventhubs.ErrorCodeOwnershipLost`,
		Test: Test{eventHubs, "^TestAPartitionMovesWhenItsDeliveriesAreSettled$"},
	},
	{
		Name: "eventhubs-leaves-slots-of-the-dead", Why: "a record that nobody looks after stays for each process that died",
		File: "broker/eventhubsbroker/members.go",
		Old:  `} else if rec.Status == once.Unknown {`,
		New:  `} else if false {`,
		Test: Test{eventHubs, "^TestALapsedSlotIsFreed$"},
	},
}
