// Package sqsbroker carries messages over Amazon SQS, through aws-sdk-go-v2:
// standard and FIFO queues. SNS is a way to publish to several queues.
//
//	queues := sqsbroker.New(sqs.NewFromConfig(config), nil)
//	to := queues.Publisher()              // the Topic of a message is its queue
//	from := queues.Queue("orders.fifo")
//
//	to = sqsbroker.NewSNSPublisher(sns.NewFromConfig(config), "arn:aws:sns:eu-north-1:123456789012:", nil)
//
// # Promise
//
//   - Publish returns nil once the service has confirmed the message, and an error
//     for each message of a batch that it has not.
//   - A message stays in its queue until Ack or Reject. While a session is open, it
//     renews its messages, so a handler may take longer than
//     [Options.Visibility]. If the process dies, they come again after Visibility.
//     After Return and Close they come again at once.
//   - A session does not settle a message whose time is over by its own clock, or
//     that the service would not renew. Settling it is an error, and it comes
//     again. SQS itself answers that all is well, and may keep the message.
//   - Order: a FIFO queue keeps the order of an OrderingKey, which is the group of
//     a message, across all processes. A session gives out one message of a group
//     at a time. If it is returned or lost, those after it come after it.
//   - A deleted queue ends sessions with an error. One that was made anew under the
//     same name does so within a minute.
//
// # Limits
//
//   - A message has up to 1 MiB with its attributes, and through SNS 256 KiB. A
//     body that is not text is sent in base64, which takes a third more. A larger
//     message is [broker.ErrInvalid].
//   - A standard queue keeps no order and may deliver a message twice. Redelivered
//     is always true there. A message with an OrderingKey is [broker.ErrInvalid],
//     unless [Options.Unordered] is set.
//   - A FIFO queue drops copies of an ID for five minutes after the first one, even
//     if that has been deleted. So a dead letter must not be published again to its
//     queue within that time: move it back with StartMessageMoveTask. The publisher
//     is no [broker.Deduplicator], because standard queues drop nothing.
//   - SQS hides a message for 12 hours in all after it was received. A handler that
//     runs longer loses it. Return delays up to 11 hours, in seconds, and less if
//     the handler ran for more than an hour.
//   - Rejected messages are sent to the queue for dead letters and then deleted. A
//     crash between the two leaves both. A FIFO queue drops the second dead letter
//     of one delivery for five minutes. Without such a queue, rejected messages are
//     gone.
//   - The redrive policy of a queue counts deliveries, also those that ended with
//     their process. Set a maxReceiveCount that consumers do not reach.
//   - While batches come full, a session has up to six requests for messages at a
//     time, if the window has room for their batches, and otherwise one.
//   - Close waits for the last request for messages, as long as [Options.Wait].
//   - Deliveries have no [broker.Position].
//
// # Messages
//
// A message has the attributes once-id, once-ordering-key, once-time (RFC 3339),
// once-encoding (base64 or empty, if the body is not the text itself) and
// once-sns-topic. Headers are attributes of their own, by name, as far as SQS
// allows: ten attributes in all, with values that are not empty. The others share
// once-headers, a JSON object. The group and the deduplication ID of a FIFO queue
// are the OrderingKey and the ID, or their SHA-256 if they are longer than 128
// bytes or have other characters than SQS allows. A message without an
// OrderingKey has a group of its own.
//
// A message of another program has no ID, because SQS gives it another one each
// time it is sent. The header sqs-message-id has that. The envelope of SNS is
// removed, unless the message has an once-id outside of it. Of a message of
// another program, the header sns-message-id has the ID in the envelope.
//
// # Rights
//
// A consumer needs sqs:GetQueueUrl, GetQueueAttributes, ReceiveMessage,
// ChangeMessageVisibility and DeleteMessage, and for dead letters GetQueueUrl and
// SendMessage on their queue. A publisher needs GetQueueUrl and SendMessage, or
// sns:Publish.
//
// # Compatibility
//
// As package once. Tested on imitations of the service, not on the service.
package sqsbroker
