package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/logs"
)

// settleTries is how often a delivery is settled before it counts as unsettled.
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
		b.reject(r.reason, it.Delivery)
	case reread:
	default:
		return false
	}
	return true
}

func (b *settlement) reject(reason string, ds ...broker.Delivery) {
	if b.rejected == nil {
		b.rejected = make(map[string][]broker.Delivery)
	}
	b.rejected[reason] = append(b.rejected[reason], ds...)
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
	var all settlement
	for _, b := range bs {
		all.acked = append(all.acked, b.acked...)
		for reason, ds := range b.rejected {
			all.reject(reason, ds...)
		}
	}
	return all
}

// within returns the deliveries that are settled as some of another settlement
// are: those of its calls that failed.
func (b settlement) within(failed settlement) (rest settlement) {
	if len(failed.acked) > 0 {
		rest.acked = b.acked
	}
	rest.rejected = maps.Clone(b.rejected)
	maps.DeleteFunc(rest.rejected, func(reason string, _ []broker.Delivery) bool { return len(failed.rejected[reason]) == 0 })
	return rest
}

// settler settles deliveries beside the workers, which do not wait for the broker:
// a message whose settlement is lost comes again, and is recognised. It settles
// together what has come while it waited for the broker, so that those of a lane
// are settled in order. The window of the session limits what it collects.
type settler struct {
	running sync.WaitGroup // the goroutines that settle; workers start the first

	calls, retries       context.Context // of calls of the broker, and of waiting for the next
	endCalls, endRetries context.CancelFunc

	mu        sync.Mutex
	collected []settlement
	busy      bool
	unsettled int // deliveries that the broker may still take for unsettled
}

func newSettler(ctx context.Context) *settler {
	st := new(settler)
	st.calls, st.endCalls = context.WithCancel(context.WithoutCancel(ctx))
	st.retries, st.endRetries = context.WithCancel(st.calls)
	return st
}

// finish waits until everything is settled. If the consumer stops, and the broker
// does not answer, that takes no longer than a write to the store may. If the
// session has broken, nothing is tried again, because it comes again anyway.
func (st *settler) finish(stopped bool) {
	defer st.endCalls()
	if !stopped {
		st.endRetries()
	}
	limit := time.AfterFunc(storeTime, st.endCalls)
	defer limit.Stop()
	st.running.Wait()
}

// settle has deliveries settled with the broker.
func (s *session) settle(b settlement) {
	if b.size() == 0 {
		return
	}
	if s.shelf != nil && !s.keepsRejected() { // the shelf has what is rejected
		for _, ds := range b.rejected {
			b.acked = append(b.acked, ds...)
		}
		b.rejected = nil
	}
	st := s.settler
	st.mu.Lock()
	defer st.mu.Unlock()
	st.collected = append(st.collected, b)
	if !st.busy {
		st.busy = true
		st.running.Add(1)
		go s.settleCollected()
	}
}

func (s *session) settleCollected() {
	st := s.settler
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
		s.settleAll(bs)
	}
}

// settleAll settles deliveries together. If that fails, it has those of each
// worker settled again, beside the next, so that a delivery that cannot be settled
// holds up no others.
func (s *session) settleAll(bs []settlement) {
	failed, err := s.settleOnce(together(bs))
	if failed.size() == 0 {
		if err != nil {
			s.warnUnsettled(err)
		}
		return
	}
	for _, b := range bs {
		if b = b.within(failed); b.size() > 0 {
			s.settler.running.Add(1)
			go s.settleAgain(b, err)
		}
	}
}

// settleAgain settles deliveries after an error, until the session ends. A failure
// does no harm, because redelivered messages are recognised. But if the broker may
// take half of the window for unsettled, the session ends.
func (s *session) settleAgain(b settlement, err error) {
	st := s.settler
	defer st.running.Done()
	counted := 0
	defer func() { s.countUnsettled(-counted, nil) }()
	pause := &backoff.Backoff{First: reconnectFirst, Limit: reconnectLimit}
	for tries := 1; b.size() > 0; tries++ {
		s.warnUnsettled(err)
		if tries == settleTries {
			counted = b.size()
			s.countUnsettled(counted, err)
		}
		if backoff.Sleep(st.retries, pause.Next()) != nil {
			return
		}
		b, err = s.settleOnce(b)
	}
}

func (s *session) warnUnsettled(err error) {
	s.logger.WarnContext(s.settler.calls, "inbox: deliveries could not be settled, and messages may come again", logs.Spaced(""), "error", err)
}

// isSettled reports whether an error, which may be several, says only that there
// is nothing left to settle.
func isSettled(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(one error) bool { return !isSettled(one) })
	case interface{ Unwrap() error }:
		return isSettled(e.Unwrap())
	}
	return err == broker.ErrSettled
}

// countUnsettled adds to the deliveries that the broker may take for unsettled,
// and ends the session if they are too many.
func (s *session) countUnsettled(n int, err error) {
	st := s.settler
	st.mu.Lock()
	st.unsettled += n
	tooMany := st.unsettled >= (s.Window+1)/2
	st.mu.Unlock()
	if n > 0 && tooMany {
		s.fail(fmt.Errorf("inbox: too many deliveries could not be settled: %w", err))
	}
}

// settleOnce settles deliveries, and returns those of the calls that failed. A
// delivery that was settled before does not make a call fail. Dead letters come
// after the acks, because there is a call for each reason.
func (s *session) settleOnce(b settlement) (failed settlement, err error) {
	ctx := lazyctx.Limit(s.settler.calls, time.Now().Add(storeTime))
	defer ctx.Stop()
	var errs []error
	if len(b.acked) > 0 {
		if err := s.broker.Ack(ctx, b.acked); err != nil {
			errs = append(errs, err)
			if !isSettled(err) {
				failed.acked = b.acked
			}
		}
	}
	for reason, ds := range b.rejected {
		if err := s.broker.Reject(ctx, ds, reason); err != nil {
			errs = append(errs, err)
			if !isSettled(err) {
				failed.reject(reason, ds...)
			}
		}
	}
	return failed, errors.Join(errs...)
}
