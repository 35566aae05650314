//go:build go1.25

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// The only message is tried as seldom as its handler asks, and parked nevertheless.
func TestAnOutageWithLongPausesEnds(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Minute, 7 * time.Minute, 8 * time.Minute, 10 * time.Minute, 30 * time.Minute} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats),
					Retry: inbox.Retry{Outage: 3 * time.Hour}}
				calls := 0
				c.Handler = inbox.Tx(b.store, func(context.Context, mtx, *broker.Message) error {
					calls++
					return once.RetryAfter(after, errors.New("too many requests"))
				})
				start(t, c)
				b.publish("orders", message("m0"))
				time.Sleep(48 * time.Hour)
				if c.Stats.Parked.Load() != 1 {
					all, _ := inbox.Outages(t.Context(), b.store, "billing")
					t.Errorf("not parked after two days and %d calls; outages %+v; shelf %+v", calls, all, b.onTheShelf())
				}
			})
		})
	}
}

// A consumer that is restarted every three hours goes on with the outage that it reported.
func TestRestartsDoNotProlongAnOutage(t *testing.T) {
	for _, first := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				stats := new(inbox.Stats)
				b.broker.Queue("orders")
				b.publish("orders", message("m0"))
				for range 10 {
					c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: stats,
						Retry: inbox.Retry{First: first, Outage: 6 * time.Hour}}
					c.Handler = inbox.Tx(b.store, func(context.Context, mtx, *broker.Message) error { return errors.New("bug") })
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Hour)
					if err := c.Run(ctx); err != nil {
						t.Fatal(err)
					}
					cancel()
					time.Sleep(2 * time.Second)
				}
				if stats.Parked.Load() != 1 {
					all, _ := inbox.Outages(t.Context(), b.store, "billing")
					t.Errorf("not parked after 30 hours; failed %d times, outages %+v, shelf %+v", stats.Failed.Load(), all, b.onTheShelf())
				}
			})
		})
	}
}

// After an outage, the first on the shelf are messages that always fail.
func TestProbesGoThroughTheShelfInTurn(t *testing.T) {
	for _, poisons := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(poisons), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				var good atomic.Int64
				var down atomic.Bool
				down.Store(true)
				c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats)}
				c.Handler = inbox.Tx(b.store, func(_ context.Context, _ mtx, m *broker.Message) error {
					if !strings.HasPrefix(m.ID, "poison") && !down.Load() {
						good.Add(1)
					}
					if down.Load() || strings.HasPrefix(m.ID, "poison") {
						return errors.New("connection refused")
					}
					return nil
				})
				start(t, c)
				for i := range poisons {
					b.publish("orders", message(fmt.Sprint("poison", i)))
				}
				time.Sleep(30 * time.Minute)
				for i := range 20 {
					b.publish("orders", message(fmt.Sprint("m", i)))
				}
				time.Sleep(time.Hour)
				down.Store(false)
				time.Sleep(2 * time.Hour)
				if c.Stats.Handled.Load() != 20 {
					t.Errorf("2 hours after the outage: handled %d of 20, tried %d, down %d", c.Stats.Handled.Load(), good.Load(), c.Stats.Down.Load())
				}
			})
		})
	}
}
