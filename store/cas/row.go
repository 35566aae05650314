package cas

import (
	"bytes"
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// Row is what an engine keeps of a key. An engine stores all fields, and gives
// them no meaning: the rules are in the methods. Its slices are not changed after
// the row is made.
type Row struct {
	Key         once.Key
	Status      once.Status // never Expired
	Attempt     int64       // at least 1
	Owner       [16]byte    // stays when the key is freed
	Cause       [16]byte
	Fingerprint []byte
	Reason      string
	Outcome     once.Outcome // Done only

	Created     Instant
	Updated     Instant
	Lease       Instant // when it lapses, or ended
	KeepOutcome Instant // Done: when the outcome expires
	KeepKey     Instant // Absent, Done and Firm: when the key is forgotten

	// Firm marks a claim of a transaction that has written nothing else. If its lease
	// lapses, the key is free, because the transaction is refused once somebody has
	// claimed the key.
	Firm bool
}

// Open reports whether the row is among those that [once.Lister] lists even in a
// store without an index of all records.
func (r *Row) Open() bool { return r.Status >= once.Running && r.Status <= once.Parked }

// Expires returns when the engine may delete the row. It must keep a row for
// which ok is false.
func (r *Row) Expires() (at Instant, ok bool) {
	return r.KeepKey, r.Attempt > 0 && (!r.Open() || r.Firm)
}

// At returns the row as it has become by now. A row that is past its KeepKey is
// the zero Row, that of a key that was never seen.
func (r Row) At(now Now) Row {
	if r.Status == once.Running && now.Passed(r.Lease) {
		if r.Status = once.Unknown; r.Firm {
			r.Status, r.Reason = once.Absent, "its transaction did not commit"
		}
	}
	switch r.Status {
	case once.Absent, once.Done:
		if now.Passed(r.KeepKey) {
			return Row{}
		}
		if r.Status == once.Done && now.Passed(r.KeepOutcome) {
			r.Status, r.Outcome = once.Expired, once.Outcome{}
		}
	}
	return r
}

// Record returns the record as readers see it now.
func (r Row) Record(now Now) once.Record {
	r = r.At(now)
	if r.Attempt == 0 {
		return once.Record{}
	}
	rec := once.Record{
		Key:         r.Key,
		Status:      r.Status,
		Attempt:     r.Attempt,
		Owner:       r.Owner,
		Age:         max(0, now.AtMostSince(r.Created)),
		Fingerprint: bytes.Clone(r.Fingerprint),
		Cause:       r.Cause,
		Reason:      r.Reason,
		Created:     r.Created.Time(),
		Updated:     r.Updated.Time(),
	}
	switch r.Status {
	case once.Running:
		rec.LeaseLeft = now.AtMostUntil(r.Lease)
	case once.Unknown:
		rec.LeaseLeft = min(-now.AtLeastSince(r.Lease), -time.Microsecond) // 0 would mean that it is not known
	case once.Absent:
		rec.Owner = [16]byte{}
	case once.Done:
		rec.Outcome = r.Outcome
		rec.Outcome.Body = bytes.Clone(r.Outcome.Body)
		rec.OutcomeLeft = max(0, now.AtLeastUntil(min(r.KeepOutcome, r.KeepKey)))
	}
	return rec
}

// claim gives the key to req if it is free, or if req names its unknown attempt.
// A repeated claim of the owner needs no rule: the key is not free, and its
// record names the owner. A claim of an owner that has since released the key is
// late, and changes nothing.
func (r Row) claim(req once.ClaimRequest, now Now) (is Row, ok bool) {
	was := r.At(now)
	takeover := was.Status == once.Unknown && was.Attempt == req.Attempt && was.Owner != req.Owner
	late := was.Status == once.Absent && was.Attempt > 0 && was.Owner == req.Owner && !was.Firm
	if was.Status != once.Absent && !takeover || late {
		return r, false
	}
	is = Row{
		Key:         req.Key,
		Status:      once.Running,
		Attempt:     was.Attempt + 1,
		Owner:       req.Owner,
		Cause:       req.Cause,
		Fingerprint: bytes.Clone(req.Fingerprint),
		Created:     was.Created,
		Updated:     max(now.Changed(), was.Updated),
		Lease:       now.In(req.Lease),
	}
	if was.Attempt == 0 { // never seen, or forgotten
		is.Created = now.Began()
	}
	return is, true
}

// claimFirmly is claim for a transaction whose earlier requests may still arrive.
// It changes the row also if the claim is already the owner's, because with
// another version of the row those requests are refused. A claim that has lapsed
// is renewed as well, because the transaction runs under it all the same.
func (r Row) claimFirmly(req once.ClaimRequest, now Now) (is Row, ok bool) {
	if is := r.At(now); is.Owner == req.Owner && (is.Status == once.Running || is.Status == once.Unknown) {
		is.Status, is.Reason = once.Running, ""
		is.Lease, is.Updated = now.In(req.Lease), max(now.Changed(), is.Updated)
		is.keepFirm(req)
		return is, true
	}
	if is, ok = r.claim(req, now); ok {
		is.Firm = r.At(now).Status == once.Absent // an unknown outcome stays unknown
		is.keepFirm(req)
	}
	return is, ok
}

// rolledBack returns the row after the transaction of a firm claim was rolled
// back, given the row before it. ok is false if the claim was there before.
func (r Row) rolledBack(before Row) (is Row, ok bool) {
	if before.Attempt > 0 && before.Owner != r.Owner {
		return before, true
	}
	r.Status, r.Reason = once.Absent, "its transaction was rolled back"
	r.Owner = [16]byte{} // which may claim again
	return r, r.Firm
}

// keepFirm sets how long the count of attempts is kept if the lease lapses.
func (r *Row) keepFirm(req once.ClaimRequest) {
	if !r.Firm {
		return
	}
	keep := 24 * time.Hour
	if req.Expected != nil && req.Expected.KeepKey > 0 {
		keep = req.Expected.KeepKey
	}
	r.KeepKey = r.Lease.add(keep)
}

func (r Row) extend(fence once.Fence, d time.Duration, now Now) (Row, error) {
	if is := r.At(now); !is.heldBy(fence) || is.Status != once.Running {
		return r, lost(fence)
	}
	was := r.Lease
	r.Lease, r.Updated = now.In(d), max(now.Changed(), r.Updated)
	if r.Firm { // the count is kept as long after the lease as before
		r.KeepKey = max(r.KeepKey, r.Lease.add(r.KeepKey.sub(was)))
	}
	return r, nil
}

// settle ends the attempt, unless it has ended. The lease may have lapsed: if
// another attempt had taken over, the fence would not be current.
func (r Row) settle(set once.Settlement, now Now) (_ Row, changed bool, err error) {
	if set.Status == once.Running || set.Status < once.Absent || set.Status > once.Done {
		return r, false, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	is := r.At(now)
	if !is.heldBy(set.Fence) {
		return r, false, lost(set.Fence)
	}
	switch is.Status {
	case once.Absent, once.Done, once.Expired:
		switch {
		case is.Status == once.Expired && set.Status == once.Done, // there is no outcome to compare
			is.Status == set.Status && (set.Status == once.Absent || sameOutcome(is.Outcome, set.Outcome)):
			return r, false, nil
		}
		return r, false, lost(set.Fence)
	case once.Parked:
		if set.Status == once.Unknown { // a person decides already
			return r, false, lost(set.Fence)
		}
	}
	r.Status, r.Reason, r.Updated = set.Status, set.Reason, max(now.Changed(), r.Updated)
	r.Outcome, r.Firm, r.KeepOutcome, r.KeepKey = once.Outcome{}, false, 0, 0
	switch set.Status {
	case once.Unknown:
		r.Lease = now.Changed() // SettleTime counts from here
	case once.Done:
		r.Outcome = set.Outcome
		r.Outcome.Body = bytes.Clone(set.Outcome.Body)
		r.KeepOutcome, r.KeepKey = now.In(set.KeepOutcome), now.In(set.KeepKey)
	case once.Absent:
		r.KeepKey = now.In(set.KeepKey)
	}
	return r, true, nil
}

// reopen frees a key. The owner stays in the row, as after a release, so that
// its late calls change nothing.
func (r Row) reopen(fence once.Fence, keepKey time.Duration, why string, now Now) (_ Row, changed bool, err error) {
	is := r.At(now)
	if !is.heldBy(fence) || is.Open() {
		return r, false, lost(fence)
	}
	if is.Status == once.Absent { // repeated
		return r, false, nil
	}
	r.Status, r.Reason, r.Updated = once.Absent, why, max(now.Changed(), r.Updated)
	r.Outcome, r.KeepOutcome, r.KeepKey = once.Outcome{}, 0, now.In(keepKey)
	return r, true, nil
}

// heldBy reports whether fence is that of the latest claim, even if its attempt
// has ended: that distinguishes a repeated settlement from a stale one. It is
// false if the key is not known.
func (r *Row) heldBy(fence once.Fence) bool {
	return r.Attempt > 0 && r.Attempt == fence.Attempt && r.Owner == fence.Owner
}

func sameOutcome(a, b once.Outcome) bool {
	return bytes.Equal(a.Body, b.Body) && a.ContentType == b.ContentType && a.Rejected == b.Rejected &&
		a.Omitted == b.Omitted && a.Sum == b.Sum
}

func lost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended",
		once.ErrLeaseLost, fence.Attempt, fence.Key.Operation, fence.Key.ID)
}
