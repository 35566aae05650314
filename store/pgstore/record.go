package pgstore

import (
	"bytes"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	flagRejected = 1 << iota
	flagOmitted
)

func flagsOf(out once.Outcome) (flags int16) {
	if out.Rejected {
		flags |= flagRejected
	}
	if out.Omitted {
		flags |= flagOmitted
	}
	return flags
}

// uuid returns an id in a form that every exec mode can send.
func uuid(id [16]byte) string { return name.Format(id) }

// causeOf returns the cause of a claim, or NULL.
func causeOf(r once.ClaimRequest) *string { return given(r.Cause) }

// given returns an id, or NULL.
func given(id [16]byte) *string {
	if id == ([16]byte{}) {
		return nil
	}
	text := uuid(id)
	return &text
}

// readRecord reads the columns of columnsSQL.
func readRecord(row pgx.CollectableRow) (once.Record, error) { return readRecordAfter(row) }

// readRecordAfter reads other columns, and then those of columnsSQL.
func readRecordAfter(row pgx.CollectableRow, others ...any) (rec once.Record, err error) {
	var key, owner, cause pgtype.UUID
	var status, flags int
	var left, age, sum, created, updated, outcomeLeft int64
	var out once.Outcome
	if err := row.Scan(append(others, &key, &rec.Key.Scope, &rec.Key.Operation, &rec.Key.ID, &status, &rec.Attempt, &owner,
		&left, &age, (*bytea)(&rec.Fingerprint), (*bytea)(&out.Body), &out.ContentType, &flags, &sum, &rec.Reason, &created, &updated, &cause, &outcomeLeft)...); err != nil {
		return rec, err
	}
	rec.Status, rec.Cause = once.Status(status), cause.Bytes
	rec.LeaseLeft, rec.Age = time.Duration(left)*time.Microsecond, time.Duration(age)*time.Microsecond
	rec.Created, rec.Updated = time.UnixMicro(created), time.UnixMicro(updated)
	if rec.Status != once.Absent {
		rec.Owner = owner.Bytes
	}
	if rec.Status == once.Done {
		out.Rejected, out.Omitted, out.Sum = flags&flagRejected != 0, flags&flagOmitted != 0, uint32(sum)
		rec.Outcome, rec.OutcomeLeft = out, time.Duration(outcomeLeft)*time.Microsecond
	}
	return rec, check(rec, key.Bytes)
}

// bytea receives bytes, however the session writes them: in binary, or as a text
// with digits or escapes, by its setting bytea_output. pgx reads only digits.
type bytea []byte

// ScanBytes implements [pgtype.BytesScanner].
func (b *bytea) ScanBytes(from []byte) error {
	*b = bytes.Clone(from)
	return nil
}

// ScanText implements [pgtype.TextScanner].
func (b *bytea) ScanText(from pgtype.Text) (err error) {
	*b = nil
	if from.Valid {
		*b, err = outboxlog.ReadBytea([]byte(from.String))
	}
	return err
}

// check returns an error for a row that no store has written. The key of a row
// is the digest of its parts.
func check(rec once.Record, key [16]byte) error {
	if err := checkKey(rec.Key, key); err != nil {
		return err
	}
	if rec.Status < once.Absent || rec.Status > once.Expired {
		return fmt.Errorf("%w: the row with the key %s has the invalid status %d", once.ErrCorrupt, uuid(key), int(rec.Status))
	}
	return nil
}

func checkKey(k once.Key, digest [16]byte) error {
	if k.UUID() != digest {
		return fmt.Errorf("%w: the row with the key %s has the parts of another: %q, %q, %q", once.ErrCorrupt,
			uuid(digest), k.Scope, k.Operation, k.ID)
	}
	return nil
}

func equal(a, b once.Outcome) bool {
	return a.Sum == b.Sum && a.Rejected == b.Rejected && a.Omitted == b.Omitted && a.ContentType == b.ContentType && bytes.Equal(a.Body, b.Body)
}
