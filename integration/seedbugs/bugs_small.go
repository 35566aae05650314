package seedbugs

// missing names a test that was written for a bug of this list, which no other noticed.
func missing(run string) Test { return Test{"./integration/seedbugs", run} }

// smallBugs are in what the engine is made of.
var smallBugs = []Bug{
	{
		Name: "lease-not-extended-in-time",
		Why:  "a live holder loses its claim, and its work is run by another beside it",
		File: "internal/lease/lease.go",
		Old:  "good, next := k.begun, k.begun.Add(k.length/3)",
		New:  "good, next := k.begun, k.begun.Add(k.length)",
		Test: Test{"./internal/lease", "^TestKeepExtendsThreeTimesALease$"},
	},
	{
		Name: "lost-lease-not-told",
		Why:  "a holder works on after another has taken over",
		File: "internal/lease/lease.go",
		Old:  "\t\tk.End(k.holder.Lost(k.parent, err))\n",
		New:  "\t\t_ = k.holder.Lost(k.parent, err)\n",
		Test: Test{"./internal/lease", "^TestKeepCancelsAtOnceWhenTheLeaseIsLost$"},
	},
	{
		Name: "lease-believed-after-its-end",
		Why:  "a holder that is cut off works on when its lease has lapsed",
		File: "internal/lease/lease.go",
		Old:  "end := good.Add(k.length * 5 / 6)",
		New:  "end := good.Add(k.length * 6 / 5)",
		Test: Test{"./internal/lease", "^TestKeepCancelsBeforeALeaseThatCannotBeExtendedEnds$"},
	},
	{
		Name: "lease-counted-from-the-reply",
		Why:  "after a slow extension the holder believes in a lease that ends later than the real one",
		File: "internal/lease/lease.go",
		Old:  "good, next = asked, asked.Add(k.length/3)",
		New:  "good, next = time.Now(), time.Now().Add(k.length/3)",
		Test: missing("^TestALeaseIsCountedFromItsRequest$"),
	},
	{
		Name: "extension-without-a-limit",
		Why:  "an extension that hangs uses up the lease, and nobody is told before it has lapsed",
		File: "internal/lease/lease.go",
		Old:  "ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end)",
		New:  "ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end.Add(k.length))",
		Test: Test{"./internal/lease", "^TestKeepGivesACallThatHangsOnlyPartOfTheLease$"},
	},
	{
		Name: "flight-never-lands",
		Why:  "when work has panicked, its duplicates in the process wait in vain",
		File: "call.go",
		Old:  "defer func() { c.opts.flights.Land(at, own, rec, Record.clone) }()",
		New:  "defer func() {\n\t\t\tif rec.Key != (Key{}) || err != nil {\n\t\t\t\tc.opts.flights.Land(at, own, rec, Record.clone)\n\t\t\t}\n\t\t}()",
		Test: Test{".", "^TestDoPanicLeavesTheOutcomeUnknown$"},
	},
	{
		Name: "joiner-waits-without-a-bound",
		Why:  "a duplicate waits for the first for as long as that takes, whatever its Wait is",
		File: "internal/flight/flight.go",
		Old:  "timer := time.NewTimer(time.Until(until))",
		New:  "timer := time.NewTimer(time.Since(until) + time.Hour)",
		Test: Test{".", "^TestJoinEndsAfterItsBound$"},
	},
	{
		Name: "flights-not-shared",
		Why:  "each of 64 duplicates in a process holds a connection",
		File: "internal/flight/flight.go",
		Old:  "\tg.now[k] = f\n",
		New:  "",
		Test: missing("^TestDuplicatesInAProcessAskNothingWhileTheyWait$"),
	},
	{
		Name: "retries-without-jitter",
		Why:  "rivals that met once meet again at every try",
		File: "internal/backoff/backoff.go",
		Old:  "return span/2 + rand.N(span/2+1)",
		New:  "return span + 0*rand.N(span/2+1)",
		Test: missing("^TestWaitsOfTheSameSpanDiffer$"),
	},
}
