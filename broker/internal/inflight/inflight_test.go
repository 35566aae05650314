package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

var errMoved = errors.New("moved")

// feed has buffers of words.
type feed struct {
	*inflight.Tracker[string]
	buffers []*inflight.Buffer[string]
	fetch   func(context.Context)
}

func newFeed(t *testing.T, window int, buffers ...*inflight.Buffer[string]) *feed {
	t.Helper()
	return shared(t, new(inflight.Cond), window, buffers...)
}

func shared(t *testing.T, b *inflight.Cond, window int, buffers ...*inflight.Buffer[string]) *feed {
	t.Helper()
	d, err := inflight.NewTracker[string](b, window)
	if err != nil {
		t.Fatal(err)
	}
	return &feed{Tracker: d, buffers: buffers, fetch: func(ctx context.Context) { <-ctx.Done() }}
}

func (s *feed) Buffers() []*inflight.Buffer[string] { return s.buffers }

func (s *feed) NewDelivery(l *inflight.Buffer[string], it *inflight.Item[string]) broker.Delivery {
	return broker.Delivery{Origin: it.Value, Redelivered: it.Offset < l.Delivered()}
}

func (s *feed) Fetch(ctx context.Context) { s.fetch(ctx) }

// buffer returns a buffer of words at offsets from a first one on.
func buffer(first int64, words ...string) *inflight.Buffer[string] {
	l := inflight.NewBuffer[string](first)
	add(l, words...)
	return l
}

func add(l *inflight.Buffer[string], words ...string) {
	for _, word := range words {
		l.Add(l.Next(), word)
	}
}

// want receives the available words. Redelivered ones have a "+".
func (s *feed) want(t *testing.T, words string) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	ds, err := s.Receive(ctx, 100, s)
	if err != nil && !(words == "" && errors.Is(err, context.DeadlineExceeded)) {
		t.Fatalf("instead of %q came %v", words, err)
	}
	var got []string
	for _, d := range ds {
		word := d.Origin
		if d.Redelivered {
			word += "+"
		}
		got = append(got, word)
	}
	if strings.Join(got, " ") != words {
		t.Fatalf("%q came, want %q", got, words)
	}
	return ds
}

func (s *feed) ack(t *testing.T, ds ...broker.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), ds, (*inflight.Item[string]).Settle); err != nil {
		t.Fatal(err)
	}
}

func (s *feed) giveBack(t *testing.T, after time.Duration, ds ...broker.Delivery) {
	t.Helper()
	due := time.Now().Add(after)
	if err := s.Settle(t.Context(), ds, func(it *inflight.Item[string]) { it.Return(due) }); err != nil {
		t.Fatal(err)
	}
}

// refuses says that each delivery alone is an error.
func (s *feed) refuses(t *testing.T, why error, ds ...broker.Delivery) {
	t.Helper()
	for i, d := range ds {
		err := s.Settle(t.Context(), ds[i:i+1], func(*inflight.Item[string]) { t.Errorf("%s is settled", d.Origin) })
		held, heldErr := s.Held(ds[i : i+1])
		if !errors.Is(err, why) || !errors.Is(heldErr, why) || len(held) > 0 {
			t.Errorf("settling %s: %v, and %d are held: %v; want %v", d.Origin, err, len(held), heldErr, why)
		}
	}
}

func TestReceiveKeepsToTheWindowAndTheLimit(t *testing.T) {
	l := buffer(0, "a", "b", "c", "d")
	s := newFeed(t, 3, l)
	if ds, err := s.Receive(t.Context(), 1, s); len(ds) != 1 || err != nil {
		t.Fatal(ds, err)
	}
	if room := s.Room(l); room != -1 {
		t.Errorf("one is out, and three wait for two places; room is %d", room)
	}
	ds := s.want(t, "b c")
	s.want(t, "")
	s.ack(t, ds[0])
	s.want(t, "d")
	if _, err := s.Receive(t.Context(), 0, s); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
	if _, err := inflight.NewTracker[string](new(inflight.Cond), 0); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
}

func TestBuffersTakeTurns(t *testing.T) {
	s := newFeed(t, 9, buffer(0, "a", "b", "c"), buffer(0), buffer(7, "x", "y"))
	s.want(t, "a x b y c")
}

func TestReturnedComeAgainInOrderWhenTheyAreDue(t *testing.T) {
	l := buffer(0, "a", "b", "c")
	s := newFeed(t, 9, l)
	ds := s.want(t, "a b c")
	s.giveBack(t, 0, ds[1])
	s.giveBack(t, 0, ds[0])
	add(l, "d")
	if l.Returned() != 2 || l.InFlight() != 1 || l.Unread() != 1 {
		t.Errorf("returned %d, in flight %d, unread %d", l.Returned(), l.InFlight(), l.Unread())
	}
	again := s.want(t, "a+ b+ d")
	s.giveBack(t, time.Hour, again[0])
	s.giveBack(t, 60*time.Millisecond, again[1])
	s.giveBack(t, time.Hour, again[2])
	s.want(t, "")
	if got, err := s.Receive(t.Context(), 9, s); err != nil || len(got) != 1 || got[0].Origin != "b" {
		t.Error(got, err) // nothing but the time of the second ends the waiting
	}
}

func TestADeliveryIsSettledOnce(t *testing.T) {
	cond, l := new(inflight.Cond), buffer(0, "a", "b")
	s, other := shared(t, cond, 9, l), shared(t, cond, 9, l)
	ds := s.want(t, "a b")
	other.refuses(t, broker.ErrInvalid, ds...)
	other.refuses(t, broker.ErrInvalid, broker.Delivery{Origin: "foreign"}, broker.Delivery{Origin: "alien", Tag: 7})
	s.ack(t, ds[1])
	s.giveBack(t, 0, ds[0])
	if held, err := s.Held(ds[:1]); len(held) > 0 || err == nil {
		t.Error("what was returned passes for out")
	}
	again := s.want(t, "a+")
	if err := s.Settle(t.Context(), ds, (*inflight.Item[string]).Settle); err == nil {
		t.Error("an earlier delivery settles a later one")
	}
	s.ack(t, again[0])
	if l.Settled() != 2 || l.Tracked() != 0 {
		t.Error(l.Settled(), l.Tracked())
	}
}

func TestTheOthersOfASliceAreSettled(t *testing.T) {
	l := buffer(0, "a", "b", "c")
	s := newFeed(t, 9, l)
	ds := s.want(t, "a b c")
	s.ack(t, ds[1])
	if held, err := s.Held(ds); len(held) != 2 || held[0].Origin != "a" || held[1].Origin != "c" || !errors.Is(err, broker.ErrSettled) {
		t.Error(held, err)
	}
	if err := s.Settle(t.Context(), ds, (*inflight.Item[string]).Settle); err == nil {
		t.Error("no error for the second")
	}
	if l.Settled() != 3 {
		t.Errorf("settled is %d", l.Settled())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	add(l, "d")
	ds = s.want(t, "d")
	if err := s.Settle(ctx, ds, (*inflight.Item[string]).Settle); !errors.Is(err, context.Canceled) || l.Settled() != 3 {
		t.Errorf("with a context that has ended: %v, settled %d", err, l.Settled())
	}
}

func TestSettledIsThePrefixWithoutAGap(t *testing.T) {
	l := inflight.NewBuffer[string](5)
	for _, offset := range []int64{5, 6, 9, 10} { // with a gap of the log itself
		l.Add(offset, fmt.Sprint(offset))
	}
	s := newFeed(t, 9, l)
	ds := s.want(t, "5 6 9 10")
	for i, step := range []struct {
		ack     int
		settled int64
		tracked int
	}{{2, 5, 4}, {0, 6, 3}, {1, 10, 1}, {3, 11, 0}} {
		s.ack(t, ds[step.ack])
		if l.Settled() != step.settled || l.Tracked() != step.tracked {
			t.Errorf("step %d: settled %d, tracked %d; want %+v", i, l.Settled(), l.Tracked(), step)
		}
	}
	if l.Next() != 11 || l.Delivered() != 11 || l.InFlight() != 0 {
		t.Error(l.Next(), l.Delivered(), l.InFlight())
	}
}

func TestResetForgetsWhatIsInFlight(t *testing.T) {
	l := buffer(0, "a", "b", "c", "d")
	s := newFeed(t, 2, l)
	ds := s.want(t, "a b")
	s.giveBack(t, time.Hour, ds[1])
	l.Reset(1, nil)
	s.ack(t, ds[0]) // which does nothing
	if l.Settled() != 1 || l.Next() != 1 || l.Returned() != 0 || l.InFlight() != 0 || s.Room(l) != 2 {
		t.Error(l.Settled(), l.Next(), l.Returned(), l.InFlight(), s.Room(l))
	}
	add(l, "b", "c")
	ds = s.want(t, "b+ c")
	l.Reset(2, errMoved)
	s.refuses(t, errMoved, ds...)
	s.want(t, "")
}

func TestResetCanKeepItems(t *testing.T) {
	l := buffer(0)
	var all []*inflight.Item[string]
	for i, word := range []string{"a", "b", "c"} {
		all = append(all, l.Add(int64(i), word))
	}
	s := newFeed(t, 9, l)
	ds := s.want(t, "a b c")
	s.ack(t, ds[0])
	s.giveBack(t, time.Hour, ds[2])
	l.Reset(0, inflight.ErrLost, all...)
	s.refuses(t, inflight.ErrLost, ds[1])
	add(l, "d")
	s.want(t, "a+ b+ c+ d")
	if all[0].Attempt != 2 || l.Next() != 4 || l.Settled() != 0 {
		t.Error(all[0].Attempt, l.Next(), l.Settled())
	}
}

func TestNothingIsDeliveredFromTheLimitOn(t *testing.T) {
	l := buffer(0, "a", "b", "c")
	l.Limit = 2
	s := newFeed(t, 9, l)
	ds := s.want(t, "a b")
	s.want(t, "")
	s.giveBack(t, 0, ds[0])
	s.want(t, "a+")
	l.Limit = 3
	s.want(t, "c")
}

func TestExpireKeepsWhatIsInFlight(t *testing.T) {
	l := buffer(0, "a", "b", "c", "d", "e")
	s := newFeed(t, 3, l)
	ds := s.want(t, "a b c")
	s.giveBack(t, time.Hour, ds[1])
	l.Expire(func(it *inflight.Item[string]) bool { return it.Value < "e" }) // a and c are out
	if l.Returned() != 0 || l.Unread() != 1 || l.InFlight() != 2 {
		t.Error(l.Returned(), l.Unread(), l.InFlight())
	}
	s.ack(t, ds[0], ds[2])
	s.want(t, "e")
}

func TestReclaimedMessagesComeAgain(t *testing.T) {
	cond, l := new(inflight.Cond), buffer(0, "a", "b", "c")
	one, two := shared(t, cond, 1, l), shared(t, cond, 1, l)
	first, second := one.want(t, "a"), two.want(t, "b")
	l.Reclaim(one.Tracker)
	one.refuses(t, inflight.ErrLost, first...)
	one.want(t, "a+")
	two.ack(t, second...)
	two.want(t, "c")
	var left []string
	for it := range l.Items() {
		left = append(left, it.Value)
	}
	if fmt.Sprint(left) != "[a c]" {
		t.Error(left)
	}
}

func TestAFailedSessionCanSettleUntilItIsClosed(t *testing.T) {
	l := buffer(0, "a", "b")
	s := newFeed(t, 9, l)
	ds := s.want(t, "a b")
	locked := func(f func()) {
		s.Lock()
		defer s.Unlock()
		f()
	}
	locked(func() { s.Fail(errMoved); s.Fail(errors.New("second")) })
	if _, err := s.Receive(t.Context(), 1, s); !errors.Is(err, errMoved) {
		t.Error(err)
	}
	s.ack(t, ds[0])
	locked(func() {
		if s.Closed() || s.Close() || !s.Close() || !s.Closed() || !errors.Is(s.Err(), errMoved) {
			t.Error("closed and ended are mixed up")
		}
	})
	s.refuses(t, inflight.ErrClosed, ds[1])
}

// A new message, a settled delivery and the end of the context wake Receive.
func TestReceiveWakes(t *testing.T) {
	l := buffer(0, "a")
	s := newFeed(t, 1, l)
	ds := s.want(t, "a")
	waits := make(chan struct{}, 9)
	s.fetch = func(ctx context.Context) { waits <- struct{}{}; <-ctx.Done() }
	got := make(chan error)
	receive := func(ctx context.Context) {
		_, err := s.Receive(ctx, 1, s)
		got <- err
	}
	go receive(t.Context())
	<-waits
	s.ack(t, ds...)
	<-waits
	s.Lock()
	add(l, "b")
	s.Broadcast()
	s.Unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go receive(ctx)
	<-waits
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWaitUntilIsWokenByABroadcast(t *testing.T) {
	var b inflight.Cond
	asked, done, n := make(chan struct{}, 9), make(chan error), 0
	go func() {
		done <- b.WaitUntil(t.Context(), func() bool { asked <- struct{}{}; return n == 2 })
	}()
	for range 2 {
		<-asked
		b.Lock()
		n++
		b.Broadcast()
		b.Unlock()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errMoved)
	if err := b.WaitUntil(ctx, func() bool { return false }); !errors.Is(err, errMoved) {
		t.Error(err)
	}
}
