// Package outbox publishes messages if and only if a transaction commits. The
// messages are written in the transaction, and a relay publishes them after the
// commit. State and events cannot diverge, wherever a process crashes.
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
// A message is published if its transaction commits, and never if it does not.
// It is published at least once, always with the same ID, so that a consumer of
// package inbox handles it once. It is published again only after a crash, a
// lost confirmation, or a relay that stalled for longer than its lease, or for
// seconds if it also lost the lock by which others see that it runs
// ([store.Presence]). Otherwise each message is sent once, whatever the number of
// relays.
//
// No message is skipped. A relay keeps no position in the table, so it finds
// the messages of a transaction whenever that commits, even if later ones
// committed first.
//
// Messages with the same ordering key are published in the order in which they
// were put, if their transactions do not overlap. Transactions that change the
// same row, such as that of an order, do not overlap. A message that the broker
// refuses holds up later messages with its ordering key, and no others. Each
// message has the header once-seq: a number that rises from message to message
// of an ordering key, and stays the same when a message is republished.
//
// # When the broker refuses a message
//
// If no message gets through, the broker is considered down. The relay backs
// off, up to ten seconds, and blames no message. If a message fails alone twice
// while others get through, the message itself is at fault. It is held, retried
// up to Retry.Attempts times, and then Stuck until a person decides ([Admin]).
// A message that fails with [broker.ErrInvalid] is Stuck at once.
//
// # Limits
//
// A [broker.Publisher] must return when its context ends. If it does not, its
// relay eventually loses its lanes to other relays, and Run cannot return.
//
// Order and fencing end at the broker. A relay that stalls during a publish for
// longer than its lease may send what another relay has sent meanwhile, and a
// broker cannot refuse it. Consumers can detect this by once-seq.
//
// Delayed messages have no order. They are published within about a second of
// their due time.
//
// # Compatibility
//
// The same as for package once. Any SQL client may write the rows: see
// docs/outbox-row.md.
package outbox
