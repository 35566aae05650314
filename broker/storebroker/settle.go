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
	held, failed := s.lock(ds)
	for i, err := range s.write(ctx, held, set) {
		switch {
		case isLost(err):
			failed = cmp.Or(failed, fmt.Errorf("%s: %w (%w)", held[i].origin, broker.ErrSettled, err))
		case err != nil:
			failed = fmt.Errorf("storebroker: %s: %w", held[i].origin, err)
		}
		held[i].gone = true // if it was not settled, it comes again when its lease ends
		held[i].mu.Unlock()
	}
	s.drop(held)
	if len(held) > 0 {
		s.broker.wakeSessions()
	}
	return failed
}

// lock locks the messages of deliveries that this session has, in the order that
// all callers use. It returns an error for the others.
func (s *session) lock(ds []broker.Delivery) (held []*arrival, failed error) {
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
		if a.mu.Lock(); !a.gone {
			held = append(held, a)
			continue
		}
		a.mu.Unlock()
		failed = fmt.Errorf("%s: %w", a.origin, broker.ErrSettled)
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
	s.work.Wait()
	s.broker.leave(s)
	s.mu.Lock()
	left := slices.SortedFunc(maps.Keys(s.all), bySeq)
	s.mu.Unlock()
	left = slices.DeleteFunc(left, func(a *arrival) bool {
		a.mu.Lock()
		if a.gone { // it was being settled
			a.mu.Unlock()
		}
		return a.gone
	})
	var failed error
	for i, err := range s.write(ctx, left, func(row *store.Shelved) { row.Due, row.Reason = 0, closedUnused }) {
		left[i].gone = true
		left[i].mu.Unlock()
		if err != nil && !isLost(err) {
			failed = fmt.Errorf("storebroker: %s: unsettled messages could not be returned: %w", s.Name(), err)
		}
	}
	s.broker.wakeSessions()
	return failed
}
