//go:build go1.25

package outbox

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

type attackTail struct{ store.OutboxTail }

func (attackTail) SetAside(context.Context, []store.Outgoing) error           { return nil }
func (attackTail) Sent(context.Context, []store.Outgoing, store.Ending) error { return nil }

type attackPublisher struct{}

func (attackPublisher) Publish(context.Context, []*broker.Message) []error { return nil }
func (attackPublisher) Close() error                                       { return nil }

// Keys that were held once are remembered until another message of theirs comes: for the key of an order, never.
func TestKeysThatWereHeldAreRememberedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := (&Relay{Store: memstore.New(nil), Publisher: attackPublisher{}}).newRun()
		if err != nil {
			t.Fatal(err)
		}
		f := &follower{run: r, tail: attackTail{}, blocked: make(map[string]time.Time), trouble: backoffOf(firstPause, longestWait)}
		f.carrier = carrier{run: r, sink: f}
		message := func(i int) store.Outgoing {
			m := broker.Message{ID: fmt.Sprint("m", i), Topic: "t", OrderingKey: fmt.Sprint("order", i)}
			return store.Outgoing{Message: m, Lane: store.Lane(&m), LogPlace: uint64(i + 1)}
		}
		f.done = make(map[place]bool)
		for i := range 10_000 { // a topic was missing for a while. The table has let go of all of them since
			f.aside(t.Context(), []store.Outgoing{message(i)}, store.Held)
		}
		for i := range 24 * 60 {
			time.Sleep(time.Minute)
			f.rest = append(f.rest, message(100_000+i))
			f.deliver(t.Context(), t.Context())
		}
		if n := len(f.blocked); n > 1000 {
			t.Errorf("a day later %d keys are remembered as held, and none is", n)
		}
	})
}
