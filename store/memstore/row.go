package memstore

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/effectively-once/once"
)

// row is what the store keeps of a key. Its methods are functions of the row
// and the time, and return the changed row. Nothing happens when a time passes:
// a row reads as what it has become by then, so it makes no difference whether
// Forget has run.
//
// A store keeps many rows, and the garbage collector looks at each pointer of
// each. So a row has one: all its text is in one string, and its times are
// numbers.
type row struct {
	owner   [16]byte // stays when the key is freed
	cause   [16]byte
	attempt int64 // 0: the key was never seen, or is forgotten

	created, updated instant
	lease            instant // when the lease ends, or ended
	keepOutcome      instant // when the outcome expires
	keepKey          instant // when the key expires: Absent, Done and Expired

	status            status
	rejected, omitted bool
	sum               uint32

	text string
	ends [texts - 1]uint32 // where each text ends, except the last
}

// status is a once.Status in one byte.
type status uint8

// The texts of a row, in order. Those of the outcome are set if the row is Done.
const (
	scope = iota
	operation
	id
	fingerprint
	reason
	contentType
	body
	texts // how many there are
)

// instant is a time in nanoseconds since 1970, by the store's clock.
type instant int64

func instantOf(t time.Time) instant { return instant(t.UnixNano()) }

func (i instant) time() time.Time { return time.Unix(0, int64(i)) }

// add returns the instant after d. A d that is too long lasts for ever.
func (i instant) add(d time.Duration) instant {
	if d > 0 && i > math.MaxInt64-instant(d) {
		return math.MaxInt64
	}
	return i + instant(d)
}

func (i instant) sub(before instant) time.Duration { return time.Duration(i - before) }

// part returns one of the texts.
func (r *row) part(i int) string {
	begin, end := 0, len(r.text)
	if i > 0 {
		begin = int(r.ends[i-1])
	}
	if i < len(r.ends) {
		end = int(r.ends[i])
	}
	return r.text[begin:end]
}

// setClaimed sets the texts of a row that is claimed.
func (r *row) setClaimed(k once.Key, mark []byte) {
	var b strings.Builder
	b.Grow(len(k.Scope) + len(k.Operation) + len(k.ID) + len(mark))
	for i, part := range [...]string{k.Scope, k.Operation, k.ID} {
		b.WriteString(part)
		r.ends[i] = uint32(b.Len())
	}
	b.Write(mark)
	r.setText(b.String(), b.Len(), b.Len())
}

// setEnded sets the texts that the end of an attempt changes.
func (r *row) setEnded(why string, out once.Outcome) {
	kept := r.text[:r.ends[fingerprint]]
	var b strings.Builder
	b.Grow(len(kept) + len(why) + len(out.ContentType) + len(out.Body))
	b.WriteString(kept)
	b.WriteString(why)
	b.WriteString(out.ContentType)
	b.Write(out.Body)
	r.setText(b.String(), len(kept), len(kept)+len(why))
	r.ends[contentType] += uint32(len(out.ContentType))
	r.rejected, r.omitted, r.sum = out.Rejected, out.Omitted, out.Sum
}

// setText sets the texts, of which the content type is empty.
func (r *row) setText(text string, endOfFingerprint, endOfReason int) {
	r.text = text
	r.ends[fingerprint], r.ends[reason], r.ends[contentType] = uint32(endOfFingerprint), uint32(endOfReason), uint32(endOfReason)
}

func (r *row) key() once.Key {
	return once.Key{Scope: r.part(scope), Operation: r.part(operation), ID: r.part(id)}
}

// is reports whether the row has a status.
func (r *row) is(s once.Status) bool { return r.status == status(s) }

// at returns the row as it has become by a time. One that is past its keepKey
// is the zero row, that of a key that was never seen.
func (r row) at(now instant) row {
	switch once.Status(r.status) {
	case once.Running:
		if r.lease <= now {
			r.status = status(once.Unknown)
		}
	case once.Absent, once.Done, once.Expired:
		if now >= r.keepKey {
			return row{}
		}
		if r.is(once.Done) && now >= r.keepOutcome {
			r.status = status(once.Expired)
		}
	}
	return r
}

// read returns the record as readers see it at a time.
func (r row) read(now instant) once.Record {
	is := r.at(now)
	return is.record(now)
}

// record returns a record with the status of the row. Its slices are the
// reader's own, and share one array.
func (r *row) record(now instant) once.Record {
	if r.attempt == 0 {
		return once.Record{}
	}
	rec := once.Record{
		Key:     r.key(),
		Status:  once.Status(r.status),
		Attempt: r.attempt,
		Owner:   r.owner,
		Age:     now.sub(r.created),
		Cause:   r.cause,
		Reason:  r.part(reason),
		Created: r.created.time(),
		Updated: r.updated.time(),
	}
	last := r.ends[fingerprint]
	switch rec.Status {
	case once.Running:
		rec.LeaseLeft = r.lease.sub(now)
	case once.Unknown:
		rec.LeaseLeft = min(r.lease.sub(now), -1) // 0 would mean not known
	case once.Absent:
		rec.Owner = [16]byte{}
	case once.Done:
		rec.Outcome = once.Outcome{ContentType: r.part(contentType), Rejected: r.rejected, Omitted: r.omitted, Sum: r.sum}
		rec.OutcomeLeft = min(r.keepOutcome, r.keepKey).sub(now)
		last = uint32(len(r.text))
	}
	if begin, end := r.ends[id], r.ends[fingerprint]; last > begin {
		own := []byte(r.text[begin:last])
		rec.Fingerprint = own[: end-begin : end-begin]
		if rec.Status == once.Done {
			rec.Outcome.Body = own[r.ends[contentType]-begin:]
		}
	}
	return rec
}

// claim gives the key to req if it is free, or if req names its unknown
// attempt. A repeated claim of the owner needs no rule: the key is not free,
// and its record names the owner. A claim of an owner that has since released
// the key is late, and changes nothing.
func (r row) claim(req once.ClaimRequest, now instant) (row, bool) {
	was := r.at(now)
	takeover := was.is(once.Unknown) && was.attempt == req.Attempt && was.owner != req.Owner
	late := was.is(once.Absent) && was.attempt > 0 && was.owner == req.Owner
	if !was.is(once.Absent) && !takeover || late {
		return r, false
	}
	is := row{
		owner:   req.Owner,
		cause:   req.Cause,
		attempt: was.attempt + 1,
		created: was.created,
		updated: now,
		lease:   now.add(req.Lease),
		status:  status(once.Running),
	}
	if was.attempt == 0 { // never seen, or forgotten
		is.created = now
	}
	is.setClaimed(req.Key, req.Fingerprint)
	return is, true
}

func (r row) extend(fence once.Fence, d time.Duration, now instant) (row, error) {
	if is := r.at(now); !is.heldBy(fence) || !is.is(once.Running) {
		return r, lost(fence)
	}
	r.lease, r.updated = now.add(d), now
	return r, nil
}

// settle ends the attempt, unless it has ended. The lease may have lapsed: if
// another attempt had taken over, the fence would not be current.
func (r row) settle(set once.Settlement, now instant) (_ row, changed bool, err error) {
	if set.Status == once.Running || set.Status < once.Absent || set.Status > once.Done {
		return r, false, fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	is := r.at(now)
	if !is.heldBy(set.Fence) {
		return r, false, lost(set.Fence)
	}
	switch once.Status(is.status) {
	case once.Absent, once.Done, once.Expired:
		switch {
		case is.is(once.Expired) && set.Status == once.Done, // there is no outcome to compare
			is.is(set.Status) && (set.Status == once.Absent || r.hasOutcome(set.Outcome)):
			return r, false, nil
		}
		return r, false, lost(set.Fence)
	case once.Parked:
		if set.Status == once.Unknown { // a person decides already
			return r, false, lost(set.Fence)
		}
	}
	r.status, r.updated = status(set.Status), now
	var out once.Outcome
	switch set.Status {
	case once.Unknown:
		r.lease = now
	case once.Done:
		out = set.Outcome
		r.keepOutcome, r.keepKey = now.add(set.KeepOutcome), now.add(set.KeepKey)
	case once.Absent:
		r.keepKey = now.add(set.KeepKey)
	}
	r.setEnded(set.Reason, out)
	return r, true, nil
}

// heldBy reports whether fence is that of the latest claim, even if its attempt
// has ended: that distinguishes a repeated settlement from a stale one. It is
// false if the key is not known.
func (r *row) heldBy(fence once.Fence) bool {
	return r.attempt > 0 && r.attempt == fence.Attempt && r.owner == fence.Owner
}

// hasOutcome reports whether a Done row has this outcome.
func (r *row) hasOutcome(out once.Outcome) bool {
	return r.part(body) == string(out.Body) && r.part(contentType) == out.ContentType &&
		r.rejected == out.Rejected && r.omitted == out.Omitted && r.sum == out.Sum
}

func lost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended",
		once.ErrLeaseLost, fence.Attempt, fence.Key.Operation, fence.Key.ID)
}
