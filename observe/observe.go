// Package observe names how calls of package once end, and what becomes of messages at a consumer, for metrics and spans.
// It is what a once.Observer is told in once.CallResult.Result, and an inbox.Observer in inbox.HandlingResult.Outcome;
// observe/otelobserve is both, for OpenTelemetry.
//
// The lists are closed for one release: a new name comes with an entry in the changelog.
package observe

// How a call ends. What is said of the work is true whether or not Ended.Ran is.
const (
	Done        = "done"        // the work ran, and is recorded; or Ask found out that it had happened
	Rejected    = "rejected"    // the same, with a business no as its answer
	Replayed    = "replayed"    // the answer was recorded by another call
	Free        = "free"        // Ask found out that the work did not happen
	InProgress  = "in_progress" // another call is at it, and was not waited for longer
	Mismatch    = "mismatch"    // the key was first used for another input
	Expired     = "expired"     // done, and the answer is forgotten
	Unavailable = "unavailable" // done, and the answer was not kept, or cannot be read
	Parked      = "parked"      // waits for a person
	Unknown     = "unknown"     // nobody knows whether the work happened
	LeaseLost   = "lease_lost"  // the lease lapsed before the end was recorded; of Ask: somebody else has decided
	Failed      = "failed"      // the work failed, and nothing of it remains: it said NotDone, or was rolled back
	Panicked    = "panicked"    // the work panicked: unknown after Do, rolled back after DoTx and InTx
	Conflict    = "conflict"    // the database wanted the transaction again and again, or that of InTx once
	Corrupt     = "corrupt"     // the record is damaged
	Store       = "store"       // the store could not be reached, or refused; nothing was done
	Canceled    = "canceled"    // the caller's context had ended before anything was done
	Invalid     = "invalid"     // the call is not as it must be: its error says what to change
)

// Results are all of them.
func Results() []string {
	return []string{Done, Rejected, Replayed, Free, InProgress, Mismatch, Expired, Unavailable, Parked, Unknown, LeaseLost,
		Failed, Panicked, Conflict, Corrupt, Store, Canceled, Invalid}
}
