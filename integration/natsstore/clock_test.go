package natsstore

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/internal/wrongclock"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/nats-io/nats.go/jetstream"
)

// A process whose wall clock is an hour off, or runs backwards, neither takes
// leases early nor gives short ones.
func TestWrongClock(t *testing.T) {
	program, err := wrongclock.Build(t.Context(), t.TempDir(), "./clock")
	proof.Must(t, err)
	for _, how := range wrongclock.Ways {
		t.Run(how, func(t *testing.T) {
			server := offices.StartNATS(t)
			s := migrated(t, dial(t, server.URL()), nil)
			wrongclock.Leave(t, s, "right")
			began := time.Now()
			cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestInside$", "-test.v")
			cmd.Env = append(os.Environ(), wrongclock.Var+"="+how, wrongclock.ServerVar+"="+server.URL())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestInside") {
				t.Fatalf("with a clock that is %s: %v\n%s", how, err, out)
			}
			wrongclock.Find(t, s, "wrong", time.Second)
			rec, err := s.Get(t.Context(), wrongclock.Key("wrong", "held"))
			if err != nil || rec.Created.Before(began.Add(-time.Second)) || rec.Created.After(time.Now().Add(time.Second)) {
				t.Errorf("a record of the process with the wrong clock was created at %v, %v; now it is %v", rec.Created, err, time.Now())
			}
		})
	}
}

// A server whose clock is an hour from those of its clients is right.
func TestTheClockOfTheServerDecides(t *testing.T) {
	server := offices.StartNATS(t)
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		o := &natsstore.Options{Bucket: name}
		shifted := func() *natsstore.Store { return migrated(t, shiftedJetStream{dial(t, server.URL()), off}, o) }
		a, b := shifted(), shifted()
		wrongclock.Leave(t, a, "right")
		wrongclock.Find(t, b, "right", time.Second)
		rec, err := b.Get(t.Context(), wrongclock.Key("right", "held"))
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
