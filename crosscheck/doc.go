// Package crosscheck compares the report of another system, such as the list of
// charges that a payment provider exports, with the records of a store. It finds
// what happened twice there, what only one of the two knows, and amounts that
// differ.
//
// [Read] checks the whole report, CSV or JSON Lines, and indexes it in memory. A
// [Comparison] then reads the records of the operation and tells each [Finding].
// It changes nothing. A finding says which decision about its record it
// supports, if any: pass the record to [once.MarkDone] or [once.MarkNotDone].
// They leave it as it is if it has changed since.
//
//	report, err := crosscheck.Read(ctx, file, crosscheck.Format{ID: "order", Amount: "amount"}, once.Key{Operation: "pay"})
//	c := crosscheck.Comparison{Store: store, Report: report, Amount: "/amount"}
//	summary, err := c.Run(ctx, func(f crosscheck.Finding) error { … })
//
// Package reconcile does something else: it asks the other system about single
// records whose outcome is unknown.
package crosscheck
