package inbox_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
)

func TestARenameIsNoticed(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		q := b.broker.Queue("orders")
		named := func(name, from string) *inbox.Consumer {
			return &inbox.Consumer{Name: name, RenamedFrom: from, Source: q, Handler: inbox.Tx(b.store, b.effect), Stats: new(inbox.Stats)}
		}
		again := func(c *inbox.Consumer) {
			t.Helper()
			b.publish("orders", message("m0"))
			stop := start(t, c)
			await(t, "seen", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
			if err := stop(); err != nil {
				t.Error(err)
			}
			if got := b.count("m0"); got != 1 {
				t.Fatalf("after %q: %d effects", c.Name, got)
			}
		}
		again(named("billing", ""))
		if err := named("invoicing", "").Run(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), `RenamedFrom: "billing"`) {
			t.Error("a new name at a known source:", err)
		}
		again(named("invoicing", "billing"))
		again(named("invoicing", "billing"))
		again(named("invoicing", ""))
		again(named("invoices", "invoicing"))
		c := named("billing", "")
		c.Source = b.broker.Queue("other")
		if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "had this name before") {
			t.Error("a name that was given up, somewhere else:", err)
		}
	})
}

// Two services with the same name do not share keys unnoticed.
func TestANameBelongsToItsSource(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		at := func(topic string) *inbox.Consumer {
			c := sh.consumer(b, b.effect)
			if c.Source = b.broker.Queue(topic); sh.log {
				c.Source = b.broker.Log(topic, "billing", 1)
			}
			return c
		}
		first, second := at("payments"), at("refunds")
		stop := start(t, first)
		b.publish("payments", message("m0"))
		b.publish("refunds", message("m0"), message("m1"))
		await(t, "m0 of the first", func() bool { return first.Stats.Handled.Load() == 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := second.Run(ctx)
		if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "SharedWith: "+strconv.Quote(first.Source.Name())) {
			t.Error("a second source under the name:", err)
		}
		if n := second.Stats.Received.Load(); n > 0 {
			t.Errorf("it has received %d messages", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if all, err := b.store.Consumers(t.Context()); err != nil || len(all) != 1 || all[0].Source != first.Source.Name() {
			t.Errorf("registered is %+v, %v", all, err)
		}

		// It has moved, and what comes again from the new source is known. Later it need not say so any more.
		for _, shared := range []string{first.Source.Name(), ""} {
			second = at("refunds")
			second.SharedWith = shared
			stop := start(t, second)
			b.publish("refunds", message("m2"+shared))
			await(t, "m2", func() bool { return b.count("m2"+shared) == 1 && b.count("m1") == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		if sh.log && sh.name != "log, keys" { // positions are of partitions, and tell nothing of another log
			return
		}
		if n := b.count("m0"); n != 1 {
			t.Errorf("m0 came from both, and has %d effects", n)
		}
		first = at("payments")
		start(t, first) // nor need the one that was there before
		b.publish("payments", message("m3"))
		await(t, "m3", func() bool { return first.Stats.Handled.Load() == 1 })
	})
}

// The same holds for two services at queues of one name, at two brokers that
// report where they are.
func TestANameBelongsToItsSourceAtOneBroker(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		at := func(m *membroker.Broker) *inbox.Consumer {
			c := sh.consumer(b, b.effect)
			if c.Source = m.Queue("alone"); sh.log {
				c.Source = m.Log("alone", "billing", 1)
			}
			return c
		}
		refused := func(c *inbox.Consumer, want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			if err := c.Run(ctx); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("Run returned %v, want %s", err, want)
			}
			if n := c.Stats.Received.Load(); n > 0 {
				t.Errorf("it has received %d messages", n)
			}
		}
		handled := func(stop func() error, m *membroker.Broker, id string) {
			t.Helper()
			b.broker = m
			b.publish("alone", message(id))
			await(t, id, func() bool { return b.count(id) == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		handles := func(c *inbox.Consumer, m *membroker.Broker, id string) {
			t.Helper()
			handled(start(t, c), m, id)
		}
		silent, north := b.broker, membroker.New(&membroker.Options{Cluster: "north"})
		south := membroker.New(&membroker.Options{Cluster: "south"})
		for _, m := range []*membroker.Broker{silent, north, south} {
			at(m) // makes the log
		}
		if !sh.log { // a position tells that the log is another one
			handles(at(silent), silent, "m0")
		}
		handles(at(north), north, "m1") // what it tells was not known before
		refused(at(south), `SharedWith: "`+at(north).Source.Name()+` [cluster=north]"`)
		if !sh.log {
			handles(at(silent), silent, "m2")
		}

		// A broker that cannot be asked when the consumer starts is asked before anything is received.
		for _, m := range []*membroker.Broker{north, south} {
			m.Down(true)
			c, logged := at(m), make(chan error, 1)
			c.Source = noticed{c.Source.(locatedSource), logged}
			up := make(chan struct{})
			go func() {
				<-logged
				m.Down(false)
				close(up)
			}()
			if m == south {
				refused(c, "cluster=north")
			} else {
				stop := start(t, c)
				<-up
				handled(stop, m, "m3")
			}
		}

		if sh.log {
			return
		}
		moved := at(south)
		moved.SharedWith = at(north).Source.Name() + " [cluster=north]"
		handles(moved, south, "m4")
		handles(at(south), south, "m5")
		handles(at(north), north, "m6")

		// Another consumer at a queue of the same name, elsewhere.
		east := membroker.New(&membroker.Options{Cluster: "east"})
		at(east)
		other := at(north)
		other.Name = "shipping"
		refused(other, `RenamedFrom: "`+at(north).Name+`"`)
		other = at(east)
		other.Name = "shipping"
		handles(other, east, "m7")
	})
}

type locatedSource interface {
	broker.Source
	broker.Located
}

// noticed is a source that reports when its broker could not be asked where it
// is.
type noticed struct {
	locatedSource
	failed chan<- error
}

func (n noticed) Location(ctx context.Context) (map[string]string, error) {
	facts, err := n.locatedSource.Location(ctx)
	if err != nil {
		select {
		case n.failed <- err:
		default:
		}
	}
	return facts, err
}

func TestARenamedConsumerThatHasMovedSaysSo(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		named := func(name, queue, from, shared string) *inbox.Consumer {
			return &inbox.Consumer{Name: name, RenamedFrom: from, SharedWith: shared, Source: b.broker.Queue(queue), Handler: inbox.Tx(b.store, b.effect)}
		}
		handled := func(c *inbox.Consumer, id string) {
			t.Helper()
			stop := start(t, c)
			b.publish(strings.TrimPrefix(c.Source.Name(), "membroker queue "), message("m0"), message(id))
			await(t, id, func() bool { return b.count(id) == 1 })
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		handled(named("billing", "orders", "", ""), "m1")
		old := named("", "orders", "", "").Source.Name()
		err := named("invoicing", "payments", "billing", "").Run(t.Context())
		if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "SharedWith: "+strconv.Quote(old)) {
			t.Error(err)
		}
		handled(named("invoicing", "payments", "billing", old), "m2")
		if n := b.count("m0"); n != 1 {
			t.Errorf("m0 came from both, and has %d effects", n)
		}
	})
}

func TestKeysMustOutliveRedelivery(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "c", Source: horizon{b.broker.Queue("orders"), 60 * 24 * time.Hour}, Handler: inbox.Tx(b.store, b.effect)}
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "KeepKey") {
		t.Error(err)
	}
}

type horizon struct {
	broker.Source
	is time.Duration
}

func (h horizon) RedeliveryHorizon(context.Context) (time.Duration, error) { return h.is, nil }
