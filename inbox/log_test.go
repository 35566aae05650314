package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func logConsumer(b *bench) *inbox.Consumer {
	return &inbox.Consumer{Name: "c", Source: b.broker.Log("orders", "c", 1), Handler: inbox.Tx(b.store, b.effect),
		Checkpoint: true, Retry: retryAtOnce(4), Stats: new(inbox.Stats)}
}

// Offsets of a log that was made anew begin at 0 again: its messages would look as if they had been handled.
func TestALogThatWasMadeAnewStopsTheConsumer(t *testing.T) {
	b := newBench(t)
	c := logConsumer(b)
	stop := start(t, c)
	b.publish("orders", numbered(5)...)
	await(t, "handled", func() bool { return c.Stats.Handled.Load() == 5 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.broker.Recreate("orders")
	b.publish("orders", message("new"))
	if err := c.Run(t.Context()); !errors.Is(err, inbox.ErrLogChanged) {
		t.Fatal(err)
	}
	if b.count("new") != 0 {
		t.Error("it was handled all the same")
	}
	admin := inbox.Admin{Store: b.store}
	at, err := admin.Positions(t.Context(), "c")
	if err != nil || len(at) != 1 {
		t.Fatal(at, err)
	}
	at[0].Log, at[0].Offset = "orders#2", -1
	if err := admin.SetPosition(t.Context(), at[0]); err != nil {
		t.Fatal(err)
	}
	start(t, c)
	await(t, "the new message", func() bool { return b.count("new") == 1 })
}

// The broker believes that more was handled than the database knows: it was restored from a backup.
func TestADatabaseThatWasRestoredReadsTheLogAgain(t *testing.T) {
	b := newBench(t)
	c := logConsumer(b)
	stop := start(t, c)
	b.publish("orders", numbered(10)...)
	await(t, "handled", func() bool { return c.Stats.Handled.Load() == 10 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	restored := newBench(t)
	at, err := b.store.Positions(t.Context(), "c")
	if err != nil || len(at) != 1 {
		t.Fatal(at, err)
	}
	at[0].Offset = 4
	if err := restored.store.SetPosition(t.Context(), at[0]); err != nil {
		t.Fatal(err)
	}
	restored.broker = b.broker
	c = logConsumer(restored)
	b.publish("orders", message("m10"))
	start(t, c)
	await(t, "what the backup lacks", func() bool { return restored.count("m10") == 1 })
	for i := range 11 {
		want := 1
		if i <= 4 {
			want = 0
		}
		if got := restored.count(fmt.Sprint("m", i)); got != want {
			t.Errorf("m%d: %d effects, want %d", i, got, want)
		}
	}
}

// A consumer that was cut off, and goes on with what it had, moves nothing once another has its partition.
func TestAPartitionHasOneOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	zombie := logConsumer(b)
	start(t, zombie)
	b.publish("orders", message("m0"))
	await(t, "the first", func() bool { return zombie.Stats.Handled.Load() == 1 })
	other, err := b.store.OpenPosition(t.Context(), "c", "orders/0") // another process takes the partition over, and goes on
	if err != nil {
		t.Fatal(err)
	}
	to := other
	to.Offset, to.Digest = 2, [16]byte{}
	if err := b.store.TransactAt(t.Context(), other, to, func(tx *memstore.Tx) error {
		b.add(tx, "m1")
		b.add(tx, "m2")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.publish("orders", message("m1"), message("m2"), message("m3"))
	await(t, "the zombie has seen them", func() bool { return b.count("m3") == 1 })
	b.allOnce(t, 4)
	if calls := b.calls["m1"] + b.calls["m2"]; calls != 0 && zombie.Stats.Duplicates.Load() == 0 {
		t.Error("it never noticed")
	}
}

func TestTwoProcessesShareALog(t *testing.T) {
	b := newBench(t)
	first, second := logConsumer(b), logConsumer(b)
	source := b.broker.Log("shared", "c", 4)
	first.Source, second.Source = source, source
	stop := start(t, first)
	for i, m := range numbered(200) {
		m.OrderingKey = fmt.Sprint("k", i%7)
		b.publish("shared", m)
		switch i {
		case 50:
			start(t, second)
		case 120:
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, "200 handled", func() bool { return first.Stats.Handled.Load()+second.Stats.Handled.Load() >= 200 })
	b.allOnce(t, 200)
}

// A message that fails is tried on the shelf, and those of other keys pass it.
func TestAFailingMessageOfALogWaitsOnTheShelf(t *testing.T) {
	b := newBench(t)
	mended := make(chan struct{})
	c := logConsumer(b)
	c.Retry = inbox.Retry{Attempts: 1000, First: 20 * time.Millisecond, Limit: 50 * time.Millisecond}
	c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
		if m.ID == "m0" {
			select {
			case <-mended:
			default:
				return errors.New("not yet")
			}
		}
		was, _ := tx.Get(m.OrderingKey)
		tx.Set(m.OrderingKey, was+m.ID+" ")
		return nil
	})
	start(t, c)
	b.publish("orders", ordered("m0", "a"), ordered("m1", "a"), ordered("m2", "b"), ordered("m3", "a"))
	await(t, "the other key", func() bool { v, _ := b.store.Value("b"); return v == "m2 " })
	await(t, "three on the shelf", func() bool {
		found, _ := b.store.Shelved(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Waiting}})
		return len(found) == 3
	})
	close(mended)
	await(t, "the key in order", func() bool { v, _ := b.store.Value("a"); return v == "m0 m1 m3 " })
}

// In a log, a message needs no ID: its place tells it apart, on the shelf as well.
func TestAMessageWithoutAnIDIsTriedAgainOnTheShelf(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tries := 0
	c := logConsumer(b)
	c.Retry = inbox.Retry{Attempts: 10, First: time.Millisecond, Limit: 2 * time.Millisecond}
	c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { d.Message.ID = "" }}
	c.Handler = inbox.Tx(b.store, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
		if tries++; tries < 6 {
			return errors.New("not yet")
		}
		b.add(tx, "effect of "+m.ID)
		return nil
	})
	start(t, c)
	b.publish("orders", message("m0"))
	await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
	if b.count("effect of ") != 1 {
		t.Error("its handler saw another message than the one that came")
	}
}

// What comes again because its ack was lost comes among later messages.
func TestALostAckAmongLaterMessages(t *testing.T) {
	b := newBench(t)
	c := logConsumer(b)
	c.Source = stuttering{c.Source}
	c.BatchSize = 64
	start(t, c)
	b.publish("orders", numbered(60)...)
	await(t, "60 handled", func() bool { return c.Stats.Handled.Load() >= 60 })
	b.allOnce(t, 60)
}

// stuttering is a source that delivers the first of what it has received once more at the end.
type stuttering struct{ broker.Source }

func (s stuttering) Open(ctx context.Context, window int) (broker.Session, error) {
	session, err := s.Source.Open(ctx, window)
	return stutteringSession{session}, err
}

type stutteringSession struct{ broker.Session }

func (s stutteringSession) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, max)
	if len(ds) > 0 {
		again := ds[0]
		again.Redelivered = true
		ds = append(ds, again)
	}
	return ds, err
}
