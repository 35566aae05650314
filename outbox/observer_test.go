//go:build go1.25

package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// watcher is an Observer that stores what it is told, or violates every rule.
type watcher struct {
	broken bool

	mu    sync.Mutex
	turn  int
	began [][]*broker.Message
	ended [][]error
}

type watcherKey struct{}

func (w *watcher) BeginPublishing(ctx context.Context, p outbox.Publishing) (context.Context, func([]error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn++
	if !w.broken {
		w.began = append(w.began, p.Messages)
		return context.WithValue(ctx, watcherKey{}, len(w.began)), func(errs []error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, errs)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	clear(p.Messages)
	switch w.turn % 4 {
	case 0:
		panic("at the beginning")
	case 1:
		return gone, func([]error) { panic("at the end") }
	case 2:
		return nil, nil
	}
	return context.Background(), func(errs []error) { // what got through has failed, and the other way round
		for i, err := range errs {
			if errs[i] = nil; err == nil {
				errs[i] = errDown
			}
		}
	}
}

// within is a publisher that checks the context of its calls.
type within struct {
	*sender
	look func(context.Context)
}

func (p within) Publish(ctx context.Context, ms []*broker.Message) []error {
	p.look(ctx)
	return p.sender.Publish(ctx, ms)
}

func TestAnObserverSeesEachCallOfThePublisher(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.put(some(20, "a", "")...)
		bad := message("bad", "")
		bad.Header = map[string]string{"traceparent": "of the one who put it"}
		b.put(bad)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "bad" {
				return broker.ErrInvalid
			}
			return nil
		})
		w, calls := new(watcher), 0
		r := b.relay()
		r.Observer = w
		r.Publisher = within{b.sender, func(ctx context.Context) {
			if calls++; ctx.Value(watcherKey{}) != calls {
				b.Errorf("call %d is not inside what the observer began for it", calls)
			}
		}}
		stop := b.run(r)
		b.until("all are out", func() bool { return len(b.sender.taken()) == 20 })
		time.Sleep(time.Minute)
		stop()
		if len(w.began) != b.sender.called() || len(w.ended) != len(w.began) || calls == 0 {
			b.Fatalf("it saw %d calls begin, and %d end, of %d", len(w.began), len(w.ended), b.sender.called())
		}
		for i, ms := range w.began {
			if !slices.Equal(ids(ms), b.sender.calls[i]) {
				b.Errorf("it saw the call of %q, which was of %q", ids(ms), b.sender.calls[i])
			}
			at := slices.IndexFunc(ms, func(m *broker.Message) bool { return m.ID == "bad" })
			switch errs := w.ended[i]; {
			case at < 0 && errs != nil:
				b.Errorf("it saw %q fail: %v", ids(ms), errs)
			case at >= 0 && ms[at].Header["traceparent"] != bad.Header["traceparent"]:
				b.Errorf("it saw the headers %q", ms[at].Header)
			case at >= 0 && (len(errs) != len(ms) || !errors.Is(errs[at], broker.ErrInvalid)):
				b.Errorf("it saw the errors %v of %q", errs, ids(ms))
			}
		}
	})
}

func TestABrokenObserverLosesAndDoublesNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		all := slices.Concat(some(300, "a", ""), some(100, "b", "b"), some(100, "c", "c"))
		w, tried := &watcher{broken: true}, make(map[string]bool)
		b.sender.set(nil, func(m *broker.Message) error {
			if !tried[m.ID] && strings.HasSuffix(m.ID, "7") { // so that there is something to tell of
				tried[m.ID] = true
				return errDown
			}
			return nil
		})
		r := b.relay()
		r.Observer, r.Batch = w, 16
		r.Publisher = within{b.sender, func(ctx context.Context) {
			if deadline, ok := ctx.Deadline(); ctx.Err() != nil || !ok || time.Until(deadline) > 10*time.Second {
				b.Errorf("the call has the context of the observer: %v, with a deadline: %v", ctx.Err(), ok)
			}
		}}
		stop := b.run(r)
		b.put(all...)
		b.until("everything is out", func() bool { return len(b.sender.taken()) >= len(all) })
		time.Sleep(time.Minute)
		stop()
		b.wantAll(all)
		b.wantOrder("b")
		b.wantOrder("c")
		if n := r.Stats.Published.Load(); n != int64(len(all)) || w.turn < 8 {
			b.Errorf("in %d calls, %d were published, want %d", w.turn, n, len(all))
		}
	})
}

// slow is an Observer that takes longer than a call may.
type slow struct{ calls int }

func (o *slow) BeginPublishing(ctx context.Context, _ outbox.Publishing) (context.Context, func([]error)) {
	if o.calls++; o.calls == 1 {
		time.Sleep(15 * time.Second)
	}
	return context.WithoutCancel(ctx), nil
}

// PublishTime includes the time of the Observer, so that the lease outlasts
// both.
func TestASlowObserverTakesTheTimeOfTheCall(t *testing.T) {
	inBubble(t, func(b *bench) {
		r, calls := b.relay(), 0
		r.Observer = new(slow)
		r.Publisher = within{b.sender, func(ctx context.Context) {
			if calls++; ctx.Err() != nil != (calls == 1) {
				b.Errorf("call %d: its context says %v", calls, ctx.Err())
			}
		}}
		b.sender.set(func([]*broker.Message) error {
			if calls == 1 {
				return context.DeadlineExceeded
			}
			return nil
		}, nil)
		b.put(message("1", ""))
		stop := b.run(r)
		b.until("it is out", func() bool { return len(b.sender.taken()) == 1 })
		stop()
		b.wantAll([]*broker.Message{message("1", "")})
	})
}

// The Observer is told the errors that the relay assumes if the publisher
// violates its contract.
func TestAnObserverSeesErrorsThatDoNotFit(t *testing.T) {
	inBubble(t, func(b *bench) {
		w := new(watcher)
		r := b.relay()
		r.Observer, r.Publisher = w, tooFew{}
		b.put(some(3, "a", "")...)
		stop := b.run(r)
		b.until("it has seen the call", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.ended) > 0
		})
		stop()
		if errs := w.ended[0]; len(errs) != len(w.began[0]) || slices.Contains(errs, nil) {
			b.Errorf("of %d messages it saw the errors %v", len(w.began[0]), errs)
		}
	})
}

// tooFew is a publisher that returns one error for all messages.
type tooFew struct{}

func (tooFew) Publish(context.Context, []*broker.Message) []error { return []error{errDown} }
func (tooFew) Close() error                                       { return nil }

// hanging is an Observer that does not return from one of its calls.
type hanging struct {
	end   bool
	never chan struct{}
}

func (o hanging) BeginPublishing(ctx context.Context, _ outbox.Publishing) (context.Context, func([]error)) {
	if !o.end {
		<-o.never
	}
	return ctx, func([]error) { <-o.never }
}

// A relay whose Observer hangs loses its lanes to another relay.
func TestTheLanesOfAnObserverThatHangsGoToAnother(t *testing.T) {
	for _, end := range []bool{false, true} {
		inBubble(t, func(b *bench) {
			r, o := b.relay(), hanging{end, make(chan struct{})}
			r.Observer, r.Batch = o, 10
			b.put(some(100, "a", "")...)
			stop := b.run(r)
			time.Sleep(10 * time.Second)
			other := b.run(b.relay())
			time.Sleep(time.Hour)
			if left := b.rows(store.Pending); len(left) > 0 {
				b.Errorf("it hangs at the end: %v; an hour later, %d of 100 messages are not out, though another relay works", end, len(left))
			}
			close(o.never)
			stop()
			other()
		})
	}
}
