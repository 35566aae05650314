// Package inbox handles each message once, although brokers deliver it at least
// once. A consumer claims the key of the message, handles the message, and
// acknowledges it after the commit.
//
//	billing := &inbox.Consumer{Name: "billing", Source: rabbit.Queue("orders"),
//		Handler: inbox.Tx(store, func(ctx context.Context, tx pgx.Tx, m *broker.Message) error {
//			_, err := tx.Exec(ctx, "INSERT INTO invoice (order_id) VALUES ($1)", m.ID)
//			return err
//		})}
//	err := billing.Run(ctx)
//
// # Promise
//
// A message is acknowledged only after the commit that holds both what its
// handler wrote and the record that it was handled. If the message is delivered
// again, the consumer finds its key, or finds that its own position is past it,
// and acknowledges it without running the handler. What a [Tx] or [Batch]
// handler writes through its transaction happens exactly once. The outside
// effects of a [Do] handler are as certain as those of once.Do.
//
// No message is dropped. A message that fails for good goes to the shelf of the
// store, to the broker's dead letters, or to both, and waits there for a person
// ([Admin]). A consumer that has neither refuses to start.
//
// # What a handler returns
//
// A [Tx] or [Batch] handler:
//
//   - nil, [once.ErrRejected] or [Duplicate]: the message is handled. After the
//     latter two, the rows are rolled back.
//   - [once.Permanent]: rolled back, and parked at once.
//   - any other error: rolled back and retried with back-off, up to
//     Retry.Attempts, then parked. [once.RetryAfter] sets the delay. While
//     nothing of the topic gets through, and after [Unavailable], attempts do
//     not count: see [Retry].
//
// A [Do] handler:
//
//   - nil or [once.ErrRejected]: the message is handled.
//   - an error wrapped by [once.NotDone]: nothing happened, and the message is
//     retried as above.
//   - any other error: the outcome is unknown. Park parks the message at once,
//     Resend repeats the work, and Lookup is asked first. Wrap every error that
//     occurs before the outside call with NotDone.
//
// A [DoThenTx] handler is both: a step like Do, and then rows like Tx.
//
// # Order
//
// Messages with the same ordering key are handled one at a time in each
// process. A message that waits for a retry holds up later messages with its
// key, and no others. If messages of a key can reach two processes at once,
// only the broker can keep their order: with the partitions of a log, or a
// single active consumer.
//
// # Limits
//
// Attempts are counted in the store when a message fails. For messages that may
// have been delivered before, the attempt is counted before it starts. A
// message that kills its process therefore kills up to Retry.Attempts
// processes, wherever it is in a batch, and one more at its first delivery. If a
// producer published it more than once, each copy has a first delivery. Its last
// attempt runs alone: no other handler of the consumer runs in the process at
// that time, unless one takes longer than 30 seconds. Messages that never
// reached a handler are not counted, and neither are copies that wait for a
// running handler.
//
// After a session breaks, the consumer waits for its running handlers before it
// opens the next session. Handlers have no time limit, so set one yourself.
//
// # Compatibility
//
// The same as for package once.
package inbox
