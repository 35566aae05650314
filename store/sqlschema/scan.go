package sqlschema

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/effectively-once/once"
)

// Scan reads a row as row.Scan does. SQLite keeps any value in any column. If
// one does not fit, Scan leaves its destination zero, reads the others, and
// returns the names of the columns that it could not read. Destinations are
// *int64, *string, *[]byte and *Digest, or anything that takes every value.
func Scan(row interface{ Scan(dest ...any) error }, names string, into ...any) (unread []string, err error) {
	if err = row.Scan(into...); err == nil {
		return nil, nil
	}
	raw, as := make([]any, len(into)), make([]any, len(into))
	for i := range raw {
		as[i] = &raw[i]
	}
	if row.Scan(as...) != nil { // a client that has ended the query, and any other error
		return nil, err
	}
	columns := strings.Split(names, ", ")
	for i, value := range raw {
		if !assign(into[i], value) {
			unread = append(unread, columns[i])
		}
	}
	if unread == nil {
		return nil, err
	}
	return unread, nil
}

// assign reports whether a value fits a destination, which is zero otherwise.
func assign(into, value any) bool {
	switch to := into.(type) {
	case *int64:
		n, ok := value.(int64)
		*to = n
		return ok
	case *string:
		switch from := value.(type) {
		case string:
			*to = from
			return true
		case []byte:
			*to = string(from)
			return true
		}
		*to = ""
		return false
	case *[]byte:
		switch from := value.(type) {
		case nil:
			*to = nil
			return true
		case string:
			*to = []byte(from)
			return true
		case []byte:
			*to = append([]byte(nil), from...)
			return true
		}
		*to = nil
		return false
	case *Digest:
		return to.Scan(value) == nil
	case hexOf:
		return to.Scan(value) == nil
	}
	return false
}

// Digest receives a UUID. PostgreSQL sends it as text, other databases as bytes.
type Digest []byte

// Scan implements [sql.Scanner].
func (d *Digest) Scan(value any) (err error) {
	*d = nil
	switch from := value.(type) {
	case nil:
	case []byte:
		*d = append(*d, from...)
	case string:
		*d, err = hex.DecodeString(strings.ReplaceAll(from, "-", ""))
	default:
		err = fmt.Errorf("a UUID has a value of another type: %T", value)
	}
	return err
}

// Hex receives the second column of [Dialect.Bytes]. It leaves into alone if that
// has been read from the first.
func Hex(into *[]byte) any { return hexOf{into} }

type hexOf struct{ into *[]byte }

// Scan implements [sql.Scanner].
func (h hexOf) Scan(value any) (err error) {
	switch from := value.(type) {
	case nil:
	case string:
		*h.into, err = hex.DecodeString(from)
	case []byte:
		*h.into, err = hex.DecodeString(string(from))
	default:
		err = fmt.Errorf("digits of bytes have a value of another type: %T", value)
	}
	return err
}

// Damaged returns the error of a row whose columns could not be read, or nil. It
// is for Unopened of a message.
func Damaged(row string, unread []string, decoding ...error) error {
	why := Unread(unread, decoding...)
	if why == nil {
		return nil
	}
	return fmt.Errorf("%w: %s is damaged: %w. Repair its row, or remove it", once.ErrCorrupt, row, why)
}

// Unread says why a row is damaged: columns that could not be read, and what else is
// wrong with it. It returns nil if nothing is.
func Unread(unread []string, wrong ...error) error {
	why := make([]string, 0, len(unread)+len(wrong))
	for _, column := range unread {
		why = append(why, fmt.Sprintf("the column %s has a value of another type", column))
	}
	for _, err := range wrong {
		if err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) == 0 {
		return nil
	}
	return errors.New(strings.Join(why, "; "))
}

// Between returns the time between two times in microseconds. It is as long as a
// time.Duration can be if one of them is damaged.
func Between(from, to int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	from, to = max(min(from, most/2), -most/2), max(min(to, most/2), -most/2)
	return time.Duration(to-from) * time.Microsecond
}
