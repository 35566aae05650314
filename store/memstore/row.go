package memstore

import (
	"bytes"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// row is what the store keeps of a key. Its methods are functions of the row
// and the time, and return the changed row. Nothing happens when a time passes:
// a row reads as what it has become by then, so it makes no difference whether
// Forget has run.
type row struct {
	once.Record // LeaseLeft and Age are not used, and Owner stays when the key is freed

	lease       time.Time // when the lease ends, or ended
	keepOutcome time.Time // when the outcome expires
	keepKey     time.Time // when the key expires: Absent, Done and Expired
}

// at returns the row as readers see it at a time. The zero row is that of a key
// that was never seen. It reads like one past its keepKey.
func (r row) at(now time.Time) once.Record {
	is := r.Record
	is.Age = now.Sub(is.Created)
	switch left := r.lease.Sub(now); r.Status {
	case once.Running:
		is.LeaseLeft = left
		if left <= 0 { // 0 would mean not known
			is.Status, is.LeaseLeft = once.Unknown, min(left, -1)
		}
	case once.Unknown:
		is.LeaseLeft = min(left, -1)
	case once.Absent, once.Done, once.Expired:
		if !now.Before(r.keepKey) {
			return once.Record{}
		}
		if r.Status == once.Absent {
			is.Owner = [16]byte{}
		}
		if r.Status == once.Done && !now.Before(r.keepOutcome) {
			is.Status, is.Outcome = once.Expired, once.Outcome{}
		}
	}
	return is
}

// read is like at, but returns a copy for the reader.
func (r row) read(now time.Time) once.Record {
	is := r.at(now)
	is.Fingerprint = bytes.Clone(is.Fingerprint)
	is.Outcome.Body = bytes.Clone(is.Outcome.Body)
	return is
}

// claim gives the key to req if it is free, or if req names its unknown
// attempt. A repeated claim of the owner needs no rule: the key is not free,
// and its record names the owner. A claim of an owner that has since released
// the key is late, and changes nothing.
func (r row) claim(req once.ClaimRequest, now time.Time) (row, bool) {
	is := r.at(now)
	takeover := is.Status == once.Unknown && is.Attempt == req.Attempt && is.Owner != req.Owner
	late := is.Status == once.Absent && is.Attempt > 0 && r.Owner == req.Owner
	if is.Status != once.Absent && !takeover || late {
		return r, false
	}
	created := is.Created
	if is.Attempt == 0 { // never seen, or forgotten
		created = now
	}
	return row{
		Record: once.Record{
			Key:         req.Key,
			Status:      once.Running,
			Attempt:     is.Attempt + 1,
			Owner:       req.Owner,
			Fingerprint: bytes.Clone(req.Fingerprint),
			Cause:       req.Cause,
			Created:     created,
			Updated:     now,
		},
		lease: now.Add(req.Lease),
	}, true
}

func (r row) extend(fence once.Fence, d time.Duration, now time.Time) (row, error) {
	if !r.heldBy(fence, now) || r.at(now).Status != once.Running {
		return r, lost(fence)
	}
	r.lease, r.Updated = now.Add(d), now
	return r, nil
}

// settle ends the attempt, unless it has ended. The lease may have lapsed: if
// another attempt had taken over, the fence would not be current.
func (r row) settle(set once.Settlement, now time.Time) (_ row, changed bool, err error) {
	if set.Status == once.Running || set.Status < once.Absent || set.Status > once.Done {
		return r, false, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	if !r.heldBy(set.Fence, now) {
		return r, false, lost(set.Fence)
	}
	switch is := r.at(now); is.Status {
	case once.Absent, once.Done, once.Expired:
		switch {
		case is.Status == once.Expired && set.Status == once.Done, // there is no outcome to compare
			is.Status == set.Status && (set.Status == once.Absent || equal(is.Outcome, set.Outcome)):
			return r, false, nil
		}
		return r, false, lost(set.Fence)
	case once.Parked:
		if set.Status == once.Unknown { // a person decides already
			return r, false, lost(set.Fence)
		}
	}
	r.Status, r.Reason, r.Updated = set.Status, set.Reason, now
	switch set.Status {
	case once.Unknown:
		r.lease = now
	case once.Done:
		r.Outcome = set.Outcome
		r.Outcome.Body = bytes.Clone(set.Outcome.Body)
		r.keepOutcome, r.keepKey = now.Add(set.KeepOutcome), now.Add(set.KeepKey)
	case once.Absent:
		r.keepKey = now.Add(set.KeepKey)
	}
	return r, true, nil
}

// heldBy reports whether fence is that of the latest claim, even if its attempt
// has ended: that distinguishes a repeated settlement from a stale one. It is
// false if the key is not known.
func (r row) heldBy(fence once.Fence, now time.Time) bool {
	known := r.at(now).Attempt > 0
	return known && r.Attempt == fence.Attempt && r.Owner == fence.Owner
}

func equal(a, b once.Outcome) bool {
	return bytes.Equal(a.Body, b.Body) && a.ContentType == b.ContentType &&
		a.Rejected == b.Rejected && a.Omitted == b.Omitted && a.Sum == b.Sum
}

func lost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended",
		once.ErrLeaseLost, fence.Attempt, fence.Key.Operation, fence.Key.ID)
}
