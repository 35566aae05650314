package seedbugs

// commandBugs are mistakes in the command once.
var commandBugs = []Bug{
	{
		Name: "bash-runs-the-names-of-others",
		Why:  "whoever shares the store chooses a name that runs in the shell of an operator who completes it",
		File: "cmd/once/complete.go",
		Old:  "\t\tif !plain && ",
		New:  "\t\tif !plain && r == ' ' && ",
		Test: Test{"./cmd/once", "^TestBashRunsNothingOfAName$"},
	},
	{
		Name: "completion-offers-flags-of-others",
		Why:  "an operation named --yes completes to a flag that skips the question",
		File: "cmd/once/stored.go",
		Old:  `strings.HasPrefix(name, "-")`,
		New:  `strings.HasPrefix(name, "\n")`,
		Test: Test{"./cmd/once", "^TestCompletionLeavesOutWhatIsNotLegible$"},
	},
	{
		Name: "the-manual-leaves-out-arguments",
		Why:  "a verb of the manual page does not say what it takes",
		File: "cmd/once/man.go",
		Old:  "range verb.Positional {",
		New:  "range verb.Positional[:0] {",
		Test: Test{"./cmd/once", "^TestManualHasEveryVerbAndFlag$"},
	},
	{
		Name: "the-doctor-trusts-old-names",
		Why:  "a consumer at work is reported as stopped after it was renamed",
		File: "cmd/once/internal/doctor/queues.go",
		Old:  "if c.Seen < q.seen {",
		New:  "if c.Seen > q.seen {",
		Test: Test{"./cmd/once/internal/doctor", "^TestQueuesThatNobodyReads$"},
	},
	{
		Name: "the-doctor-overlooks-a-full-queue",
		Why:  "nobody learns whose queue stops a topic",
		File: "cmd/once/internal/doctor/queues.go",
		Old:  `if m.Reason != "" {`,
		New:  `if m.Reason == "" {`,
		Test: Test{"./cmd/once/internal/doctor", "^TestQueuesThatAreFull$"},
	},
}
