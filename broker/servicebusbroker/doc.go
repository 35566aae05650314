// Package servicebusbroker carries messages over Azure Service Bus: queues, topics
// and subscriptions, through the official client.
//
//	bus := servicebusbroker.New(client, &servicebusbroker.Options{Sessions: true})
//	to := bus.Publisher()                          // the Topic of a message is a queue or a topic
//	from := bus.Subscription("orders", "billing") // or bus.Queue("orders")
//
// # Promise
//
//   - Publish returns nil once Service Bus has accepted a message. The client may
//     have sent it more than once, with the same MessageId.
//   - A message stays locked until Ack or Reject. While a session is open, it
//     renews the locks, so a handler may take longer than the lock duration. If
//     the process dies, the messages come again after that time.
//   - Ack and Reject are answered by the service. It refuses them once the lock is
//     lost, and the message comes again.
//   - With [Options.Sessions], messages of one OrderingKey come in order, to one
//     process at a time. A session of Service Bus that is closed or lost continues
//     elsewhere with its first unsettled message.
//
// # Limits
//
//   - Without Options.Sessions there is no order, also with one consumer: the
//     client gives back messages that come between two receives.
//   - With Options.Sessions every message is Redelivered, and its Attempt unknown
//     until a lock has lapsed, because Service Bus does not count the deliveries
//     of a session that is closed. [Options.MaxSessions]
//     messages with different keys are in flight at most, and one without a key
//     costs a session of its own.
//   - Only queues without sessions are [broker.Delayer]s. Return schedules a copy
//     and completes the message. A crash between the two leaves both.
//   - Every Return, Close of a session without Options.Sessions, and lost lock
//     counts as a delivery, and the service dead-letters a message after the max
//     delivery count of its queue, by default 10. Set that high, because the
//     consumer bounds attempts itself.
//   - Duplicate detection compares MessageIds only, within its window. Replay and
//     delays use other MessageIds, so that it does not drop them.
//   - The rules of a subscription decide which messages it gets. A message that no
//     subscription takes is gone without an error.
//   - Neither the lag, the namespace, nor how long a message may come back can be
//     read over AMQP. With [Options.Management], the lag is asked over HTTP.
//
// # Messages
//
// MessageId is the ID, and SessionId the OrderingKey or else the ID. If one has more
// than 128 bytes, the field has its digest, and the application property once-id or
// once-ordering-key the value. The header correlation-id is the CorrelationId, content-type
// the ContentType, and traceparent also the property Diagnostic-Id. Other headers are
// application properties. Messages of other publishers are read as far as possible:
// names become lower case and values text.
//
// # Rights
//
// A publisher needs Send, a consumer Listen, and one that delays messages or calls
// [Broker.Replay] both. The management client needs Manage.
//
// # Compatibility
//
// As package once. Written for azservicebus 1.11. Tested with a server in the process
// of the tests that imitates Service Bus, and not with the service.
package servicebusbroker
