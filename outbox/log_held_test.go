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

type idleTail struct{ store.OutboxTail }

func (idleTail) SetAside(context.Context, []store.Outgoing) error           { return nil }
func (idleTail) Sent(context.Context, []store.Outgoing, store.Ending) error { return nil }

type idlePublisher struct{}

func (idlePublisher) Publish(context.Context, []*broker.Message) []error { return nil }
func (idlePublisher) Close() error                                       { return nil }

// No later message of these keys ever comes.
func TestOrderingKeysThatAreNoLongerHeldTakeNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := newRun(&Relay{Store: memstore.New(nil), Publisher: idlePublisher{}})
		if err != nil {
			t.Fatal(err)
		}
		f := &logRelay{env: r.env, tail: idleTail{}, blocked: make(map[string]time.Time), backoff: backoffOf(firstBackoff, backoffLimit)}
		f.carrier = carrier{env: r.env, source: f}
		message := func(i int) store.Outgoing {
			m := broker.Message{ID: fmt.Sprint("m", i), Topic: "t", OrderingKey: fmt.Sprint("order", i)}
			return store.Outgoing{Message: m, Lane: store.Lane(&m), LogPlace: uint64(i + 1)}
		}
		f.done = make(map[place]bool)
		for i := range 10_000 { // a topic was missing for a while, and its messages were published since
			f.aside(t.Context(), inState([]store.Outgoing{message(i)}, store.Held))
		}
		for i := range 24 * 60 {
			time.Sleep(time.Minute)
			f.rest = append(f.rest, message(100_000+i))
			f.deliver(t.Context(), t.Context())
		}
		if n := len(f.blocked); n > 1000 {
			t.Errorf("a day later %d keys are remembered as held, want 0", n)
		}
	})
}
