package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

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

func TestCheckpointNeedsALog(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Handler: inbox.Tx(b.store, b.effect), Checkpoint: true}
	b.publish("orders", message("m0"))
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) || b.count("m0") != 0 {
		t.Error(err)
	}
}

func TestARenameIsNoticed(t *testing.T) {
	b := newBench(t)
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
}

// Two services that were given one name by mistake share no keys in silence.
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

// So do two services at queues of one name, at two brokers that tell where they are.
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

// noticed is a source that tells when its broker could not be asked where it is.
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
	b := newBench(t)
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
}

// However often people try a message again, and whatever they say about it, the record of that has a bound.
func TestTheHistoryOfAMessageHasABound(t *testing.T) {
	const bound = 64 << 10
	b := newBench(t)
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
}

func TestStopGivesBackWhatHasNotBegun(t *testing.T) {
	b := newBench(t)
	begun, returned := make(chan struct{}, 10), make(chan struct{})
	c := &inbox.Consumer{Name: "c", Source: listening{b.broker.Queue("orders"), returned}, Concurrency: 1, Window: 10, Stats: new(inbox.Stats),
		Handler: inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			begun <- struct{}{}
			<-returned
			return ctx.Err()
		})}
	b.publish("orders", numbered(10)...)
	stop := start(t, c)
	<-begun
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if handled, left := c.Stats.Handled.Load(), len(b.broker.Messages("orders")); handled != 1 || left != 9 {
		t.Errorf("%d handled, %d left", handled, left)
	}
}

// listening is a source that tells when something was given back.
type listening struct {
	broker.Source
	returned chan struct{}
}

func (l listening) Open(ctx context.Context, window int) (broker.Session, error) {
	s, err := l.Source.Open(ctx, window)
	return listeningSession{s, l.returned}, err
}

type listeningSession struct {
	broker.Session
	returned chan struct{}
}

func (l listeningSession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	close(l.returned)
	return l.Session.Return(ctx, ds, after)
}

func TestStopTimeCancelsHandlers(t *testing.T) {
	b := newBench(t)
	begun := make(chan struct{})
	c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), StopTime: time.Millisecond, Stats: new(inbox.Stats),
		Handler: inbox.Tx(b.store, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		})}
	b.publish("orders", message("m0"))
	stop := start(t, c)
	<-begun
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if b.count("m0") != 0 || len(b.broker.Messages("orders")) != 1 {
		t.Error("what was cancelled is not back at the broker")
	}
}

// A message that ends the process of its handler comes again, and would end every process for ever.
func TestAMessageThatEndsItsProcessIsParked(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		var deaths atomic.Int64
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				deaths.Add(1)
				runtime.Goexit() // as far as the store and the broker can tell, the process is gone
			}
			return nil
		})
		start(t, c)
		ms := append(numbered(30), message("bad"))
		for i := range ms {
			ms[i].OrderingKey = "k" // one lane, so that a batch has all of them
		}
		b.publish("orders", append([]*broker.Message{ms[30]}, ms[:30]...)...)
		for seen := int64(0); c.Stats.Parked.Load() == 0; {
			await(t, "a death or the end", func() bool { return deaths.Load() > seen || c.Stats.Parked.Load() > 0 })
			if seen++; deaths.Load() < seen {
				break
			}
			if seen > 20 {
				t.Fatal("it dies for ever")
			}
			b.broker.Restart()
		}
		if deaths.Load() < 4 {
			t.Errorf("parked after %d deaths, 4 attempts are allowed", deaths.Load())
		}
		if b.count("bad") != 0 {
			t.Error("it left an effect")
		}
	})
}

func TestAPanicIsAFailure(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				panic("poison")
			}
			return nil
		})
		start(t, c)
		b.publish("orders", message("bad"), message("m0"))
		await(t, "one parked, one handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 1 })
		found, _ := b.store.Shelved(t.Context(), store.ShelfQuery{})
		if len(found) != 1 || !strings.Contains(found[0].Reason, "panicked: poison") {
			t.Error(found)
		}
	})
}

func TestMessagesOlderThanTheirKeysAreParked(t *testing.T) {
	b := newBench(t)
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

func TestDuplicateIsAnAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "twin" {
				return inbox.Duplicate(errors.New("order 1 has an invoice"))
			}
			return nil
		})
		start(t, c)
		b.publish("orders", message("m0"), message("twin"), message("m1"))
		await(t, "two handled, one prevented", func() bool { return c.Stats.Handled.Load() == 2 && c.Stats.Prevented.Load() == 1 })
		if b.count("twin") != 0 || b.count("m0") != 1 || b.count("m1") != 1 {
			t.Error("effects:", b.count("twin"), b.count("m0"), b.count("m1"))
		}
		b.broker.Restart()
		if c.Stats.Parked.Load() != 0 {
			t.Error("it was parked")
		}
	})
}

func TestPassLetsLaterMessagesOfAParkedKeyBy(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				return once.Permanent(errors.New("poison"))
			}
			return nil
		})
		c.OnParked = inbox.Pass
		start(t, c)
		b.publish("orders", ordered("bad", "k"), ordered("m0", "k"), ordered("m1", "k"))
		await(t, "one parked, two handled", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Handled.Load() == 2 })
	})
}

func TestDiscardLetsThoseBehindGoOn(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx *memstore.Tx, m *broker.Message) error {
			b.effect(ctx, tx, m)
			if m.ID == "bad" {
				return once.Permanent(errors.New("poison"))
			}
			return nil
		})
		start(t, c)
		b.publish("orders", ordered("bad", "k"), ordered("m0", "k"), ordered("m1", "k"))
		await(t, "one parked, two behind", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load() == 2 })
		admin := inbox.Admin{Store: b.store}
		if _, err := admin.Discard(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me"}); !errors.Is(err, once.ErrInvalid) {
			t.Error("a decision without a reason:", err)
		}
		got, err := admin.Discard(t.Context(), store.ShelfQuery{IDs: []string{"bad"}}, inbox.Decision{By: "me", Reason: "a test order"})
		if err != nil || got.Changed != 1 {
			t.Fatal(got, err)
		}
		await(t, "those behind", func() bool { return c.Stats.Handled.Load() == 2 })
		found, err := admin.List(t.Context(), store.ShelfQuery{})
		if err != nil || len(found) != 1 || found[0].State != store.Discarded || !strings.Contains(found[0].History, "discarded by me: a test order") {
			t.Error(found, err)
		}
		if !sh.log { // a copy of it is no news
			before := c.Stats.Handled.Load() + c.Stats.Duplicates.Load()
			b.publish("orders", ordered("bad", "k"))
			await(t, "the copy", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > before })
		}
		if b.count("bad") != 0 {
			t.Error("a discarded message has an effect")
		}
	})
}

func TestARebuildHandlesAgainAndRefusesEffects(t *testing.T) {
	b := newBench(t)
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
}
