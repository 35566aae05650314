// Package history checks stores against a small model of their contract.
//
// Several goroutines make random calls of a store, on few keys. The start and
// the end of each call are recorded. A history is right if each call can be
// given one moment between the two, so that the calls, in the order of these
// moments, do what [once.Store] says: Attempt only rises, there is one owner,
// Done is final, a stale fence is refused, and leases and retention end when
// they are due. Porcupine looks for such an order.
//
// A call whose request or reply was lost may have happened or not. The model
// allows both.
//
// This does not check that a key ever ends, which is the task of [once.Do] and
// [once.DoTx], nor durability. All clocks are those of one machine, so that the
// end of a lease can be computed outside the store.
package history
