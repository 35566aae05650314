package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// Two equal messages without IDs at different places of a log are two messages.
func TestEqualMessagesWithoutIDsAreTwo(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := logConsumer(b)
		c.Handler = inbox.Tx(b.store, func(context.Context, mtx, *broker.Message) error {
			return once.Permanent(errors.New("poison"))
		})
		c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { d.Message.ID, d.Message.Body = "", []byte("+1") }}
		b.publish("orders", numbered(2)...)
		start(t, c)
		await(t, "both parked", func() bool { return c.Stats.Parked.Load() == 2 })
		if found := b.onTheShelf(); len(found) != 2 {
			t.Errorf("two messages were parked, and %d are on the shelf", len(found))
		}
	})
}

// A replayed message that fails again is on the shelf again.
func TestAReplayedMessageCanFailAgain(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var healthy atomic.Bool
		c := logConsumer(b)
		c.Handler = inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if !healthy.Load() {
				return once.Permanent(errors.New("poison"))
			}
			return b.effect(ctx, tx, m)
		})
		stop := start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		healthy.Store(true)
		admin := inbox.Admin{Store: b.store}
		if _, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"}); err != nil {
			t.Fatal(err)
		}
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		healthy.Store(false)
		// A person has the log handled again, for the projection was deleted; it fails this time, too.
		if err := admin.SetPosition(t.Context(), store.Position{Consumer: "c", Partition: "orders/0", Log: "orders#1", Offset: -1}); err != nil {
			t.Fatal(err)
		}
		b.publish("orders", message("m1"))
		start(t, c)
		await(t, "m0 and m1 parked", func() bool { return c.Stats.Parked.Load() == 3 })
		if found := b.onTheShelf(store.Parked); len(found) != 2 {
			t.Errorf("m0 and m1 were parked, says the log, and %d are", len(found))
		}
	})
}

// Two messages with the same ID and different bodies are both shelved.
func TestAnIDThatWasUsedTwiceDropsNothing(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error {
			return once.RetryAfter(time.Hour, errors.New("down"))
		})
		start(t, c)
		for _, body := range []string{"pay Ann", "pay Bob"} {
			m := message("m0")
			m.Body = []byte(body)
			b.publish("orders", m)
		}
		await(t, "both put aside", func() bool { return c.Stats.Shelved.Load()+c.Stats.Parked.Load() == 2 })
		if found := b.onTheShelf(); len(found) != 2 {
			t.Errorf("two were acknowledged, and on the shelf is only %q", found[0].Message.Body)
		}
	})
}

// An outage of the store does not count as an attempt at a message on the
// shelf.
func TestAnOutageParksNothingOnTheShelf(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"down": errors.New("too many connections"), "conflict": once.ErrConflict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBench(t, func(t *testing.T, b *bench) {
				var asked atomic.Int64
				st := &ill{Store: b.store, transact: func() error { asked.Add(1); return err }}
				c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Retry: retryAtOnce(2), Stats: new(inbox.Stats),
					Handler: inbox.Tx[mtx](st, b.effect)}
				b.shelve("c", message("m0"))
				start(t, c)
				await(t, "some attempts", func() bool { return asked.Load() > 15 || c.Stats.Parked.Load() > 0 })
				if c.Stats.Parked.Load() > 0 {
					t.Errorf("parked although its handler never ran: %s", b.onTheShelf()[0].Reason)
				}
			})
		})
	}
}

// A shelf that can be read but not written is tried only now and then.
func TestAShelfThatCannotBeWrittenIsLeftAlone(t *testing.T) {
	t.Parallel()
	onBench(t, func(t *testing.T, b *bench) {
		var asked atomic.Int64
		reached := make(chan struct{})
		st := &ill{Store: memstore.New(nil), change: func() error {
			if asked.Add(1) == 500 {
				close(reached)
			}
			return errors.New("cannot execute UPDATE in a read-only transaction")
		}}
		m := message("m0")
		m.Topic = "orders"
		if err := st.Shelve(t.Context(), []store.Shelved{{Consumer: "c", Key: "m0", Message: *m, State: store.Waiting}}); err != nil {
			t.Fatal(err)
		}
		start(t, &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx[mtx](st, b.effect)})
		select {
		case <-reached:
			t.Error("500 times in less than two seconds")
		case <-time.After(2 * time.Second):
		}
	})
}

// The reason of a message on the shelf is limited in length.
func TestALongErrorOnTheShelfIsShortened(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error {
			return once.Permanent(errors.New(strings.Repeat("x", 70<<10)))
		})
		b.shelve("billing", message("m0"))
		start(t, c)
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
	})
}

// The history of a message is limited, however many decisions it has.
func TestTheHistoryOfAMessageHasABound(t *testing.T) {
	const bound = 64 << 10
	onBench(t, func(t *testing.T, b *bench) {
		var open atomic.Bool
		c := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Stats: new(inbox.Stats),
			Handler: inbox.Tx(b.store, func(ctx context.Context, tx mtx, m *broker.Message) error {
				if !open.Load() {
					return once.Permanent(errors.New(strings.Repeat("reason é ", 6000)))
				}
				return b.effect(ctx, tx, m)
			})}
		start(t, c)
		b.publish("orders", message("m0"))
		admin := inbox.Admin{Store: b.store}
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		m := shelf(t, b.store)[0]
		for i := 0; len(m.History) < bound-100; i++ {
			m.History += fmt.Sprintf("line %d é\n", i)
		}
		if err := b.store.Change(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			open.Store(i == 1)
			by := inbox.Decision{By: "me", Reason: fmt.Sprint("try ", i, strings.Repeat(" é", 30000))}
			if got, err := admin.Replay(t.Context(), store.ShelfQuery{}, by); err != nil || got.Changed != 1 {
				t.Fatal(i, got, err)
			}
			found, err := admin.List(t.Context(), store.ShelfQuery{})
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			h := found[0].History
			if len(h) > bound || !utf8.ValidString(h) || !strings.Contains(h, "replayed by me: try "+strconv.Itoa(i)) {
				t.Fatalf("after %d replays, %d bytes: %.200q", i+1, len(h), h)
			}
			if !strings.HasPrefix(h, "(older lines were left out)\nline ") || strings.Count(h, "left out") != 1 || strings.Contains(h, "line 0 ") {
				t.Errorf("it begins with %.200q", h)
			}
			await(t, "tried again", func() bool { return c.Stats.Parked.Load() == 2 })
		}
		await(t, "handled", func() bool { return b.count("m0") == 1 })
	})
}

// The headers that the shelf uses may come from a producer: they do not change the
// ID and the ordering key of what comes back from the shelf.
func TestHeadersOfTheShelfDoNotRenameMessages(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var healthy atomic.Bool
		came := make(chan broker.Message, 10)
		c := shapes[0].consumer(b, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
			if !healthy.Load() {
				return once.Permanent(errors.New("poison"))
			}
			came <- *m
			return nil
		})
		b.publish("orders")
		start(t, c)
		m := ordered("m0", "k")
		m.Header = map[string]string{broker.OriginalIDHeader: "another", broker.OriginalOrderingKeyHeader: "another"}
		b.publish("orders", m)
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		healthy.Store(true)
		if _, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"}); err != nil {
			t.Fatal(err)
		}
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
		if got := <-came; got.ID != "m0" || got.OrderingKey != "k" {
			t.Errorf("from the shelf came %q with the ordering key %q", got.ID, got.OrderingKey)
		}
	})
}
