package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// shape is a way to handle messages in transactions. Each rule holds for all
// shapes.
type shape struct {
	name   string
	log    bool
	handle func(*bench, func(context.Context, *memstore.Tx, *broker.Message) error) inbox.Handler
	set    func(*inbox.Consumer)
}

var shapes = []shape{
	{"tx", false, single, func(*inbox.Consumer) {}},
	{"batch", false, batch, func(c *inbox.Consumer) { c.BatchSize = 16 }},
	{"log", true, single, func(c *inbox.Consumer) { c.Checkpoint, c.BatchSize = true, 16 }},
	{"log, batch", true, batch, func(c *inbox.Consumer) { c.Checkpoint, c.BatchSize = true, 16 }},
	{"log, keys", true, single, func(c *inbox.Consumer) {
		c.Checkpoint, c.BatchSize = true, 16
		c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
	}},
}

func single(b *bench, h func(context.Context, *memstore.Tx, *broker.Message) error) inbox.Handler {
	return inbox.Tx(b.store, h)
}

func batch(b *bench, h func(context.Context, *memstore.Tx, *broker.Message) error) inbox.Handler {
	return inbox.Batch(b.store, func(ctx context.Context, tx *memstore.Tx, ms []*broker.Message) error {
		for _, m := range ms {
			if err := h(ctx, tx, m); err != nil {
				return err // blames nobody
			}
		}
		return nil
	})
}

func onEach(t *testing.T, test func(t *testing.T, b *bench, sh shape)) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) { test(t, b, sh) })
		})
	}
}

// consumer returns a consumer that has handled a message if the counter of its
// ID is 1.
func (sh shape) consumer(b *bench, h func(context.Context, *memstore.Tx, *broker.Message) error) *inbox.Consumer {
	c := &inbox.Consumer{Name: "billing", Handler: sh.handle(b, h), Retry: retryAtOnce(4), Stats: new(inbox.Stats)}
	if c.Source = b.broker.Queue("orders"); sh.log {
		c.Source = b.broker.Log("orders", "billing", 3)
	}
	sh.set(c)
	return c
}

func (b *bench) effect(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
	b.called(m)
	b.add(tx, m.ID)
	return nil
}

// failing returns a handler whose effect on one message is followed by an error.
func (b *bench) failing(id string, err error) func(context.Context, mtx, *broker.Message) error {
	return func(ctx context.Context, tx mtx, m *broker.Message) error {
		if effect := b.effect(ctx, tx, m); effect != nil || m.ID != id {
			return effect
		}
		return err
	}
}

func (b *bench) allOnce(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if got := b.count(fmt.Sprint("m", i)); got != 1 {
			t.Errorf("m%d has %d effects", i, got)
		}
	}
}

func TestEachMessageOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.effect)
		b.publish("orders")
		stop := start(t, c)
		b.publish("orders", numbered(100)...)
		await(t, "100 handled", func() bool { return c.Stats.Handled.Load() == 100 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		b.allOnce(t, 100)
	})
}

func TestEachMessageOnceAcrossFaultsOfTheBroker(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.effect)
		if !sh.log || sh.name == "log, keys" { // a position does not tell a message that was written to the log twice
			b.broker.Duplicate(20)
		}
		b.broker.LoseAcks(20)
		start(t, c)
		for i, m := range numbered(100) {
			b.publish("orders", m)
			if i%25 == 24 {
				b.broker.Restart()
			}
		}
		await(t, "all handled", func() bool {
			for i := range 100 {
				if b.count(fmt.Sprint("m", i)) == 0 {
					return false
				}
			}
			return true
		})
		b.broker.Restart()
		b.publish("orders", message("last"))
		await(t, "the last", func() bool { return b.count("last") > 0 })
		b.allOnce(t, 100)
	})
}

func TestAPoisonousMessageIsParkedAndOthersFlow(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		poison := errors.New("poison")
		c := sh.consumer(b, b.failing("bad", poison))
		start(t, c)
		ms := numbered(40)
		b.publish("orders", ms[:20]...)
		b.publish("orders", message("bad"))
		b.publish("orders", ms[20:]...)
		await(t, "40 handled", func() bool { return c.Stats.Handled.Load() == 40 })
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		b.allOnce(t, 40)
		if b.count("bad") != 0 {
			t.Error("the poisonous message left an effect")
		}
		found, err := b.store.Shelved(t.Context(), store.ShelfQuery{Consumer: "billing"})
		if err != nil || len(found) != 1 || found[0].State != store.Parked || found[0].Message.ID != "bad" ||
			string(found[0].Message.Body) != "body of bad" {
			t.Fatal(found, err)
		}
	})
}

func TestReplayOfAParkedMessage(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		healthy := make(chan struct{})
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			select {
			case <-healthy:
				return nil
			default:
				return once.Permanent(errors.New("not yet"))
			}
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"), ordered("m1", "k"), ordered("m2", "k"))
		await(t, "parked, and two behind it", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load() == 2 })
		close(healthy)
		admin := inbox.Admin{Store: b.store}
		dry, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended", DryRun: true})
		if err != nil || dry != (inbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
			t.Fatal(dry, err)
		}
		got, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"})
		if err != nil || got != (inbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
			t.Fatal(got, err)
		}
		await(t, "all handled", func() bool { return c.Stats.Handled.Load() == 3 })
		b.allOnce(t, 3)
	})
}

func TestHandlersSeeOneKeyInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		fails := map[string]int{"m3": 2, "m7": 3}
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if fails[m.ID] > 0 {
				fails[m.ID]--
				return errors.New("again")
			}
			was, _ := tx.Get("log")
			tx.Set("log", was+m.ID+" ")
			return nil
		})
		for i := range 10 {
			b.publish("orders", ordered(fmt.Sprint("m", i), "k"))
		}
		start(t, c)
		await(t, "10 handled", func() bool { return c.Stats.Handled.Load() == 10 })
		if got, _ := b.store.Value("log"); got != "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9 " {
			t.Error("handled in the order", got)
		}
	})
}

func TestABusinessDuplicateWithAnotherID(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.add(tx, string(m.Body))
			return nil
		})
		c.Key = func(m *broker.Message) (string, error) { return string(m.Body), nil }
		start(t, c)
		for _, id := range []string{"a", "b", "c"} {
			m := message(id)
			m.Body = []byte("order 1")
			b.publish("orders", m)
		}
		await(t, "three seen", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() == 3 })
		if got := b.count("order 1"); got != 1 {
			t.Errorf("%d effects", got)
		}
	})
}

func TestATooCoarseKeyParks(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, b.effect)
		c.Key = func(m *broker.Message) (string, error) { return "same", nil }
		start(t, c)
		b.publish("orders", message("m0"), message("other"))
		await(t, "one handled, one parked", func() bool { return c.Stats.Handled.Load() == 1 && c.Stats.Parked.Load() == 1 })
	})
}

func TestACopyOfAParkedMessageIsADuplicate(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		if sh.log && sh.name != "log, keys" {
			return // a position does not tell a message that was written to the log twice
		}
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			return once.Permanent(errors.New("poison"))
		})
		start(t, c)
		b.publish("orders", message("bad"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		b.publish("orders", message("bad"))
		await(t, "a duplicate", func() bool { return c.Stats.Duplicates.Load() == 1 })
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.calls["bad"] != 1 {
			t.Errorf("%d calls", b.calls["bad"])
		}
	})
}
