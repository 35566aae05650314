// Package reconcile finds units of work whose outcome is unknown, and finds out about them.
//
// A holder that crashed in the middle of [once.Do], or did not hear back, leaves a record that is Unknown. The next
// call with its key asks about it. If there is none, nobody does: a charge may have happened that no order knows of. A
// [Reconciler] looks for such records, and does with each what its operation says: Lookup is asked, and the record
// becomes done, rejected or free; without one, OnUnknown parks it, or leaves it to the next call, which runs it again.
// Whatever it does is fenced: a holder that is alive keeps its claim, and of several reconcilers and callers one
// decides.
//
// It never runs work by itself, nor what comes after a step that it found done. With a Resume, an operation says how a
// unit is brought to its end that its caller has abandoned.
//
//	charges := reconcile.Of(Charge)
//	charges.PerSecond = 5
//	r := reconcile.Reconciler{Store: store, Operations: []reconcile.Operation{charges, reconcile.Of(Ship)}}
//	err := r.Run(ctx)
//
// The store has to be a [once.Lister]. The compatibility is that of package once.
package reconcile
