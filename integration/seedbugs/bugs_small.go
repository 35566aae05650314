package seedbugs

// missing names a test that was written for a bug of this list, which no other noticed.
func missing(run string) Test { return Test{"./integration/seedbugs", run} }

// smallBugs are in what the engine is made of.
var smallBugs = []Bug{
	{
		Name: "a-case-leaves-messages-to-the-next",
		Why:  "a case that needs an empty outbox fails on a busy machine",
		File: "store/storetest/outbox.go",
		Old:  "return removed > 0\n}",
		New:  "return false\n}",
		Test: Test{"./store/storetest", "^TestACaseLeavesNothingToTheNextOne$"},
	},
	{
		Name: "lease-not-extended-in-time",
		Why:  "a live owner loses its claim, and another call runs its work at the same time",
		File: "internal/lease/lease.go",
		Old:  "	pause := k.length / 3\n",
		New:  "	pause := k.length\n",
		Test: Test{"./internal/lease", "^TestKeepExtendsThreeTimesALease$"},
	},
	{
		Name: "lost-lease-not-told",
		Why:  "an owner keeps working after another call has taken over",
		File: "internal/lease/lease.go",
		Old:  "\t\tk.End(k.holder.Lost(k.parent, err))\n",
		New:  "\t\t_ = k.holder.Lost(k.parent, err)\n",
		Test: Test{"./internal/lease", "^TestKeepCancelsAtOnceWhenTheLeaseIsLost$"},
	},
	{
		Name: "lease-believed-after-its-end",
		Why:  "an owner that is cut off keeps working after its lease has lapsed",
		File: "internal/lease/lease.go",
		Old:  "end := good.Add(k.length * 5 / 6)",
		New:  "end := good.Add(k.length * 6 / 5)",
		Test: Test{"./internal/lease", "^TestKeepCancelsBeforeALeaseThatCannotBeExtendedEnds$"},
	},
	{
		Name: "lease-counted-from-the-reply",
		Why:  "after a slow extension the owner assumes a lease that ends later than the real one",
		File: "internal/lease/lease.go",
		Old:  "good, next, trouble = asked, asked.Add(k.pause()), errNoTurn",
		New:  "good, next, trouble = time.Now(), time.Now().Add(k.pause()), errNoTurn",
		Test: missing("^TestALeaseIsCountedFromItsRequest$"),
	},
	{
		Name: "lease-waits-after-silence",
		Why:  "after silence a twenty-fourth of the lease is left for the next extension, so a slow moment loses the lease",
		File: "internal/lease/lease.go",
		Old:  "next = asked.Add(k.length / 12)",
		New:  "next = time.Now().Add(k.length / 12)",
		Test: Test{"./internal/lease", "^TestKeepRepeatsACallThatHungAtOnce$"},
	},
	{
		Name: "extension-without-a-limit",
		Why:  "an extension that hangs uses up the lease, and the work learns of it only after it has lapsed",
		File: "internal/lease/lease.go",
		Old:  "ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end)",
		New:  "ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end.Add(k.length))",
		Test: Test{"./internal/lease", "^TestKeepGivesACallThatHangsOnlyPartOfTheLease$"},
	},
	{
		Name: "flight-never-lands",
		Why:  "after work panics, its duplicates in the process wait for ever",
		File: "call.go",
		Old:  "defer func() { c.opts.flights.Land(at, &c.flight, rec, Record.clone) }()",
		New:  "defer func() {\n\t\t\tif rec.Key != (Key{}) || err != nil {\n\t\t\t\tc.opts.flights.Land(at, &c.flight, rec, Record.clone)\n\t\t\t}\n\t\t}()",
		Test: Test{".", "^TestDoPanicLeavesTheOutcomeUnknown$"},
	},
	{
		Name: "joiner-waits-without-a-bound",
		Why:  "a duplicate waits until the first call ends, whatever its Wait is",
		File: "internal/flight/flight.go",
		Old:  "timer := time.NewTimer(time.Until(until))",
		New:  "timer := time.NewTimer(time.Since(until) + time.Hour)",
		Test: Test{".", "^TestJoinEndsAfterItsBound$"},
	},
	{
		Name: "flights-not-shared",
		Why:  "each of 64 duplicates in a process holds a connection",
		File: "internal/flight/flight.go",
		Old:  "\tg.now[k] = own\n",
		New:  "",
		Test: missing("^TestDuplicatesInAProcessAskNothingWhileTheyWait$"),
	},
	{
		Name: "retries-without-jitter",
		Why:  "calls that conflicted once conflict again at every retry",
		File: "internal/backoff/backoff.go",
		Old:  "return span/2 + chance.N(span/2+1)",
		New:  "return span + 0*chance.N(span/2+1)",
		Test: missing("^TestWaitsOfTheSameSpanDiffer$"),
	},
}
