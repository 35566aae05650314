// Package observe names how calls of package once end, and what becomes of messages at a consumer, for metrics and spans.
// It is what a once.Observer is told in once.Ended.Result, and an inbox.Observer in inbox.Ended.Outcome;
// observe/otelobserve is both, for OpenTelemetry.
//
// The lists are closed for one release: a new name comes with an entry in the changelog.
package observe

import "github.com/effectively-once/once/internal/sight"

// How a call ends. What is said of the work is true whether or not Ended.Ran is.
const (
	Done        = sight.Done        // the work ran, and is recorded; or Ask found out that it had happened
	Rejected    = sight.Rejected    // the same, with a business no as its answer
	Replayed    = sight.Replayed    // the answer was recorded by another call
	Free        = sight.Free        // Ask found out that the work did not happen
	InProgress  = sight.InProgress  // another call is at it, and was not waited for longer
	Mismatch    = sight.Mismatch    // the key was first used for another input
	Expired     = sight.Expired     // done, and the answer is forgotten
	Unavailable = sight.Unavailable // done, and the answer was not kept, or cannot be read
	Parked      = sight.Parked      // waits for a person
	Unknown     = sight.Unknown     // nobody knows whether the work happened
	LeaseLost   = sight.LeaseLost   // the lease lapsed before the end was recorded; of Ask: somebody else has decided
	Failed      = sight.Failed      // the work failed, and nothing of it remains: it said NotDone, or was rolled back
	Panicked    = sight.Panicked    // the work panicked: unknown after Do, rolled back after DoTx and InTx
	Conflict    = sight.Conflict    // the database wanted the transaction again and again, or that of InTx once
	Corrupt     = sight.Corrupt     // the record is damaged
	Store       = sight.Store       // the store could not be reached, or refused; nothing was done
	Canceled    = sight.Canceled    // the caller's context had ended before anything was done
	Invalid     = sight.Invalid     // the call is not as it must be: its error says what to change
)

// Results are all of them.
func Results() []string {
	return []string{Done, Rejected, Replayed, Free, InProgress, Mismatch, Expired, Unavailable, Parked, Unknown, LeaseLost,
		Failed, Panicked, Conflict, Corrupt, Store, Canceled, Invalid}
}
