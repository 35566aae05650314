package records

import (
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
)

const (
	flagRejected = 1 << iota
	flagOmitted
)

// Flags returns the column flags of an outcome.
func Flags(out once.Outcome) (flags int64) {
	if out.Rejected {
		flags |= flagRejected
	}
	if out.Omitted {
		flags |= flagOmitted
	}
	return flags
}

// Row is a record, with what only the store sees of it.
type Row struct {
	once.Record
	LastOwner [16]byte // that of the last attempt, even if the key was released

	outcome once.Outcome // without the body, even if it has expired
}

// ReadRow reads a row of a statement that returns records. It returns the zero
// Row for a key that is forgotten, and [once.ErrCorrupt] for a row that no store
// has written.
func ReadRow(row interface{ Scan(dest ...any) error }) (r Row, err error) {
	var (
		key, owner, cause                  sqlschema.Digest
		known, status, flags               int64
		left, age, sum, outcomeLeft        int64
		created, updated                   int64
		fingerprint, body                  []byte
		scope, operation, id, kind, reason string
	)
	unread, err := sqlschema.Scan(row, columnNames, &key, &scope, &operation, &id, &known, &status, &r.Attempt, &owner, &left, &age,
		&fingerprint, sqlschema.Hex(&fingerprint), &body, sqlschema.Hex(&body), &kind, &flags, &sum, &reason, &created, &updated, &cause, &outcomeLeft)
	if err != nil {
		return r, err
	}
	r.Key = once.Key{Scope: scope, Operation: operation, ID: id}
	r.Status, r.Reason, r.Fingerprint = once.Status(status), reason, fingerprint
	r.LeaseLeft, r.Age = micros(left), micros(age)
	r.OutcomeLeft = micros(outcomeLeft)
	r.Created, r.Updated = time.UnixMicro(created), time.UnixMicro(updated)
	r.outcome = once.Outcome{ContentType: kind, Rejected: flags&flagRejected != 0, Omitted: flags&flagOmitted != 0, Sum: uint32(sum)}
	copy(r.LastOwner[:], owner)
	copy(r.Cause[:], cause)
	r.Outcome = r.outcome
	r.Outcome.Body = body
	if err = r.check(key); err == nil && unread != nil {
		err = sqlschema.Damaged(fmt.Sprintf("the row of %s %q", r.Key.Operation, r.Key.ID), unread)
	}
	if err != nil || known == 0 {
		return Row{}, err
	}
	return r, nil
}

// columnNames are those of columnsSQL.
const columnNames = "key, scope, operation, id, key_until, status, attempt, owner, lease_until, created, fingerprint, fingerprint, " +
	"outcome, outcome, content_type, flags, sum, reason, created, updated, cause, outcome_until"

// check returns [once.ErrCorrupt] for a row that no store has written.
func (r Row) check(key []byte) error {
	if err := checkKey(r.Key, key); err != nil {
		return err
	}
	if r.Status < once.Absent || r.Status > once.Expired {
		return fmt.Errorf("%w: the row of %s %q has a status that does not exist", once.ErrCorrupt, r.Key.Operation, r.Key.ID)
	}
	return nil
}

// checkKey compares a key with its digest, which is the primary key of its row.
func checkKey(k once.Key, digest []byte) error {
	if id := k.UUID(); string(id[:]) != string(digest) {
		return fmt.Errorf("%w: the row with the key %x has the parts of another: %q, %q, %q", once.ErrCorrupt,
			digest, k.Scope, k.Operation, k.ID)
	}
	return nil
}

// Seen returns the row as users of the store see it.
func (r Row) Seen() once.Record {
	rec := r.Record
	rec.Owner = r.LastOwner
	switch rec.Status {
	case once.Unknown:
		rec.LeaseLeft = min(rec.LeaseLeft, -time.Microsecond) // 0 would mean that nobody knows
	case once.Absent:
		rec.Owner = [16]byte{}
	}
	if rec.Status != once.Running && rec.Status != once.Unknown {
		rec.LeaseLeft = 0
	}
	if rec.Status != once.Done {
		rec.Outcome, rec.OutcomeLeft = once.Outcome{}, 0
	}
	return rec
}

// HeldBy reports whether fence is that of the last attempt. An unknown key has
// none.
func (r Row) HeldBy(fence once.Fence) bool {
	return r.Attempt > 0 && r.Attempt == fence.Attempt && r.LastOwner == fence.Owner
}

// EndedBy reports whether this settlement, and no other statement, has made the
// row what it is.
func (r Row) EndedBy(set once.Settlement) bool {
	switch set.Status {
	case once.Done:
		want := set.Outcome
		want.Body = nil
		same := r.outcome.ContentType == want.ContentType && r.outcome.Sum == want.Sum &&
			r.outcome.Rejected == want.Rejected && r.outcome.Omitted == want.Omitted
		body := string(r.Outcome.Body) == string(set.Outcome.Body)
		return same && (r.Status == once.Expired || r.Status == once.Done && body)
	case once.Absent:
		return r.Status == once.Absent
	}
	return false // a running row may read as unknown too, and a parked row may be parked again
}

// CanEnd reports whether the row can still be settled with this status.
func (r Row) CanEnd(to once.Status) bool {
	return r.Status == once.Running || r.Status == once.Unknown || r.Status == once.Parked && to != once.Unknown
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// LeaseLost returns [once.ErrLeaseLost] for an attempt.
func LeaseLost(fence once.Fence) error {
	return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended", once.ErrLeaseLost, fence.Attempt,
		fence.Key.Operation, fence.Key.ID)
}
