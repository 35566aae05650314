// Package pubsubbroker carries messages over Google Cloud Pub/Sub, through
// cloud.google.com/go/pubsub/v2.
//
//	events := pubsubbroker.New(client, nil)
//	err := events.DeclareSubscription(ctx, "orders", "billing", nil)
//	to := events.Publisher()              // the Topic of a message is its topic
//	from := events.Subscription("billing") // each subscription gets all messages
//
// # Promise
//
//   - Publish returns nil once the service has answered, which is after it has
//     stored the message. It sends the messages of an ordering key one request
//     after the other. If a request fails, it sends no later messages of that key.
//   - A message is acknowledged by Ack or Reject, and by nothing else. While a
//     session is open, it extends the deadline of the deliveries in flight, so a
//     handler may take longer than the subscription's AckDeadlineSeconds. If the
//     process dies, its messages come again after that time. After Return and
//     Close they come at once, or after the backoff of the subscription's retry
//     policy.
//   - A session asks for messages while Receive waits for them, and for no more
//     than the window has room for.
//   - A message that could not be settled comes again after AckDeadlineSeconds.
//   - If the subscription or its topic is deleted, sessions end with an error, and
//     Open fails. A subscription that DeclareSubscription has created again ends
//     them, too, and so does another AckDeadlineSeconds.
//
// # Exactly-once delivery
//
// A subscription with this setting tells which acknowledgements were late. Ack,
// Return and Reject then return an error, and a delivery whose deadline has
// passed leaves the window, because another session has it. The setting does not
// make a handler run once: a process that dies between its commit and its ack
// gets the message again, and a message that is published twice has two
// identifiers for the service. Without the setting, the service accepts late
// acknowledgements silently. Both are safe with package inbox.
//
// # Limits
//
//   - Redelivered is always true, because the service does not promise to know.
//     Attempt is its own approximate count, and 0 without a dead-letter policy.
//   - Order: the messages of one ordering key come in order if the subscription
//     has EnableMessageOrdering, which cannot be changed later. Open refuses
//     subscriptions without it, unless [Options.Unordered] is set. The service
//     keeps the order of messages that were published in one region. When it
//     delivers a message again, it delivers the later ones of the key again, also
//     acknowledged ones.
//   - Return with a delay extends the deadline of the message to that time, at
//     most 10 minutes. Publish cannot delay messages.
//   - Rejected messages are published to [Options.DeadLetter], or to the topic of
//     the subscription's dead-letter policy, and then acknowledged. A crash
//     between the two leaves both copies. Without such a topic they are gone. The
//     policy itself also removes messages that were delivered too often, although
//     a consumer may still be retrying them.
//   - A topic without subscriptions drops messages, also dead letters, and Publish
//     cannot see that.
//   - A message has up to 10 MB with its headers, less 8 KiB, and up to 95 headers.
//     The value of a header has up to 1,024 bytes, and its name does not begin with
//     "goog". What exceeds that is [broker.ErrInvalid].
//   - Messages that are on their way to a session when it is closed come again
//     after AckDeadlineSeconds.
//   - The service does not tell how many messages wait, so sources are no
//     [broker.Lagger]. Deliveries have no [broker.Position].
//
// # Messages
//
// The body is the data. Headers are attributes. The attribute once-id is the ID,
// and once-time the time (RFC 3339). Attributes of other programs become headers,
// their names in lower case. The ID of a message without once-id is its CloudEvents
// attribute ce-id. Without both it is empty, and the header pubsub-id has the
// identifier of the service, which is another one each time a message is published.
//
// # Rights
//
// A publisher needs pubsub.topics.publish. A consumer needs
// pubsub.subscriptions.consume and pubsub.subscriptions.get, as in the roles
// Subscriber and Viewer, and pubsub.topics.publish on the topic for dead letters.
//
// # Compatibility
//
// As package once. Tested with the server of cloud.google.com/go/pubsub/v2/pstest
// and an imitation, not with the service.
package pubsubbroker
