// Package history checks stores against a small model of their contract: those in
// SQL databases, in Redis, NATS, DynamoDB, Cosmos DB and Azure Tables.
//
// Several goroutines make random calls of a store, on few keys. The start and
// the end of each call are recorded. A history is right if each call can be
// given one moment between the two, so that the calls, in the order of these
// moments, do what [once.Store] says: Attempt only rises, there is one owner,
// Done is final, a stale fence is refused, and leases and retention end when
// they are due. Porcupine looks for such an order.
//
// A call whose request or reply was lost may have happened or not. The model
// allows both. Requests of the adapters to their services are lost and delayed as
// well, where they can be met on their way: see line.
//
// Where transactions collect their writes, half of the processes claim first
// (ClaimFirst), and of the other transactions some are Firm and some Speculative.
// A transaction that claims first is two operations: others see its claim before
// its commit, and may see it taken back. See event.inTwo.
//
// All clocks are those of one machine, so that the end of a lease can be computed
// outside the store. If processes learn the clock of a service, a lease may last
// longer by what they do not know of it, and in that time one process may take for
// lapsed what another extends. The model allows that, and nothing outside of it.
//
// This does not check that a key ever ends, which is the task of [once.Do] and
// [once.DoTx], nor durability.
package history
