package inbox_test

import (
	"errors"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

// keysOnly is a store without optional capabilities.
type keysOnly struct{ once.TxStore[*memstore.Tx] }

func TestAStoreThatKeepsKeysOnly(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		handle := b.failing("bad", errors.New("poison"))
		c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx(keysOnly{b.store}, handle), Retry: retryAtOnce(3),
			Stats: new(inbox.Stats)}
		b.publish("orders", message("bad"), message("m0"))
		start(t, c)
		await(t, "one parked, one handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 1 })
		await(t, "the dead letter", func() bool { return len(b.broker.Messages("orders.dead")) == 1 })
		b.publish("orders", message("bad")) // from the dead letters, by hand
		await(t, "dead again", func() bool { return len(b.broker.Messages("orders.dead")) == 2 })
		if b.count("bad") != 0 || b.count("m0") != 1 {
			t.Error("effects:", b.count("bad"), b.count("m0"))
		}
	})
}

func TestAConsumerWithoutAShelfAndDeadLettersIsRefused(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "c", Source: b.broker.Log("orders", "c", 1), Handler: inbox.Tx(keysOnly{b.store}, b.effect)}
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Error(err)
	}
	c.Checkpoint = true
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Error(err)
	}
}

func TestAClosedStoreEndsTheConsumer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx(b.store, b.effect), Stats: new(inbox.Stats)}
		ended := make(chan error, 1)
		go func() { ended <- c.Run(t.Context()) }()
		b.broker.Queue("orders")
		b.publish("orders", message("m0"))
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
		b.store.Close()
		b.publish("orders", message("m1"))
		if err := <-ended; !errors.Is(err, once.ErrClosed) {
			t.Error(err)
		}
	})
}
