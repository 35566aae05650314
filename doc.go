// Package once makes an operation happen once, across crashes, restarts, retries, redelivery and machines:
// it is sync.Once for everything that shares a store.
//
// A [Key] names a unit of work. A [Store] remembers what became of it. [DoTx] guards rows in the database that
// holds the store: key, outcome and rows are one commit. [Do] guards an effect elsewhere: claim, act, record.
// Whoever calls with the same key later, or at the same time, gets the first answer, and has no effect.
//
// # What is promised
//
//   - Rows in the database that holds the store: exactly once.
//   - A system that accepts an idempotency key: exactly once while the key is valid there. Pass key.String().
//   - A system that can only be asked: exactly once, unless a call arrives later than the declared SettleTime.
//   - A system that can do neither: the bound that [OnUnknown] chooses, [Park] at most once, [Resend] at least once.
//
// # What is not
//
// No store can know whether a call that it did not hear back from has reached somebody else. An attempt that crashed
// between its effect and its record is [Unknown]: it is asked about, sent again or parked, as its [Operation] says, and
// never silently run again. A fence guards the store; it cannot stop a request that is already on its way. One writable
// primary that loses no commit is assumed.
//
// # Compatibility
//
// Until version 1.0 a minor release may change this package; the changelog says how to follow. What is stored
// stays readable: keys keep their digest for ever, and schemas are migrated.
package once
