package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Forgettable returns the records that Forget would change, in no order. It
// looks at every record.
func (s *Store) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	if limit <= 0 {
		return nil, false, fmt.Errorf("%w: Forgettable with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	err = s.do(ctx, func(now time.Time) error {
		size := 0
		for _, r := range s.rows {
			if !r.isDue(instantOf(now)) {
				continue
			}
			if more = len(due) == limit || size >= store.MaxForgettable; more {
				break
			}
			rec := r.record(instantOf(now)) // as it still is
			due = append(due, rec)
			size += len(rec.Outcome.Body)
		}
		return nil
	})
	return due, more, err
}

// ForgetRecords forgets records that Forgettable returned.
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	err = s.do(ctx, func(now time.Time) error {
		for _, rec := range due {
			k := rec.Key.UUID()
			r := s.rows[k]
			if !r.isDue(instantOf(now)) || r.attempt != rec.Attempt || !r.is(once.Absent) && r.owner != rec.Owner {
				continue
			}
			s.forget(k, r, instantOf(now))
			changed++
		}
		return nil
	})
	return changed, err
}

// Reopen frees the key of a Done or Expired record.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	return s.do(ctx, func(now time.Time) error {
		k := fence.Key.UUID()
		was, err := s.row(nil, k)
		if err != nil {
			return err
		}
		is, err := was.reopen(fence, keepKey, reason, instantOf(now))
		if err == nil {
			s.put(nil, k, is)
		}
		return err
	})
}

// forget drops the outcome of a row that is due, or the row.
func (s *Store) forget(k [16]byte, r row, now instant) {
	is := r.at(now)
	if is.attempt == 0 {
		delete(s.rows, k)
		return
	}
	is.setEnded(r.part(reason), once.Outcome{})
	s.rows[k] = is
}

// isDue reports whether the outcome of a row, or the row, can be forgotten.
func (r row) isDue(now instant) bool {
	is := r.at(now)
	return r.attempt > 0 && (is.attempt == 0 || is.is(once.Expired) && r.is(once.Done))
}

// reopen frees a key. The owner stays in the row, as after a release, so that
// its late calls change nothing.
func (r row) reopen(fence once.Fence, keepKey time.Duration, why string, now instant) (row, error) {
	is := r.at(now)
	if !is.heldBy(fence) || !is.is(once.Absent) && !is.is(once.Done) && !is.is(once.Expired) {
		return r, lost(fence)
	}
	if is.is(once.Absent) { // repeated
		return r, nil
	}
	r.status, r.updated, r.keepKey = status(once.Absent), now, now.add(keepKey)
	r.setEnded(why, once.Outcome{})
	return r, nil
}
