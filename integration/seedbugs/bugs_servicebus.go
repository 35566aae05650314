package seedbugs

func serviceBusTest(run string) Test { return Test{"./integration/brokers", run} }

var serviceBusBugs = []Bug{
	{
		Name: "servicebus-renews-nothing", Why: "a message whose handler is slow goes to another process as well",
		File: "broker/servicebusbroker/renew.go",
		Old:  `each(as, s.renewMessage)`,
		New:  `each(as[:0], s.renewMessage)`,
		Test: serviceBusTest("^TestServiceBusSlowHandlerKeepsItsMessage$/^sessions_false$"),
	},
	{
		Name: "servicebus-renews-no-session", Why: "a session whose handler is slow goes to another process as well",
		File: "broker/servicebusbroker/renew.go",
		Old:  `if !h.lost && now.After(h.renewAt) {`,
		New:  `if false {`,
		Test: serviceBusTest("^TestServiceBusSlowHandlerKeepsItsMessage$/^sessions_true$"),
	},
	{
		Name: "servicebus-trusts-counts-of-sessions", Why: "a message that another process had counts as new",
		File: "broker/servicebusbroker/held.go",
		Old:  `held: h, redelivered: true}`,
		New:  `held: h, redelivered: raw.DeliveryCount > 1}`,
		Test: serviceBusTest("^TestServiceBusSessionMoves$"),
	},
	{
		Name: "servicebus-forgets-deliveries", Why: "a message whose lock was lost counts as new",
		File: "broker/servicebusbroker/session.go",
		Old:  `raw.DeliveryCount > 1 ||`,
		New:  `raw.DeliveryCount > 2 ||`,
		Test: serviceBusTest("^TestServiceBusLostLockIsNotSettled$/^sessions_false$"),
	},
	{
		Name: "servicebus-hides-lost-locks", Why: "an ack that the service has refused counts as done",
		File: "broker/servicebusbroker/settle.go",
		Old:  `if err = errors.Join(append(errs, err)...); err != nil {`,
		New:  `if err != nil {`,
		Test: serviceBusTest("^TestServiceBusLostLockIsNotSettled$/^sessions_false$"),
	},
	{
		Name: "servicebus-batches-over-partitions", Why: "duplicates in partitioned entities are not detected, or their batches refused",
		File: "broker/servicebusbroker/publisher.go",
		Old:  `at := place{m.Topic, *out[i].SessionID}`,
		New:  `at := place{m.Topic, ""}`,
		Test: serviceBusTest("^TestServiceBusDetectsDuplicates$/^partitioned_true$"),
	},
	{
		Name: "servicebus-sends-without-partition-key", Why: "the partition of a batch hides duplicates",
		File: "broker/servicebusbroker/message.go",
		Old:  `out.SessionID = out.MessageID`,
		New:  `out.SessionID = new(string)`,
		Test: serviceBusTest("^TestServiceBusDetectsDuplicates$/^partitioned_true$"),
	},
	{
		Name: "servicebus-replaces-with-the-same-id", Why: "duplicate detection drops what is replayed",
		File: "broker/servicebusbroker/message.go",
		Old:  `id := fmt.Sprintf("%s/%d/%d", kind, sequence(raw), attempts(raw))`,
		New:  `id := raw.MessageID`,
		Test: serviceBusTest("^TestServiceBusReplaysDeadLetters$/^sessions_false$"),
	},
	{
		Name: "servicebus-delays-under-a-new-id", Why: "a delayed message is handled twice if its original comes too",
		File: "broker/servicebusbroker/message.go",
		Old:  `m.ApplicationProperties[idProperty] = raw.MessageID`,
		New:  `_ = raw`,
		Test: serviceBusTest("^TestServiceBusDelaysWithScheduledCopies$"),
	},
	{
		Name: "servicebus-copies-count-as-new", Why: "a delayed message counts as new, and its attempts have no bound",
		File: "broker/servicebusbroker/message.go",
		Old:  `m.ApplicationProperties[attemptProperty] = int64(attempts(raw))`,
		New:  `_ = attempts`,
		Test: serviceBusTest("^TestServiceBusDelaysWithScheduledCopies$"),
	},
	{
		Name: "servicebus-completes-what-is-rejected", Why: "rejected messages are gone",
		File: "broker/servicebusbroker/settle.go",
		Old:  `return a.from.DeadLetterMessage(ctx, a.raw, &azservicebus.DeadLetterOptions{Reason: &reason, ErrorDescription: &description})`,
		New:  `_ = description; return a.from.CompleteMessage(ctx, a.raw, nil)`,
		Test: serviceBusTest("^TestServiceBusReplaysDeadLetters$/^sessions_false$"),
	},
	{
		Name: "servicebus-hides-traces", Why: "programs that use the clients of Azure see no trace",
		File: "broker/servicebusbroker/message.go",
		Old:  `properties[diagnosticProperty] = trace`,
		New:  `properties["diagnostic"] = trace`,
		Test: serviceBusTest("^TestServiceBusSetsTheFieldsOfTheService$"),
	},
}
