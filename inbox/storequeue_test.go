package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// counting is a consumer of a topic of the store that counts each message.
func (b *bench) counting(name string, from *storebroker.Broker) *inbox.Consumer {
	return &inbox.Consumer{Name: name, Source: from.Queue("orders"), Handler: inbox.Tx(b.store, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
		b.add(tx, name+" "+m.ID)
		return nil
	})}
}

func (b *bench) carry(from *storebroker.Broker, ids ...string) []error {
	var ms []*broker.Message
	for _, id := range ids {
		m := message(id)
		m.Topic = "orders"
		ms = append(ms, m)
	}
	return from.Publisher().Publish(b.t.Context(), ms)
}

func (b *bench) isRegistered(name string) bool {
	all, err := b.store.Consumers(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			return true
		}
	}
	return false
}

// The consumers of a topic of the store each handle all messages, and are no danger
// to each other, as consumers that share a queue would be.
func TestConsumersOfATopicOfTheStoreEachGetAll(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		from := storebroker.New(b.store, nil)
		for _, name := range []string{"billing", "letters"} {
			start(t, b.counting(name, from))
			await(t, "it is registered", func() bool { return b.isRegistered(name) })
		}
		if errs := b.carry(from, "m1", "m2"); errs != nil {
			t.Fatal(errs)
		}
		await(t, "both have handled both", func() bool {
			return b.count("billing m1")+b.count("billing m2")+b.count("letters m1")+b.count("letters m2") == 4
		})
		await(t, "nothing is left", func() bool {
			left, err := b.store.Shelved(t.Context(), store.ShelfQuery{})
			return err == nil && len(left) == 0
		})
	})
}

// A queue is sealed as the shelf is.
func TestAQueueIsSealed(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		s := b.with(once.Sealing{Ring: ringOf(t, "a"), Only: once.SealAll})
		from := storebroker.New(s, nil)
		var handled atomic.Int64
		c := &inbox.Consumer{Name: "billing", Source: from.Queue("orders"), Handler: inbox.Tx(s, func(_ context.Context, _ *memstore.Tx, m *broker.Message) error {
			if string(m.Body) == "body of m1" {
				handled.Add(1)
			}
			return nil
		})}
		stop := start(t, c)
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if errs := b.carry(from, "m1"); errs != nil {
			t.Fatal(errs)
		}
		rows, err := b.store.Shelved(t.Context(), store.ShelfQuery{})
		if err != nil || len(rows) != 1 || strings.Contains(string(rows[0].Message.Body), "m1") || rows[0].Reason == "in the queue" {
			t.Errorf("in the queue is %+v, %v", rows, err)
		}
		start(t, c)
		await(t, "it is handled", func() bool { return handled.Load() == 1 })
	})
}

func TestARenamedConsumerKeepsItsQueue(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		from := storebroker.New(b.store, nil)
		stop := start(t, b.counting("billing", from))
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if errs := b.carry(from, "m1"); errs != nil {
			t.Fatal(errs)
		}
		if _, err := (inbox.Admin{Store: b.store}).Rename(t.Context(), "billing", "invoicing", inbox.Decision{By: "ann", Reason: "ticket 1"}); err != nil {
			t.Fatal(err)
		}
		start(t, b.counting("invoicing", from))
		if errs := b.carry(from, "m2"); errs != nil {
			t.Fatal(errs)
		}
		await(t, "it has handled both", func() bool { return b.count("invoicing m1") == 1 && b.count("invoicing m2") == 1 })
		if b.isRegistered("billing") {
			t.Error("the old name is registered again")
		}
	})
}

// A consumer with messages in its queue is not retired, unless they are given up.
// What waits in queues is no trouble that a list of the shelf shows.
func TestRetireKnowsTheQueue(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		from, admin := storebroker.New(b.store, nil), inbox.Admin{Store: b.store}
		stop := start(t, b.counting("billing", from))
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if errs := b.carry(from, "m1", "m2"); errs != nil {
			t.Fatal(errs)
		}
		if found, err := admin.List(t.Context(), store.ShelfQuery{}); err != nil || len(found) > 0 {
			t.Errorf("a queue with two messages is listed as %+v, %v", found, err)
		}
		time.Sleep(inbox.RetireSilence + time.Minute)
		by := inbox.Decision{By: "ann", Reason: "ticket 1"}
		if c, err := admin.Retire(t.Context(), "billing", false, by); !errors.Is(err, store.ErrShelfInUse) || c.Waiting != 2 {
			t.Errorf("with messages in its queue, Retire returned %d, %v", c.Waiting, err)
		}
		if c, err := admin.Retire(t.Context(), "billing", true, by); err != nil || c.Discarded.Changed != 2 {
			t.Errorf("Retire discarded %+v, %v", c.Discarded, err)
		}
		if errs := b.carry(from, "m3"); len(errs) != 1 || !errors.Is(errs[0], broker.ErrNotYet) {
			t.Errorf("a message for a consumer that was retired: %v", errs)
		}
	})
}

// putting is a store into which somebody puts just before a consumer is retired.
type putting struct {
	*memstore.Store
	put func()
}

func (s *putting) RetireConsumer(ctx context.Context, r store.Retirement) error {
	s.put()
	return s.Store.RetireConsumer(ctx, r)
}

// Messages that come after a person has looked at the queue and before the consumer
// is retired are given up with the others, or keep it from being retired. One that
// comes later is given up by the same call.
func TestRetireKnowsWhatComesMeanwhile(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		from := storebroker.New(b.store, nil)
		stop := start(t, b.counting("billing", from))
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(inbox.RetireSilence + time.Minute)
		admin := inbox.Admin{Store: &putting{b.store, func() {
			if errs := b.carry(from, "m1"); errs != nil {
				t.Fatal(errs)
			}
		}}}
		inQueue := func() int {
			found, err := b.store.Shelved(t.Context(), store.ShelfQuery{Consumer: store.QueueOf("billing"), States: []store.ShelfState{store.Waiting}})
			if err != nil {
				t.Fatal(err)
			}
			return len(found)
		}
		by := inbox.Decision{By: "ann", Reason: "ticket 1"}
		if _, err := admin.Retire(t.Context(), "billing", false, by); !errors.Is(err, store.ErrShelfInUse) || inQueue() != 1 {
			t.Errorf("with %d messages in its queue, Retire returned %v", inQueue(), err)
		}
		if c, err := admin.Retire(t.Context(), "billing", true, by); err != nil || c.Discarded.Changed != 2 || inQueue() != 0 {
			t.Errorf("Retire discarded %+v, %v, and left %d", c.Discarded, err, inQueue())
		}
		late := store.NewQueued("billing", "late", broker.Message{ID: "late", Topic: "orders"})
		if err := b.store.Shelve(t.Context(), []store.Shelved{late}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c, err := admin.Retire(t.Context(), "billing", true, by)
		if !errors.Is(err, store.ErrConsumerState) || c.Discarded.Changed != 1 || inQueue() != 0 {
			t.Errorf("Retire of a retired consumer discarded %+v, %v, and left %d", c.Discarded, err, inQueue())
		}
	})
}

// unchanging is a shelf that can be cut off.
type unchanging struct {
	*memstore.Store
	cut atomic.Bool
}

var errCut = errors.New("the store does not answer")

func (u *unchanging) Change(ctx context.Context, m store.Shelved) error {
	if u.cut.Load() {
		return errCut
	}
	return u.Store.Change(ctx, m)
}

func (u *unchanging) ChangeMany(ctx context.Context, ms []store.Shelved) ([]bool, error) {
	if u.cut.Load() {
		return nil, errCut
	}
	return u.Store.ChangeMany(ctx, ms)
}

// A process cannot renew the lease of a message that it is handling. Another process
// gets the message meanwhile, and it has one effect.
func TestALeaseLostWhileHandlingDoublesNothing(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		cut := &unchanging{Store: b.store}
		var began atomic.Int64
		consumer := func(from *storebroker.Broker) *inbox.Consumer {
			return &inbox.Consumer{Name: "billing", Source: from.Queue("orders"), Handler: inbox.Tx(b.store, func(_ context.Context, tx *memstore.Tx, m *broker.Message) error {
				if began.Add(1) == 1 {
					cut.cut.Store(true)
					time.Sleep(30 * time.Second)
				}
				b.add(tx, "effect")
				return nil
			})}
		}
		first := storebroker.New(cut, nil)
		start(t, consumer(first))
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if errs := b.carry(first, "m1"); errs != nil {
			t.Fatal(errs)
		}
		await(t, "it is being handled", func() bool { return began.Load() == 1 })
		start(t, consumer(storebroker.New(b.store, nil)))
		time.Sleep(time.Minute)
		cut.cut.Store(false)
		await(t, "the queue is empty", func() bool {
			left, err := b.store.Shelved(t.Context(), store.ShelfQuery{})
			return err == nil && len(left) == 0
		})
		if n := b.count("effect"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// A program that names no store that can carry messages is told so at its start.
func TestAStoreThatCannotCarryIsRefused(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		err := b.counting("billing", storebroker.New(keysOnly{b.store}, nil)).Run(t.Context())
		if !errors.Is(err, broker.ErrInvalid) || !strings.Contains(err.Error(), "cannot carry messages") {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A queue in the store has nothing that was published before its consumer. A
// rebuild would get nothing of that, and leave a queue that nobody reads.
func TestARebuildFromATopicOfTheStoreIsRefused(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := b.counting("billing", storebroker.New(b.store, nil))
		c.Rebuild = "2"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Run(ctx); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "Rebuild") {
			t.Errorf("%v", err)
		}
		if b.isRegistered("billing@2") {
			t.Error("it is registered, and gets all later messages")
		}
	})
}

// A consumer was retired and continues, as the error of Run says, with SharedWith.
// It is at work. Retire of that name is refused, and must give up nothing.
func TestRetireOfAConsumerThatContinuesGivesUpNothing(t *testing.T) {
	onLongBench(t, func(t *testing.T, b *bench) {
		from, admin := storebroker.New(b.store, nil), inbox.Admin{Store: b.store}
		by := inbox.Decision{By: "ann", Reason: "ticket 1"}
		stop := start(t, b.counting("billing", from))
		await(t, "it is registered", func() bool { return b.isRegistered("billing") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(inbox.RetireSilence + time.Minute)
		if _, err := admin.Retire(t.Context(), "billing", true, by); err != nil {
			t.Fatal(err)
		}
		all, _ := b.store.Consumers(t.Context())
		again := b.counting("billing", from)
		again.SharedWith = all[0].Source
		stop = start(t, again)
		await(t, "it continues", func() bool { all, _ = b.store.Consumers(t.Context()); return len(all) == 2 })
		if errs := b.carry(from, "m0"); errs != nil {
			t.Fatal(errs)
		}
		await(t, "it handles", func() bool { return b.count("billing m0") == 1 })
		if err := stop(); err != nil { // a deployment: down for a minute
			t.Fatal(err)
		}
		if errs := b.carry(from, "m1", "m2"); errs != nil {
			t.Fatal(errs)
		}
		time.Sleep(time.Minute)
		if c, err := admin.Retire(t.Context(), "billing", true, by); !errors.Is(err, store.ErrConsumerState) {
			t.Errorf("Retire of a consumer at work discarded %+v, %v", c.Discarded, err)
		}
		start(t, again)
		time.Sleep(time.Minute)
		for _, id := range []string{"m1", "m2"} {
			if n := b.count("billing " + id); n != 1 {
				t.Errorf("%s has %d effects: a refused Retire has discarded it", id, n)
			}
		}
	})
}
