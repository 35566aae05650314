package seedbugs

// carriedBugs are in a store that carries messages in memory.
var carriedBugs = []Bug{
	{
		Name: "hand-over-in-memory-passes-what-is-left-alone",
		Why:  "a message overtakes one of its ordering key that a person has parked meanwhile",
		File: "store/memstore/handover.go",
		Old:  `left[key] = key != ""`,
		New:  `left[key] = false`,
		Test: Test{"./store/memstore", "^TestConformance$/^outbox$/^hand-over-order$"},
	},
	{
		Name: "hand-over-in-memory-by-anybody",
		Why:  "a relay that was stalled hands over messages of a lane that another one has",
		File: "store/memstore/handover.go",
		Old:  `if row == nil || !s.outbox.mayChange(relay, m.Lane) || left[key] {`,
		New:  `if row == nil || left[key] {`,
		Test: Test{"./store/memstore", "^TestConformance$/^outbox$/^hand-over-fenced$"},
	},
}
