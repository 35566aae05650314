package seedbugs

// sqsTest is a test of sqsbroker, which needs no server.
func sqsTest(name string) Test { return Test{"./broker/sqsbroker", name} }

var sqsBrokerBugs = []Bug{
	{
		Name: "sqs-settles-what-is-lost", Why: "a message of another session is settled, or counts as settled although it comes again",
		File: "broker/sqsbroker/session.go",
		Old:  `until: asked.Add(s.visibility)`,
		New:  `until: asked.Add(hideLimit)`,
		Test: sqsTest("^TestLostMessageIsNotSettled$/^ack,_told_false$"),
	},
	{
		Name: "sqs-keeps-what-is-lost", Why: "a message that the service would not renew is settled",
		File: "broker/sqsbroker/session.go",
		Old:  "case isLost(lost[a]):\n\t\t\ts.lose(a)",
		New:  "case isLost(lost[a]):\n\t\t\ta.until = until[a]",
		Test: sqsTest("^TestLostMessageIsNotSettled$/^ack,_told_true$"),
	},
	{
		Name: "sqs-hides-what-is-not-deleted", Why: "a message whose deletion failed is hidden for as long as its session lasts",
		File: "broker/sqsbroker/settle.go",
		Old:  `a.settling = true`,
		New:  `a.settling = false`,
		Test: sqsTest("^TestMessageWhoseAckFailedIsNotRenewed$"),
	},
	{
		Name: "sqs-believes-a-batch", Why: "messages of a batch that were not deleted count as acknowledged",
		File: "broker/sqsbroker/session.go",
		Old:  `errs[as[i]] = &refusal{aws.ToString(e.Code), aws.ToString(e.Message), e.SenderFault}`,
		New:  `delete(errs, as[i])`,
		Test: sqsTest("^TestAckTellsThatMessagesOfABatchWereNotDeleted$"),
	},
	{
		Name: "sqs-confirms-a-batch", Why: "messages of a batch that were not stored count as published",
		File: "broker/sqsbroker/publisher.go",
		Old:  "\tdefault:\n\t\terrs[i] = err\n\t}",
		New:  "\tdefault:\n\t\tdelete(errs, i)\n\t}",
		Test: sqsTest("^TestPublisherTellsWhichMessagesOfABatchFailed$"),
	},
	{
		Name: "sqs-deletes-before-dead-letter", Why: "a rejected message whose dead letter was not stored is lost",
		File: "broker/sqsbroker/settle.go",
		Old:  `err = errors.Join(err, sendErr, s.remove(ctx, sent))`,
		New:  `err = errors.Join(err, sendErr, s.remove(ctx, append(sent[:0:0], kept...)))`,
		Test: sqsTest("^TestRejectDeletesNothingThatIsNoDeadLetter$"),
	},
	{
		Name: "sqs-dead-letter-taken-for-a-copy", Why: "a message that is rejected again after a redrive is dropped as a copy, and lost",
		File: "broker/sqsbroker/settle.go",
		Old:  `stored := aws.ToString(a.message.MessageId) + "@" + a.message.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)]`,
		New:  `stored := decode(s.queue, &a.message).ID`,
		Test: sqsTest("^TestRedrivenMessageIsHandledAgain$"),
	},
	{
		Name: "sqs-group-goes-on", Why: "messages are handled before an earlier one of their group that failed",
		File: "broker/sqsbroker/settle.go",
		Old:  `later = append(later, s.followers(a)...)`,
		New:  `_ = s.followers(a)`,
		Test: sqsTest("^TestFailedMessageHoldsUpItsGroup$"),
	},
	{
		Name: "sqs-group-at-once", Why: "a message of a group is handled while an earlier one may still fail",
		File: "broker/sqsbroker/session.go",
		Old:  `if len(ds) == limit || a.group != "" && s.out[a.group] != nil {`,
		New:  `if len(ds) == limit {`,
		Test: sqsTest("^TestFailedMessageHoldsUpItsGroup$"),
	},
	{
		Name: "sqs-batch-with-a-group", Why: "the service stores a message although an earlier one of its group failed",
		File: "broker/sqsbroker/publisher.go",
		Old:  `groups[w.group] = w.group != ""`,
		New:  `groups[w.group] = false`,
		Test: sqsTest("^TestPublisherSendsNothingAfterAFailureOfItsKey$"),
	},
	{
		Name: "sqs-key-passes-a-failure", Why: "a later batch has a message of a group whose earlier message failed",
		File: "broker/sqsbroker/publisher.go",
		Old:  `failed[wires[i].group] = true`,
		New:  `failed[wires[i].group] = false`,
		Test: sqsTest("^TestPublisherSendsNothingAfterAFailureOfItsKey$"),
	},
	{
		Name: "sqs-new-deduplication-id", Why: "a message that a relay sends again is stored again",
		File: "broker/sqsbroker/message.go",
		Old:  `w.dedup, w.group = fifoID(m.ID), fifoID(m.ID)`,
		New:  `w.dedup, w.group = fifoID(m.ID+time.Now().String()), fifoID(m.ID)`,
		Test: sqsTest("^TestDeduplicationIDIsTheMessages$"),
	},
	{
		Name: "sqs-takes-another-queue", Why: "messages of a queue that was deleted are lost without an error",
		File: "broker/sqsbroker/session.go",
		Old:  `case err == nil && (is.created != s.is.created || is.arn != s.is.arn):`,
		New:  `case err == nil && is.arn != s.is.arn:`,
		Test: sqsTest("^TestSessionEndsLoudlyWithItsQueue$/^made_anew$"),
	},
	{
		Name: "sqs-repeats-without-an-attempt", Why: "messages whose answer was lost are hidden, and hold up their groups",
		File: "broker/sqsbroker/session.go",
		Old:  `in.ReceiveRequestAttemptId = aws.String(rand.Text())`,
		New:  `_ = rand.Text()`,
		Test: sqsTest("^TestLostAnswerHidesNothing$"),
	},
}
