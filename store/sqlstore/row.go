package sqlstore

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
)

const (
	flagRejected = 1 << iota
	flagOmitted
)

// row is a record, and what of it only the store sees.
type row struct {
	once.Record
	owner   [16]byte     // also of a key that was freed
	outcome once.Outcome // without the body, also of one that has expired
}

func readRow(rows *sql.Rows) (r row, err error) {
	var (
		key, owner                         []byte
		known, status, flags               int64
		left, age, sum                     int64
		created, updated                   int64
		cause                              []byte
		fingerprint, body                  []byte
		scope, operation, id, kind, reason string
	)
	if err := rows.Scan(&key, &scope, &operation, &id, &known, &status, &r.Attempt, &owner, &left, &age, &fingerprint, &body,
		&kind, &flags, &sum, &reason, &created, &updated, &cause); err != nil {
		return r, err
	}
	r.Key = once.Key{Scope: scope, Operation: operation, ID: id}
	r.Status, r.Reason, r.Fingerprint = once.Status(status), reason, fingerprint
	r.LeaseLeft, r.Age = micros(left), micros(age)
	r.Created, r.Updated = time.UnixMicro(created), time.UnixMicro(updated)
	r.outcome = once.Outcome{ContentType: kind, Rejected: flags&flagRejected != 0, Omitted: flags&flagOmitted != 0, Sum: uint32(sum)}
	copy(r.owner[:], owner)
	copy(r.Cause[:], cause)
	r.Outcome = r.outcome
	r.Outcome.Body = body
	if err = r.check(key); err != nil || known == 0 {
		return row{}, err
	}
	return r, nil
}

// check refuses a row that no store has written: its key is the digest of its parts.
func (r row) check(key []byte) error {
	if err := checkKey(r.Key, key); err != nil {
		return err
	}
	if r.Status < once.Absent || r.Status > once.Expired {
		return fmt.Errorf("%w: the row of %s %q has a status that does not exist", once.ErrCorrupt, r.Key.Operation, r.Key.ID)
	}
	return nil
}

func checkKey(k once.Key, digest []byte) error {
	if id := k.UUID(); string(id[:]) != string(digest) {
		return fmt.Errorf("%w: the row with the key %x has the parts of another: %q, %q, %q", once.ErrCorrupt,
			digest, k.Scope, k.Operation, k.ID)
	}
	return nil
}

// record is r as users of the store see it.
func (r row) record() once.Record {
	rec := r.Record
	rec.Owner = r.owner
	switch rec.Status {
	case once.Unknown:
		rec.LeaseLeft = min(rec.LeaseLeft, -time.Microsecond) // 0 would mean that it is not known
	case once.Absent:
		rec.Owner = [16]byte{}
	}
	if rec.Status != once.Running && rec.Status != once.Unknown {
		rec.LeaseLeft = 0
	}
	if rec.Status != once.Done {
		rec.Outcome = once.Outcome{}
	}
	return rec
}

// heldBy reports whether h is the fence of the latest claim. A key that is not known has no holder.
func (r row) heldBy(fence once.Fence) bool {
	return r.Attempt > 0 && r.Attempt == fence.Attempt && r.owner == fence.Owner
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func flagsOf(out once.Outcome) (flags int64) {
	if out.Rejected {
		flags |= flagRejected
	}
	if out.Omitted {
		flags |= flagOmitted
	}
	return flags
}

// bytesOf is b, or NULL: some drivers send a nil slice as an empty one.
func bytesOf(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// clean is a reason as every database takes it. It is often an error's text, of which nobody knows what is in it.
func clean(reason string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
}
