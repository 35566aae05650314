package seedbugs

// batchBugs are in what handles several messages at once.
var batchBugs = []Bug{
	{
		Name: "a-batch-goes-to-the-shelf-out-of-order",
		Why:  "a message is handled before an earlier one of its ordering key, which could not be put on the shelf beside it",
		File: "inbox/session.go",
		Old:  "if stays[it.lane] && r.needsShelf() {",
		New:  "if stays[it.lane] && r.needsShelf() && it.lane == \"\" {",
		Test: Test{"./inbox", "^TestMessagesOfABatchGoToTheShelfInOrder$"},
	},
	{
		Name: "a-batch-passes-what-is-too-old",
		Why:  "a message is handled although an earlier one of its ordering key in its batch is parked, as it is too old",
		File: "inbox/judge.go",
		Old:  "waits[it.lane] = it.lane != \"\" && results[i].holdsUp()",
		New:  "waits[it.lane] = false",
		Test: Test{"./inbox", "^TestMessagesOfABatchWaitForOneThatIsTooOld$"},
	},
	{
		Name: "a-redelivery-is-settled-before-its-message",
		Why:  "a message of a log is acknowledged before it is handled, and waits until the next one of its partition if the process ends",
		File: "inbox/position.go",
		Old:  "if p.at.Log != \"\" && items[i].Position.Offset <= p.at.Offset {",
		New:  "if items[i].Position.Offset >= 0 {",
		Test: Test{"./inbox", "^TestARedeliveryIsSettledWithItsMessage$"},
	},
	{
		Name: "a-copy-in-a-batch-lets-others-pass",
		Why:  "a message that fails behind a copy in its batch is tried again at once, and more often than it may",
		File: "inbox/tx_batch.go",
		Old:  "\t\t\twaits[it.order] = true\n\t\t}\n\t}\n\treturn first, results",
		New:  "\t\t}\n\t}\n\treturn first, results",
		Test: Test{"./inbox", "^TestACopyInABatchDoesNotHaveALaterMessageTriedAgain$"},
	},
	{
		Name: "a-divided-batch-passes-what-was-blocked",
		Why:  "a message is handled before an earlier one of its ordering key, if what both wait for is handled meanwhile",
		File: "inbox/tx_divide.go",
		Old:  "(of[i].holdsUp() || of[i].kind == blocked)",
		New:  "of[i].holdsUp()",
		Test: Test{"./inbox", "^TestMessagesOfADividedBatchStayInOrderIfTheOneTheyWaitForIsHandledMeanwhile$"},
	},
	{
		Name: "what-is-held-goes-to-the-shelf-first",
		Why:  "a message whose topic is down is put on the shelf before an earlier one of its ordering key, and handled before it",
		File: "inbox/session.go",
		Old:  "s.hold(ctx, it, wait, before[it.lane])",
		New:  "s.hold(ctx, it, wait, before[\"none\"])",
		Test: Test{"./inbox", "^TestAMessageThatIsHeldGoesToTheShelfAfterEarlierOnesOfItsBatch$"},
	},
	{
		Name: "a-batch-passes-what-is-to-be-parked",
		Why:  "a message is handled although an earlier one of its ordering key, which was delivered again, is parked for its input",
		File: "inbox/tx_batch.go",
		Old:  "first = behindNone(first, known)",
		New:  "first = first[len(known):]",
		Test: Test{"./inbox", "^TestMessagesOfABatchWaitForARedeliveredOneWithAnotherInput$"},
	},
	{
		Name: "a-probe-that-is-too-old-is-waited-for",
		Why:  "after an outage, a topic waits for up to minutes because the message that is to show that it is up was too old",
		File: "inbox/session.go",
		Old:  "s.tellOutages(handling, items, results)",
		New:  "s.tellOutages(handling, young, results[len(items)-len(young):])",
		Test: Test{"./inbox", "^TestAProbeThatIsTooOldDoesNotKeepOthersFromTrying$"},
	},
}
