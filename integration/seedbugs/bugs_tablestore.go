package seedbugs

var tableConformance = Test{"./store/tablestore", "^TestConformance$/^(claim|settle|takeover|race)$"}

var tableBugs = []Bug{
	{
		Name: "tables-claims-by-upsert", Why: "each of two callers at once is told that it has a new key",
		File: "store/tablestore/engine.go",
		Old:  `w.row.ActionType = aztables.TransactionTypeAdd; over != ""`,
		New:  `w.row.ActionType = aztables.TransactionTypeInsertReplace; over != ""`,
		Test: tableConformance,
	},
	{
		Name: "tables-replaces-any-version", Why: "each of two takeovers at once has the key",
		File: "store/tablestore/engine.go",
		Old:  `aztables.TransactionTypeUpdateReplace, &tag`,
		New:  `aztables.TransactionTypeUpdateReplace, nil; _ = tag`,
		Test: tableConformance,
	},
	{
		Name: "tables-lost-commit-is-an-error", Why: "work whose commit took place is reported as failed, and its caller starts it anew",
		File: "store/tablestore/tx.go",
		Old:  `return fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, err)`,
		New:  `return err`,
		Test: Test{"./store/tablestore", "^TestWhatIsKnownAfterACommit$"},
	},
	{
		Name: "tables-busy-commit-is-a-conflict", Why: "a transaction that meets itself is reported as not applied",
		File: "store/tablestore/tx.go",
		Old:  `case errors.As(err, &busy):`,
		New:  `case errors.As(err, &busy) && false:`,
		Test: Test{"./store/tablestore", "^TestACommitThatWasBusyIsNoConflict$"},
	},
	{
		Name: "tables-does-not-wait", Why: "a service that is busy for a moment fails calls",
		File: "store/tablestore/engine.go",
		Old:  "return busy && time.Since",
		New:  "return false && busy && time.Since",
		Test: Test{"./store/tablestore", "^TestABusyServiceIsWaitedFor$"},
	},
	{
		Name: "tables-own-clock", Why: "a client whose clock is an hour ahead takes over running work",
		File: "store/tablestore/engine.go",
		Old:  `e.clock.Learn(began, date, dateResolution)`,
		New:  `e.clock.Learn(began, time.Now(), dateResolution); _ = date`,
		Test: Test{"./store/tablestore", "^TestLeasesHoldWhateverTheClocksShow$"},
	},
	{
		Name: "tables-no-index", Why: "stuck keys are not found",
		File: "store/tablestore/engine.go",
		Old:  `if e.partition != nil || row.Open() == wasOpen {`,
		New:  `if e.partition != nil || row.Open() == wasOpen || over == "" {`,
		Test: Test{"./store/tablestore", "^TestListFindsEverythingOpen$"},
	},
	{
		Name: "tables-needs-its-index", Why: "work on a key whose index entity is gone is never recorded",
		File: "store/tablestore/batch.go",
		Old:  `if n == at && rows[i].index.ActionType`,
		New:  `if n < at && rows[i].index.ActionType`,
		Test: Test{"./store/tablestore", "^TestAnIndexEntityThatIsGoneIsNotMissed$"},
	},
	{
		Name: "tables-list-stops-early", Why: "a partition with many open keys hides some of them",
		File: "store/tablestore/list.go",
		Old:  `if full && len(ids[i]) == 0 {`,
		New:  `if full && len(ids[i]) > 0 {`,
		Test: Test{"./store/tablestore", "^TestListFindsEverythingOpen$"},
	},
	{
		Name: "tables-forgets-with-the-outcome", Why: "a key is forgotten when its answer expires, and its work runs again",
		File: "store/tablestore/engine.go",
		Old:  `if is.At(now).Attempt == 0 {`,
		New:  `if is.Attempt > 0 {`,
		Test: Test{"./store/tablestore", "^TestForgetLeavesTheRestAlone$"},
	},
	{
		Name: "tables-forgets-a-claim", Why: "a key that is claimed while it is being forgotten is lost, and its work runs twice",
		File: "store/tablestore/engine.go",
		Old:  `Entity: entity(keyPrefix), IfMatch: &tag}}`,
		New:  `Entity: entity(keyPrefix)}}; _ = tag`,
		Test: Test{"./store/tablestore", "^TestForgetSparesAKeyThatIsClaimedMeanwhile$"},
	},
	{
		Name: "tables-missing-table-is-empty", Why: "a table that was deleted by mistake makes all keys new",
		File: "store/tablestore/engine.go",
		Old:  "hasCode(err, aztables.EntityNotFound) {\n\t\treturn nil, nil",
		New:  "hasCode(err, aztables.TableNotFound) {\n\t\treturn nil, nil",
		Test: Test{"./store/tablestore", "^TestAMissingTableIsAnError$"},
	},
	{
		Name: "tables-sends-two-partitions", Why: "a transaction that cannot be applied is sent, and fails with an error of the service",
		File: "store/tablestore/tx.go",
		Old:  "if count > 0 && partition != place {\n\t\t\treturn nil, fmt.Errorf(\"%w: tablestore: the transaction writes in the partition %q, and the partition",
		New:  "if count < 0 && partition != place {\n\t\t\treturn nil, fmt.Errorf(\"%w: tablestore: the transaction writes in the partition %q, and the partition",
		Test: Test{"./store/tablestore", "^TestATransactionThatTheServiceCannotTakeIsInvalid$"},
	},
	{
		Name: "tables-ignores-the-size", Why: "a transaction that is too large is sent",
		File: "store/tablestore/tx.go",
		Old:  `count > maxActions || size > maxRequest`,
		New:  `count > maxActions`,
		Test: Test{"./store/tablestore", "^TestATransactionThatTheServiceCannotTakeIsInvalid$"},
	},
	{
		Name: "tables-changed-entity-is-an-error", Why: "work that has lost a race for an entity fails instead of running again",
		File: "store/tablestore/tx.go",
		Old:  `if refused.status == http.StatusPreconditionFailed || refused.mine && isStale(err) {`,
		New:  `if refused.mine && isStale(err) {`,
		Test: Test{"./store/tablestore", "^TestConditionsOfAUser$"},
	},
	{
		Name: "tables-existing-entity-is-a-conflict", Why: "work that can never commit runs again and again",
		File: "store/tablestore/tx.go",
		Old:  `|| refused.mine && isStale(err) {`,
		New:  `|| isStale(err) {`,
		Test: Test{"./store/tablestore", "^TestConditionsOfAUser$"},
	},
	{
		Name: "tables-damaged-key-is-free", Why: "a key whose status cannot be read is claimed, and its work runs again",
		File: "store/tablestore/entity.go",
		Old:  "row.Status < 0 && r.bad == \"\" {\n\t\tr.bad = \"Status\"",
		New:  "row.Status < 0 && r.bad == \"\" {\n\t\trow.Status = once.Absent",
		Test: Test{"./store/tablestore", "^TestADamagedEntityIsCorrupt$"},
	},
	{
		Name: "tables-message-beside-the-batch", Why: "a message is published whose transaction was refused",
		File: "store/tablestore/tx.go",
		Old: `	_, err = e.submit(ctx, rows, t.actions)
	if err = commitError(err)`,
		New: `	if own := len(t.changes.All()); len(rows) > own && own+len(t.actions) > 0 {
		if _, err = e.submit(ctx, rows[own:], nil); err != nil {
			return commitError(err)
		}
		rows = rows[:own]
	}
	_, err = e.submit(ctx, rows, t.actions)
	if err = commitError(err)`,
		Test: Test{"./store/tablestore", "^TestAMessageOfARefusedTransactionIsNotThere$"},
	},
	{
		Name: "tables-no-intent", Why: "a message commits, and no relay ever finds it",
		File: "store/tablestore/intent.go",
		Old:  `if c.Over == "" && c.Is != nil && cas.IsMessage(c.Name) {`,
		New:  `if c.Over != "" && c.Is != nil && cas.IsMessage(c.Name) {`,
		Test: Test{"./store/tablestore", "^TestALateCommitOfAMessage$"},
	},
	{
		Name: "tables-tombstone-over-message", Why: "a relay that cleans up deletes a message that has just been committed",
		File: "store/tablestore/intent.go",
		Old:  `_, err := e.client.AddEntity(ctx, text, nil)`,
		New:  `_, err := e.client.UpsertEntity(ctx, text, nil)`,
		Test: Test{"./store/tablestore", "^TestAMessageIsCommittedBeforeItsTombstone$"},
	},
	{
		Name: "tables-no-tombstone", Why: "a commit that is late puts a message that no relay finds",
		File: "store/tablestore/intent.go",
		Old:  `done, err := e.bury(ctx, i.DocName, is.tombstone, now)`,
		New:  `done, err := true, error(nil)`,
		Test: Test{"./store/tablestore", "^TestALateCommitOfAMessage$"},
	},
	{
		Name: "tables-intent-in-any-version", Why: "a message that was stuck and is tried again loses its intent, and is never published",
		File: "store/tablestore/document.go",
		Old:  `&aztables.DeleteEntityOptions{IfMatch: &at.tag}`,
		New:  `nil`,
		Test: Test{"./store/tablestore", "^(TestAMessageGetsItsNameBack|TestATombstoneIsReplacedWhileItsIntentIsDeleted)$"},
	},
	{
		Name: "tables-impatient-relay", Why: "relays refuse commits that are on their way",
		File: "store/tablestore/intent.go",
		Old:  `if now.AtLeastSince(i.written) <= cmp.Or(e.settle, maxUnsettled) {`,
		New:  `if now.AtLeastSince(i.written) <= -cmp.Or(e.settle, maxUnsettled) {`,
		Test: Test{"./store/tablestore", "^TestALateCommitOfAMessage$"},
	},
	{
		Name: "tables-rename-stuck", Why: "a message whose change of state was lost cannot change it for a day",
		File: "store/tablestore/intent.go",
		Old:  `if is.Version != "" || was.Version != m.Over {`,
		New:  `if is.Version != "" || is.tombstone != "" || was.Version != m.Over {`,
		Test: Test{"./store/tablestore", "^TestALateRename$"},
	},
	{
		Name: "tables-rename-gives-up", Why: "a change of state is taken for made by somebody else because a tombstone was forgotten at that moment",
		File: "store/tablestore/intent.go",
		Old:  `if is.Version != "" || was.Version != m.Over {`,
		New:  `if is.tombstone == "" || was.Version != m.Over {`,
		Test: Test{"./store/tablestore", "^TestATombstoneIsForgottenWhileItIsInTheWay$"},
	},
	{
		Name: "tables-cleans-up-any-intent", Why: "a reader that cleans up deletes the intent of a second try, whose message is lost",
		File: "store/tablestore/intent.go",
		Old: `			_, err := e.deleteDoc(ctx, i.at())
			return cas.Doc{}, err`,
		New: `			i.tag = azcore.ETagAny
			_, err := e.deleteDoc(ctx, i.at())
			return cas.Doc{}, err`,
		Test: Test{"./store/tablestore", "^TestTwoReadersCleanUp$"},
	},
	{
		Name: "tables-keeps-intents", Why: "each message that was sent is looked for until a minute has passed",
		File: "store/tablestore/intent.go",
		Old:  `e.endIntents(ctx, gone)`,
		New:  `_ = gone`,
		Test: Test{"./store/tablestore", "^TestTwoRelaysEndAMessage$"},
	},
	{
		Name: "tables-reads-half-a-commit", Why: "a message is published before an earlier one of its transaction and ordering key",
		File: "store/tablestore/intent.go",
		Old:  `if err := e.readAgain(ctx, found); err != nil {`,
		New:  `if err := e.readAgain(ctx, nil); err != nil {`,
		Test: Test{"./store/tablestore", "^TestACommitArrivesBetweenTheReadsOfItsMessages$"},
	},
	{
		Name: "tables-waits-for-ever", Why: "a call hangs while the service is overloaded",
		File: "store/tablestore/engine.go",
		Old:  `return busy && time.Since(began) < cmp.Or(e.wait, maxWait)`,
		New:  `_ = cmp.Or(e.wait, maxWait); return busy`,
		Test: Test{"./store/tablestore", "^TestWaitingForABusyServiceEnds$"},
	},
	{
		Name: "tables-forget-begins-anew", Why: "what is due at the end of a large table is never forgotten",
		File: "store/tablestore/tablestore.go",
		Old:  `if s.due = next; next == (place{}) {`,
		New:  `if next == (place{}) {`,
		Test: Test{"./store/tablestore", "^TestForgetGoesOnWhereItStopped$"},
	},
}
