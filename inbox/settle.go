package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/logs"
)

const settleTries = 3

// settlement has the deliveries of a worker to settle with the broker.
type settlement struct {
	acked    []broker.Delivery
	rejected map[string][]broker.Delivery // by reason
}

// add reports whether the item is settled.
func (b *settlement) add(it *item, r result) bool {
	switch r.kind {
	case handled, prevented, duplicate, shelved:
		b.acked = append(b.acked, it.Delivery)
	case parked:
		if b.rejected == nil {
			b.rejected = make(map[string][]broker.Delivery)
		}
		b.rejected[r.reason] = append(b.rejected[r.reason], it.Delivery)
	case reread:
	default:
		return false
	}
	return true
}

func (b settlement) size() int {
	n := len(b.acked)
	for _, ds := range b.rejected {
		n += len(ds)
	}
	return n
}

// together returns one settlement with the deliveries of several, in order.
func together(bs []settlement) settlement {
	if len(bs) == 1 {
		return bs[0]
	}
	all := settlement{rejected: make(map[string][]broker.Delivery)}
	for _, b := range bs {
		all.acked = append(all.acked, b.acked...)
		for reason, ds := range b.rejected {
			all.rejected[reason] = append(all.rejected[reason], ds...)
		}
	}
	return all
}

// settler settles deliveries beside the workers, which do not wait for the broker:
// a message whose settlement is lost comes again, and is recognised. It settles
// together what has come while it waited for the broker, so that those of a lane
// are settled in order. The window of the session limits what it collects.
type settler struct {
	running sync.WaitGroup // the goroutine that settles; workers start it

	mu        sync.Mutex
	collected []settlement
	busy      bool
	unsettled int // deliveries that the broker may still take for unsettled
}

// settle has deliveries settled with the broker.
func (s *session) settle(ctx context.Context, b settlement) {
	if b.size() == 0 {
		return
	}
	st := &s.settler
	st.mu.Lock()
	defer st.mu.Unlock()
	st.collected = append(st.collected, b)
	if !st.busy {
		st.busy = true
		st.running.Add(1)
		go s.settleCollected(ctx)
	}
}

func (s *session) settleCollected(ctx context.Context) {
	st := &s.settler
	defer st.running.Done()
	for {
		st.mu.Lock()
		bs := st.collected
		st.collected = nil
		st.busy = len(bs) > 0
		st.mu.Unlock()
		if len(bs) == 0 {
			return
		}
		s.settleAll(ctx, bs)
	}
}

// settleAll settles deliveries together. If that fails, it settles those of each
// worker, so that a delivery that cannot be settled does not count for the others.
func (s *session) settleAll(ctx context.Context, bs []settlement) {
	err := s.settleOnce(ctx, together(bs))
	if err == nil {
		return
	}
	if isSettled(err) {
		s.warnUnsettled(ctx, err)
		return
	}
	var each sync.WaitGroup
	for _, b := range bs {
		each.Add(1)
		go func() {
			defer each.Done()
			s.settleAgain(ctx, b, err)
		}()
	}
	each.Wait()
}

// settleAgain settles deliveries after an error. A failure does no harm, because
// redelivered messages are recognised. But if the broker may take half of the
// window for unsettled, the session ends.
func (s *session) settleAgain(ctx context.Context, b settlement, err error) {
	pause := &backoff.Backoff{First: reconnectFirst, Limit: time.Second}
	for tries := 1; err != nil && !isSettled(err); tries++ {
		s.warnUnsettled(ctx, err)
		if tries == settleTries || backoff.Sleep(ctx, pause.Next()) != nil {
			s.giveUp(b, err)
			return
		}
		err = s.settleOnce(ctx, b)
	}
}

func (s *session) warnUnsettled(ctx context.Context, err error) {
	s.logger.WarnContext(ctx, "inbox: deliveries could not be settled, and messages may come again", logs.Spaced(""), "error", err)
}

// isSettled reports whether an error, which may be several, says only that there
// is nothing left to settle.
func isSettled(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if !isSettled(one) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		return isSettled(e.Unwrap())
	}
	return err == broker.ErrSettled
}

func (s *session) giveUp(b settlement, err error) {
	st := &s.settler
	st.mu.Lock()
	st.unsettled += b.size()
	tooMany := st.unsettled >= (s.Window+1)/2
	st.mu.Unlock()
	if tooMany {
		s.fail(fmt.Errorf("inbox: too many deliveries could not be settled: %w", err))
	}
}

func (s *session) settleOnce(ctx context.Context, b settlement) error {
	limited := lazyctx.Detach(ctx, time.Now().Add(storeTime))
	defer limited.Stop()
	ctx = limited
	var errs []error
	acked := b.acked
	for reason, ds := range b.rejected {
		if s.shelf != nil && !s.keepsRejected() {
			acked = slices.Concat(acked, ds) // the shelf has them
			continue
		}
		errs = append(errs, s.broker.Reject(ctx, ds, reason))
	}
	if len(acked) > 0 {
		errs = append(errs, s.broker.Ack(ctx, acked))
	}
	return errors.Join(errs...)
}
