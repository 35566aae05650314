package once

import (
	"bytes"
	"fmt"
	"time"
)

// Status is the state of a key.
type Status int

const (
	Absent  Status = iota // never seen, released, or forgotten: free to claim
	Running               // claimed, and the lease has not lapsed
	Unknown               // claimed; whether the work happened is not known, see Record.Lapsed
	Parked                // waits for a person to decide
	Done                  // has an outcome, which may be a rejection
	Expired               // was done; the outcome is forgotten, the key is not
)

func (s Status) String() string {
	names := [...]string{"absent", "running", "unknown", "parked", "done", "expired"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("status(%d)", int(s))
	}
	return names[s]
}

// Record is what a store remembers of a key. The zero Record is a key that the
// store has never seen. All times are the store's.
type Record struct {
	Key         Key
	Status      Status
	Attempt     int64         // the fencing token: rises with each claim while the key is known
	Owner       [16]byte      // the token of the latest claim; zero when Absent
	LeaseLeft   time.Duration // Running: until the lease lapses; Unknown: negative, the time since; zero: not known
	Age         time.Duration // since the first claim, at most: a store that learns the time knows it within an interval
	Fingerprint []byte        // of the input; empty: none was given
	Cause       [16]byte      // ClaimRequest.Cause of the latest claim; zero: none was given
	Outcome     Outcome       // Done only
	OutcomeLeft time.Duration // Done: until the outcome expires or the key is forgotten; zero: not known
	Reason      string        // why it is Unknown, Parked or free again, or how a person decided
	Created     time.Time     // of the first claim
	Updated     time.Time     // of the last change
}

// clone returns a copy whose outcome may be changed.
func (r Record) clone() Record {
	r.Outcome.Body = bytes.Clone(r.Outcome.Body)
	return r
}

// Lapsed reports whether r is Unknown because its lease lapsed: the holder
// crashed, or is cut off from the store, and has said nothing. If r is Unknown
// and has not lapsed, an attempt has reported that its outcome is not known, and
// Reason says what it met.
func (r Record) Lapsed() bool { return r.Status == Unknown && r.Reason == "" }

// Why returns the Reason, and for a record that has lapsed, that it has.
func (r Record) Why() string {
	if r.Lapsed() {
		return whyLapsed
	}
	return r.Reason
}

const whyLapsed = "the lease lapsed: its holder crashed, or is cut off from the store"

// NeverEnded reports whether r is free because Lookup says that its latest attempt
// did not happen, and nobody else has said how that ended: its holder crashed.
func (r Record) NeverEnded() bool { return r.Status == Absent && r.Reason == whyNeverEnded }

const (
	whyNeverEnded = "Lookup says that it did not happen"
	whyFailed     = whyNeverEnded + ", after it failed"

	// whyEnded is the reason of an attempt of which only its end was reported.
	whyEnded = "the work panicked, or ended its goroutine"
)

// HeldBy reports whether r is the claim of this owner. The claim may have lapsed
// while the database made it wait. Then it is Unknown, but nobody else has it.
func (r Record) HeldBy(owner [16]byte) bool {
	return r.Owner == owner && (r.Status == Running || r.Status == Unknown)
}

// Intact reports whether the outcome of a Done record is as it was recorded.
func (r Record) Intact() bool { return r.Outcome.Sum == r.Outcome.checksum(r.Key.UUID()) }

// fence returns the fence of the latest claim.
func (r Record) fence() Fence { return Fence{Key: r.Key, Owner: r.Owner, Attempt: r.Attempt} }

// Fence names a claim: a settlement or an extension is applied only if it names
// the current one. Owner is random for each claim, so a key that was forgotten
// and claimed anew has no old owner.
type Fence struct {
	Key     Key
	Owner   [16]byte
	Attempt int64
}

// Claim identifies the claim that work runs under. [ClaimFrom] returns it.
type Claim struct {
	Key     Key
	Attempt int64 // rises with each attempt until the key is forgotten
}
