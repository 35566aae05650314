//go:build go1.25

package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// wantOneAttempt waits until messages were set aside, and checks that those were tried
// once.
func (b *bench) wantOneAttempt(id string) {
	b.Helper()
	for range 4000 {
		for _, state := range []store.OutgoingState{store.Pending, store.Held, store.Stuck} {
			ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: state, Limit: 100})
			b.must(err)
			for _, m := range ms {
				if m.Message.ID == id && m.Attempts > 0 {
					if m.Attempts > 1 {
						b.Errorf("%s is %v after %d attempts, and has failed alone once: %q", id, state, m.Attempts, m.Reason)
					}
					return
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Errorf("%s was not set aside", id)
}

// A secret is missing. Each message that has it is opened several times in a round,
// in ever smaller batches, which is one attempt.
func TestAMessageThatCannotBeOpenedHasOneAttemptInARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		known := once.Sealing{Ring: ringOf(t, "a")}
		b.putAs(once.Sealing{Ring: ringOf(t, "b")}, some(40, "closed", "")...)
		b.putAs(known, some(40, "open", "")...)
		r := b.relay()
		r.Store = b.with(known)
		defer b.run(r)()
		go func() {
			for i := range 100 {
				time.Sleep(20 * time.Millisecond)
				b.putAs(known, some(1, "more"+string(rune('a'+i%26))+string(rune('a'+i/26)), "")...)
			}
		}()
		b.wantOneAttempt("closed0000")
		time.Sleep(10 * time.Second)
	})
}

// A message fails in a batch with one that cannot be opened, and is then sent alone:
// the first of these calls is not its own.
func TestAMessageThatFailsBesideOneThatCannotBeOpenedHasOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		known := once.Sealing{Ring: ringOf(t, "a")}
		b.sender.set(nil, func(m *broker.Message) error {
			if strings.HasPrefix(m.ID, "bad") {
				return errors.New("no")
			}
			return nil
		})
		r := b.relay()
		r.Store, r.Batch = b.with(known), 4
		b.putAs(once.Sealing{Ring: ringOf(t, "b")}, message("closed", "1"))
		b.putAs(known, message("bad", "2"), message("bad too", "3"), message("good", "4"))
		defer b.run(r)()
		go func() {
			for i := range 100 {
				time.Sleep(20 * time.Millisecond)
				b.putAs(known, some(2, "more"+string(rune('a'+i%26))+string(rune('a'+i/26)), "")...)
			}
		}()
		b.wantOneAttempt("bad")
		time.Sleep(10 * time.Second)
	})
}
