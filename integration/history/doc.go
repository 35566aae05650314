// Package history checks stores against a small model of their contract.
//
// Several goroutines call a store at random, on few keys. Every call is recorded with the time of its beginning and
// of its end. Such a history is right if each call can be given one moment between the two, so that the calls in the
// order of these moments do what [once.Store] says: the attempt only rises, an owner is the only one, Done is final,
// a stale hold is refused, and leases and retention end when they are due. Porcupine looks for such an order.
//
// A call whose fate is not known, because its request or its reply was lost, may have happened or not: the
// model has both.
//
// What this does not show: that a key ends at all, which is what [once.Do] and [once.DoTx] are for, and durability.
// Clocks are those of one machine, so that the end of a lease can be told from outside.
package history
