package storetest_test

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/effectively-once/once"
)

func (s *buggyStore) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
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
	held := r.Owner == fence.Owner && is.Attempt == fence.Attempt
	switch {
	case s.has("extend without the token"):
		held = is.Attempt == fence.Attempt
	case s.has("extend without the attempt"):
		held = r.Owner == fence.Owner
	}
	extends := is.Status == once.Running || s.has("extend revives") && is.Status == once.Unknown && r.Status == once.Running ||
		s.has("extend runs the unknown") && is.Status == once.Unknown
	if !held || !extends {
		return once.ErrLeaseLost
	}
	switch r.Status = once.Running; s.bug {
	case "extend adds":
		r.lease = r.lease.Add(d)
	case "extended record without a deadline":
		r.lease = time.Time{}
	case "extend never shortens":
		if end := now.Add(d); end.After(r.lease) {
			r.lease = end
		}
	default:
		r.lease = now.Add(d)
	}
	s.save(nil, r)
	return nil
}

func (s *buggyStore) Settle(ctx context.Context, set once.Settlement) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	_, err := s.settle(nil, set)
	return err
}

func (s *buggyStore) settle(tx *buggyTx, set once.Settlement) (changed bool, err error) {
	r, ok := s.load(tx, set.Key)
	if !ok {
		return false, once.ErrConflict
	}
	if set.Status == once.Running || set.Status < once.Absent || set.Status > once.Done {
		if s.has("ends as anything") {
			r.Status = set.Status
			s.save(tx, r)
			return true, nil
		}
		return false, once.ErrInvalid
	}
	now := s.now()
	is := s.read(r, now)
	if !s.holds(r, is, set.Fence) {
		return false, once.ErrLeaseLost
	}
	if proceed, err := s.admits(is, r, set); !proceed {
		return false, err
	}
	r.Status, r.Reason, r.Updated = set.Status, set.Reason, now
	switch set.Status {
	case once.Unknown:
		if !s.has("unknown keeps its lease") {
			r.lease = now
		}
	case once.Done, once.Absent:
		r.keepOutcome, r.keepKey = now.Add(set.KeepOutcome), now.Add(set.KeepKey)
	}
	if set.Status == once.Done || s.has("outcome of what is not done") {
		r.Outcome = set.Outcome
		if !s.has("keeps the caller's slices") {
			r.Outcome.Body = bytes.Clone(set.Outcome.Body)
		}
	}
	switch s.bug {
	case "fingerprint dropped at completion":
		r.Fingerprint = nil
	case "cause dropped at completion":
		r.Cause = [16]byte{}
	case "reason dropped":
		r.Reason = ""
	case "owner dropped at completion":
		r.Owner = [16]byte{}
	}
	s.save(tx, r)
	return true, nil
}

func (s *buggyStore) holds(r row, is once.Record, fence once.Fence) bool {
	token, attempt := r.Owner == fence.Owner, is.Attempt == fence.Attempt
	switch s.bug {
	case "completion without any check":
		return is.Attempt > 0
	case "completion without an owner check":
		return is.Attempt > 0 && attempt
	case "completion without an attempt check":
		return is.Attempt > 0 && token
	case "unheld keys settled":
		return token && attempt
	}
	return is.Attempt > 0 && token && attempt
}

// admits reports whether a settlement changes the record, and returns the
// result if not.
func (s *buggyStore) admits(is once.Record, r row, set once.Settlement) (bool, error) {
	same := bytes.Equal(is.Outcome.Body, set.Outcome.Body) && is.Outcome.ContentType == set.Outcome.ContentType &&
		is.Outcome.Rejected == set.Outcome.Rejected && is.Outcome.Omitted == set.Outcome.Omitted && is.Outcome.Sum == set.Outcome.Sum
	switch {
	case is.Status == once.Done && (s.has("done is overwritten") || s.has("completion without any check")),
		is.Status == once.Absent && s.has("released and completed"):
		return true, nil
	case is.Status == once.Expired && set.Status == once.Done && !s.has("late repeat refused"):
		return false, nil
	case is.Status == set.Status && s.has("repeat refused"):
		return false, once.ErrLeaseLost
	case is.Status == once.Done && set.Status == once.Done && (same || s.has("any outcome taken for a repeat")):
		return false, nil
	case is.Status == once.Absent && set.Status == once.Absent:
		return false, nil
	case is.Status == once.Absent || is.Status == once.Done || is.Status == once.Expired:
		return false, once.ErrLeaseLost
	case is.Status == once.Parked && set.Status == once.Unknown:
		return s.has("parked goes back"), once.ErrLeaseLost
	case is.Status == once.Parked && s.has("parked is final"), is.Status == once.Unknown && s.has("late completion refused"):
		return is.Status == set.Status, once.ErrLeaseLost
	}
	return true, nil
}

func (s *buggyStore) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.enter(ctx); err != nil {
		return once.Record{}, err
	}
	defer s.mu.Unlock()
	r := s.rows[s.index(k)]
	if s.has("reads a replica") {
		r = s.before[s.index(k)]
	}
	if cached, ok := s.cache[k]; ok && s.has("a cache in the process") {
		r = cached
	}
	s.cache[k] = r
	if r.Attempt == 0 && s.has("never seen, and there") {
		return once.Record{Key: k}, nil
	}
	return s.read(r, s.now()), nil
}

func (s *buggyStore) Forget(ctx context.Context, limit int) (changed int, err error) {
	if err := s.enter(ctx); err != nil && !s.has("interrupted Forget leaves a part") {
		return 0, err
	} else if err != nil {
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	now := s.now()
	found := s.rows
	if s.has("Forget acts on what it saw") {
		found = maps.Clone(s.rows)
		s.mu.Unlock()
		s.hesitate()
		s.mu.Lock()
	}
	for at, r := range found {
		if changed == limit && !s.has("Forget unbounded") && !s.has("Forget hides what it did") {
			break
		}
		is := s.read(r, now)
		old := now.Sub(r.Updated) > 2*time.Millisecond
		switch {
		case is.Attempt == 0,
			s.has("Forget deletes the unknown") && is.Status == once.Unknown,
			s.has("Forget deletes the parked") && is.Status == once.Parked,
			s.has("Forget deletes the released") && is.Status == once.Absent,
			s.has("claim keeps the retention before it") && !r.keepKey.IsZero() && !now.Before(r.keepKey):
			if !s.has("Forget leaves the row") {
				delete(s.rows, at)
			}
			if !s.has("Forget counts outcomes only") {
				changed++
			}
			if s.has("interrupted Forget leaves a part") {
				s.pieces[at] = r.Outcome
			}
		case s.has("Forget deletes the expired") && is.Status == once.Expired:
			delete(s.rows, at)
			changed++
		case r.Status == once.Done && (is.Status == once.Expired || s.has("Forget drops early") && old):
			r.Outcome = once.Outcome{}
			if !s.has("outcomes dropped without a trace") {
				r.Status = once.Expired
			}
			s.rows[at] = r
			changed++
		}
	}
	if s.has("Forget hides what it did") {
		changed = min(changed, limit-1)
	}
	return changed, nil
}
