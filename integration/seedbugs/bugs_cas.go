package seedbugs

var (
	casRules       = Test{"./store/cas", "^TestItAnswersLikeTheReference$"}
	casConformance = Test{"./store/cas", "^TestConformance"}
	casTime        = Test{"./store/cas", "^TestEveryComparisonUsesTheSafeEndOfTheTime$"}
	casOutbox      = Test{"./store/cas", "^Test(Order|ALane|AMessage|TheNext|Messages|AHeld|AnEarlier|ConformanceWithAnOutbox)"}
)

var casBugs = []Bug{
	{
		Name: "cas-lost-leases-are-free", Why: "two relays publish one lane after its lease could not be read",
		File: "store/cas/lane.go",
		Old:  "Until: now.In(lostFor), Lease: lostFor}",
		New:  "Until: now.In(0), Lease: lostFor}",
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
	{
		Name: "cas-lost-shelf-counts-anew", Why: "two messages on the shelf have one number",
		File: "store/cas/shelf.go",
		Old:  "s = shelf{Last: int64(now.Changed())}",
		New:  "s = shelf{Last: min(0, int64(now.Changed()))}",
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
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
		Old:  `Lease:       now.In(req.Lease),`,
		New:  `Lease:       now.Began().add(req.Lease),`,
		Test: Test{"./store/cas", "^TestALeaseIsNeverShorter$"},
	},
	{
		Name: "cas-one-damaged-message-stops-all", Why: "nothing is published any more",
		File: "store/cas/outgoing.go",
		Old: `		is := readMessage(at, doc)
`,
		New: `		is := readMessage(at, doc)
		if is.damage != nil {
			return is.damage
		}
`,
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
	{
		Name: "cas-one-damaged-head-stops-its-shelf", Why: "a consumer tries no message again, and nobody sees its shelf",
		File: "store/cas/shelf.go",
		Old:  `Damage: damage.Error()}, errors.Is(damage, once.ErrCorrupt)`,
		New:  `Damage: damage.Error()}, false`,
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
	{
		Name: "cas-check-ignored", Why: "a damaged bit makes finished work run again",
		File: "store/cas/check.go",
		Old:  `check != r.Check():`,
		New:  `check == 0:`,
		Test: Test{"./store/natsstore", "^TestNoDamagedBitRepeatsFinishedWork$"},
	},
	{
		Name: "cas-check-without-retention", Why: "finished work runs again when the time of its key is damaged",
		File: "store/cas/check.go",
		Old:  `r.Lease, r.KeepOutcome, r.KeepKey} {`,
		New:  `r.Lease, r.KeepOutcome} {`,
		Test: Test{"./store/dynamostore", "^TestNoDamagedBitRepeatsFinishedWork$"},
	},
	{
		Name: "cas-ends-at-the-earliest-time", Why: "SettleTime is cut short: work is repeated while its first effect can still arrive",
		File: "store/cas/row.go",
		Old:  `r.Lease = now.Changed() // SettleTime`,
		New:  `r.Lease = now.Began() // SettleTime`,
		Test: casTime,
	},
	{
		Name: "cas-begins-at-the-latest-time", Why: "work is repeated after its provider has forgotten the key",
		File: "store/cas/row.go",
		Old:  `is.Created = now.Began()`,
		New:  `is.Created = now.Changed()`,
		Test: casTime,
	},
	{
		Name: "cas-youngest-age", Why: "work is repeated after its provider has forgotten the key",
		File: "store/cas/row.go",
		Old:  `now.AtMostSince(r.Created)`,
		New:  `now.AtLeastSince(r.Created)`,
		Test: casTime,
	},
	{
		Name: "cas-shelf-due-early", Why: "a message is tried before the time that its handler asked for",
		File: "store/cas/shelf.go",
		Old:  `l.Due <= l.Updated || now.Passed(l.Due)`,
		New:  `l.Due <= now.Changed()`,
		Test: casTime,
	},
	{
		Name: "cas-time-from-anybody", Why: "a gateway with another clock frees the keys of live holders",
		File: "internal/servicedate/servicedate.go",
		Old:  `if r.Header.Get(id) != "" {`,
		New:  `if id != "" {`,
		Test: Test{"./store/dynamostore", "^TestAGatewayDoesNotTellTheTime$"},
	},
	{
		Name: "key-forgotten-while-asking", Why: "a slow Lookup lets work be repeated after its provider has forgotten the key",
		File: "ask.go",
		Old:  `rec.Age+time.Since(begun) > o.KeyValidFor`,
		New:  `rec.Age > o.KeyValidFor`,
		Test: Test{".", "^TestNothingIsSentOnceTheKeyMayBeForgotten$"},
	},
	{
		Name: "cas-lapses-at-the-latest-time", Why: "another process takes over while the holder still has its lease",
		File: "store/cas/row.go",
		Old:  `r.Status == once.Running && now.Passed(r.Lease)`,
		New:  `r.Status == once.Running && r.Lease <= now.Changed()`,
		Test: Test{"./store/cas", "^TestALeaseIsNeverShorter$"},
	},
	{
		Name: "cas-firm-claim-writes-nothing-for-its-owner", Why: "a commit that arrives late takes effect beside the second",
		File: "store/cas/row.go",
		Old:  `is.Owner == req.Owner && (is.Status == once.Running || is.Status == once.Unknown) {`,
		New:  `is.Owner == req.Owner && is.Status == once.Parked {`,
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
		Name: "cas-speculates-over-a-record", Why: "Speculative work runs again after it was done, and its answer changes",
		File: "store/cas/tx.go",
		Old:  `	r.changes.set(r.changes.add(rs[0].Key.UUID(), Stored{}), row)`,
		New: `	was, _ := r.load(r.ctx, rs[0].Key)
	r.changes.set(r.changes.add(rs[0].Key.UUID(), was), row)`,
		Test: Test{"./integration/history", "^TestHistories$/^dynamostore$"},
	},
	{
		Name: "cas-rollback-frees-a-takeover", Why: "an effect whose outcome is unknown happens again after a transaction that failed",
		File: "store/cas/row.go",
		Old: `		return before, true
	}
	r.Status`,
		New: `		r.Firm = true
	}
	r.Status`,
		Test: Test{"./integration/history", "^TestHistories$/^dynamostore$"},
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
		Name: "cas-runs-beside-a-lost-commit", Why: "work is reported as failed, and its rows appear later",
		File: "tx.go",
		Old:  `request.Firm = t.lost != nil`,
		New:  `request.Firm = t.lost != nil && take < 0`,
		Test: Test{"./store/cas", "^TestWhatCallersLearnInAStorm$"},
	},
	{
		Name: "cas-takes-a-lapsed-firm-claim-for-work", Why: "a transaction that did nothing leaves a key of unknown outcome",
		File: "store/cas/row.go",
		Old:  `if r.Status = once.Unknown; r.Firm {`,
		New:  `if r.Status = once.Unknown; r.Firm && r.Attempt < 0 {`,
		Test: Test{"./store/cas", "^TestWhatCallersLearnInAStorm$"},
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
		Old:  `return l.ID == id }`,
		New:  `return l.ID == id && l.State == store.Parked }`,
		Test: casDocuments,
	},
	{
		Name: "cas-change-of-any-version", Why: "what a person decided is undone by a consumer that read before",
		File: "store/cas/shelf.go",
		Old:  `(h.Version == 0 || h.Version != m.Version) {`,
		New:  `h.Version == 0 {`,
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
	{
		Name: "cas-firm-claim-that-lapsed", Why: "a commit arrives after the caller was told that nothing was done",
		File: "store/cas/row.go",
		Old:  `is.Owner == req.Owner && (is.Status == once.Running || is.Status == once.Unknown) {`,
		New:  `is.Owner == req.Owner && is.Status == once.Running {`,
		Test: Test{"./store/redisstore", "^TestAFirmClaimRefusesAnEarlierCommitAlsoIfTheLeaseHasLapsed$"},
	},
	{
		Name: "cas-outbox-overtakes-in-an-index", Why: "a message overtakes an earlier one of its ordering key that the index does not show yet",
		File: "store/cas/outgoing.go",
		Old:  `waits[i] = isThere && slices.Contains(r.q.HeldBy, state)`,
		New:  `waits[i] = isThere && len(r.q.HeldBy) == int(state)`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-overtakes-what-is-held", Why: "a message overtakes a failed one of its ordering key that the index does not show as Held yet",
		File: "store/cas/outgoing.go",
		Old:  `range []store.OutgoingState{store.Pending, store.Held, store.Stuck, store.Held}`,
		New:  `range []store.OutgoingState{store.Pending, store.Stuck}`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-overtakes-what-is-replayed", Why: "a message overtakes one that a person replays at that moment",
		File: "store/cas/outgoing.go",
		Old:  `range []store.OutgoingState{store.Pending, store.Held, store.Stuck, store.Held}`,
		New:  `range []store.OutgoingState{store.Pending, store.Held, store.Stuck}`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-ends-a-page-with-what-waits", Why: "messages that wait for one that is held keep others from being read",
		File: "store/cas/outgoing.go",
		Old:  `for reads := 0; len(page) == 0 && reads < maxReads; reads++ {`,
		New:  `for reads := 0; len(page) == 0 && reads < 1; reads++ {`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-sends-what-it-sent", Why: "a relay publishes again what an index still shows",
		File: "store/cas/outbox.go",
		Old:  `case is.fate == present:`,
		New:  `case is.fate >= present:`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-sends-an-earlier-version", Why: "a relay publishes again what an index shows as it was before it was retried",
		File: "store/cas/outbox.go",
		Old:  `case is.fate == present:`,
		New:  `case is.fate == present || is.version != doc.Version:`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-confuses-places", Why: "the end of a message deletes another one with the same Seq in another partition, which is lost",
		File: "store/cas/outbox.go",
		Old:  `store.OutgoingState(state), seq, hintOf(doc.Place)}, nil`,
		New:  `store.OutgoingState(state), seq, hintOf("")}, nil`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-hides-what-it-could-not-move", Why: "a message whose move was refused is never published by this relay",
		File: "store/cas/outbox.go",
		Old:  `p.seen.doubt(places[i], all[i].DocName)`,
		New:  `p.seen.end(places[i], all[i].DocName, all[i].Over, moved)`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-forgets-a-repeated-end", Why: "a message whose end got no reply is published again while an index still shows it",
		File: "store/cas/outbox.go",
		Old:  `			p.seen.doubt(f.place, f.doc)`,
		New:  `			_ = f.doc`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-loses-what-kept-its-name", Why: "a person discards a message, and nothing happens because an index does not show it",
		File: "store/cas/outbox.go",
		Old:  `case made[i] && all[i].To == all[i].Name:`,
		New:  `case made[i] && all[i].To == "":`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-trusts-clocks", Why: "messages of an ordering key are swapped when they are put by processes whose clocks differ",
		File: "store/cas/outbox.go",
		Old:  `at.seq = p.seq.next(now, of.Last)`,
		New:  `at.seq = p.seq.next(now, 0)`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-changes-foreign-lanes", Why: "a relay that has lost its lane ends messages of another",
		File: "store/cas/lane.go",
		Old:  `return func(lane int) bool { return l.Lanes[lane].Relay == me }, err`,
		New:  `return func(lane int) bool { return l.Lanes[lane].Relay == me || len(me) > 0 }, err`,
		Test: casOutbox,
	},
	{
		Name: "cas-outbox-takes-a-lease-early", Why: "two relays publish from one lane",
		File: "store/cas/lane.go",
		Old: `now.Passed(is.Until) {
				*is`,
		New: `is.Until <= now.Changed()+1_000_000 {
				*is`,
		Test: casOutbox,
	},
	{
		Name: "cas-delayed-messages-wake-nobody", Why: "a delayed message is published as late as its relay polls",
		File: "store/cas/queue.go",
		Old:  `return err == nil && (at.state == store.Pending || at.state == store.Delayed)`,
		New:  `return err == nil && at.state == store.Pending`,
		Test: Test{"./store/cosmosstore", "^TestTheBellRingsForMessages$"},
	},
	{
		Name: "cas-long-texts", Why: "a document outgrows what the engine takes, and its message cannot be changed any more",
		File: "store/cas/shelf.go",
		Old:  `if len(text) > longestText {`,
		New:  `if len(text) > 2*longestText {`,
		Test: cosmosShelf,
	},
	{
		Name: "cas-shelf-backwards", Why: "messages that were set aside are tried in the wrong order",
		File: "store/cas/shelf.go",
		Old:  `cmp.Compare(a.Seq, b.Seq)`,
		New:  `cmp.Compare(b.Seq, a.Seq)`,
		Test: tableShelf,
	},
	{
		Name: "cas-replay-overtakes", Why: "a message that a person tries again overtakes an earlier one of its ordering key",
		File: "store/cas/shelf.go",
		Old:  `l.isDue(now) && !held[l.Order]`,
		New:  `l.isDue(now)`,
		Test: cosmosShelf,
	},
	{
		Name: "cas-forgets-parked-messages", Why: "a message that waits for a person is deleted",
		File: "store/cas/shelf.go",
		Old:  `if l.open(true) || now.AtLeastSince(`,
		New:  `if l.open(false) || now.AtLeastSince(`,
		Test: tableShelf,
	},
	{
		Name: "cas-pages-overlap", Why: "a message is shown twice, and a program that counts or repeats them is wrong",
		File: "store/cas/shelf.go",
		Old:  `if l.Seq > q.After && (`,
		New:  `if l.Seq >= q.After && (`,
		Test: cosmosShelf,
	},
	{
		Name: "cas-large-messages-without-their-parts", Why: "the body of a large message on the shelf is lost",
		File: "store/cas/shelf.go",
		Old:  `partDoc(consumer, cmp.Or(h.Content, h.Seq), part)`,
		New:  `partDoc(consumer, h.Seq, part)`,
		Test: cosmosShelf,
	},
	{
		Name: "cas-large-messages-in-one-transaction", Why: "a large message cannot be set aside, and is delivered again for ever",
		File: "store/cas/shelf.go",
		Old:  `if len(parts) > 1 {`,
		New:  `if len(parts) > 1000 {`,
		Test: cosmosShelf,
	},
	{
		Name: "cosmos-shelf-without-tags", Why: "of messages that are set aside at once, one is lost",
		File: "store/cosmosstore/tx.go",
		Old:  `adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.ReplaceItem(id, text, o) })`,
		New:  `adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.ReplaceItem(id, text, nil) })`,
		Test: cosmosShelf,
	},
}

// The shelves of these stores are apart from transactions.
var (
	cosmosShelf = Test{"./store/cosmosstore", "^TestConformance$/^shelf$"}
	tableShelf  = Test{"./store/tablestore", "^TestConformanceOfTransactions$/^shelf$"}
)

var casDocuments = Test{"./store/cas", "^TestConformanceWithDocuments$"}
