// Package rabbitbroker carries messages over RabbitMQ, with AMQP 0-9-1.
//
//	rabbit := rabbitbroker.New("amqps://user:password@host/vhost", nil)
//	to := rabbit.Publisher("shop")      // an exchange; the Topic of a message is its routing key
//	from := rabbit.Queue("orders")      // declared by rabbit.DeclareQueue, or by an operator
//
// # Promise
//
//   - Publish returns nil once RabbitMQ has put a message into a queue and
//     confirmed it. Messages are persistent. In a quorum queue they are on the
//     disks of a majority of its nodes, and in a durable classic queue on the
//     disk of one node. A message that no queue takes is an error, unless the
//     exchange has an alternate exchange.
//   - A message leaves its queue only by Ack or Reject, or by a limit of the
//     queue. When a session ends or breaks, its deliveries in flight are delivered again,
//     Redelivered.
//   - Every call ends with its context, even while RabbitMQ does not read because
//     of a memory or disk alarm. If a write blocks until then, the connection is
//     cut, and other calls that wait for it fail too.
//   - Nothing is retried. The next Publish or Open replaces a lost connection.
//
// # Limits
//
// RabbitMQ cannot delay a message, so Return ignores the delay, and sessions are
// no broker.Delayer. RabbitMQ does not report how long it keeps messages, and
// does not drop messages that are published twice. Streams are not supported, and
// refused.
//
// Redelivered and Attempt: a quorum queue counts failed deliveries on disk
// (x-delivery-count). A classic queue has only a flag. A message that was
// dead-lettered before counts as redelivered.
//
// Order: the sessions of a queue share its messages, whatever their OrderingKey.
// If order matters, declare the queue with SingleActive. Then one session at a
// time gets messages, and another takes over when it ends. A quorum queue
// without a delivery limit puts a returned message at its end, and one with a
// limit puts it near its head. [Broker.DeclareQueue] sets a limit that is never
// reached. Otherwise RabbitMQ 4 drops or dead-letters a message after 20
// deliveries.
//
// Rejected messages: with Options.DeadLetter they are published there, with the
// reason in the header once-reason, and then acked. A crash between the two
// leaves both copies. Without it they follow the x-dead-letter-exchange of the
// queue. Without that they are gone. A classic queue does not wait until a dead
// letter has arrived.
//
// RabbitMQ closes the session if a message is not settled within its
// consumer_timeout, by default 30 minutes. A message over its max_message_size
// closes the channel: see Options.MaxBody. In RabbitMQ 3.10, a quorum queue may
// be lost if its node dies within seconds after it was declared.
//
// The ID of a message is the property message-id. Its Time is the property
// timestamp, with milliseconds in the header once-time. Its OrderingKey is the
// header once-ordering-key, or once-key of a message without that one, where
// earlier builds had it. The header content-type is the property of that name. Each
// message has a header once-publish, a number within its connection. Messages of
// other publishers are read as far as possible: the ID may be empty, header
// names become lower case, values become text, and tables and lists are dropped.
//
// # Compatibility
//
// As package once. Written for RabbitMQ 3.10 and later, and tested with 3.10.8.
package rabbitbroker
