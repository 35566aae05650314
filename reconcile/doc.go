// Package reconcile finds units of work whose outcome is unknown, and asks
// about them.
//
// If a process crashes during [once.Do], or gets no reply, its record becomes
// Unknown. The next call with its key asks about it. If no call comes, nobody
// asks: a charge may have happened that no order knows of. A [Reconciler] looks
// for such records and follows the declaration of the operation. It asks
// Lookup, and the record becomes done, rejected or free. Without a Lookup,
// OnUnknown parks the record, or leaves it to the next call, which repeats the
// work. All of this is fenced: a live holder keeps its claim, and only one of
// several reconcilers and callers decides.
//
// A Reconciler runs neither the work nor the steps after it. To finish units
// that their callers have abandoned, give their operation a Resume.
//
//	charges := reconcile.Of(Charge)
//	charges.PerSecond = 5
//	r := reconcile.Reconciler{Store: store, Operations: []reconcile.Operation{charges, reconcile.Of(Ship)}}
//	err := r.Run(ctx)
//
// The store must be a [once.Lister]. The compatibility promise is that of
// package once.
package reconcile
