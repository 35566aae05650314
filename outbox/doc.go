// Package outbox ties messages to the transaction that they tell of: they are written in it, and a relay publishes them once
// it has committed. So state and event cannot drift apart, whatever crashes between the two.
//
//	events := outbox.New(store, nil)
//	...
//	err := events.Put(ctx, tx, &broker.Message{Topic: "order.paid", OrderingKey: order.ID, Body: body})
//	...
//	relay := &outbox.Relay{Store: store, Publisher: rabbit.Publisher("shop")}
//	err := relay.Run(ctx) // in any process, and in any number of them
//
// # Promise
//
// A message is published if its transaction commits, and never if it does not. It is published at least once, and always
// with the ID that it was put with, so that a consumer of package inbox handles it once. It is published again only after a
// crash, a lost confirmation, or a relay that stalled for longer than its lease: in steady state, with any number of
// relays, each message goes out once.
//
// No message is skipped: a relay remembers no place in the table that it would go on from, so a transaction that was
// open while later ones committed is found whenever it commits.
//
// Messages with an equal ordering key are published in the order in which they were put, if their transactions do not
// overlap: what both of them change, like the row of an order, sees to that. A message that the broker does not take
// holds up those behind it with its ordering key, and no others. Each message has the header once-seq: a number that
// rises from one to the next of an ordering key, and is the same when a message is published again.
//
// # When the broker does not take a message
//
// If nothing gets through, the broker is down: the relay waits, longer and longer, up to ten seconds, and no message
// is blamed. If a message fails alone, others get through, and it fails alone once more, it is the message: it is held,
// tried again up to Retry.Attempts, and then Stuck, which a person deals with ([Admin]). One that is [broker.ErrInvalid] is
// Stuck at once.
//
// # Limits
//
// Relays rely on the [broker.Publisher] to come back when its context ends. One that does not loses its lanes to others
// after a while, and Run cannot end.
//
// Order and fencing end at the broker: a relay that stalls in the middle of a publish, for longer than its lease, may
// send what another has sent meanwhile, and a broker cannot refuse it. Consumers can tell by once-seq.
//
// Delayed messages are put in no order, and go out within about a second of when they are due.
//
// # Compatibility
//
// That of package once. The rows may be written by any SQL client: docs/outbox-row.md says how.
package outbox
