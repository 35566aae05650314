package memstore

import (
	"bytes"
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
			if !r.isDue(now) {
				continue
			}
			if more = len(due) == limit || size >= store.MaxForgettable; more {
				break
			}
			due = append(due, r.kept(now))
			size += len(r.Outcome.Body)
		}
		return nil
	})
	return due, more, err
}

// ForgetRecords forgets records that Forgettable returned.
func (s *Store) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	err = s.do(ctx, func(now time.Time) error {
		for _, rec := range due {
			r := s.rows[rec.Key]
			if !r.isDue(now) || r.Attempt != rec.Attempt || r.Status != once.Absent && r.Owner != rec.Owner {
				continue
			}
			s.forget(r, now)
			changed++
		}
		return nil
	})
	return changed, err
}

// Reopen frees the key of a Done or Expired record.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	return s.do(ctx, func(now time.Time) error {
		was, err := s.row(nil, fence.Key)
		if err != nil {
			return err
		}
		is, err := was.reopen(fence, keepKey, reason, now)
		if err == nil {
			s.put(nil, is)
		}
		return err
	})
}

// forget drops the outcome of a row that is due, or the row.
func (s *Store) forget(r row, now time.Time) {
	if r.at(now).Attempt == 0 {
		delete(s.rows, r.Key)
		return
	}
	r.Status, r.Outcome = once.Expired, once.Outcome{}
	s.rows[r.Key] = r
}

// isDue reports whether the outcome of a row, or the row, can be forgotten.
func (r row) isDue(now time.Time) bool {
	is := r.at(now)
	return r.Attempt > 0 && (is.Attempt == 0 || is.Status == once.Expired && r.Status == once.Done)
}

// kept returns the record of a row that is due, as it still is.
func (r row) kept(now time.Time) once.Record {
	rec := r.Record
	rec.Age = now.Sub(rec.Created)
	rec.Fingerprint, rec.Outcome.Body = bytes.Clone(rec.Fingerprint), bytes.Clone(rec.Outcome.Body)
	if rec.Status == once.Absent {
		rec.Owner = [16]byte{}
	}
	return rec
}

// reopen frees a key. The owner stays in the row, as after a release, so that
// its late calls change nothing.
func (r row) reopen(fence once.Fence, keepKey time.Duration, reason string, now time.Time) (row, error) {
	status := r.at(now).Status
	if !r.heldBy(fence, now) || status != once.Absent && status != once.Done && status != once.Expired {
		return r, lost(fence)
	}
	if status == once.Absent { // repeated
		return r, nil
	}
	r.Status, r.Outcome, r.Reason, r.Updated = once.Absent, once.Outcome{}, reason, now
	r.keepKey = now.Add(keepKey)
	return r, nil
}
