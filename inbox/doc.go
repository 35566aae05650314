// Package inbox turns at-least-once delivery into work that happens once: a consumer that claims the key of each message,
// handles it, and acknowledges it after the commit.
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
// A message is acknowledged only after the commit that holds what its handler wrote and that it was handled. So a message
// that comes again, for whatever reason, finds its key, or lies behind the consumer's position, and is acknowledged
// without running. What a [Tx] or [Batch] handler writes through its transaction happens exactly once; what a [Do] handler
// does elsewhere is as package once promises for Do.
//
// No message is dropped: one that fails for good is put on the shelf of the store, and handed to the broker's dead
// letters, and waits there for a person ([Admin]). Where there is neither, the consumer refuses to start.
//
// # What a handler returns
//
// A [Tx] or [Batch] handler:
//
//   - nil, or [once.ErrRejected], or [Duplicate]: handled. After the latter two what it wrote is rolled back.
//   - [once.Permanent]: rolled back, and parked at once.
//   - any other error: rolled back, and tried again with back-off, up to Retry.Attempts, and then parked. [once.RetryAfter] says when.
//
// A [Do] handler:
//
//   - nil, or [once.ErrRejected]: handled.
//   - [once.NotDone] of any error: nothing happened, and it is tried again as above.
//   - any other error: nobody knows. Park parks it at once, Resend sends it again, and Lookup asks first. So everything
//     that fails before the call goes out is NotDone.
//
// # Order
//
// Messages with one ordering key are handled one after another in this process, whatever becomes of each. A message that
// waits for its next attempt holds up those behind it with the same key, and no others. Where messages of a key can
// be at two processes at once, only the broker can keep their order: partitions of a log, or a single active consumer.
//
// # Limits
//
// Attempts are counted in the store when a message fails, and, for messages that the broker may have delivered before,
// before they run. So a message that ends its process ends at most Retry.Attempts of them, and one for its first
// delivery, wherever in a batch it is. It has its last attempt alone: no handler of the consumer runs beside it in the
// process, unless one of them takes longer than 30 seconds. What never ran is not counted. After a broken session the
// running handlers are waited for before the next one is opened. A handler has no time limit of its own: give it one.
//
// # Compatibility
//
// That of package once.
package inbox
