package seedbugs

var (
	casRules       = Test{"./store/cas", "^TestItAnswersLikeTheReference$"}
	casConformance = Test{"./store/cas", "^TestConformance"}
)

var casBugs = []Bug{
	{
		Name: "cas-fence-without-owner", Why: "a late call ends the attempt of another process",
		File: "store/cas/row.go",
		Old:  `return r.Attempt > 0 && r.Attempt == fence.Attempt && r.Owner == fence.Owner`,
		New:  `return r.Attempt > 0 && r.Attempt == fence.Attempt`,
		Test: casRules,
	},
	{
		Name: "cas-takeover-of-any-attempt", Why: "work whose outcome is unknown runs again unasked",
		File: "store/cas/row.go",
		Old:  `was.Status == once.Unknown && was.Attempt == req.Attempt && was.Owner`,
		New:  `was.Status == once.Unknown && was.Owner`,
		Test: casRules,
	},
	{
		Name: "cas-late-claim", Why: "a claim whose reply was lost takes the key after its release",
		File: "store/cas/row.go",
		Old:  `!takeover || late {`,
		New:  `!takeover || late && was.Attempt < 0 {`,
		Test: casRules,
	},
	{
		Name: "cas-settles-twice", Why: "a second, different outcome is reported as recorded",
		File: "store/cas/row.go",
		Old:  ` || sameOutcome(is.Outcome, set.Outcome)):`,
		New:  ` || set.Status == once.Done):`,
		Test: casRules,
	},
	{
		Name: "cas-lease-from-the-earliest-time", Why: "a lease is shorter than it was asked for",
		File: "store/cas/row.go",
		Old:  `Lease:       now.Latest.add(req.Lease),`,
		New:  `Lease:       now.Earliest.add(req.Lease),`,
		Test: Test{"./store/cas", "^TestALeaseIsNeverShorter$"},
	},
	{
		Name: "cas-lapses-at-the-latest-time", Why: "another process takes over while the holder still has its lease",
		File: "store/cas/row.go",
		Old:  `r.Status == once.Running && r.Lease <= now.Earliest`,
		New:  `r.Status == once.Running && r.Lease <= now.Latest`,
		Test: Test{"./store/cas", "^TestALeaseIsNeverShorter$"},
	},
	{
		Name: "cas-firm-claim-writes-nothing-for-its-owner", Why: "a commit that arrives late takes effect beside the second",
		File: "store/cas/row.go",
		Old:  `is.Status == once.Running && is.Owner == req.Owner {`,
		New:  `is.Status == once.Parked && is.Owner == req.Owner {`,
		Test: Test{"./store/cas", "^TestALateCommitIsRefused$"},
	},
	{
		Name: "cas-frees-an-unknown-outcome", Why: "an effect whose outcome is unknown happens again after a transaction was cut off",
		File: "store/cas/row.go",
		Old:  `is.Firm = r.At(now).Status == once.Absent`,
		New:  `is.Firm = true`,
		Test: Test{"./store/cas", "^TestAFirmTakeoverThatLapsesStaysUnknown$"},
	},
	{
		Name: "cas-commits-without-a-look", Why: "a repeat of finished work runs",
		File: "store/cas/tx.go",
		Old:  `if len(rs) == 1 && rs[0].Speculative && !rs[0].Firm`,
		New:  `if len(rs) == 1 && !rs[0].Firm`,
		Test: casConformance,
	},
	{
		Name: "cas-keeps-a-firm-claim", Why: "after a rollback the key is in use until the lease ends",
		File: "store/cas/tx.go",
		Old:  `_, _ = r.engine.Put(ctx, row, claim.is.Version)`,
		New:  `_, _ = ctx, row`,
		Test: casConformance,
	},
	{
		Name: "cas-settles-what-it-has-not-changed", Why: "a transaction commits under a claim that is not its own",
		File: "store/cas/tx.go",
		Old:  `if err == nil && !changed {`,
		New:  `if err == nil && !changed && len(sets) > 9 {`,
		Test: casConformance,
	},
	{
		Name: "cas-takes-claims-back-without-a-limit", Why: "a database that does not answer holds the caller for ever",
		File: "store/cas/tx.go",
		Old:  `_, _ = r.engine.Put(ctx, row, claim.is.Version)`,
		New:  `_ = ctx; _, _ = r.engine.Put(r.ctx, row, claim.is.Version)`,
		Test: Test{"./store/cas", "^TestAnEngineThatHangsDoesNotHoldTheCaller$"},
	},
	{
		Name: "cas-extends-past-its-retention", Why: "the engine deletes a claim that runs",
		File: "store/cas/row.go",
		Old:  `if r.Firm { // the count`,
		New:  `if r.Firm && d < 0 { // the count`,
		Test: Test{"./store/cas", "^TestAnExtendedFirmClaimIsKept$"},
	},
	{
		Name: "cas-trusts-its-clock-after-a-suspension", Why: "a lease ends early on a machine that was suspended",
		File: "store/cas/clock.go",
		Old:  `fresh = c.known && since-c.asOf < staleAfter && max(apart, -apart) < time.Second`,
		New:  `fresh = c.known && since-c.asOf < staleAfter && apart < 1<<62`,
		Test: Test{"./store/cas", "^TestTheTimeIsAskedForAfterASuspension$"},
	},
	{
		Name: "cas-forgets-drift", Why: "after an idle hour a lease may end early",
		File: "store/cas/clock.go",
		Old:  `drift := max(0, now-c.asOf) / driftShare`,
		New:  `drift := time.Duration(0)`,
		Test: Test{"./store/cas", "^TestTheServicesTimeIsWithinTheInterval$"},
	},
	{
		Name: "cas-forgets-the-resolution", Why: "a lease may end up to a second early",
		File: "store/cas/clock.go",
		Old:  `low, high := server-received, server+resolution-sent`,
		New:  `low, high := server-received, server-sent`,
		Test: Test{"./store/cas", "^TestTheServicesTimeIsWithinTheInterval$"},
	},
	{
		Name: "cas-looks-for-nothing", Why: "each claim costs a read more although refused writes tell what is stored",
		File: "store/cas/cas.go",
		Old:  `look := s.silent.Load() && s.lost.High()`,
		New:  `look := s.lost.High()`,
		Test: Test{"./store/cas", "^TestClaimsLookFirstWhileManyAreDuplicates$"},
	},
	{
		Name: "cas-moves-any-position", Why: "two processes handle the messages of one partition",
		File: "store/cas/position.go",
		Old:  `return a.Epoch == b.Epoch && a.Log == b.Log && a.Offset == b.Offset`,
		New:  `return a.Log == b.Log && a.Offset == b.Offset`,
		Test: casDocuments,
	},
	{
		Name: "cas-position-without-body", Why: "messages count as handled although their work failed",
		File: "store/cas/position.go",
		Old:  `	if err := body(tx); err != nil {`,
		New:  `	if err := body(tx); err != nil && len(err.Error()) == 0 {`,
		Test: casDocuments,
	},
	{
		Name: "cas-document-without-version", Why: "of two changes of the shelf at once, one is lost",
		File: "store/dynamostore/engine.go",
		Old:  `expression, names, values := e.unchanged(c.Over)`,
		New:  `expression, names, values := (*string)(nil), map[string]string(nil), item(nil)`,
		Test: Test{"./store/dynamostore", "^TestConformance$/^(shelf|registry|position)$"},
	},
	{
		Name: "cas-shelves-twice", Why: "a message that comes again is tried twice, and parked twice",
		File: "store/cas/shelf.go",
		Old:  `return l.ID == m.Message.ID }`,
		New:  `return l.ID == m.Message.ID && l.State == store.Parked }`,
		Test: casDocuments,
	},
	{
		Name: "cas-change-of-any-version", Why: "what a person decided is undone by a consumer that read before",
		File: "store/cas/shelf.go",
		Old:  `if h.Version == 0 || h.Version != m.Version {`,
		New:  `if h.Version == 0 {`,
		Test: casDocuments,
	},
	{
		Name: "cas-nothing-blocks", Why: "a message overtakes an earlier one of its ordering key",
		File: "store/cas/shelf.go",
		Old:  `if key != "" && slices.ContainsFunc(lines, holds)`,
		New:  `if key != "" && false && slices.ContainsFunc(lines, holds)`,
		Test: casDocuments,
	},
	{
		Name: "cas-registers-anywhere", Why: "two services share a name by accident, and each skips what the other has handled",
		File: "store/cas/consumer.go",
		Old:  `case first >= 0 && find(at.SharedWith) < 0:`,
		New:  `case first >= 0 && find(at.SharedWith) < -1:`,
		Test: casDocuments,
	},
}

var casDocuments = Test{"./store/cas", "^TestConformanceWithDocuments$"}
