package storetest_test

import (
	"bytes"
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

var (
	_ store.Archivable = (*buggyStore)(nil)
	_ store.Reopener   = (*buggyStore)(nil)
)

// isDue reports whether the outcome of a row, or the row, is past its time.
func (s *buggyStore) isDue(r row, now time.Time) bool {
	is := s.read(r, now)
	return r.Attempt > 0 && (is.Attempt == 0 || r.Status == once.Done && is.Status == once.Expired)
}

func (s *buggyStore) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	if limit < 1 {
		return nil, false, once.ErrInvalid
	}
	if err := s.enter(ctx); err != nil {
		return nil, false, err
	}
	defer s.mu.Unlock()
	now := s.now()
	for _, r := range s.rows {
		if !s.isDue(r, now) && !(r.Status == once.Done && s.has("archive of what is kept")) {
			continue
		}
		if more = len(due) == limit && !s.has("archive unbounded"); more {
			break
		}
		rec := r.Record
		rec.Age, rec.Outcome.Body, rec.Fingerprint = now.Sub(rec.Created), bytes.Clone(rec.Outcome.Body), bytes.Clone(rec.Fingerprint)
		switch {
		case rec.Status == once.Absent:
			rec.Owner = [16]byte{}
		case s.has("archive as Get shows it"),
			len(rec.Outcome.Body) == 0 && s.has("empty outcome taken for dropped"):
			rec.Status, rec.Outcome = once.Expired, once.Outcome{}
		}
		due = append(due, rec)
	}
	return due, more && !s.has("a full page of the archive ends"), nil
}

func (s *buggyStore) ForgetRecords(ctx context.Context, due []once.Record) (changed int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	now := s.now()
	seen := make([]row, len(due))
	for i, rec := range due {
		seen[i] = s.rows[s.index(rec.Key)]
	}
	if s.has("archive forgets what it saw") {
		s.mu.Unlock()
		s.hesitate()
		s.mu.Lock()
	}
	for i, rec := range due {
		at, r := s.index(rec.Key), seen[i]
		same := r.Attempt == rec.Attempt && (r.Owner == rec.Owner || r.Status == once.Absent) || s.has("archive forgets by key alone")
		if !same || !s.isDue(r, now) && !s.has("archive forgets early") {
			continue
		}
		changed++
		switch {
		case s.read(r, now).Attempt == 0:
			delete(s.rows, at)
		case s.has("outcome archived for ever"):
		default:
			r.Status, r.Outcome = once.Expired, once.Outcome{}
			s.rows[at] = r
		}
	}
	return changed, nil
}

func (s *buggyStore) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, ok := s.load(nil, fence.Key)
	if !ok {
		return once.ErrConflict
	}
	now := s.now()
	is := s.read(r, now)
	owner, attempt := r.Owner == fence.Owner || s.has("reopen without the owner"), is.Attempt == fence.Attempt || s.has("reopen without the attempt")
	done := is.Status == once.Done || is.Status == once.Expired || s.has("reopen of what is not done")
	switch {
	case is.Attempt == 0 || !owner || !attempt:
		return once.ErrLeaseLost
	case is.Status == once.Absent && !s.has("reopen repeated is refused"):
		return nil
	case !done:
		return once.ErrLeaseLost
	}
	if s.has("reopen looks, then acts") {
		s.mu.Unlock()
		s.hesitate()
		s.mu.Lock()
	}
	r.Status, r.Updated, r.Reason = once.Absent, now, reason
	switch s.bug {
	case "reopen keeps the outcome":
	case "reopen forgets the count":
		r = row{}
	case "reopen without a reason":
		r.Reason = ""
	case "reopen drops the owner":
		r.Owner = [16]byte{}
	}
	if !s.has("reopen keeps the outcome") {
		r.Outcome = once.Outcome{}
	}
	if !s.has("reopen leaves the retention") {
		r.keepKey = now.Add(keepKey)
	}
	r.Key = fence.Key
	s.save(nil, r)
	return nil
}
