package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var errDamage = fmt.Errorf("%w: by a test", once.ErrCorrupt)

// spoiled is a store with a damaged position or consumer, until a person repairs
// it.
type spoiled struct {
	*memstore.Store

	mu       sync.Mutex
	position string          // its partition
	consumer *store.Consumer // listed in place of the consumer "billing"
	asked    int             // OpenPosition or Register of what is damaged
}

func (s *spoiled) is(partition string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position == partition
}

func (s *spoiled) refusals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *spoiled) OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error) {
	if s.is(partition) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++
		return store.Position{}, errDamage
	}
	return s.Store.OpenPosition(ctx, consumer, partition)
}

func (s *spoiled) TransactAt(ctx context.Context, from, to store.Position, body func(*memstore.Tx) error) error {
	if s.is(from.Partition) {
		return errDamage
	}
	return s.Store.TransactAt(ctx, from, to, body)
}

func (s *spoiled) SetPosition(ctx context.Context, p store.Position) error {
	s.mu.Lock()
	s.position = ""
	s.mu.Unlock()
	return s.Store.SetPosition(ctx, p)
}

func (s *spoiled) Consumers(ctx context.Context) ([]store.Consumer, error) {
	all, err := s.Store.Consumers(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		if s.consumer != nil && all[i].Name == "billing" {
			all[i] = *s.consumer
			s.asked++
		}
	}
	return all, err
}

// The messages of a partition whose position cannot be read wait until a person sets
// it: none is handled again, passed over or parked. Other partitions go on.
func TestMessagesWaitForADamagedPosition(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		s := &spoiled{Store: b.store, position: "orders/1"}
		must(t, b.store.SetPosition(t.Context(), store.Position{Consumer: "c", Partition: "orders/1", Log: "orders#1", Offset: 1}))
		c := &inbox.Consumer{Name: "c", Source: b.broker.Log("orders", "c", 2), Handler: inbox.Tx(s, b.effect), Checkpoint: true, Stats: new(inbox.Stats)}
		b.publish("orders", numbered(10)...) // five in each partition
		start(t, c)
		await(t, "the other partition, and several tries", func() bool { return c.Stats.Handled.Load() == 5 && s.refusals() > 3 })
		if n := c.Stats.Parked.Load() + c.Stats.Shelved.Load() + c.Stats.Duplicates.Load(); n > 0 {
			t.Errorf("%d messages were set aside or passed over", n)
		}
		must(t, inbox.Admin{Store: s}.SetPosition(t.Context(), store.Position{Consumer: "c", Partition: "orders/1", Log: "orders#1", Offset: 1}))
		await(t, "the rest of the partition", func() bool { return c.Stats.Handled.Load() == 8 })
		if n := c.Stats.Parked.Load(); n > 0 {
			t.Errorf("%d messages were parked", n)
		}
	})
}

// A consumer does not begin under other keys while its own row, perhaps under
// another name, cannot be read. One that can be read starts.
func TestADamagedConsumerIsNotRegisteredAnew(t *testing.T) {
	for name, row := range map[string]store.Consumer{
		"all of it":                      {Damaged: errDamage},
		"its keys":                       {Name: "billing", Source: "membroker queue orders", Damaged: errDamage},
		"its name":                       {Source: "membroker queue orders", Keys: "first", Damaged: errDamage},
		"its keys, and it was elsewhere": {Name: "billing", Source: "elsewhere", Damaged: errDamage},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				q := b.broker.Queue("orders")
				for consumer, at := range map[string]string{"billing": q.Name(), "mailing": b.broker.Queue("mail").Name()} {
					_, err := b.store.Register(t.Context(), store.Consumer{Name: consumer, Source: at, Keys: "first " + consumer})
					must(t, err)
				}
				s := &spoiled{Store: b.store, consumer: &row}
				renamed := &inbox.Consumer{Name: "invoicing", RenamedFrom: "billing", Source: q, Handler: inbox.Tx(s, b.effect), Stats: new(inbox.Stats)}
				known := &inbox.Consumer{Name: "mailing", Source: b.broker.Queue("mail"), Handler: inbox.Tx(s, b.effect), Stats: new(inbox.Stats)}
				b.publish("orders", message("m0"))
				b.publish("mail", message("m1"))
				stop := start(t, renamed)
				start(t, known)
				await(t, "the consumer that can be read, and several tries", func() bool { return known.Stats.Handled.Load() == 1 && s.refusals() > 3 })
				all, err := b.store.Consumers(t.Context())
				if err != nil || len(all) != 2 || renamed.Stats.Received.Load() > 0 {
					t.Errorf("registered are %+v, %v, and %d messages were received", all, err, renamed.Stats.Received.Load())
				}
				s.mu.Lock()
				s.consumer = nil
				s.mu.Unlock()
				await(t, "the message, after the row was repaired", func() bool { return renamed.Stats.Handled.Load() == 1 })
				if err := stop(); err != nil {
					t.Error(err)
				}
				if all, err = b.store.Consumers(t.Context()); err != nil || len(all) != 3 || all[1].Keys != "first billing" {
					t.Errorf("registered are %+v, %v", all, err)
				}
			})
		})
	}
}

// What would change a damaged row, or one that it may be, is refused.
func TestADamagedConsumerIsNotRenamedOrRetired(t *testing.T) {
	s := &spoiled{Store: memstore.New(nil), consumer: &store.Consumer{Name: "billing", Damaged: errDamage}}
	for _, name := range []string{"billing", "mailing"} {
		_, err := s.Register(t.Context(), store.Consumer{Name: name, Source: "queue " + name})
		must(t, err)
	}
	d, by := inbox.Admin{Store: s}, inbox.Decision{By: "ada", Reason: "test"}
	for what, edit := range map[string]func() (inbox.ConsumerChange, error){
		"rename it":                   func() (inbox.ConsumerChange, error) { return d.Rename(t.Context(), "billing", "invoicing", by) },
		"rename another to it":        func() (inbox.ConsumerChange, error) { return d.Rename(t.Context(), "mailing", "billing", by) },
		"retire it":                   func() (inbox.ConsumerChange, error) { return d.Retire(t.Context(), "billing", true, by) },
		"retire what it may be, with": func() (inbox.ConsumerChange, error) { return d.Retire(t.Context(), "mailing", true, by) },
	} {
		if _, err := edit(); !errors.Is(err, once.ErrCorrupt) || !strings.Contains(err.Error(), "by a test") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := d.Rename(t.Context(), "mailing", "letters", by); err != nil {
		t.Errorf("rename another: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
