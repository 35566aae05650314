package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// A topic is down, and the messages that are tried for it are too old to be told from
// new: they are parked, and show nothing. Another one is tried at once.
func TestAProbeThatIsTooOldDoesNotKeepOthersFromTrying(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		var down atomic.Bool
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), Concurrency: 1}
		c.Handler = inbox.Tx(b.store, func(_ context.Context, tx mtx, m *broker.Message) error {
			if down.Load() {
				return inbox.Unavailable(errors.New("down"))
			}
			b.add(tx, m.ID)
			return nil
		})
		b.publish("orders", message("first"))
		stop := start(t, c)
		await(t, "the consumer is known", func() bool { return c.Stats.Handled.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		down.Store(true)
		b.publish("orders", message("m1"))
		for i := range 5 {
			old := message(fmt.Sprint("old", i))
			old.Time = time.Now().Add(-31 * 24 * time.Hour)
			b.publish("orders", old)
		}
		start(t, c)
		time.Sleep(100 * time.Millisecond)
		down.Store(false)
		begun := time.Now()
		await(t, "m1 is handled", func() bool { return c.Stats.Handled.Load() == 2 && c.Stats.Parked.Load() == 5 })
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("it took %v after the outage", took)
		}
	})
}

// A topic recovers before the time that its last failure asked for. All its messages
// are tried then, also one that waits for a message of another topic.
func TestAMessageAfterOneOfAnotherTopicIsTriedWhenItsTopicRecovers(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		b.broker.Bind("all", "good")
		b.broker.Bind("all", "bad")
		var handled atomic.Int64
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("all"), Stats: new(inbox.Stats), BatchSize: 4, Concurrency: 2}
		c.Handler = inbox.Batch(b.store, func(_ context.Context, _ mtx, ms []*broker.Message) error {
			for _, m := range ms {
				switch m.ID {
				case "slow":
					time.Sleep(30 * time.Second)
				case "fails":
					if handled.Load() == 0 {
						return inbox.Failed(m, inbox.Unavailable(once.RetryAfter(time.Hour, errors.New("down"))))
					}
				case "m2":
					handled.Add(1)
				}
			}
			return nil
		})
		start(t, c)
		b.publish("bad", ordered("slow", "slow"))
		time.Sleep(time.Second)
		b.publish("bad", ordered("fails", "fails"))
		time.Sleep(time.Second)
		m1, m2 := ordered("m1", "k"), ordered("m2", "k")
		m1.Topic, m2.Topic = "good", "bad"
		if errs := b.broker.Publisher().Publish(t.Context(), []*broker.Message{m1, m2}); errs != nil {
			t.Fatal(errs)
		}
		begun := time.Now()
		for handled.Load() == 0 && time.Since(begun) < 2*time.Hour {
			time.Sleep(time.Second)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("the topic got through again after 28s, and m2 was handled after %v", took)
		}
	})
}
