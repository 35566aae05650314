package wrongclock

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
)

// ends are records that a process leaves, and how a process with another clock
// must find them a moment later.
var ends = map[string]struct {
	lease                time.Duration
	settled              once.Status
	keepOutcome, keepKey time.Duration
	found                once.Status
}{
	"held":      {lease: time.Minute, found: once.Running},
	"lapsed":    {lease: time.Millisecond, found: once.Unknown},
	"done":      {lease: time.Minute, settled: once.Done, keepOutcome: time.Minute, keepKey: 2 * time.Minute, found: once.Done},
	"expired":   {lease: time.Minute, settled: once.Done, keepOutcome: time.Millisecond, keepKey: time.Minute, found: once.Expired},
	"forgotten": {lease: time.Minute, settled: once.Done, keepOutcome: time.Millisecond, keepKey: time.Millisecond, found: once.Absent},
}

// Key returns the key of one of the records of a process.
func Key(who, name string) once.Key { return once.Key{Operation: "clock", ID: who + " " + name} }

// Leave makes one record of each kind.
func Leave(t *testing.T, s once.Store, who string) {
	t.Helper()
	for name, end := range ends {
		rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: Key(who, name), Owner: [16]byte{1}}, Lease: end.lease})
		proof.Must(t, err)
		if end.settled != once.Absent {
			fence := once.Fence{Key: Key(who, name), Owner: rec.Owner, Attempt: rec.Attempt}
			proof.Must(t, s.Settle(t.Context(), once.Settlement{Fence: fence, Status: end.settled,
				Outcome: once.Outcome{Body: []byte("answer")}, KeepOutcome: end.keepOutcome, KeepKey: end.keepKey}))
		}
	}
}

// Find checks the records of a process with another clock, which are a moment old. A
// store that has learned the time of its server may see by slack later that something
// has ended. With 0, the server's clock decides at once.
func Find(t *testing.T, s once.Store, who string, slack time.Duration) {
	t.Helper()
	for name, end := range ends {
		rec, err := s.Get(t.Context(), Key(who, name))
		if slack > 0 && end.found != once.Running && end.found != once.Done {
			proof.Await(t, name, func() bool {
				rec, err = s.Get(t.Context(), Key(who, name))
				return err != nil || rec.Status == end.found
			})
		}
		if err != nil || rec.Status != end.found {
			t.Errorf("what the process with the %s clock left as %s is %v, %v; want %v", who, name, rec.Status, err, end.found)
		}
		if rec.Status == once.Running && (rec.LeaseLeft <= 0 || rec.LeaseLeft > end.lease+slack) {
			t.Errorf("a lease of %v has %v left", end.lease, rec.LeaseLeft)
		}
	}
}
