package seedbugs

// cosmosConformance is a part of the suite. Some of the rest waits long for what
// does not happen.
func cosmosConformance(groups string) Test {
	return Test{"./store/cosmosstore", "^TestConformance$/^(" + groups + ")$"}
}

var cosmosBugs = []Bug{
	{
		Name: "cosmos-reads-a-replica", Why: "a duplicate is told what was true before its work was done",
		File: "store/cosmosstore/cosmosstore.go",
		Old: `	results, err := e.execute(ctx, batch)
	if err != nil {
		return found, err
	}`,
		New: `	is, err := e.container.ReadItem(ctx, azcosmos.NewPartitionKeyString(partition), id, nil)
	if err != nil && statusOf(err) != http.StatusNotFound {
		return found, err
	}
	results := []azcosmos.TransactionalBatchResult{{StatusCode: http.StatusOK, ResourceBody: is.Value, ETag: is.ETag}}
	if err != nil {
		results[0].StatusCode, err = http.StatusNotFound, nil
	}`,
		Test: Test{"./store/cosmosstore", "^TestNoAnswerDependsOnTheConsistencyLevel$"},
	},
	{
		Name: "cosmos-claim-overwrites", Why: "a rival's claim replaces that of a call at work",
		File: "store/cosmosstore/cosmosstore.go",
		Old:  `put, err = e.container.CreateItem(ctx, key, item, nil)`,
		New:  `put, err = e.container.UpsertItem(ctx, key, item, nil)`,
		Test: cosmosConformance("claim|settle|takeover|race"),
	},
	{
		Name: "cosmos-replace-without-tag", Why: "two takeovers of one attempt both succeed",
		File: "store/cosmosstore/cosmosstore.go",
		Old:  `put, err = e.container.ReplaceItem(ctx, key, id, item, &azcosmos.ItemOptions{IfMatchEtag: &tag})`,
		New:  `put, err = e.container.ReplaceItem(ctx, key, id, item, &azcosmos.ItemOptions{PreTriggers: []string{string(tag)}})`,
		Test: cosmosConformance("claim|settle|takeover|race"),
	},
	{
		Name: "cosmos-outcome-that-is-not-there", Why: "a repeat is told that its record is damaged, while Forget is ahead of its process",
		File: "store/cosmosstore/item.go",
		Old:  `it.Once.KeepOutcome = "" //`,
		New:  `_ = it.Once.KeepOutcome //`,
		Test: Test{"./store/cosmosstore", "^TestAnOutcomeThatIsRemovedHasExpiredForAll$"},
	},
	{
		Name: "cosmos-batch-overwrites", Why: "two transactions on a new key both commit",
		File: "store/cosmosstore/tx.go",
		Old: `if c.Was.Version == "" {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.CreateItem(text, nil) })`,
		New: `if c.Was.Version == "" {
			adds = append(adds, func(b *azcosmos.TransactionalBatch) { b.UpsertItem(text, nil) })`,
		Test: cosmosConformance("transact|speculative|race"),
	},
	{
		Name: "cosmos-batch-without-tag", Why: "a commit that is late is applied after another took its place",
		File: "store/cosmosstore/tx.go",
		Old:  `&azcosmos.TransactionalBatchItemOptions{IfMatchETag: &tag})`,
		New:  `&azcosmos.TransactionalBatchItemOptions{}); _ = tag`,
		Test: Test{"./store/cosmosstore", "^TestALateCommitIsRefused$"},
	},
	{
		Name: "cosmos-lost-commit-as-an-error", Why: "work whose commit was applied is reported as failed",
		File: "store/cosmosstore/tx.go",
		Old:  `case err != nil && mayHaveBeenApplied(err):`,
		New:  `case err != nil && false:`,
		Test: Test{"./store/cosmosstore", "^TestLostRequestsAndReplies$"},
	},
	{
		Name: "cosmos-unavailable-as-an-error", Why: "work that was applied before a 503 is reported as failed",
		File: "store/cosmosstore/wire.go",
		Old:  `status == http.StatusGone || status >= 500:`,
		New:  `status == http.StatusGone:`,
		Test: Test{"./store/cosmosstore", "^TestLostRequestsAndReplies$"},
	},
	{
		Name: "cosmos-throttled", Why: "calls fail because the service asks for a moment",
		File: "store/cosmosstore/wire.go",
		Old:  `return status == http.StatusTooManyRequests || status == retryWith`,
		New:  `return status == retryWith`,
		Test: Test{"./store/cosmosstore", "^TestThrottlingIsWaitedFor$"},
	},
	{
		Name: "cosmos-no-content", Why: "the service says of a batch only that it failed",
		File: "store/cosmosstore/wire.go",
		Old:  `EnableContentResponseOnWrite: true`,
		New:  `EnableContentResponseOnWrite: false`,
		Test: cosmosConformance("transact"),
	},
	{
		Name: "cosmos-clock-of-the-client", Why: "a client whose clock is ahead takes over work that is running",
		File: "store/cosmosstore/wire.go",
		Old:  `e.clock.Learn(sent, date, time.Second)`,
		New:  `e.clock.Learn(sent, date.Add(-time.Until(date)), time.Second)`,
		Test: Test{"./store/cosmosstore", "^TestTheClockOfThisMachineDecidesNothing$"},
	},
	{
		Name: "cosmos-expires-early", Why: "a key is forgotten before its time, and its work runs again",
		File: "store/cosmosstore/item.go",
		Old:  `seconds := max(now.AtMostUntil(at), 0)/time.Second + 2`,
		New:  `seconds := max(now.AtMostUntil(at), 0)/time.Second + 1`,
		Test: Test{"./store/cosmosstore", "^TestTheServiceDeletesRecordsInTime$"},
	},
	{
		Name: "cosmos-open-records-expire", Why: "a key that waits for a person is forgotten",
		File: "store/cosmosstore/item.go",
		Old: `	if !ok {
		return -1
	}`,
		New: `	if !ok {
		return 7200
	}`,
		Test: Test{"./store/cosmosstore", "^TestTheServiceDeletesRecordsInTime$"},
	},
	{
		Name: "cosmos-drops-outcomes-early", Why: "repeats get no answer although it should be kept",
		File: "store/cosmosstore/item.go",
		Old:  `return row.Status == once.Done && now.Passed(row.KeepOutcome)`,
		New:  `return row.Status == once.Done && now.Passed(row.KeepOutcome-7200e6)`,
		Test: cosmosConformance("outcome|retention|settle"),
	},
	{
		Name: "cosmos-damage-unnoticed", Why: "an item that somebody has edited is read as a free key",
		File: "store/cosmosstore/item.go",
		Old:  `case !known || row.Attempt < 1:`,
		New:  `case !known && row.Attempt < 1:`,
		Test: Test{"./store/cosmosstore", "^TestADamagedItemIsCorrupt$"},
	},
	{
		Name: "cosmos-no-time-to-live", Why: "a container that ignores it keeps every key for ever",
		File: "store/cosmosstore/cosmosstore.go",
		Old:  `case is.DefaultTimeToLive == nil:`,
		New:  `case is.DefaultTimeToLive == nil && property == "":`,
		Test: Test{"./store/cosmosstore", "^TestUnsuitableContainersAreRefused$"},
	},
	{
		Name: "cosmos-two-partitions", Why: "a transaction is sent that the service cannot apply as a whole",
		File: "store/cosmosstore/tx.go",
		Old:  `return partition == to`,
		New:  `return partition == to || known`,
		Test: Test{"./store/cosmosstore", "^TestATransactionThatTheServiceCannotTakeIsNotSent$"},
	},
	{
		Name: "cosmos-too-many-writes", Why: "a transaction is sent that the service refuses",
		File: "store/cosmosstore/tx.go",
		Old:  `n > maxBatch {`,
		New:  `n > 10*maxBatch {`,
		Test: Test{"./store/cosmosstore", "^TestATransactionThatTheServiceCannotTakeIsNotSent$"},
	},
	{
		Name: "cosmos-changed-item-as-an-error", Why: "work fails because an item that it read has changed",
		File: "store/cosmosstore/tx.go",
		Old:  `status == http.StatusPreconditionFailed && tx.writes[refused.Index].matches:`,
		New:  `status == http.StatusPreconditionFailed && tx.writes == nil:`,
		Test: Test{"./store/cosmosstore", "^TestRefusedWrites$"},
	},
	{
		Name: "cosmos-list-skips", Why: "stuck keys are not found",
		File: "store/cosmosstore/list.go",
		Old: `			r.narrow()
			continue`,
		New: `			r.narrow()
			r = r.next()
			continue`,
		Test: Test{"./store/cosmosstore", "^TestListsOfManyRecordsHaveBoundedPages$"},
	},
	{
		Name: "cosmos-query-for-each-lane", Why: "a relay that looks for messages costs sixteen times as much",
		File: "store/cosmosstore/queue.go",
		Old:  `		if first {`,
		New:  `		if first && limit < 0 {`,
		Test: Test{"./store/cosmosstore", "^TestALookAtAllLanesTakesFewQueries$"},
	},
	{
		Name: "cosmos-move-not-repeated", Why: "a message whose move had no answer counts as not moved",
		File: "store/cosmosstore/queue.go",
		Old:  `const tries = 3`,
		New:  `const tries = 1`,
		Test: Test{"./store/cosmosstore", "^TestAMoveWithoutAnAnswer$"},
	},
	{
		Name: "cosmos-bell-keeps-its-place", Why: "one message wakes relays for ever, and each time costs a look",
		File: "store/cosmosstore/bell.go",
		Old: `	f.place = page.ContinuationToken
	size := 0`,
		New:  `	size := 0`,
		Test: Test{"./store/cosmosstore", "^TestTheBellRingsForMessages$"},
	},
	{
		Name: "cosmos-bell-for-all-messages", Why: "each message that a relay ends with Keep wakes all relays",
		File: "store/cosmosstore/bell.go",
		Old:  `cas.WakesRelays(is.Once.Out)`,
		New:  `cas.IsMessage(is.Once.Out)`,
		Test: Test{"./store/cosmosstore", "^TestTheBellRingsForMessages$"},
	},
	{
		Name: "cosmos-bell-skips-in-silence", Why: "a message among many changes wakes nobody",
		File: "store/cosmosstore/bell.go",
		Old:  `return true, err`,
		New:  `return heard, err`,
		Test: Test{"./store/cosmosstore", "^TestTheBellDoesNotReadManyChanges$"},
	},
	{
		Name: "cosmos-bell-reads-all", Why: "each relay pays for reading all that is written to the container",
		File: "store/cosmosstore/bell.go",
		Old:  `if len(page.Items) < maxChanges && size < maxChangeBytes {`,
		New:  `if len(page.Items) < maxChanges || size < maxChangeBytes {`,
		Test: Test{"./store/cosmosstore", "^TestTheBellDoesNotReadManyChanges$"},
	},
	{
		Name: "cosmos-bell-reads-the-past", Why: "each relay that starts may read all items of the container",
		File: "store/cosmosstore/bell.go",
		Old:  `	for range reads {`,
		New:  `	for range 1000 * reads {`,
		Test: Test{"./store/cosmosstore", "^TestAFeedThatBeginsAtTheBeginningIsRefused$"},
	},
	{
		Name: "cosmos-bell-in-a-hurry", Why: "a throttled relay asks again too soon, and takes what others need",
		File: "store/cosmosstore/bell.go",
		Old:  `max(2*l.pause, retryAfter(err))`,
		New:  `2*l.pause`,
		Test: Test{"./store/cosmosstore", "^TestAThrottledBellWaits$"},
	},
	{
		Name: "cosmos-bell-off-reads", Why: "a feed that was switched off costs all the same",
		File: "store/cosmosstore/bell.go",
		Old:  `if e.feedEvery < 0 {`,
		New:  `if e.feedEvery < -1 {`,
		Test: Test{"./store/cosmosstore", "^TestABellThatIsOff$"},
	},
}
