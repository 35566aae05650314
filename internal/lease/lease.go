// Package lease keeps a lease alive while its holder works, and tells the holder when it no longer can.
package lease

import (
	"context"
	"sync"
	"time"
)

// Keeper extends one lease. Extend returns final as true when trying again is pointless.
type Keeper struct {
	Length time.Duration
	Begun  time.Time // when the lease was asked for: it may be as old as that
	Extend func(context.Context) (final bool, err error)
	Lost   func(error) error // called once at most; its result is the cause of the cancellation
}

// Keep extends the lease, three times in its length, until stop is called. The context that it returns is
// cancelled when the lease is lost, and before it ends when it can no longer be extended. Work that is done before the
// first extension costs a timer and no goroutine.
func (k Keeper) Keep(ctx context.Context) (alive context.Context, stop func()) {
	alive, cancel := context.WithCancelCause(ctx)
	kept := &keeping{Keeper: k, ctx: ctx, cancel: cancel}
	kept.timer = time.AfterFunc(time.Until(k.Begun.Add(k.Length/3)), kept.run)
	return alive, kept.stop
}

// keeping is a lease that is being kept.
type keeping struct {
	Keeper
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer

	mu      sync.Mutex
	stopped bool
	quit    context.CancelFunc // nil: not extending yet
	gone    chan struct{}
}

// run extends until it is told to quit, or the lease is lost.
func (k *keeping) run() {
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return
	}
	beat, quit := context.WithCancel(context.WithoutCancel(k.ctx))
	k.quit, k.gone = quit, make(chan struct{})
	k.mu.Unlock()
	defer close(k.gone)
	if err := k.beat(beat); err != nil {
		k.cancel(k.Lost(err))
	}
}

// stop returns when nothing is extended any more.
func (k *keeping) stop() {
	k.timer.Stop()
	k.mu.Lock()
	k.stopped = true
	quit := k.quit
	k.mu.Unlock()
	if quit != nil {
		quit()
		<-k.gone
	}
	k.cancel(nil)
}

// beat returns nil when it is told to quit, and an error when the lease is lost or about to lapse.
func (k Keeper) beat(ctx context.Context) error {
	good, next := k.Begun, k.Begun.Add(k.Length/3)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		end := good.Add(k.Length * 5 / 6)
		asked := time.Now()
		final, err := k.extend(ctx, asked, end)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			good, next = asked, asked.Add(k.Length/3)
		case final || !time.Now().Before(end):
			return err
		default:
			next = time.Now().Add(min(k.Length/12, time.Until(end)))
		}
	}
}

// extend gives one call a third of the lease, and never more than is left of it. It does not trust the call to end in time:
// there are drivers that pass over a context. And it does not cut the call off when the work has ended: a driver may give up
// a connection for that.
func (k Keeper) extend(beat context.Context, now, end time.Time) (bool, error) {
	if third := now.Add(k.Length / 3); third.Before(end) {
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
		final, err := k.Extend(ctx)
		replied <- reply{final, err}
	}()
	select {
	case r := <-replied:
		return r.final, r.err
	case <-beat.Done():
		return false, beat.Err()
	case <-ctx.Done():
	}
	grace := time.NewTimer(k.Length / 24)
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
