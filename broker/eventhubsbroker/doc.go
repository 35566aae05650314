// Package eventhubsbroker carries messages over Azure Event Hubs, with
// azeventhubs. A hub is read as a log. The position is in the database, with the
// rows; no checkpoint store is used.
//
//	hubs, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: "Endpoint=sb://..."})
//	to := hubs.Publisher()                        // the Topic of a message is its hub
//	from := hubs.Log("orders", "billing", store)  // for a consumer with Checkpoint
//
// # Promise
//
//   - Publish returns nil once the service has accepted a message. Messages with
//     an equal OrderingKey go to one partition, in their order. If one fails,
//     later ones of its key in the same call are not sent.
//   - The [broker.Position] of a message is its sequence number in its partition.
//     The consumer keeps the position and decides what it has handled. The
//     service keeps nothing, so each session starts at the oldest message, and
//     inbox continues from its position with Seek.
//   - The sessions of a group share the partitions. Each holds a key in the store
//     while it is open, and the keys decide which session reads a partition. A
//     partition that moves is given up first: its session delivers no more of it,
//     and waits for the deliveries in flight, up to [Options.HandOver]. A receiver with an
//     owner level cuts off an older one that did not give up. This only saves
//     work. A session that has lost a partition without noticing commits nothing,
//     because the position in the database has another owner.
//   - If retention has deleted messages that were not read, Receive or Seek
//     fails, until a person moves the position. No message is skipped silently.
//   - A hub that is deleted and created again has another [broker.Position.Log].
//     Open sessions end with an error, and the consumer stops. So it does if the
//     service has lost the end of a hub, as a forced failover to another region
//     may. A session checks that whenever it reads after a second without a
//     check, and otherwise three times in a Lease.
//
// # Limits
//
//   - The service drops no duplicates. A message whose confirmation was lost is
//     published again with its ID, and is stored twice at two positions. Set
//     Consumer.Key to recognise it.
//   - There are no dead letters, and no delays. A returned message is kept in
//     memory. inbox keeps failed messages on its shelf.
//   - All messages are delivered as redelivered, because the service does not
//     know.
//   - The service does not know how far a consumer has come. The lag is counted
//     from its positions: see [broker.LogLagger]. It has no age.
//   - The service does not report its retention, so the package cannot compare it
//     with Policy.KeepKey.
//   - A message and its headers must fit into one link message: 256 KB in the
//     basic tier, 1 MB in the others. A larger one is [broker.ErrInvalid], and is
//     not sent.
//   - An OrderingKey of more than 128 bytes is hashed to the partition key that
//     the service accepts.
//   - Other programs must not read the consumer group. A receiver without an owner
//     level is refused by the service; one with a higher level takes the
//     partitions, and the session ends with an error.
//
// The message ID and the application property "once-id" have the ID,
// "once-ordering-key" has the ordering key, and "once-time" the time of a message.
// Other property names become lower case on delivery. A message without an ID of
// this kind has the ID of the AMQP message, or an empty one.
//
// # Compatibility
//
// As package once. It was tested on an imitation of the service that is part of
// this repository, never on the service itself.
package eventhubsbroker
