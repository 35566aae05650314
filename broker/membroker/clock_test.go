//go:build go1.25

package membroker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/membroker"
)

const never = 100 * 365 * 24 * time.Hour // for a time that is faked

// inTime runs a test on a queue and on a log, in fake time.
func inTime(t *testing.T, o *membroker.Options, test func(t *testing.T, b *membroker.Broker, src broker.Source)) {
	for _, kind := range []string{"queue", "log"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, src := place(kind, o)
				test(t, b, src)
			})
		})
	}
}

// A returned message comes exactly when its delay has passed, to the
// nanosecond.
func TestDelaysPass(t *testing.T) {
	inTime(t, nil, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		s := open(t, src, 9)
		publish(t, b, "q", "1", "2", "3")
		ds := want(t, s, "1 2 3")
		must(t, s.Return(ctx, ds[:1], time.Hour))
		must(t, s.Return(ctx, ds[1:2], time.Minute))
		must(t, s.Return(ctx, ds[2:], never))
		start := time.Now()
		passed := func(want time.Duration) {
			t.Helper()
			if passed := time.Since(start); passed != want {
				t.Errorf("returned for %v, and there after %v", want, passed)
			}
		}
		wantWithin(t, never, s, "2+2")
		passed(time.Minute)
		wantWithin(t, never, s, "1+2")
		passed(time.Hour)
		wantWithin(t, never, s, "3+2")
		passed(s.(broker.Delayer).LongestDelay())
	})
}

func TestRetentionEndsDelivery(t *testing.T) {
	inTime(t, &membroker.Options{Retention: time.Hour}, func(t *testing.T, b *membroker.Broker, src broker.Source) {
		if horizon, err := src.(broker.Horizon).RedeliveryHorizon(ctx); horizon != time.Hour || err != nil {
			t.Errorf("the horizon is %v (%v)", horizon, err)
		}
		publish(t, b, "q", "1", "2")
		time.Sleep(time.Hour)
		publish(t, b, "q", "3")
		s := open(t, src, 9)
		ds := want(t, s, "1 2 3") // to the last moment
		time.Sleep(time.Nanosecond)
		must(t, s.Return(ctx, ds[1:], 0))
		must(t, s.Ack(ctx, ds[:1])) // what is out can be settled later too
		want(t, s, "3+2")
	})
}

func TestADeduplicatorDropsKnownIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membroker.New(&membroker.Options{Deduplicate: time.Minute})
		p := b.Publisher()
		if window := p.(broker.Deduplicator).DeduplicationWindow(); window != time.Minute {
			t.Errorf("the window is %v", window)
		}
		m := message("1", "q", "")
		if errs := p.Publish(ctx, []*broker.Message{m}); len(errs) != 1 || errs[0] == nil {
			t.Errorf("there is no queue, and publishing says %v", errs)
		}
		src := b.Queue("q")
		b.LoseConfirms(1)
		if errs := p.Publish(ctx, []*broker.Message{m}); len(errs) != 1 || errs[0] == nil { // it was stored nowhere: no copy
			t.Errorf("the confirmation is lost, and publishing says %v", errs)
		}
		publish(t, b, "q", "1", "2", "1")
		s, err := src.Open(ctx, 9)
		must(t, err)
		want(t, s, "1 2")
		time.Sleep(time.Minute)
		publish(t, b, "q", "1")
		time.Sleep(time.Nanosecond)
		publish(t, b, "q", "3", "2", "1")
		want(t, s, "3 2 1")
	})
}

// Runs the suite in fake time, with a broker that drops duplicates and is down
// for some time when it restarts.
func TestConformanceOfADeduplicator(t *testing.T) {
	var b *membroker.Broker
	harness := brokertest.Harness{
		Fresh: func(testing.TB) brokertest.Place {
			b = membroker.New(&membroker.Options{Deduplicate: time.Hour, Retention: 24 * time.Hour})
			return brokertest.Place{Publisher: b.Publisher(), Source: b.Log("q", "g", 3), Topic: "q", Log: true}
		},
		Restart: func(testing.TB) {
			b.Down(true)
			time.Sleep(time.Second)
			b.Down(false)
		},
	}
	for _, c := range brokertest.Cases(harness) {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if _, err := c.Check(t); err != nil {
					t.Errorf("%v\nthe rule: %s", err, c.Rule)
				}
			})
		})
	}
}
