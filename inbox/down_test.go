//go:build go1.25

package inbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// A consumer is down for longer than keys are kept, and they are forgotten. A
// redelivered message that it had handled is parked, not handled twice. A
// message that was made while it was down is handled, however old it is.
func TestAConsumerThatWasDownForLongerThanKeysAreKept(t *testing.T) {
	for _, sh := range shapes {
		if sh.log && sh.name != "log, keys" { // positions are not forgotten
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const day = 24 * time.Hour
				b := newBench(t)
				c := sh.consumer(b, b.effect)
				handled, undelivered := numbered(3), message("made before it went down")
				b.publish("orders", handled...)
				stop := start(t, c)
				await(t, "three handled", func() bool { return c.Stats.Handled.Load() == 3 })
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				b.publish("orders", undelivered)

				var missed []*broker.Message
				for d := range 40 { // down, with a janitor at work
					time.Sleep(day)
					if d%10 == 0 {
						m := message("made on day " + time.Now().Format(time.DateOnly))
						missed = append(missed, m)
						b.publish("orders", m)
					}
					for n := 1; n > 0; {
						var err error
						if n, err = b.store.Forget(t.Context(), 100); err != nil {
							t.Fatal(err)
						}
					}
				}
				page, err := b.store.List(t.Context(), once.RecordQuery{})
				if err != nil || len(page.Records) > 0 {
					t.Fatalf("there are keys still: %+v, %v: this test does not do what it says", page.Records, err)
				}

				again := make([]*broker.Message, len(handled))
				for i, m := range handled {
					copied := *m
					again[i] = &copied
				}
				b.publish("orders", again...)
				late := message("made when it is back")
				b.publish("orders", late)
				c = sh.consumer(b, b.effect)
				stop = start(t, c)
				await(t, "all is handled or parked", func() bool {
					return c.Stats.Handled.Load() == int64(len(missed))+1 && c.Stats.Parked.Load() == int64(len(handled))+1
				})
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				for _, m := range append(append(missed, late), handled...) {
					if n := b.count(m.ID); n != 1 {
						t.Errorf("%q was handled %d times", m.ID, n)
					}
				}
				if n := b.count(undelivered.ID); n != 0 {
					t.Errorf("what may have been handled before was handled %d times", n)
				}
				parked, err := b.store.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}})
				if err != nil || len(parked) != len(handled)+1 {
					t.Errorf("%d messages are parked, %v", len(parked), err)
				}
			})
		})
	}
}
