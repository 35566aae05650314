// Package lease keeps a lease alive while its holder works, and tells the holder when it no longer can.
package lease

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/lazyctx"
)

// Holder extends its lease. Extend returns final as true when trying again is pointless. Lost is called once at most, with
// the context that [Keep] was given; its result is the cause of the cancellation.
type Holder interface {
	Extend(context.Context) (final bool, err error)
	Lost(context.Context, error) error
}

// Kept is a lease that is extended, three times in its length, until Stop is called. It is a context, which is
// cancelled when the lease is lost, and before it ends when it can no longer be extended. Work that is done before the
// first extension costs a timer and no goroutine.
type Kept struct {
	lazyctx.Context
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

// Keep extends a lease that was asked for at begun: it may be as old as that.
func Keep(ctx context.Context, h Holder, length time.Duration, begun time.Time) *Kept {
	k := &Kept{holder: h, parent: ctx, length: length, begun: begun}
	k.Init(ctx)
	k.timer = time.AfterFunc(time.Until(begun.Add(length/3)), k.run)
	return k
}

// run extends until it is told to quit, or the lease is lost.
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

// Stop returns when nothing is extended any more.
func (k *Kept) Stop() {
	k.timer.Stop()
	k.mu.Lock()
	k.stopped = true
	quit := k.quit
	k.mu.Unlock()
	if quit != nil {
		quit()
		<-k.gone
	}
	k.End(nil)
}

// beat returns nil when it is told to quit, and an error when the lease is lost or about to lapse.
func (k *Kept) beat(ctx context.Context) error {
	good, next := k.begun, k.begun.Add(k.length/3)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		end := good.Add(k.length * 5 / 6)
		asked := time.Now()
		final, err := k.extend(ctx, asked, end)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			good, next = asked, asked.Add(k.length/3)
		case final || !time.Now().Before(end):
			return err
		default:
			next = time.Now().Add(min(k.length/12, time.Until(end)))
		}
	}
}

// extend gives one call a third of the lease, and never more than is left of it. It does not trust the call to end in time:
// there are drivers that pass over a context. And it does not cut the call off when the work has ended: a driver may give up
// a connection for that.
func (k *Kept) extend(beat context.Context, now, end time.Time) (bool, error) {
	if third := now.Add(k.length / 3); third.Before(end) {
		end = third
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(beat), end)
	type reply struct {
		final bool
		err   error
	}
	replied := make(chan reply, 1)
	go func() {
		defer cancel()
		final, err := k.holder.Extend(ctx)
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
	case r := <-replied: // with more to say than that it is too late
		return r.final, r.err
	case <-grace.C:
		return false, ctx.Err()
	case <-beat.Done():
		return false, beat.Err()
	}
}
