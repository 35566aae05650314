package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

type mtx = *memstore.Tx

// bent is a source whose sessions are changed.
type bent struct {
	broker.Source
	arrive func(*broker.Delivery)
	ack    func() error
	seek   func()
}

func (s bent) Open(ctx context.Context, window int) (broker.Session, error) {
	in, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return bentSession{in, s}, nil
}

type bentSession struct {
	broker.Session
	bent bent
}

func (s bentSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, limit)
	for i := range ds {
		if s.bent.arrive != nil {
			s.bent.arrive(&ds[i])
		}
	}
	return ds, err
}

func (s bentSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	if s.bent.ack != nil {
		if err := s.bent.ack(); err != nil {
			return err
		}
	}
	return s.Session.Ack(ctx, ds)
}

func (s bentSession) Seek(ctx context.Context, p broker.Position) error {
	if s.bent.seek != nil {
		s.bent.seek()
	}
	return s.Session.(broker.Seeker).Seek(ctx, p)
}

// ill is a store that does not do as it should.
type ill struct {
	*memstore.Store
	transact func() error
	at       func(inner func() error) error
	change   func() error
}

func (s *ill) Transact(ctx context.Context, rs []once.ClaimRequest, body func(mtx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	if s.transact != nil {
		if err := s.transact(); err != nil {
			return nil, err
		}
	}
	return s.Store.Transact(ctx, rs, body)
}

func (s *ill) TransactAt(ctx context.Context, from, to store.Position, body func(mtx) error) error {
	inner := func() error { return s.Store.TransactAt(ctx, from, to, body) }
	if s.at != nil {
		return s.at(inner)
	}
	return inner()
}

func (s *ill) Change(ctx context.Context, m store.Shelved) error {
	if s.change != nil {
		if err := s.change(); err != nil {
			return err
		}
	}
	return s.Store.Change(ctx, m)
}

func (b *bench) onTheShelf(states ...store.ShelfState) []store.Shelved {
	b.t.Helper()
	found, err := b.store.Shelved(b.t.Context(), store.ShelfQuery{States: states})
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// A partition that waits for a worker while it is sought does not take the worker with it.
func TestASeekWhileALaneIsReadyStopsNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
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
		// A broker takes its time to seek. Until the worker is gone, or for two seconds:
		deadline, tick := time.After(2*time.Second), time.NewTicker(2*time.Millisecond)
		defer tick.Stop()
		for buf := make([]byte, 1<<20); strings.Contains(string(buf[:runtime.Stack(buf, true)]), ").attend("); {
			select {
			case <-deadline:
				return
			case <-tick.C:
			}
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
}

// On the shelf, too, order is what OrderBy says, and not the OrderingKey of the message.
func TestTheShelfKeepsTheOrderOfOrderBy(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench, sh shape) {
		c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
			if m.ID == "m0" {
				return once.Permanent(errors.New("poison"))
			}
			return b.effect(ctx, tx, m)
		})
		if c.Source = b.broker.Queue("alone"); sh.log {
			c.Source = b.broker.Log("alone", "billing", 1)
		}
		c.OrderBy = func(*broker.Message) string { return "account 7" }
		start(t, c)
		b.publish("alone", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		b.publish("alone", message("m1"))
		await(t, "m1", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
		if c.Stats.Handled.Load() != 0 {
			t.Error("m1 was handled before m0, which it has to wait for")
		}
	})
}

// A message that is parked under another ID is the same to the position.
func TestAMismatchLeavesTheDigestOfThePositionAlone(t *testing.T) {
	b := newBench(t)
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
}

// What is parked without having run is waited for by those behind it in its batch.
func TestThoseBehindAKeylessMessageOfTheirBatchWait(t *testing.T) {
	for _, sh := range shapes {
		if sh.name == "log" || sh.name == "log, batch" {
			continue // no keys
		}
		t.Run(sh.name, func(t *testing.T) {
			b := newBench(t)
			c := sh.consumer(b, b.effect)
			c.Key = func(m *broker.Message) (string, error) {
				if m.ID == "m0" {
					return "", errors.New("no order id in the body")
				}
				return m.ID, nil
			}
			b.publish("orders")
			b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
			start(t, c)
			await(t, "both", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
			if c.Stats.Handled.Load() != 0 {
				t.Error("OnParked is Hold, m0 is parked, and m1 was handled")
			}
		})
	}
}

// A message went to the shelf, and the reply was lost: those behind it wait all the same.
func TestALostReplyOfSetAsideLetsNobodyPass(t *testing.T) {
	b := newBench(t)
	var bad atomic.Bool
	step := 0
	st := &ill{Store: b.store, at: func(inner func() error) error {
		err := inner()
		if !bad.Load() {
			return err
		}
		switch step++; step {
		case 2: // 1 is the handler's failure; this is setAside
			if err != nil {
				t.Error(err)
			}
			return fmt.Errorf("%w: the connection broke at the commit", once.ErrOutcomeUnknown)
		case 3:
			bad.Store(false)
			return errors.New("connection refused")
		}
		return err
	}}
	c := logConsumer(b)
	c.Handler = inbox.Tx[mtx](st, func(ctx context.Context, tx mtx, m *broker.Message) error {
		if m.ID == "m0" {
			bad.Store(true)
			return once.RetryAfter(time.Hour, errors.New("not today"))
		}
		return b.effect(ctx, tx, m)
	})
	start(t, c)
	b.publish("orders", ordered("m0", "k"))
	await(t, "m0 is dealt with", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 1 })
	if found := b.onTheShelf(store.Waiting); len(found) != 1 {
		t.Fatal(found)
	}
	b.publish("orders", ordered("m1", "k"))
	await(t, "m1 is dealt with", func() bool { return c.Stats.Shelved.Load()+c.Stats.Handled.Load() == 2 })
	if b.count("m1") != 0 {
		t.Error("m1 was handled before m0, which waits on the shelf")
	}
}

// An error of a handler that wraps what a step of it has met says nothing about the message itself.
func TestAHandlersErrorIsNoAnswer(t *testing.T) {
	for _, met := range []error{once.ErrExpired, once.ErrOutcomeUnavailable} {
		onEach(t, func(t *testing.T, b *bench, sh shape) {
			c := sh.consumer(b, func(context.Context, mtx, *broker.Message) error { return fmt.Errorf("the step before: %w", met) })
			start(t, c)
			b.publish("orders", message("m0"))
			await(t, "m0", func() bool { return c.Stats.Parked.Load()+c.Stats.Duplicates.Load() > 0 })
			if c.Stats.Parked.Load() != 1 {
				t.Errorf("%v: it failed, its transaction was rolled back, and it was acknowledged as a duplicate", met)
			}
		})
	}
}

// The same on the shelf.
func TestAHandlersErrorOnTheShelfIsNoAnswer(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "c", Source: b.broker.Queue("orders"), Retry: retryAtOnce(4), Stats: new(inbox.Stats),
		Handler: inbox.Tx(b.store, func(context.Context, mtx, *broker.Message) error {
			return fmt.Errorf("the step before: %w", once.ErrExpired)
		})}
	b.shelve("c", message("m0"))
	start(t, c)
	await(t, "an attempt", func() bool { return c.Stats.Parked.Load()+c.Stats.Duplicates.Load() > 0 })
	if len(b.onTheShelf(store.Parked)) != 1 {
		t.Error("it failed and is gone from the shelf:", b.onTheShelf())
	}
}

func (b *bench) shelve(consumer string, m *broker.Message) {
	b.t.Helper()
	m.Topic = "orders"
	err := b.store.Shelve(b.t.Context(), []store.Shelved{{Consumer: consumer, Key: m.ID, Message: *m, State: store.Waiting}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// A batch counts no attempts at what was handled long ago.
func TestADuplicateThatComesOftenIsADuplicate(t *testing.T) {
	b := newBench(t)
	c := shapes[1].consumer(b, b.effect)
	b.broker.LoseAcks(12)
	start(t, c)
	b.publish("orders", message("m0"))
	await(t, "twelve duplicates", func() bool { return c.Stats.Duplicates.Load() >= 12 || c.Stats.Parked.Load() > 0 })
	if found := b.onTheShelf(); len(found) > 0 {
		t.Errorf("m0 has %d effects, and is parked: %s", b.count("m0"), found[0].Reason)
	}
}

// The key of a Kafka record has any bytes, and the shelf takes only text.
func TestAnOrderingKeyNeedNotBeText(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			b := newBench(t)
			c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
				if m.ID == "bad" {
					return once.Permanent(errors.New("poison"))
				}
				return b.effect(ctx, tx, m)
			})
			c.Concurrency = 1
			src := b.broker.Queue("alone")
			if sh.log {
				src = b.broker.Log("alone", "billing", 1)
			}
			c.Source = bent{Source: src, arrive: func(d *broker.Delivery) { d.Message.OrderingKey = "\x00\x00\x00\x2a" }}
			b.publish("alone", message("bad"), message("m0"))
			start(t, c)
			deadline := time.After(testenv.Patience)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for c.Stats.Parked.Load() == 0 {
				select {
				case <-deadline:
					t.Fatalf("it failed %d times for good, and is not parked", c.Stats.Failed.Load())
				case <-tick.C:
				}
			}
		})
	}
}

// An ordering key that is too long has nobody else parked.
func TestATooLongOrderingKeyIsNobodysFault(t *testing.T) {
	b := newBench(t)
	c := shapes[4].consumer(b, b.effect)
	c.Source = bent{Source: b.broker.Log("alone", "billing", 1), arrive: func(d *broker.Delivery) {
		if d.Message.ID == "m3" {
			d.Message.OrderingKey = strings.Repeat("k", 300)
		}
	}}
	b.publish("alone", numbered(6)...)
	start(t, c)
	await(t, "something", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() >= 5 })
	for _, m := range b.onTheShelf(store.Parked) {
		if m.Message.ID != "m3" {
			t.Errorf("%s is parked: %s", m.Message.ID, m.Reason)
		}
	}
}

// Two events of a log without ids that say the same are two events.
func TestEqualMessagesWithoutIDsAreTwo(t *testing.T) {
	b := newBench(t)
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
}

// What was replayed once, and fails when it is handled again, is on the shelf again.
func TestWhatWasReplayedCanFailAgain(t *testing.T) {
	b := newBench(t)
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
}

// Two messages with one ID and different bodies are both put aside.
func TestAnIDThatWasUsedTwiceDropsNothing(t *testing.T) {
	b := newBench(t)
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
}

// The outage of a store is no attempt of what is on the shelf.
func TestAnOutageParksNothingOnTheShelf(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"down": errors.New("too many connections"), "conflict": once.ErrConflict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
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
	}
}

// A shelf that can be read and not written is asked now and then only.
func TestAShelfThatCannotBeWrittenIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
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
}

// A function of the user that panics is about its message, and not the end of the process.
func TestAFunctionThatPanicsHasItsMessageParked(t *testing.T) {
	for _, which := range []string{"Key", "Input", "OrderBy"} {
		b := newBench(t)
		c := shapes[0].consumer(b, b.effect)
		oops := func(m *broker.Message) string { return strings.Split(string(m.Body), "/")[1] }
		switch which {
		case "Key":
			c.Key = func(m *broker.Message) (string, error) { return oops(m), nil }
		case "Input":
			c.Input = func(m *broker.Message) []byte { return []byte(oops(m)) }
		case "OrderBy":
			c.OrderBy = oops
		}
		b.publish("orders", message("m0"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan any, 1)
		go func() {
			defer func() {
				ended <- recover()
			}()
			_ = c.Run(ctx)
		}()
		deadline, tick := time.After(testenv.Patience), time.NewTicker(2*time.Millisecond)
		defer tick.Stop()
		for waiting := true; waiting && c.Stats.Parked.Load() == 0; {
			select {
			case <-deadline:
				t.Errorf("%s: nothing happens any more, and Run does not return", which)
				waiting = false
			case <-tick.C:
			}
		}
		cancel()
		if p := <-ended; p != nil {
			t.Errorf("%s: Run panicked when its context ended: %v", which, p)
		}
	}
}

type sqlError struct{ text string }

func (e *sqlError) Error() string { return e.text }

// A nil pointer in an error, as every Go programmer writes it once, does not end the process.
func TestANilErrorOfAPointerTypeIsAFailure(t *testing.T) {
	if os.Getenv("INBOX_NIL_ERROR") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestANilErrorOfAPointerTypeIsAFailure$")
		cmd.Env = append(os.Environ(), "INBOX_NIL_ERROR=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%.600s", err, out[max(strings.Index(string(out), "panic:"), 0):])
		}
		return
	}
	b := newBench(t)
	c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error {
		var err *sqlError
		return err
	})
	start(t, c)
	b.publish("orders", message("m0"))
	await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
}

// What was begun too often is asked about before it is parked, and an unknown outcome is called that.
func TestAReplayDoublesNoEffectOfUnknownOutcome(t *testing.T) {
	b := newBench(t)
	key := once.Key{Operation: "mail", ID: "m0"}
	for attempt := range int64(2) { // two processes died in the middle of it; the effect of the second took place
		r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{byte(attempt + 1)}, Attempt: attempt}, Lease: time.Millisecond}
		if _, err := b.store.Claim(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		await(t, "the lease lapses", func() bool {
			rec, err := b.store.Get(t.Context(), key)
			return err == nil && rec.Status == once.Unknown
		})
	}
	var effects atomic.Int64
	effects.Store(1)
	var asked atomic.Int64
	c := doConsumer(b, &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
		asked.Add(1)
		return "sent", true, nil
	}}, func(context.Context, once.Key, *broker.Message) (string, error) {
		effects.Add(1)
		return "sent", nil
	})
	c.Retry = retryAtOnce(1)
	c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { d.Redelivered, d.Message.Attempt = true, 3 }}
	start(t, c)
	b.publish("orders", message("m0"))
	await(t, "parked or done", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
	if asked.Load() == 0 {
		t.Error("Lookup, which knows that it happened, was not asked")
	}
	tally, err := (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"})
	if err != nil {
		t.Fatal(err)
	}
	if tally.Changed == 0 {
		return
	}
	await(t, "tried again", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
	if effects.Load() != 1 {
		t.Errorf("%d effects, and nobody said NotDone", effects.Load())
	}
}

// Two people decide at once: one replays, one discards, and one of them has decided.
func TestADiscardThatLosesDropsNothing(t *testing.T) {
	b := newBench(t)
	var healthy atomic.Bool
	c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
		if !healthy.Load() {
			return once.Permanent(errors.New("poison"))
		}
		return b.effect(ctx, tx, m)
	})
	start(t, c)
	b.publish("orders", message("m0"))
	await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
	healthy.Store(true)
	by := inbox.Decision{By: "me", Reason: "so"}
	var replayed inbox.Tally
	slow := &ill{Store: b.store}
	slow.change = func() (err error) {
		replayed, err = (inbox.Admin{Store: b.store}).Replay(t.Context(), store.ShelfQuery{}, by)
		return err
	}
	discarded, err := (inbox.Admin{Store: slow}).Discard(t.Context(), store.ShelfQuery{Consumer: "billing"}, by)
	if err != nil || replayed.Changed != 1 || discarded.Moved != 1 {
		t.Fatal(replayed, discarded, err)
	}
	await(t, "replayed", func() bool { return len(b.onTheShelf(store.Handled)) == 1 })
	if b.count("m0") != 1 {
		t.Error("Discard has left it alone, Replay has had it replayed, it counts as handled, and it has no effect")
	}
}

// Acks that fail do not take their places in the window for ever.
func TestAcksThatFailDoNotStopTheConsumer(t *testing.T) {
	b := newBench(t)
	var fails atomic.Int64
	c := shapes[0].consumer(b, b.effect)
	c.Concurrency, c.Window = 1, 2
	c.Source = bent{Source: b.broker.Queue("orders"), ack: func() error {
		if fails.Add(1) <= 2 {
			return context.DeadlineExceeded
		}
		return nil
	}}
	start(t, c)
	b.publish("orders", numbered(5)...)
	await(t, "five handled, although two acks timed out", func() bool { return c.Stats.Handled.Load() == 5 })
}

// The text of an error on the shelf is shortened.
func TestALongErrorOnTheShelfIsShortened(t *testing.T) {
	b := newBench(t)
	c := shapes[0].consumer(b, func(context.Context, mtx, *broker.Message) error {
		return once.Permanent(errors.New(strings.Repeat("x", 70<<10)))
	})
	b.shelve("billing", message("m0"))
	start(t, c)
	await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
}

// An effect that took place, and whose value cannot be kept, is handled.
func TestADoneEffectIsNotParked(t *testing.T) {
	b := newBench(t)
	c := &inbox.Consumer{Name: "mail", Source: b.broker.Queue("orders"), Retry: retryAtOnce(4), Stats: new(inbox.Stats),
		Handler: inbox.Do(b.store, &once.Operation[float64]{OnUnknown: once.Park},
			func(context.Context, once.Key, *broker.Message) (float64, error) { return math.NaN(), nil })}
	start(t, c)
	b.publish("orders", ordered("m0", "k"))
	await(t, "m0", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() > 0 })
	rec, err := b.store.Get(t.Context(), once.Key{Operation: "mail", ID: "m0"})
	if err != nil || rec.Status != once.Done {
		t.Fatal(rec, err)
	}
	if found := b.onTheShelf(store.Parked); len(found) > 0 {
		t.Error("its key is Done, and it is parked:", found[0].Reason)
	}
}

// A rebuild that has never handled anything takes nothing for handled.
func TestARebuildHandlesWhatIsOld(t *testing.T) {
	b := newBench(t)
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
}

// In a batch, one whose key is not known to be free is not passed by those behind it.
func TestABatchWaitsForOneThatWaitsForItsKey(t *testing.T) {
	b := newBench(t)
	r := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "billing", ID: "m0"}, Owner: [16]byte{1}}, Lease: time.Millisecond}
	if _, err := b.store.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	await(t, "the lease lapses", func() bool {
		rec, err := b.store.Get(t.Context(), r.Key)
		return err == nil && rec.Status == once.Unknown
	})
	c := shapes[1].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
		was, _ := tx.Get("log")
		tx.Set("log", was+m.ID+" ")
		return nil
	})
	b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
	start(t, c)
	await(t, "both", func() bool { return c.Stats.Handled.Load() == 2 })
	if got, _ := b.store.Value("log"); got != "m0 m1 " {
		t.Error("handled in the order", got)
	}
}

// Sessions that break while a store is in trouble have no message parked that no handler has seen.
func TestBreaksDuringAnOutageParkNothing(t *testing.T) {
	for _, sh := range []shape{shapes[0], shapes[1], shapes[2]} {
		t.Run(sh.name, func(t *testing.T) {
			b := newBench(t)
			var asked atomic.Int64
			var down atomic.Bool
			down.Store(true)
			st := &ill{Store: b.store}
			st.transact = func() error {
				asked.Add(1)
				if down.Load() {
					return errors.New("too many connections")
				}
				return nil
			}
			st.at = func(inner func() error) error {
				if err := st.transact(); err != nil {
					return err
				}
				return inner()
			}
			c := sh.consumer(b, b.effect)
			c.BatchSize, c.Retry.Attempts = 1, 2
			if c.Handler = inbox.Tx[mtx](st, b.effect); sh.name == "batch" {
				c.Handler = inbox.Batch[mtx](st, func(ctx context.Context, tx mtx, ms []*broker.Message) error { return b.effect(ctx, tx, ms[0]) })
			}
			start(t, c)
			b.publish("orders", message("m0"))
			for i := range int64(4) {
				was := asked.Load()
				await(t, fmt.Sprint("another try, after break ", i), func() bool { return asked.Load() > was || c.Stats.Parked.Load() > 0 })
				b.broker.Restart()
			}
			down.Store(false)
			await(t, "m0", func() bool { return c.Stats.Handled.Load()+c.Stats.Parked.Load() > 0 })
			if c.Stats.Parked.Load() > 0 {
				t.Errorf("its handler was called %d times: %s", b.calls["m0"], b.onTheShelf()[0].Reason)
			}
		})
	}
}

// And neither do orderly stops.
func TestOrderlyStopsParkNothing(t *testing.T) {
	for _, sh := range []shape{shapes[0], shapes[1], shapes[2]} {
		t.Run(sh.name, func(t *testing.T) {
			b := newBench(t)
			begun := make(chan struct{}, 100)
			c := sh.consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
				begun <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			c.StopTime, c.Retry.Attempts = time.Millisecond, 2
			b.publish("orders", message("m0"))
			for range 6 {
				stop := start(t, c)
				await(t, "begun", func() bool { return len(begun) > 0 || c.Stats.Parked.Load() > 0 })
				for len(begun) > 0 {
					<-begun
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			}
			if c.Stats.Parked.Load() > 0 {
				t.Error("it was stopped in order each time:", b.onTheShelf()[0].Reason)
			}
		})
	}
}

// A handler that ends its goroutine takes no worker with it.
func TestAHandlerThatEndsItsGoroutineTakesNobodyWithIt(t *testing.T) {
	b := newBench(t)
	c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
		if m.ID == "m0" {
			runtime.Goexit()
		}
		return b.effect(ctx, tx, m)
	})
	c.Concurrency = 1
	start(t, c)
	b.publish("orders", numbered(2)...)
	await(t, "m1", func() bool { return b.count("m1") == 1 })
}

// One slow handler on the shelf does not hold up what is put aside later.
func TestOneOnTheShelfHoldsUpNobody(t *testing.T) {
	b := newBench(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	c := shapes[0].consumer(b, func(ctx context.Context, tx mtx, m *broker.Message) error {
		if m.ID == "slow" {
			close(begun)
			<-gate
		}
		return b.effect(ctx, tx, m)
	})
	b.shelve("billing", message("slow"))
	start(t, c)
	<-begun
	b.shelve("billing", message("m0"))
	deadline, tick := time.After(testenv.Patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for b.count("m0") == 0 && !t.Failed() {
		select {
		case <-deadline:
			t.Error("m0 is due, has no order, and seven places are free, and it is not tried")
		case <-tick.C:
		}
	}
	close(gate)
}

// What another process is at work on is not parked, however many its attempts are.
func TestARunningAttemptIsLeftAlone(t *testing.T) {
	b := newBench(t)
	key := once.Key{Operation: "mail", ID: "m0"}
	r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Millisecond}
	if _, err := b.store.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	await(t, "the lease lapses", func() bool {
		rec, err := b.store.Get(t.Context(), key)
		return err == nil && rec.Status == once.Unknown
	})
	r = once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}, Attempt: 1}, Lease: time.Minute}
	if rec, err := b.store.Claim(t.Context(), r); err != nil || rec.Status != once.Running {
		t.Fatal(rec, err)
	}
	c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Resend}, func(context.Context, once.Key, *broker.Message) (string, error) {
		return "sent", nil
	})
	c.Retry = retryAtOnce(1)
	var came atomic.Int64
	c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { came.Add(1); d.Redelivered, d.Message.Attempt = true, 2 }}
	start(t, c)
	b.publish("orders", ordered("m0", "k"), message("m1"))
	await(t, "m1", func() bool { return c.Stats.Handled.Load() > 0 })
	if rec, err := b.store.Get(t.Context(), key); err != nil || rec.Status != once.Running {
		t.Errorf("another process is at work on it, and its key is %v, its message parked: %d (%v)", rec.Status, c.Stats.Parked.Load(), err)
	}
}
