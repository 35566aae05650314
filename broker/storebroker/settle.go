package storebroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// errLost is the error of a row that another session has, or that is gone.
var errLost = fmt.Errorf("storebroker: %w", once.ErrLeaseLost)

func isLost(err error) bool    { return errors.Is(err, once.ErrLeaseLost) }
func isInvalid(err error) bool { return errors.Is(err, broker.ErrInvalid) }

// Ack deletes the rows of messages.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.settle(ctx, ds, func(row *store.Shelved) { row.State, row.Due, row.History = store.Handled, 0, "" })
}

// Return lets messages be delivered again after the delay.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	after = min(max(after, 0), longestDelay)
	return s.settle(ctx, ds, func(row *store.Shelved) { row.Due, row.Reason = after, returned })
}

// Reject parks the rows of messages.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.settle(ctx, ds, func(row *store.Shelved) { row.State, row.Due, row.Reason = store.Parked, 0, name.Reason(reason) })
}

// settle changes the rows of deliveries, which this session no longer has then.
func (s *session) settle(ctx context.Context, ds []broker.Delivery, set func(*store.Shelved)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	held, failed := s.lock(ctx, ds)
	for i, err := range s.write(ctx, held, set) {
		switch {
		case isLost(err):
			failed = cmp.Or(failed, fmt.Errorf("%s: %w (%w)", held[i].origin, broker.ErrSettled, err))
		case err != nil:
			failed = fmt.Errorf("storebroker: %s: %w", held[i].origin, err)
		}
		held[i].gone = true // if it was not settled, it comes again when its lease ends
		held[i].turn.Give()
	}
	s.drop(held)
	if len(held) > 0 {
		s.broker.wakeSessions()
	}
	return failed
}

// lock takes the turns of the messages of deliveries that this session has, in the
// order that all callers use. It returns an error for the others.
func (s *session) lock(ctx context.Context, ds []broker.Delivery) (held []*arrival, failed error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	var named []*arrival
	for _, d := range ds {
		a, ok := d.Tag.(*arrival)
		switch {
		case !ok || a.session != s:
			failed = fmt.Errorf("%w: storebroker: the delivery of %q is of another session", broker.ErrInvalid, d.Origin)
		case closed:
			failed = errClosed
		case slices.Contains(named, a):
			failed = fmt.Errorf("%s: %w", d.Origin, broker.ErrSettled)
		default:
			named = append(named, a)
		}
	}
	slices.SortFunc(named, bySeq)
	for _, a := range named {
		err := a.turn.Take(ctx)
		switch {
		case err != nil: // its renewal takes too long; it comes again when its lease ends
			s.drop([]*arrival{a})
			failed = fmt.Errorf("storebroker: %s: waiting for the renewal of its lease: %w", a.origin, err)
		case a.gone:
			a.turn.Give()
			failed = fmt.Errorf("%s: %w", a.origin, broker.ErrSettled)
		default:
			held = append(held, a)
		}
	}
	return held, failed
}

// Close returns all unsettled messages. If the store does not answer, they come
// again when their leases end.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.fail(errClosed)
	s.end()
	s.broker.leave(s)
	if err := s.awaitWork(ctx); err != nil {
		return fmt.Errorf("storebroker: %s: the store still has not returned, and unsettled messages come again when their leases end: %w", s.Name(), err)
	}
	s.mu.Lock()
	all := slices.SortedFunc(maps.Keys(s.all), bySeq)
	s.mu.Unlock()
	var left []*arrival
	var failed error
	for _, a := range all {
		if err := a.turn.Take(ctx); err != nil {
			failed = fmt.Errorf("storebroker: %s: an unsettled message could not be returned: %w", s.Name(), err)
		} else if a.gone { // it was being settled
			a.turn.Give()
		} else {
			left = append(left, a)
		}
	}
	for i, err := range s.write(ctx, left, func(row *store.Shelved) { row.Due, row.Reason = 0, closedUnused }) {
		left[i].gone = true
		left[i].turn.Give()
		if err != nil && !isLost(err) {
			failed = fmt.Errorf("storebroker: %s: unsettled messages could not be returned: %w", s.Name(), err)
		}
	}
	s.broker.wakeSessions()
	return failed
}

// awaitWork waits for the goroutines of the session.
func (s *session) awaitWork(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
