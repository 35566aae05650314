// Package observe names the results of calls, the outcomes of messages and the
// steps of keys, for metrics, spans and logs. A once.Observer gets results in
// once.CallResult.Result, and an inbox.Observer gets outcomes in
// inbox.HandlingResult.Outcome. Package otelonce is both, for OpenTelemetry.
//
// A new name is a change that the changelog lists.
package observe

// Results of calls. They say the same whether or not once.CallResult.Ran is
// set.
const (
	Done        = "done"        // the work ran and was recorded, or Ask found out that it had happened
	Rejected    = "rejected"    // the same, and the answer is a rejection
	Replayed    = "replayed"    // the answer was recorded by another call
	Free        = "free"        // Ask found out that the work did not happen
	InProgress  = "in_progress" // another call is running, and this one stopped waiting for it
	Mismatch    = "mismatch"    // the key was first used for another input
	Expired     = "expired"     // done, and the answer is forgotten
	Unavailable = "unavailable" // done, and the answer was not kept, or cannot be read
	Parked      = "parked"      // waits for a person
	Unknown     = "unknown"     // nobody knows whether the work happened
	LeaseLost   = "lease_lost"  // the lease lapsed before the end was recorded; for Ask: the record has changed since
	Failed      = "failed"      // the work failed without effect: it returned NotDone, or was rolled back
	Panicked    = "panicked"    // the work panicked: unknown after Do, rolled back after DoTx and InTx
	Conflict    = "conflict"    // the database kept rolling the transaction back, or did so once for InTx
	Corrupt     = "corrupt"     // the record is damaged
	Store       = "store"       // the store could not be reached or refused the call; nothing was done
	Canceled    = "canceled"    // the context of the caller ended before anything was done
	Invalid     = "invalid"     // the call is invalid: its error says what to change
)

// Results returns all results of calls.
func Results() []string {
	return []string{Done, Rejected, Replayed, Free, InProgress, Mismatch, Expired, Unavailable, Parked, Unknown, LeaseLost,
		Failed, Panicked, Conflict, Corrupt, Store, Canceled, Invalid}
}
