package storebroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func message(id, key string) *broker.Message {
	return &broker.Message{ID: id, Topic: "orders", OrderingKey: key, Body: []byte("body of " + id)}
}

func open(t testing.TB, b *storebroker.Broker, consumer string) broker.Session {
	t.Helper()
	s, err := b.Queue("orders").(broker.Subscriber).For(consumer).Open(soon(t), 64)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close(context.Background())) })
	return s
}

func publish(t testing.TB, b *storebroker.Broker, ms ...*broker.Message) {
	t.Helper()
	must(t, errors.Join(b.Publisher().Publish(soon(t), ms)...))
}

// receive receives n messages.
func receive(t testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	t.Helper()
	for len(ds) < n {
		more, err := s.Receive(soon(t), n-len(ds))
		must(t, err)
		ds = append(ds, more...)
	}
	return ds
}

func ids(ds []broker.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, d.Message.ID)
	}
	slices.Sort(all)
	return all
}

func TestEachConsumerGetsAllMessages(t *testing.T) {
	b := storebroker.New(memstore.New(nil), nil)
	billing, letters, other := open(t, b, "billing"), open(t, b, "letters"), open(t, b, "letters")
	publish(t, b, message("1", ""), message("2", ""))
	if got := ids(receive(t, billing, 2)); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("billing got %q", got)
	}
	first := receive(t, letters, 1)
	if got := ids(append(first, receive(t, other, 1)...)); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("the sessions of letters got %q together", got)
	}
}

func TestALateConsumerGetsWhatFollows(t *testing.T) {
	b := storebroker.New(memstore.New(nil), nil)
	errs := b.Publisher().Publish(soon(t), []*broker.Message{message("too early", "")})
	if len(errs) != 1 || !errors.Is(errs[0], broker.ErrNotYet) || errors.Is(errs[0], broker.ErrInvalid) {
		t.Errorf("without a consumer, Publish returned %v", errs)
	}
	open(t, b, "billing")
	publish(t, b, message("1", ""))
	late := open(t, b, "letters")
	publish(t, b, message("2", ""))
	if got := ids(receive(t, late, 1)); !slices.Equal(got, []string{"2"}) {
		t.Errorf("got %q", got)
	}
}

// A relay that does not know whether a message was published publishes it again.
// Another message with its ID is not a copy for the queue: it is for the consumer to
// compare them.
func TestAQueueTakesAPublishedMessageOnce(t *testing.T) {
	b := storebroker.New(memstore.New(nil), nil)
	s := open(t, b, "billing")
	numbered := func(seq string) *broker.Message {
		m := message("1", "")
		m.Header, m.Body = map[string]string{broker.SeqHeader: seq}, []byte(seq)
		return m
	}
	publish(t, b, numbered("7"))
	publish(t, b, numbered("7"), numbered("8"))
	queue := b.Queue("orders").(broker.Subscriber).For("billing").(broker.Lagger)
	if lag, err := queue.Lag(soon(t)); err != nil || lag.Messages != 2 {
		t.Fatalf("%d messages are in the queue, %v", lag.Messages, err)
	}
	ds := receive(t, s, 2)
	if bodies := []string{string(ds[0].Message.Body), string(ds[1].Message.Body)}; !slices.Contains(bodies, "7") || !slices.Contains(bodies, "8") {
		t.Errorf("got %q", bodies)
	}
	must(t, s.Ack(soon(t), ds))
	if lag, err := queue.Lag(soon(t)); err != nil || lag.Messages != 0 {
		t.Errorf("%d messages are left, %v", lag.Messages, err)
	}
}

// full is a store whose queues take two messages, and none with a large body.
type full struct{ *memstore.Store }

func (f full) Shelve(ctx context.Context, ms []store.Shelved) error {
	for _, m := range ms {
		there, err := f.Shelved(ctx, store.ShelfQuery{Consumer: m.Consumer})
		if err != nil {
			return err
		}
		if len(there)+len(ms) > 2 || len(m.Message.Body) > 1000 {
			return fmt.Errorf("%w: it does not fit", once.ErrInvalid)
		}
	}
	return f.Store.Shelve(ctx, ms)
}

func (f full) Unwrap() once.Store { return f.Store }

// A message that does not fit into a queue now is not at fault. One that never fits
// is, and others of its batch are taken.
func TestAFullQueueIsWaitedFor(t *testing.T) {
	b := storebroker.New(full{memstore.New(nil)}, nil)
	s := open(t, b, "billing")
	large := message("large", "")
	large.Body = make([]byte, 2000)
	if errs := b.Publisher().Publish(soon(t), []*broker.Message{large}); !errors.Is(errors.Join(errs...), broker.ErrInvalid) {
		t.Errorf("a message that never fits: %v", errs)
	}
	errs := b.Publisher().Publish(soon(t), []*broker.Message{message("1", ""), message("2", ""), message("3", "")})
	if len(errs) != 3 || errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], broker.ErrNotYet) || errors.Is(errs[2], broker.ErrInvalid) {
		t.Errorf("a queue of two messages took of three: %v", errs)
	}
	if text := errs[2].Error(); !strings.Contains(text, `"billing"`) {
		t.Errorf("it does not say whose queue is full: %s", text)
	}
	must(t, s.Ack(soon(t), receive(t, s, 2)))
	publish(t, b, message("3", ""))
}

// emptied is a store with a queue that is full when a message is put into it, and
// empty when somebody looks.
type emptied struct {
	carrier
	full atomic.Int64 // how often
}

func (e *emptied) Shelve(ctx context.Context, ms []store.Shelved) error {
	if e.full.Add(-1) >= 0 {
		return fmt.Errorf("%w: it does not fit", once.ErrInvalid)
	}
	return e.carrier.Shelve(ctx, ms)
}

func TestAQueueThatWasFullAMomentAgoIsNoFault(t *testing.T) {
	e := &emptied{carrier: memstore.New(nil)}
	b := storebroker.New(e, nil)
	s := open(t, b, "billing")
	e.full.Store(2) // with its batch, and alone
	publish(t, b, message("1", ""))
	receive(t, s, 1)
}

// oneRefused is a store that changes messages one by one, and refuses to change
// one of them.
type oneRefused struct {
	carrier
	id string
}

var errRefused = errors.New("this row cannot be changed")

func (o oneRefused) Change(ctx context.Context, m store.Shelved) error {
	if m.Key == o.id {
		return errRefused
	}
	return o.carrier.Change(ctx, m)
}

// A message that cannot be taken ends the session once no other one can be taken
// either.
func TestAMessageThatCannotBeTakenStopsNoOthers(t *testing.T) {
	b := storebroker.New(oneRefused{memstore.New(nil), "2"}, nil)
	s := open(t, b, "billing")
	publish(t, b, message("1", ""), message("2", ""), message("3", ""))
	ds := receive(t, s, 2)
	if got := ids(ds); !slices.Equal(got, []string{"1", "3"}) {
		t.Errorf("got %q", got)
	}
	must(t, s.Ack(soon(t), ds))
	if _, err := s.Receive(soon(t), 1); !errors.Is(err, errRefused) {
		t.Errorf("with nothing else to take, Receive returned %v", err)
	}
}

// stalled is a store on which a process no longer changes what it has, as if it had
// been killed.
type stalled struct {
	*memstore.Store
	reads atomic.Int64
	dead  atomic.Bool // changes fail
	deaf  atomic.Bool // changes are made, and seem to fail
}

var errDead = errors.New("this process is dead")

func (s *stalled) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	s.reads.Add(1)
	return s.Store.Shelved(ctx, q)
}

func (s *stalled) Change(ctx context.Context, m store.Shelved) error {
	changed, err := s.ChangeMany(ctx, []store.Shelved{m})
	if err == nil && !changed[0] {
		err = once.ErrLeaseLost
	}
	return err
}

func (s *stalled) ChangeMany(ctx context.Context, ms []store.Shelved) ([]bool, error) {
	if s.dead.Load() {
		return nil, errDead
	}
	changed, err := s.Store.ChangeMany(ctx, ms)
	if s.deaf.Load() {
		err = errDead
	}
	return changed, err
}

func (s *stalled) Unwrap() once.Store { return s.Store }

type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
