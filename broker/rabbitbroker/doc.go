// Package rabbitbroker is the adapter of package broker for RabbitMQ, over AMQP 0-9-1.
//
//	rabbit := rabbitbroker.New("amqps://user:password@host/vhost", nil)
//	to := rabbit.Publisher("shop")      // an exchange; the Topic of a message is its routing key
//	from := rabbit.Queue("orders")      // made by rabbit.DeclareQueue, or by whoever runs the broker
//
// # Promise
//
//   - Publish says nil for what RabbitMQ has confirmed and has put into a queue. Messages are persistent, so in a
//     quorum queue they are on the disks of a majority of its nodes, and in a durable classic queue on that of one. A
//     message that no queue takes is an error, unless the exchange has an alternate one.
//   - A message leaves its queue by Ack or Reject only, and by limits that the queue was made with. What is out when a
//     session ends or breaks comes again, Redelivered.
//   - Every call ends with its context, also while RabbitMQ does not read because an alarm for memory or disk is on.
//     If a write hangs by then, the connection is cut, and what others wait for on it fails too.
//   - Nothing is retried. A lost connection is made anew by the next Publish or Open.
//
// # Limits
//
// RabbitMQ cannot hold back a message: Return gives it back at once, and sessions are no broker.Delayer. It does not
// tell how long it keeps messages, and it does not drop copies that were published twice. Streams are not read as
// logs.
//
// Redelivered and Attempt: a quorum queue counts failed deliveries on disk (x-delivery-count). A classic queue has a
// flag that does not tell how often. What was dead-lettered on its way here counts as redelivered.
//
// Order: sessions share a queue message by message, whatever the OrderingKey. Where order matters, declare the queue
// with SingleActive: one session at a time gets messages, the others wait to take its place. A quorum queue puts a
// message that was returned at its end, unless it has a delivery limit; then near its head. [Broker.DeclareQueue] sets
// one that is never reached: RabbitMQ 4 would drop a message, or dead-letter it, after 20 deliveries otherwise.
//
// Rejected messages: with Options.DeadLetter they are published there with the reason, in the header once-reason,
// before they are acked; a crash between the two leaves both. Without it they follow the x-dead-letter-exchange of the
// queue, and without that they are gone. A classic queue does not wait until they have arrived there.
//
// RabbitMQ takes back a message that was not settled within its consumer_timeout, 30 minutes by default, by breaking
// the session. Messages that are larger than its max_message_size break the channel: see Options.MaxBody. A quorum
// queue of RabbitMQ 3.10 whose node dies within seconds after the queue was made may not come back.
//
// In messages: ID is the property message-id, Time the property timestamp, with its milliseconds in the header
// once-time, OrderingKey the header once-key; the header content-type is the property of that name. Each message
// carries a header once-publish, a number of its connection. What others publish is read as far as it can be: an ID
// may be empty, header names become lower case, values become text, and tables and lists are left out.
//
// # Compatibility
//
// That of package once. Tested with RabbitMQ 3.10.8; made for 3.10 and later.
package rabbitbroker
