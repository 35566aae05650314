// Package lease extends a lease while its holder works, and tells the holder
// when it no longer can.
package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/chance"
	"github.com/effectively-once/once/internal/lazyctx"
)

// Holder extends its lease. If Extend returns final as true, trying again is
// pointless. Lost is called at most once, with the context that [Keep] got. Its
// result is the cause of the cancellation.
type Holder interface {
	Extend(context.Context) (final bool, err error)
	Lost(context.Context, error) error
}

// Kept is a lease that is extended until Stop is called, three times in its
// length, or up to four times if there are so many that they take turns. It is
// also a context, which is cancelled when the lease is lost, and
// shortly before the lease ends if it cannot be extended. Work that ends before
// the first extension costs a timer and no goroutine.
type Kept struct {
	lazyctx.Context
	queue  *Queue
	holder Holder
	parent context.Context
	length time.Duration
	begun  time.Time
	timer  *time.Timer

	mu      sync.Mutex
	stopped bool
	quit    context.CancelFunc // nil: not extending yet
	gone    chan struct{}
}

var (
	errNoTurn = errors.New("the store is too slow to extend all leases in time")

	// The process was stopped. Somebody may have found the lease over, and a store
	// that compares no times when it writes extends it all the same.
	errLate = errors.New("the lease may have ended before it was extended")
)

// Keep extends a lease that was requested at begun. It takes turns with the other
// leases of the queue.
func Keep(ctx context.Context, q *Queue, h Holder, length time.Duration, begun time.Time) *Kept {
	k := &Kept{queue: q, holder: h, parent: ctx, length: length, begun: begun}
	k.Init(ctx)
	q.kept.Add(1)
	k.timer = time.AfterFunc(time.Until(begun.Add(k.pause())), k.run)
	return k
}

// pause returns the time from one extension to the next. Many leases are extended
// at different times, even if they began together.
func (k *Kept) pause() time.Duration {
	pause := k.length / 3
	if k.queue.crowded() {
		pause -= chance.N(k.length/12 + 1)
	}
	return pause
}

// run extends the lease until Stop is called or the lease is lost.
func (k *Kept) run() {
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return
	}
	beat, quit := context.WithCancel(context.WithoutCancel(k.parent))
	k.quit, k.gone = quit, make(chan struct{})
	k.mu.Unlock()
	defer close(k.gone)
	if err := k.beat(beat); err != nil {
		k.End(k.holder.Lost(k.parent, err))
	}
}

// Stop ends the extending, and returns after it has ended.
func (k *Kept) Stop() {
	k.timer.Stop()
	k.mu.Lock()
	if !k.stopped {
		k.stopped = true
		k.queue.kept.Add(-1)
	}
	quit := k.quit
	k.mu.Unlock()
	if quit != nil {
		quit()
		<-k.gone
	}
	k.holder = nil // the context may outlive the work
	k.End(nil)
}

// beat returns nil when ctx ends, and an error when the lease is lost or about
// to lapse.
func (k *Kept) beat(ctx context.Context) error {
	good, next, trouble := k.begun, time.Now(), errNoTurn
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		end := good.Add(k.length * 5 / 6)
		if !k.queue.enter(ctx, end) {
			if ctx.Err() != nil {
				return nil
			}
			return trouble
		}
		asked := time.Now()
		final, err := k.extend(ctx, asked, end)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && time.Since(good) >= k.length:
			return errLate
		case err == nil:
			good, next, trouble = asked, asked.Add(k.pause()), errNoTurn
		case final || !time.Now().Before(end):
			return err
		default: // a call that took longer than this pause is repeated at once
			trouble = err
			if next = asked.Add(k.length / 12); next.After(end) {
				next = end
			}
		}
	}
}

// extend gives one call a third of the lease, but never more than is left of
// it. It does not wait for a call that ignores its context, as some drivers do.
// It does not cancel the call when the work has ended, because a driver may
// close the connection for that.
func (k *Kept) extend(beat context.Context, now, end time.Time) (bool, error) {
	if third := now.Add(k.length / 3); third.Before(end) {
		end = third
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end)
	type reply struct {
		final bool
		err   error
	}
	replied, holder, place := make(chan reply, 1), k.holder, k.queue.begin(k.length, now)
	go func() {
		defer cancel()
		final, err := holder.Extend(ctx)
		place.end(err == nil)
		replied <- reply{final, err}
	}()
	select {
	case r := <-replied:
		return r.final, r.err
	case <-beat.Done():
		return false, beat.Err()
	case <-ctx.Done():
	}
	grace := time.NewTimer(k.length / 24)
	defer grace.Stop()
	select {
	case r := <-replied: // its reply says more than that it is late
		return r.final, r.err
	case <-grace.C:
		return false, ctx.Err()
	case <-beat.Done():
		return false, beat.Err()
	}
}
