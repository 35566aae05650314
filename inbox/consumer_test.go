package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
)

// The first run of a rebuild handles messages of any age.
func TestARebuildHandlesWhatIsOld(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := shapes[4].consumer(b, b.effect)
		c.Rebuild = "2"
		old := message("m0")
		old.Time = time.Now().Add(-60 * 24 * time.Hour)
		start(t, c)
		b.publish("orders", old)
		await(t, "m0", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() > 0 })
		if c.Stats.Parked.Load() > 0 {
			t.Error("no rebuild of that name has ever handled anything, and it is parked:", b.onTheShelf()[0].Reason)
		}
	})
}

func TestABadConsumerIsRefused(t *testing.T) {
	b := newBench(t)
	handler := inbox.Tx(b.store, b.effect)
	q := b.broker.Queue("orders")
	park := &once.Operation[int]{OnUnknown: once.Park}
	effect := func(context.Context, once.Key, *broker.Message) (int, error) { return 0, nil }
	for name, c := range map[string]*inbox.Consumer{
		"no name":           {Source: q, Handler: handler},
		"slash":             {Name: "a/b", Source: q, Handler: handler},
		"at":                {Name: "a@b", Source: q, Handler: handler},
		"no source":         {Name: "c", Handler: handler},
		"no handler":        {Name: "c", Source: q},
		"nil function":      {Name: "c", Source: q, Handler: inbox.Tx[*memstore.Tx](b.store, nil)},
		"attempts":          {Name: "c", Source: q, Handler: handler, Retry: inbox.Retry{Attempts: -1}},
		"limit":             {Name: "c", Source: q, Handler: handler, Retry: inbox.Retry{First: time.Hour, Limit: time.Second}},
		"concurrency":       {Name: "c", Source: q, Handler: handler, Concurrency: -1},
		"on parked":         {Name: "c", Source: q, Handler: handler, OnParked: 7},
		"own name":          {Name: "c", Source: q, Handler: handler, RenamedFrom: "c"},
		"never there":       {Name: "c", Source: q, Handler: handler, RenamedFrom: "d"},
		"do in a log":       {Name: "c", Source: q, Handler: inbox.Do(b.store, park, effect), Checkpoint: true},
		"do in a rebuild":   {Name: "c", Source: q, Handler: inbox.Do(b.store, park, effect), Rebuild: "2"},
		"do without policy": {Name: "c", Source: q, Handler: inbox.Do(b.store, new(once.Operation[int]), effect)},
		"do by other name":  {Name: "c", Source: q, Handler: inbox.Do(b.store, &once.Operation[int]{Name: "d", OnUnknown: once.Park}, effect)},
	} {
		if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Run returned %v", name, err)
		}
	}
}

func TestMessagesOlderThanTheirKeysAreParked(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx(b.store, b.effect), Stats: new(inbox.Stats)}
		old, older := message("m0"), message("new to it")
		old.Time = time.Now().Add(-31 * 24 * time.Hour)
		older.Time = old.Time.Add(-time.Hour)
		b.publish("orders", older)
		stop := start(t, c)
		await(t, "what nobody can have handled before", func() bool { return c.Stats.Handled.Load() == 1 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		b.publish("orders", old, message("m1"))
		start(t, c)
		await(t, "one parked, one handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 2 })
		if b.count("m0") != 0 {
			t.Error("a message that may have been forgotten was taken for new")
		}
	})
}

func TestARebuildHandlesAgainAndRefusesEffects(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		charge := &once.Operation[int]{Name: "charge", OnUnknown: once.Resend}
		var refused atomic.Int64
		handle := func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.add(tx, m.ID)
			return nil
		}
		run := func(rebuild string) {
			t.Helper()
			c := &inbox.Consumer{Name: "projection", Source: b.broker.Log("orders", "g"+rebuild, 1), Handler: inbox.Tx(b.store, handle),
				Checkpoint: true, Rebuild: rebuild, Stats: new(inbox.Stats)}
			stop := start(t, c)
			await(t, "handled", func() bool { return c.Stats.Handled.Load() == 5 })
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		b.publish("orders")
		_ = b.broker.Log("orders", "g", 1)
		b.publish("orders", numbered(5)...)
		run("")
		run("again")
		for i := range 5 {
			if got := b.count(fmt.Sprint("m", i)); got != 2 {
				t.Errorf("m%d was handled %d times", i, got)
			}
		}
		_, err := once.Do(inbox.WithoutEffects(t.Context()), b.store, charge.For("1"), func(context.Context, once.Key) (int, error) {
			refused.Add(1)
			return 0, nil
		})
		if !errors.Is(err, once.ErrNoEffects) || refused.Load() != 0 {
			t.Error(err)
		}
	})
}

// varying is a source whose sender changes what comes after a space.
type varying struct{ broker.Source }

func (varying) Input(m *broker.Message) []byte {
	body, _, _ := bytes.Cut(m.Body, []byte(" "))
	return body
}

// A copy that its sender has changed in what is its own to change is a duplicate.
// Any other copy is another message with the same key.
func TestCopiesAreComparedAsTheirSourceSays(t *testing.T) {
	for _, sh := range append([]shape{{"do", false, func(b *bench, _ func(context.Context, *memstore.Tx, *broker.Message) error) inbox.Handler {
		return inbox.Do(b.store, &once.Operation[int]{OnUnknown: once.Park}, func(_ context.Context, _ once.Key, m *broker.Message) (int, error) {
			return 1, nil
		})
	}, func(*inbox.Consumer) {}}}, shapes...) {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/input of the consumer %v", sh.name, own), func(t *testing.T) {
				onBench(t, func(t *testing.T, b *bench) {
					c := sh.consumer(b, b.effect)
					if c.Checkpoint && c.Key == nil {
						t.Skip("positions know no copies")
					}
					c.Source = varying{c.Source}
					want := int64(1)
					if own {
						c.Input, want = func(m *broker.Message) []byte { return m.Body }, 2
					}
					start(t, c)
					for i, body := range []string{"a 1", "a 2", "b 2"} {
						m := message("m0")
						m.Body = []byte(body)
						b.publish("orders", m)
						await(t, body, func() bool {
							return c.Stats.Handled.Load()+c.Stats.Duplicates.Load()+c.Stats.Parked.Load() == int64(i+1)
						})
					}
					if handled, parked := c.Stats.Handled.Load(), c.Stats.Parked.Load(); handled != 1 || parked != want {
						t.Errorf("%d handled and %d parked, want 1 and %d", handled, parked, want)
					}
				})
			})
		}
	}
}
