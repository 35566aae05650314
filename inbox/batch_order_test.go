package inbox_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
)

// Two messages of a batch wait for an earlier one of their ordering key, which is
// handled while another message has the batch divided, between the two.
func TestMessagesOfADividedBatchStayInOrderIfTheOneTheyWaitForIsHandledMeanwhile(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		var order []string
		failed, calls := false, 0
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats), BatchSize: 16}
		c.Handler = inbox.Batch(b.store, func(_ context.Context, _ mtx, ms []*broker.Message) error {
			if slices.ContainsFunc(ms, func(m *broker.Message) bool { return m.ID == "x" }) {
				if calls++; calls == 2 {
					time.Sleep(5 * time.Second)
				}
				if calls <= 2 {
					return errors.New("a deadlock, perhaps")
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ms {
				if m.ID == "m0" && !failed {
					failed = true
					return inbox.Failed(m, once.RetryAfter(10*time.Second, errors.New("not now")))
				}
				order = append(order, m.ID)
			}
			return nil
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"))
		await(t, "m0 waits", func() bool { return c.Stats.Shelved.Load() == 1 })
		time.Sleep(9 * time.Second)
		b.publish("orders", ordered("m1", "k"), ordered("m2", "k"), ordered("x", "other"))
		await(t, "all are handled", func() bool { return c.Stats.Handled.Load() == 4 })
		order = slices.DeleteFunc(order, func(id string) bool { return id == "x" })
		if want := []string{"m0", "m1", "m2"}; !slices.Equal(order, want) {
			t.Errorf("handled in the order %q, want %q", order, want)
		}
	})
}

// A topic is down, and its messages are put on the shelf. A message of another topic,
// which is before one of them in a lane, is handled before it.
func TestAMessageThatIsHeldGoesToTheShelfAfterEarlierOnesOfItsBatch(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		b.broker.Bind("all", "good")
		b.broker.Bind("all", "bad")
		var mu sync.Mutex
		var order []string
		down, failed := true, false
		var ms []*broker.Message
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("all"), Stats: new(inbox.Stats), BatchSize: 16, Window: 4}
		c.Handler = inbox.Batch(b.store, func(_ context.Context, _ mtx, ms []*broker.Message) error {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ms {
				if m.ID == "m1" && !failed {
					failed = true
					return inbox.Failed(m, errors.New("a deadlock, perhaps"))
				}
				if m.Topic == "bad" && down {
					return inbox.Failed(m, inbox.Unavailable(errors.New("down")))
				}
			}
			for _, m := range ms {
				order = append(order, m.ID)
			}
			return nil
		})
		start(t, c)
		b.publish("good", ordered("g0", "g0"))
		await(t, "one handled", func() bool { return c.Stats.Handled.Load() == 1 })
		b.publish("bad", ordered("b0", "b0"), ordered("b1", "b1"), ordered("b2", "b2"))
		time.Sleep(20 * time.Second) // these are on the shelf, but for one
		for _, m := range []*broker.Message{ordered("b3", "b3"), ordered("b4", "b4"), ordered("m1", "k"), ordered("m2", "k")} {
			m.Topic = "bad"
			if m.ID == "m1" {
				m.Topic = "good"
			}
			ms = append(ms, m)
		}
		if errs := b.broker.Publisher().Publish(t.Context(), ms); errs != nil {
			t.Fatal(errs)
		}
		time.Sleep(time.Second)
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		order = slices.DeleteFunc(order, func(id string) bool { return id[0] != 'm' })
		if want := []string{"m1", "m2"}; !slices.Equal(order, want) {
			t.Errorf("handled in the order %q, want %q", order, want)
		}
	})
}

// A message of a batch is redelivered, and its key was used with another input: it is
// to be parked. A later one of its ordering key waits for it.
func TestMessagesOfABatchWaitForARedeliveredOneWithAnotherInput(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		again := false
		c := &inbox.Consumer{Name: "billing", Stats: new(inbox.Stats), BatchSize: 16}
		c.Source = bent{Source: b.broker.Queue("orders"), arrive: func(d *broker.Delivery) {
			if again && d.Message.ID == "m0" {
				d.Redelivered, d.Message.Attempt = true, 2
			}
		}}
		c.Handler = batch(b, b.effect)
		start(t, c)
		b.publish("orders", ordered("m0", "k"))
		await(t, "m0 is handled", func() bool { return c.Stats.Handled.Load() == 1 })
		again = true
		other := ordered("m0", "k")
		other.Body = []byte("something else")
		b.publish("orders", other, ordered("m1", "k"))
		await(t, "all are settled", func() bool { return c.Stats.Parked.Load()+c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 3 })
		if b.count("m1") != 0 {
			t.Errorf("m1 was handled, although it is behind a parked message")
		}
	})
}
