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

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// entities is a consumer of messages that each have a topic of their own, such as
// subjects or routing keys with the ID of an entity.
func entities(b *bench, handle func(*broker.Message) error) *inbox.Consumer {
	return &inbox.Consumer{Name: "billing", Source: b.broker.Queue("all"), Stats: new(inbox.Stats),
		Handler: inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if err := handle(m); err != nil {
				return err
			}
			return b.effect(ctx, tx, m)
		})}
}

// publishTo publishes a message to a topic of the queue of entities.
func (b *bench) publishTo(topic, id string) *broker.Message {
	b.broker.Bind("all", topic)
	m := message(id)
	b.publish(topic, m)
	return m
}

// A message that always fails and is the only one of its topic is judged by the
// other topics.
func TestAPoisonousMessageWithATopicOfItsOwnIsParkedWithinItsAttempts(t *testing.T) {
	for _, quiet := range []time.Duration{0, 20 * time.Minute} { // before others come
		t.Run(quiet.String(), func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				var calls atomic.Int64
				c := entities(b, func(m *broker.Message) error {
					if m.ID == "bad" {
						calls.Add(1)
						return errors.New("poison")
					}
					return nil
				})
				start(t, c)
				b.publishTo("orders.bad", "bad")
				time.Sleep(quiet)
				if down := c.Stats.Down.Load(); quiet > 0 && (down != 1 || c.Stats.Parked.Load() != 0) {
					t.Errorf("alone, %d topics are down and %d messages parked", down, c.Stats.Parked.Load())
				}
				before := calls.Load()
				for i := range 40 {
					time.Sleep(5 * time.Second)
					b.publishTo(fmt.Sprint("orders.", i), fmt.Sprint("m", i))
					if quiet == 0 && c.Stats.Down.Load() != 0 {
						t.Error("its topic is taken for down")
					}
				}
				if c.Stats.Parked.Load() != 1 || calls.Load()-before > 11 || // one may be made before the first of them
					c.Stats.Down.Load() != 0 {
					t.Errorf("%d are parked after %d attempts beside others; %d topics are down",
						c.Stats.Parked.Load(), calls.Load()-before, c.Stats.Down.Load())
				}
			})
		})
	}
}

// Messages of one topic that all fail alike are not to blame, though others get
// through.
func TestAFewMessagesOfATopicThatIsDownBesideOthersAreNotParked(t *testing.T) {
	onQuietBench(t, func(t *testing.T, b *bench) {
		var down atomic.Bool
		down.Store(true)
		c := entities(b, func(m *broker.Message) error {
			if down.Load() && strings.HasPrefix(m.ID, "d") {
				return errors.New("the dependency is down")
			}
			return nil
		})
		start(t, c)
		var ms []*broker.Message
		for i := range 2 {
			ms = append(ms, b.publishTo("letters", fmt.Sprint("d", i)))
		}
		for i := range 200 {
			time.Sleep(3 * time.Second)
			ms = append(ms, b.publishTo(fmt.Sprint("orders.", i), fmt.Sprint("m", i)))
		}
		if c.Stats.Down.Load() != 1 || c.Stats.Parked.Load() != 0 {
			t.Errorf("%d topics are down and %d messages are parked", c.Stats.Down.Load(), c.Stats.Parked.Load())
		}
		down.Store(false)
		if !sleepUntil(time.Minute, func() bool { return len(handled(b, ms)) == len(ms) }) {
			t.Errorf("%d of %d are handled", len(handled(b, ms)), len(ms))
		}
	})
}

// An outage of which each message has another topic is one outage: one message is
// tried at a time, and none is parked.
func TestAnOutageOfMessagesWithATopicEachIsOne(t *testing.T) {
	for name, err := range map[string]error{
		"failures":    errors.New("the dependency is down"),
		"unavailable": inbox.Unavailable(errors.New("connection refused")),
	} {
		t.Run(name, func(t *testing.T) {
			onQuietBench(t, func(t *testing.T, b *bench) {
				dep := &dependency{err: err}
				c := entities(b, dep.call)
				start(t, c)
				ms := []*broker.Message{b.publishTo("orders.before", "before")}
				time.Sleep(time.Second)
				dep.down.Store(true)
				for i := range 200 {
					ms = append(ms, b.publishTo(fmt.Sprint("orders.", i), fmt.Sprint("m", i)))
				}
				time.Sleep(2 * time.Hour)
				if calls := dep.calls.Load(); calls > 1500 {
					t.Errorf("it was called %d times", calls)
				}
				reported, err := inbox.Outages(t.Context(), b.store, "billing")
				if err != nil || len(reported) > 5 || len(reported) == 0 || reported[0].Topic != inbox.AllTopics {
					t.Errorf("%d are reported, %.1000v, %v", len(reported), reported, err)
				}
				dep.down.Store(false)
				if !sleepUntil(2*time.Minute, func() bool { return len(handled(b, ms)) == len(ms) }) {
					t.Errorf("%d of %d are handled two minutes after the outage", len(handled(b, ms)), len(ms))
				}
				if c.Stats.Down.Load() != 0 || c.Stats.Parked.Load() != 0 {
					t.Errorf("%d topics are down, and %d messages are parked", c.Stats.Down.Load(), c.Stats.Parked.Load())
				}
			})
		})
	}
}
