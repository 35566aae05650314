package seedbugs

// reconcileBugs are in the reconciler.
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
		Why:  "keys that were unknown for longer than an outage are never asked about",
		File: "reconcile/sweep.go",
		Old:  "	return span <= r.Every || chance.N(span) < r.Every",
		New:  "	return span <= r.Every || chance.N(span) < 0",
		Test: Test{"./reconcile", "^TestAStoreInTrouble$"},
	},
	{
		Name: "a-question-has-no-end",
		Why:  "a provider that hangs keeps all other keys of its operation unknown",
		File: "reconcile/sweep.go",
		Old:  "	limited, cancel := context.WithTimeout(ctx, w.AskTime)",
		New:  "	limited, cancel := context.WithTimeout(ctx, 1000*w.AskTime)",
		Test: Test{"./reconcile", "^TestLookupsThatMisbehave$"},
	},
	{
		Name: "a-busy-operation-is-begun-again",
		Why:  "a provider gets more concurrent questions than configured",
		File: "reconcile/reconcile.go",
		Old:  "			w.busy = true",
		New:  "			w.busy = false",
		Test: Test{"./reconcile", "^TestABusyOperationIsNotBegunAgain$"},
	},
	{
		Name: "old-lists-are-believed",
		Why:  "work that was done and forgotten since it was listed runs again",
		File: "reconcile/sweep.go",
		Old:  "	case now.Status != once.Unknown:",
		New:  "	case now.Status == once.Parked:",
		Test: Test{"./reconcile", "^TestWhatHasMovedOnIsNotResumed$"},
	},
}
