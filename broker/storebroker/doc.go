// Package storebroker carries messages through the store itself. An outbox and its
// consumers that share a database need no other broker:
//
//	queue := storebroker.New(store, nil)
//	relay := &outbox.Relay{Store: store, Publisher: queue.Publisher()}
//	billing := &inbox.Consumer{Name: "billing", Source: queue.Queue("orders"), Handler: ...}
//
// # Promise
//
// A message is in the outbox until it is in the queue of each consumer that is
// registered for its topic, and in a queue until its consumer has handled it.
// Nothing is only in memory, so nothing is lost when a process is killed, at
// whatever moment. A message may be delivered again, with its ID, as with every
// broker.
//
// If the store is a [store.HandOver], as memstore, sqlstore and pgstore are, its
// relay moves a message from the outbox to the queues in one commit. Elsewhere, and
// with wrappers that see only some of the calls, these are two commits: if the relay
// dies between them, the message is in both, and is handed over again.
//
// Each consumer, by its name, has a queue of its own. Its processes share it. A
// consumer is registered when it first runs, and gets what is published to the
// topic from then on. A message without a registered consumer is not dropped: it
// waits in the outbox, and the relay says so.
//
// One message of an ordering key is delivered at a time, in the order in which they
// were published. Messages without an ordering key have no order.
//
// # Limits
//
// A process that has messages renews its lease on them. If it dies, others get them
// after Options.Lease, 10 seconds by default, and say meanwhile for whom they wait.
// New messages are delivered at once to consumers that use the same Broker value as
// the publisher, and else after up to Options.Poll.
//
// The store needs a [store.Shelf] and a [store.Registry]. A queue is rows on the
// shelf, so it seals what the shelf seals. On a store that keeps the shelf of a
// consumer in one document (DynamoDB, Cosmos DB, Azure Tables, Redis) a queue
// should stay below a thousand messages: publishing waits when the document is
// full, and the rest stays in the outbox.
//
// A topic is exactly the Topic of its messages: there are no patterns.
//
// # Compatibility
//
// As package broker.
package storebroker
