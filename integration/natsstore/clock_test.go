package natsstore

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/internal/wrongclock"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/nats-io/nats.go/jetstream"
)

const urlVar = "ONCE_CLOCK_URL"

// A process whose wall clock is an hour off, or runs backwards, neither takes
// leases early nor gives short ones.
func TestWrongClock(t *testing.T) {
	program, err := wrongclock.Build(t.Context(), t.TempDir())
	proof.Must(t, err)
	for _, how := range wrongclock.Ways {
		t.Run(how, func(t *testing.T) {
			server := offices.StartNATS(t)
			s := migrated(t, dial(t, server.URL()), nil)
			leave(t, s, "right")
			began := time.Now()
			cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestInsideWrongClock$", "-test.v")
			cmd.Env = append(os.Environ(), wrongclock.Var+"="+how, urlVar+"="+server.URL())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestInsideWrongClock") {
				t.Fatalf("with a clock that is %s: %v\n%s", how, err, out)
			}
			find(t, s, "wrong")
			rec, err := s.Get(t.Context(), key("wrong", "held"))
			if err != nil || rec.Created.Before(began.Add(-time.Second)) || rec.Created.After(time.Now().Add(time.Second)) {
				t.Errorf("a record of the process with the wrong clock was created at %v, %v; now it is %v", rec.Created, err, time.Now())
			}
		})
	}
}

// TestInsideWrongClock runs in the process with the wrong clock.
func TestInsideWrongClock(t *testing.T) {
	url := os.Getenv(urlVar)
	if url == "" {
		t.Skip("this is run by TestWrongClock, in a process whose clock is wrong")
	}
	js := dial(t, url)
	s := migrated(t, js, nil)
	before := time.Now().Round(0)
	find(t, s, "right")
	leave(t, s, "wrong")
	_, err := once.Do(t.Context(), s, (&once.Operation[string]{Name: "clock", OnUnknown: once.Park,
		Policy: once.Policy{Lease: 1500 * time.Millisecond}}).For("longer than its lease"),
		func(ctx context.Context, _ once.Key) (string, error) {
			proof.Pause(2 * time.Second)
			return "answer", context.Cause(ctx)
		})
	if err != nil {
		t.Errorf("work that is longer than its lease: %v", err)
	}
	stream, err := js.Stream(t.Context(), "KV_once")
	proof.Must(t, err)
	wrongclock.Check(t, before, stream.CachedInfo().TimeStamp)
	ran := 0
	for _, c := range storetest.Cases(t, storetest.Harness{
		Open:       func(t testing.TB) once.Store { return migrated(t, dial(t, url), nil) },
		ListsOpen:  true,
		Expires:    true,
		LearnsTime: true,
	}) {
		group, _, _ := strings.Cut(c.Name, "/")
		if !slices.Contains([]string{"claim", "lease", "takeover", "retention", "settle", "do"}, group) {
			continue
		}
		ran++
		if err := c.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if ran < 20 {
		t.Errorf("%d cases were run", ran)
	}
}

// A server whose clock is an hour from those of its clients is right.
func TestTheClockOfTheServerDecides(t *testing.T) {
	server := offices.StartNATS(t)
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		o := &natsstore.Options{Bucket: name}
		shifted := func() *natsstore.Store { return migrated(t, shiftedJetStream{dial(t, server.URL()), off}, o) }
		a, b := shifted(), shifted()
		leave(t, a, "right")
		find(t, b, "right")
		rec, err := b.Get(t.Context(), key("right", "held"))
		if err != nil || time.Until(rec.Created.Add(-off)).Abs() > time.Minute {
			t.Errorf("with a server that is %s, a record was created at %v, %v; here it is %v", name, rec.Created, err, time.Now())
		}
	}
}

// shiftedJetStream is that of a server with another clock.
type shiftedJetStream struct {
	jetstream.JetStream
	off time.Duration
}

func (js shiftedJetStream) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := js.JetStream.Stream(ctx, name)
	return shiftedStream{s, js.off}, err
}

type shiftedStream struct {
	jetstream.Stream
	off time.Duration
}

func (s shiftedStream) CachedInfo() *jetstream.StreamInfo {
	info := *s.Stream.CachedInfo()
	info.TimeStamp = info.TimeStamp.Add(s.off)
	return &info
}

// ends are records that a process leaves, and how another must find them a
// moment later.
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

func key(who, name string) once.Key { return once.Key{Operation: "clock", ID: who + " " + name} }

// leave makes one record of each kind.
func leave(t *testing.T, s *natsstore.Store, who string) {
	t.Helper()
	for name, end := range ends {
		fence := once.Fence{Key: key(who, name), Owner: [16]byte{1}, Attempt: 1}
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: end.lease})
		proof.Must(t, err)
		if end.settled != once.Absent {
			proof.Must(t, s.Settle(t.Context(), once.Settlement{Fence: fence, Status: end.settled,
				Outcome: once.Outcome{Body: []byte("answer")}, KeepOutcome: end.keepOutcome, KeepKey: end.keepKey}))
		}
	}
}

// find checks the records of another process, which are a moment old.
func find(t *testing.T, s *natsstore.Store, who string) {
	t.Helper()
	for name, end := range ends {
		var rec once.Record
		var err error
		if end.found != once.Running && end.found != once.Done { // the store may learn of it some milliseconds later
			proof.Await(t, name, func() bool {
				rec, err = s.Get(t.Context(), key(who, name))
				return err != nil || rec.Status == end.found
			})
		} else {
			rec, err = s.Get(t.Context(), key(who, name))
		}
		if err != nil || rec.Status != end.found {
			t.Errorf("what another process left as %s is %v, %v; want %v", name, rec.Status, err, end.found)
		}
		if rec.Status == once.Running && (rec.LeaseLeft <= 0 || rec.LeaseLeft > end.lease+time.Second) {
			t.Errorf("a lease of %v has %v left", end.lease, rec.LeaseLeft)
		}
	}
}
