// Package clock tests the store in NATS in a process whose wall clock is wrong.
//
// All that the process needs is compiled again with such a clock, so it starts no
// server: package natsstore does.
package clock

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/natswire"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/internal/wrongclock"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { logtest.Main(m) }

// migrated returns a store whose bucket exists.
func migrated(t testing.TB, js jetstream.JetStream) *natsstore.Store {
	t.Helper()
	s := natsstore.New(js, nil)
	proof.Must(t, s.Migrate(t.Context()))
	return s
}

// TestInside runs in the process with the wrong clock.
func TestInside(t *testing.T) {
	url := os.Getenv(wrongclock.ServerVar)
	if url == "" {
		t.Skip("this is run by TestWrongClock of package natsstore, in a process whose clock is wrong")
	}
	js := natswire.Connect(t, url, nil)
	s := migrated(t, js)
	before := time.Now().Round(0)
	wrongclock.Find(t, s, "right", time.Second)
	wrongclock.Leave(t, s, "wrong")
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
		Open:       func(t testing.TB) once.Store { return migrated(t, natswire.Connect(t, url, nil)) },
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
