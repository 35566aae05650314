// Package once makes a unit of work happen once, across crashes, restarts,
// retries, redelivery and machines. It is sync.Once for all processes that share
// a store.
//
// # Where to begin
//
// Declare an [Operation] for each kind of work, with a name that never changes.
// Its method For names one unit of that work, such as the payment of one order.
// The store remembers the [Key] of the unit. Then guard the work:
//
//	the work changes                             call
//	rows in the database that has the store      DoTx: key, outcome and rows are one commit
//	the same, in a transaction that you began    InTx
//	another system: a payment provider, mail     Do: claims the key, runs the work, records its outcome
//
// Later and concurrent calls with the same key return the first result without
// running the work. If the first call runs for longer than they wait, they return
// ErrInProgress.
//
// Work reports its failures by errors: [ErrRejected] makes a rejection the final
// answer, [NotDone] says that nothing happened, [Permanent] that a retry cannot
// help, [RetryAfter] when to retry. For an error of Do, DoTx or InTx, [MayRetry]
// says whether the same call may succeed later.
//
// For HTTP use package httponce, for gRPC grpconce, for messages inbox and
// outbox. They call this package. To prove a handler in tests, use oncetest.
//
// # Promises
//
//   - Rows in the database that has the store change exactly once.
//   - In a system that accepts an idempotency key, the effect happens exactly
//     once while the system honours the key. Pass it key.String().
//   - In a system that can only be asked, the effect happens exactly once, unless
//     a call arrives later than SettleTime. Ask it in Lookup.
//   - For any other system, choose [OnUnknown]: with [Park] the effect happens at
//     most once, with [Resend] at least once.
//
// # Limits
//
// If a process crashes between the effect and its record, no store can know
// whether the effect happened. Its key becomes [Unknown]. It is then asked about,
// repeated or parked, as its Operation says, and never repeated silently. A fence
// protects the store, but cannot stop a request that has already been sent. The
// store must have one writable primary that loses no commit.
//
// # Stores
//
// Package store/pgstore keeps keys in PostgreSQL, store/sqlstore in SQLite,
// PostgreSQL, MySQL and MariaDB, and store/memstore in memory.
//
// A store implements [Store]. What else it can do are optional capabilities,
// each an interface. [As] finds one, also in a wrapped store. Two of them are
// about keys:
//
//	capability   gives                                      without it
//	TxStore      DoTx, InTx, inbox.Tx, httponce.HandlerTx   only Do, inbox.Do, httponce.Handler
//	Lister       lists of keys                              no package reconcile, no quotas
//
// Package store has the table of all capabilities, which stores have them, and
// what authors of stores must know. Only they need [ClaimRequest], [ClaimHints],
// [Settlement], [Fence], and the methods of [Options].
//
// # Compatibility
//
// Until version 1.0 a minor release may change this package, and the changelog
// says how to follow. Stored data stays readable: the digest of a key never
// changes, and schemas are migrated.
package once
