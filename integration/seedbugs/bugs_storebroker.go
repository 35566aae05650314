package seedbugs

func storeBrokerTest(run string) Test { return Test{"./broker/storebroker", run} }

var storeBrokerBugs = []Bug{
	{
		Name: "storebroker-renews-nothing", Why: "a message whose handler is slow goes to another process as well",
		File: "broker/storebroker/session.go",
		Old:  `if !a.turn.TryTake() {`,
		New:  `if true {`,
		Test: storeBrokerTest("^TestARenewalWhoseReplyIsLostKeepsTheLease$"),
	},
	{
		Name: "storebroker-forgets-its-renewals", Why: "after a lost reply a session gives up messages that it has",
		File: "broker/storebroker/session.go",
		Old:  `if isLost(errs[i]) && a.unsure {`,
		New:  `if false {`,
		Test: storeBrokerTest("^TestARenewalWhoseReplyIsLostKeepsTheLease$"),
	},
	{
		Name: "storebroker-drops-what-nobody-takes", Why: "a message without a consumer is gone",
		File: "broker/storebroker/publisher.go",
		Old:  "if len(q.keys[source]) == 0 {",
		New:  "if false {",
		Test: storeBrokerTest("^TestALateConsumerGetsWhatFollows$"),
	},
	{
		Name: "storebroker-refuses-when-full", Why: "messages are stuck for good because a queue was full for a moment",
		File: "broker/storebroker/publisher.go",
		Old:  `		if len(found) > 0 {`,
		New:  `		if len(found) > 1000 {`,
		Test: storeBrokerTest("^TestAFullQueueIsWaitedFor$"),
	},
	{
		Name: "storebroker-one-refused-row-stops-all", Why: "one row that cannot be changed keeps all others from their consumer",
		File: "broker/storebroker/session.go",
		Old:  `if len(taken) > 0 { //`,
		New:  `if false { //`,
		Test: storeBrokerTest("^TestAMessageThatCannotBeTakenStopsNoOthers$"),
	},
	{
		Name: "storebroker-passes-what-cannot-be-opened", Why: "a message overtakes an earlier one of its ordering key whose row is damaged",
		File: "broker/storebroker/session.go",
		Old:  `holds := forGood && row.Message.OrderingKey != ""`,
		New:  `holds := false`,
		Test: storeBrokerTest("^TestAMessageThatCannotBeOpenedKeepsTheOrder$"),
	},
	{
		Name: "storebroker-closes-without-end", Why: "a process does not end, because a store does not return",
		File: "broker/storebroker/settle.go",
		Old: `	case <-ctx.Done():
		return context.Cause(ctx)
	}
}`,
		New: `	}
}`,
		Test: storeBrokerTest("^TestSettlingAndClosingObeyTheirContexts$"),
	},
	{
		Name: "storebroker-refuses-at-once", Why: "a message is stuck for good because a full queue became empty meanwhile",
		File: "broker/storebroker/publisher.go",
		Old:  `for range 2 {`,
		New:  `for range 1 {`,
		Test: storeBrokerTest("^TestAQueueThatWasFullAMomentAgoIsNoFault$"),
	},
	{
		Name: "storebroker-ids-alone", Why: "a second message with an ID is dropped in silence",
		File: "broker/storebroker/publisher.go",
		Old:  `if id := m.ID + "#" + seq; len(id) <= name.Limit {`,
		New:  `if id := m.ID; len(id) <= name.Limit {`,
		Test: storeBrokerTest("^TestAQueueTakesAPublishedMessageOnce$"),
	},
	{
		Name: "storebroker-takes-whatever-the-version", Why: "an attempt is not counted, so a redelivery counts as new",
		File: "broker/storebroker/session.go",
		Old:  `rows[i].Attempts, rows[i].Due, rows[i].Reason = rows[i].Attempts+1, s.broker.options.Lease, s.holder`,
		New:  `rows[i].Attempts, rows[i].Due, rows[i].Reason = 1, s.broker.options.Lease, s.holder`,
		Test: storeBrokerTest("^TestTheMessagesOfADeadProcessComeFree$"),
	},
	{
		Name: "storebroker-says-nothing", Why: "nobody learns for whom messages wait",
		File: "broker/storebroker/session.go",
		Old:  `renewed := s.broker.options.Lease / 2 //`,
		New:  `renewed := time.Duration(0) //`,
		Test: storeBrokerTest("^TestTheMessagesOfADeadProcessComeFree$"),
	},
	{
		Name: "storebroker-seals-nothing", Why: "bodies in a queue can be read in the table",
		File: "broker/storebroker/publisher.go",
		Old:  `append(sealed[i], store.SealShelved(b.sealing, row))`,
		New:  `append(sealed[i], row)`,
		Test: Test{"./inbox", "^TestAQueueIsSealed$"},
	},
	{
		Name: "inbox-queue-by-name", Why: "a renamed consumer loses what is in its queue",
		File: "inbox/session.go",
		Old:  `source = topic.For(e.keys)`,
		New:  `source = topic.For(e.Name)`,
		Test: Test{"./inbox", "^TestARenamedConsumerKeepsItsQueue$"},
	},
	{
		Name: "inbox-retires-over-a-queue", Why: "a consumer is retired with messages in its queue, which nobody handles",
		File: "inbox/admin_consumer.go",
		Old:  `Queued: discard}`,
		New:  `Queued: true}`,
		Test: Test{"./inbox", "^TestRetireKnowsWhatComesMeanwhile$"},
	},
	{
		Name: "what-comes-while-a-consumer-is-retired-stays", Why: "messages that come into the queue of a consumer while it is retired, with discard, wait for nobody",
		File: "inbox/admin_consumer.go",
		Old:  `if err != nil || !discard {`,
		New:  `if true {`,
		Test: Test{"./inbox", "^TestRetireKnowsWhatComesMeanwhile$"},
	},
	{
		Name: "a-refused-retirement-empties-the-queue", Why: "messages are lost when a person tries to retire a consumer that was retired before, and is at work again",
		File: "inbox/admin_consumer.go",
		Old:  `if discard && areRetired(rows, c.Keys) {`,
		New:  `if discard {`,
		Test: Test{"./inbox", "^TestRetireOfAConsumerThatContinuesGivesUpNothing$"},
	},
	{
		Name: "a-retired-consumer-begins-a-partition", Why: "a process that was paused handles messages of a consumer that was retired meanwhile",
		File: "inbox/position.go",
		Old:  `areRetired(rows, h.keys)`,
		New:  `areRetired(rows, "")`,
		Test: Test{"./inbox", "^TestAPausedProcessOfARetiredConsumerDoesNotBeginAPartition$"},
	},
	{
		Name: "a-topic-that-recovers-wakes-the-first-only", Why: "a message that waits for another one, too, is tried hours after its topic has recovered",
		File: "inbox/session.go",
		Old:  `it.waitsUp = wait > 0`,
		New:  `it.waitsUp = wait > 0 && !stays`,
		Test: Test{"./inbox", "^TestAMessageAfterOneOfAnotherTopicIsTriedWhenItsTopicRecovers$"},
	},
	{
		Name: "an-end-is-forgotten-before-it-is-parked", Why: "a message that failed is blamed for the end of a process that lives",
		File: "inbox/effects.go",
		Old:  `if r.kind == handled { // a message`,
		New:  `if r.kind == handled || r.kind == toPark { // a message`,
		Test: Test{"./inbox", "^TestTheEndOfAnAttemptIsRememberedUntilItsMessageIsParked$"},
	},
	{
		Name: "a-relay-forgets-what-was-parked", Why: "a message without an ordering key that was parked, and discarded while its chunk was published, is published",
		File: "outbox/holds.go",
		Old: `	for i := range ms {
		m := &ms[i]
		switch {
		case !mine`,
		New: `	clear(h.aside)
	for i := range ms {
		m := &ms[i]
		switch {
		case !mine`,
		Test: Test{"./outbox", "^TestAParkedMessageThatIsThenDiscardedIsNotPublished$"},
	},
	{
		Name: "outbox-blames-what-comes-early", Why: "a message is stuck because its consumer did not run yet",
		File: "outbox/round.go",
		Old:  `if errors.Is(err, broker.ErrNotYet) {`,
		New:  `if false {`,
		Test: Test{"./outbox", "^TestMessagesThatComeTooEarlyWaitUnblamed$"},
	},
	{
		Name: "cas-ready-by-a-torn-read", Why: "two processes take one message that waits on the shelf",
		File: "store/cas/shelf.go",
		Old:  `if h.Version == 0 || h.line != of && (q.Ready || h.State != of.State) {`,
		New:  `if false {`,
		Test: Test{"./store/cas", "^TestWhatWasTakenMeanwhileIsNotReady$"},
	},
	{
		Name: "storebroker-passes-a-damaged-consumer", Why: "a consumer whose row cannot be read loses what is published meanwhile",
		File: "broker/storebroker/publisher.go",
		Old:  `c.Source == "" || name == source {`,
		New:  `c.Source == "" && name == source {`,
		Test: Test{"./broker/storebroker", "^TestNothingIsPublishedPastADamagedConsumer$"},
	},
	{
		Name: "cas-position-that-is-gone-begins-anew", Why: "the document of a position is lost, and its partition is handled again",
		File: "store/cas/position.go",
		Old:  "case listed && !known && damage == nil:",
		New:  "case listed && !known && damage != nil:",
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
	{
		Name: "cas-drops-a-damaged-consumer", Why: "another consumer registers, and a row that cannot be read is gone for good",
		File: "store/cas/consumer.go",
		Old:  "		return r.stored, nil",
		New:  "		return []byte(`{}`), nil",
		Test: Test{"./store/cas", "^TestConformanceBesideDamage$"},
	},
}
