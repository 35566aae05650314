package once

import (
	"bytes"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/checksum"
)

// Status is where a key stands in its life.
type Status int

const (
	Absent  Status = iota // never seen, released, or forgotten: free to claim
	Running               // claimed, and the lease has not lapsed
	Unknown               // claimed once; whether it happened is not known
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

// Record is what a store remembers of a key. The zero Record is a key that it has never seen. All times are the store's.
type Record struct {
	Key         Key
	Status      Status
	Attempt     int64         // the fencing token: rises with each claim while the key is known
	Owner       [16]byte      // the token of the latest claim; zero when Absent
	LeaseLeft   time.Duration // Running: until the lease lapses; Unknown: negative, since when. Zero: not known
	Age         time.Duration // since the first claim
	Fingerprint []byte        // of the input; empty: none was given
	Cause       [16]byte      // ClaimRequest.Cause of the latest claim; zero: none was given
	Outcome     Outcome       // Done only
	Reason      string        // why it is Unknown, Parked or free again; who decided what
	Created     time.Time
	Updated     time.Time
}

// clone is a copy whose outcome its owner may change.
func (r Record) clone() Record {
	r.Outcome.Body = bytes.Clone(r.Outcome.Body)
	return r
}

// Outcome is the answer to a unit of work, as it is stored and replayed.
type Outcome struct {
	Body        []byte
	ContentType string
	Rejected    bool   // a business no: an answer like any other, replayed and never retried
	Omitted     bool   // the work is done, but its answer could not be kept; see ErrOutcomeUnavailable
	Sum         uint32 // set and checked by this package, kept by stores: a damaged outcome is never replayed
}

func (o Outcome) checksum(k Key) uint32 {
	return checksum.Of(k.UUID(), o.ContentType, o.Body, o.Rejected, o.Omitted)
}
