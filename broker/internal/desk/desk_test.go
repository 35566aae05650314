package desk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/desk"
)

var errMoved = errors.New("moved")

// stock is lanes of words.
type stock struct {
	*desk.Desk[string]
	lanes []*desk.Lane[string]
	await func(context.Context)
}

func newStock(t *testing.T, window int, lanes ...*desk.Lane[string]) *stock {
	t.Helper()
	return shared(t, new(desk.Bell), window, lanes...)
}

func shared(t *testing.T, b *desk.Bell, window int, lanes ...*desk.Lane[string]) *stock {
	t.Helper()
	d, err := desk.New[string](b, window)
	if err != nil {
		t.Fatal(err)
	}
	return &stock{Desk: d, lanes: lanes, await: func(ctx context.Context) { <-ctx.Done() }}
}

func (s *stock) Lanes() []*desk.Lane[string] { return s.lanes }

func (s *stock) Deliver(l *desk.Lane[string], it *desk.Item[string]) broker.Delivery {
	return broker.Delivery{Origin: it.Value, Redelivered: it.Offset < l.Handed()}
}

func (s *stock) Await(ctx context.Context) { s.await(ctx) }

// lane has words at offsets from a first one on.
func lane(first int64, words ...string) *desk.Lane[string] {
	l := desk.NewLane[string](first)
	add(l, words...)
	return l
}

func add(l *desk.Lane[string], words ...string) {
	for _, word := range words {
		l.Add(l.Next(), word)
	}
}

// want receives what is there, which is the words; those that come again have a "+".
func (s *stock) want(t *testing.T, words string) []broker.Delivery {
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

func (s *stock) ack(t *testing.T, ds ...broker.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), ds, (*desk.Item[string]).Settle); err != nil {
		t.Fatal(err)
	}
}

func (s *stock) giveBack(t *testing.T, after time.Duration, ds ...broker.Delivery) {
	t.Helper()
	due := time.Now().Add(after)
	if err := s.Settle(t.Context(), ds, func(it *desk.Item[string]) { it.Return(due) }); err != nil {
		t.Fatal(err)
	}
}

// refuses says that each delivery alone is an error.
func (s *stock) refuses(t *testing.T, why error, ds ...broker.Delivery) {
	t.Helper()
	for i, d := range ds {
		err := s.Settle(t.Context(), ds[i:i+1], func(*desk.Item[string]) { t.Errorf("%s is settled", d.Origin) })
		if !errors.Is(err, why) || s.Check(ds[i:i+1]) == nil {
			t.Errorf("settling %s: %v; want %v", d.Origin, err, why)
		}
	}
}

func TestWindowAndMost(t *testing.T) {
	l := lane(0, "a", "b", "c", "d")
	s := newStock(t, 3, l)
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
	if _, err := desk.New[string](new(desk.Bell), 0); !errors.Is(err, broker.ErrInvalid) {
		t.Error(err)
	}
}

func TestLanesTakeTurns(t *testing.T) {
	s := newStock(t, 9, lane(0, "a", "b", "c"), lane(0), lane(7, "x", "y"))
	s.want(t, "a x b y c")
}

func TestReturnedComeAgainInOrderWhenTheyAreDue(t *testing.T) {
	l := lane(0, "a", "b", "c")
	s := newStock(t, 9, l)
	ds := s.want(t, "a b c")
	s.giveBack(t, 0, ds[1])
	s.giveBack(t, 0, ds[0])
	add(l, "d")
	if l.Held() != 2 || l.Out() != 1 || l.Fresh() != 1 {
		t.Errorf("held %d, out %d, fresh %d", l.Held(), l.Out(), l.Fresh())
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
	bell, l := new(desk.Bell), lane(0, "a", "b")
	s, other := shared(t, bell, 9, l), shared(t, bell, 9, l)
	ds := s.want(t, "a b")
	other.refuses(t, broker.ErrInvalid, ds...)
	other.refuses(t, broker.ErrInvalid, broker.Delivery{Origin: "foreign"}, broker.Delivery{Origin: "alien", Tag: 7})
	s.ack(t, ds[1])
	s.giveBack(t, 0, ds[0])
	if err := s.Check(ds[:1]); err == nil {
		t.Error("what was returned passes for out")
	}
	again := s.want(t, "a+")
	if err := s.Settle(t.Context(), ds, (*desk.Item[string]).Settle); err == nil {
		t.Error("an earlier delivery settles a later one")
	}
	s.ack(t, again[0])
	if l.Settled() != 2 || l.Tracked() != 0 {
		t.Error(l.Settled(), l.Tracked())
	}
}

func TestTheOthersOfASliceAreSettled(t *testing.T) {
	l := lane(0, "a", "b", "c")
	s := newStock(t, 9, l)
	ds := s.want(t, "a b c")
	s.ack(t, ds[1])
	if err := s.Settle(t.Context(), ds, (*desk.Item[string]).Settle); err == nil {
		t.Error("no error for the second")
	}
	if l.Settled() != 3 {
		t.Errorf("settled is %d", l.Settled())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	add(l, "d")
	ds = s.want(t, "d")
	if err := s.Settle(ctx, ds, (*desk.Item[string]).Settle); !errors.Is(err, context.Canceled) || l.Settled() != 3 {
		t.Errorf("with a context that has ended: %v, settled %d", err, l.Settled())
	}
}

func TestSettledIsThePrefixWithoutAGap(t *testing.T) {
	l := desk.NewLane[string](5)
	for _, offset := range []int64{5, 6, 9, 10} { // with a gap of the log itself
		l.Add(offset, fmt.Sprint(offset))
	}
	s := newStock(t, 9, l)
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
	if l.Next() != 11 || l.Handed() != 11 || l.Out() != 0 {
		t.Error(l.Next(), l.Handed(), l.Out())
	}
}

func TestRewindForgetsWhatIsOut(t *testing.T) {
	l := lane(0, "a", "b", "c", "d")
	s := newStock(t, 2, l)
	ds := s.want(t, "a b")
	s.giveBack(t, time.Hour, ds[1])
	l.Rewind(1, nil)
	s.ack(t, ds[0]) // which does nothing
	if l.Settled() != 1 || l.Next() != 1 || l.Held() != 0 || l.Out() != 0 || s.Room(l) != 2 {
		t.Error(l.Settled(), l.Next(), l.Held(), l.Out(), s.Room(l))
	}
	add(l, "b", "c")
	ds = s.want(t, "b+ c")
	l.Rewind(2, errMoved)
	s.refuses(t, errMoved, ds...)
	s.want(t, "")
}

func TestRewindWithWhatWasThere(t *testing.T) {
	l := lane(0)
	var all []*desk.Item[string]
	for i, word := range []string{"a", "b", "c"} {
		all = append(all, l.Add(int64(i), word))
	}
	s := newStock(t, 9, l)
	ds := s.want(t, "a b c")
	s.ack(t, ds[0])
	s.giveBack(t, time.Hour, ds[2])
	l.Rewind(0, desk.ErrGone, all...)
	s.refuses(t, desk.ErrGone, ds[1])
	add(l, "d")
	s.want(t, "a+ b+ c+ d")
	if all[0].Attempt != 2 || l.Next() != 4 || l.Settled() != 0 {
		t.Error(all[0].Attempt, l.Next(), l.Settled())
	}
}

func TestLimit(t *testing.T) {
	l := lane(0, "a", "b", "c")
	l.Limit = 2
	s := newStock(t, 9, l)
	ds := s.want(t, "a b")
	s.want(t, "")
	s.giveBack(t, 0, ds[0])
	s.want(t, "a+")
	l.Limit = 3
	s.want(t, "c")
}

func TestExpire(t *testing.T) {
	l := lane(0, "a", "b", "c", "d", "e")
	s := newStock(t, 3, l)
	ds := s.want(t, "a b c")
	s.giveBack(t, time.Hour, ds[1])
	l.Expire(func(it *desk.Item[string]) bool { return it.Value < "e" }) // a and c are out
	if l.Held() != 0 || l.Fresh() != 1 || l.Out() != 2 {
		t.Error(l.Held(), l.Fresh(), l.Out())
	}
	s.ack(t, ds[0], ds[2])
	s.want(t, "e")
}

func TestTakeBack(t *testing.T) {
	bell, l := new(desk.Bell), lane(0, "a", "b", "c")
	one, two := shared(t, bell, 1, l), shared(t, bell, 1, l)
	first, second := one.want(t, "a"), two.want(t, "b")
	l.TakeBack(one.Desk)
	one.refuses(t, desk.ErrGone, first...)
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

func TestFailAndClose(t *testing.T) {
	l := lane(0, "a", "b")
	s := newStock(t, 9, l)
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
		if s.Closed() || s.Close() || !s.Close() || !s.Closed() || !errors.Is(s.Ended(), errMoved) {
			t.Error("closed and ended are mixed up")
		}
	})
	s.refuses(t, desk.ErrClosed, ds[1])
}

// What waits is woken: by what comes, by what is settled, and by the end of the context.
func TestReceiveWakes(t *testing.T) {
	l := lane(0, "a")
	s := newStock(t, 1, l)
	ds := s.want(t, "a")
	waits := make(chan struct{}, 9)
	s.await = func(ctx context.Context) { waits <- struct{}{}; <-ctx.Done() }
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
	s.Ring()
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

func TestUntil(t *testing.T) {
	var b desk.Bell
	asked, done, n := make(chan struct{}, 9), make(chan error), 0
	go func() {
		done <- b.Until(t.Context(), func() bool { asked <- struct{}{}; return n == 2 })
	}()
	for range 2 {
		<-asked
		b.Lock()
		n++
		b.Ring()
		b.Unlock()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errMoved)
	if err := b.Until(ctx, func() bool { return false }); !errors.Is(err, errMoved) {
		t.Error(err)
	}
}
