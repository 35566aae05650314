package seedbugs

// reconcileBugs are in whoever asks about unknown outcomes.
var reconcileBugs = []Bug{
	{
		Name: "steps-are-nobodys",
		Why:  "the unknown step of a larger work is never asked about",
		File: "reconcile/sweep.go",
		Old:  "{ return k.Operation[strings.LastIndexByte(k.Operation, '/')+1:] }",
		New:  "{ return k.Operation[strings.LastIndexByte(k.Operation, '/')*0:] }",
		Test: Test{"./reconcile", "^TestEachOperationDecides$"},
	},
	{
		Name: "what-is-old-is-given-up",
		Why:  "what was unknown for longer than an outage is never asked about",
		File: "reconcile/sweep.go",
		Old:  "	return span <= r.Every || rand.N(span) < r.Every",
		New:  "	return span <= r.Every || rand.N(span) < 0",
		Test: Test{"./reconcile", "^TestAStoreInTrouble$"},
	},
	{
		Name: "a-question-has-no-end",
		Why:  "a provider that hangs keeps everything else of its operation unknown",
		File: "reconcile/sweep.go",
		Old:  "	limited, cancel := context.WithTimeout(ctx, w.AskTime)",
		New:  "	limited, cancel := context.WithTimeout(ctx, 1000*w.AskTime)",
		Test: Test{"./reconcile", "^TestLookupsThatMisbehave$"},
	},
	{
		Name: "a-busy-operation-is-begun-again",
		Why:  "a provider is asked more often at once than it was promised",
		File: "reconcile/reconcile.go",
		Old:  "			w.busy = true",
		New:  "			w.busy = false",
		Test: Test{"./reconcile", "^TestABusyOperationIsNotBegunAgain$"},
	},
	{
		Name: "old-lists-are-believed",
		Why:  "work is run again that was done and forgotten since it was listed",
		File: "reconcile/sweep.go",
		Old:  "	case now.Status != once.Unknown:",
		New:  "	case now.Status == once.Parked:",
		Test: Test{"./reconcile", "^TestWhatHasMovedOnIsNotResumed$"},
	},
	{
		Name: "ages-of-lists-are-believed",
		Why:  "work is freed whose key the other system has forgotten meanwhile",
		File: "reconcile/sweep.go",
		Old:  "	default:\n		rec = now\n",
		New:  "	default:\n",
		Test: Test{"./reconcile", "^TestAKeyThatRunsOutWhileItWaits$"},
	},
}
