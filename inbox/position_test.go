package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A partition that is read again while it waits for a worker does not block the
// worker.
func TestASeekWhileALaneIsReadyStopsNoWorker(t *testing.T) {
	t.Parallel()
	onBench(t, func(t *testing.T, b *bench) {
		src := b.broker.Log("orders", "c", 2)
		b.publish("orders", numbered(10)...) // five in each partition
		raw, err := src.Open(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		ds, err := raw.Receive(t.Context(), 4) // two of each are handled, as the broker thinks
		if err != nil || len(ds) != 4 {
			t.Fatal(ds, err)
		}
		if err := errors.Join(raw.Ack(t.Context(), ds), raw.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		// The database was restored from a backup in which partition 1 had not begun.
		if err := b.store.SetPosition(t.Context(), store.Position{Consumer: "c", Partition: "orders/1", Log: "orders#1", Offset: -1}); err != nil {
			t.Fatal(err)
		}
		gate, calls := make(chan struct{}), atomic.Int64{}
		var opened sync.Once
		c := &inbox.Consumer{Name: "c", Checkpoint: true, BatchSize: 1, Concurrency: 1, Window: 100, Stats: new(inbox.Stats)}
		c.Source = bent{Source: src, seek: func() {
			opened.Do(func() { close(gate) })
			for range 10000 { // a broker takes its time to seek, in which the worker goes on
				runtime.Gosched()
			}
		}}
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if calls.Add(1) == 2 {
				<-gate
			}
			return b.effect(ctx, tx, m)
		})
		start(t, c)
		await(t, "three of partition 0 and five of partition 1", func() bool { return c.Stats.Handled.Load() == 8 })
	})
}

// A message that is parked under another ID has the same digest in the
// position.
func TestAMismatchLeavesTheDigestOfThePositionAlone(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		failed := false
		c := logConsumer(b)
		c.Key = func(m *broker.Message) (string, error) { return m.Header["key"], nil }
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "b" && !failed {
				failed = true
				return errors.New("once")
			}
			return b.effect(ctx, tx, m)
		})
		ms := []*broker.Message{message("a"), message("b"), message("c")}
		for i, key := range []string{"k", "b", "k"} {
			ms[i].Header = map[string]string{"key": key}
		}
		b.publish("orders", ms...)
		b.broker.LoseAcks(3)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { ended <- c.Run(ctx) }()
		await(t, "c parked and seen again", func() bool { return c.Stats.Duplicates.Load() >= 3 || len(ended) > 0 })
		cancel()
		if err := <-ended; err != nil {
			t.Error("the same message came again, and Run ended with:", err)
		}
	})
}

func TestCheckpointNeedsALog(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx(b.store, b.effect), Checkpoint: true}
	b.publish("orders", message("m0"))
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) || b.count("m0") != 0 {
		t.Error(err)
	}
}

func logConsumer(b *bench) *inbox.Consumer {
	return &inbox.Consumer{Name: "c", Source: b.broker.Log("orders", "c", 1), Handler: inbox.Tx(b.store, b.effect),
		Checkpoint: true, Retry: retryAtOnce(4), Stats: new(inbox.Stats)}
}

// The offsets of a recreated log begin at 0 again, so its messages would look
// like handled ones.
func TestALogThatWasMadeAnewStopsTheConsumer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

// The database was restored from a backup, so the broker has a later position
// than the database.
func TestADatabaseThatWasRestoredReadsTheLogAgain(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

// A consumer that lost its partition cannot move the position any more.
func TestAPartitionHasOneOwner(t *testing.T) {
	t.Parallel()
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

func TestTwoProcessesShareALog(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

// A message that fails is retried from the shelf, and messages with other
// ordering keys pass it.
func TestAFailingMessageOfALogWaitsOnTheShelf(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

// A message of a log needs no ID: it is identified by its place, on the shelf
// as well.
func TestAMessageWithoutAnIDIsTriedAgainOnTheShelf(t *testing.T) {
	t.Parallel()
	onBench(t, func(t *testing.T, b *bench) {
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
	})
}

// After a lost ack, a message is redelivered among later ones.
func TestALostAckAmongLaterMessages(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := logConsumer(b)
		c.Source = stuttering{c.Source}
		c.BatchSize = 64
		start(t, c)
		b.publish("orders", numbered(60)...)
		await(t, "60 handled", func() bool { return c.Stats.Handled.Load() >= 60 })
		b.allOnce(t, 60)
	})
}

// A message and its redelivery are taken together, and cannot be handled yet.
func TestARedeliveryIsSettledWithItsMessage(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		refusals := 3
		st := &ill{Store: b.store, at: func(inner func() error) error {
			if refusals--; refusals >= 0 {
				return errors.New("connection refused")
			}
			return inner()
		}}
		c := logConsumer(b)
		c.Handler = inbox.Tx(st, b.effect)
		c.Source = bent{Source: stuttering{c.Source}, ack: func(ds []broker.Delivery) error {
			for _, d := range ds {
				if b.count(d.Message.ID) != 1 {
					t.Errorf("%s is acknowledged, and was not handled", d.Message.ID)
				}
			}
			return nil
		}}
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "both", func() bool { return c.Stats.Handled.Load() == 1 && c.Stats.Duplicates.Load() == 1 })
	})
}

// stuttering is a source that delivers the first received message again after
// the others.
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
