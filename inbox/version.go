package inbox

import (
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// Order is where the version of an event stands, seen from what a projection has.
type Order int

const (
	Next  Order = iota // the version after it
	Same               // the version that it has: a duplicate
	Stale              // an older one
	Gap                // a later one: those between are missing
)

// Compare tells where version got stands from version have, which is 0 for nothing.
func Compare(have, got int64) Order {
	switch {
	case got == have:
		return Same
	case got < have:
		return Stale
	case got == have+1:
		return Next
	}
	return Gap
}

// OnGap says what is done about an event whose predecessors have not come yet.
type OnGap int

const (
	Wait  OnGap = iota // it is tried again, and parked after Retry.Attempts
	Halt               // it is parked at once
	Apply              // it is applied: events hold the whole state, and the latest wins
)

// Versions applies events that carry a version to a projection, so that it never goes back: the next version is written,
// the same one and older ones are skipped, and OnGap says what becomes of one that comes too early.
//
//	err := inbox.Versions{}.Apply(e.Version,
//		func(from, to int64) (bool, error) { // WHERE has from <= version and version <= to
//			tag, err := tx.Exec(ctx, "UPDATE stock SET n = $1, version = $2 WHERE item = $3 AND version BETWEEN $4 AND $5",
//				e.N, e.Version, e.Item, from, to)
//			return tag.RowsAffected() == 1, err
//		},
//		func() (have int64, err error) { return have, tx.QueryRow(ctx, "SELECT version FROM stock WHERE item = $1", e.Item).Scan(&have) })
type Versions struct {
	OnGap OnGap
	Every time.Duration // how soon an event that waits is tried again; default: as Consumer.Retry says
}

// Apply applies the event of version got. write changes the projection if the version that it has is between from and
// to, and reports whether it was: in one statement, so that nobody comes between. have reads the version, 0 for
// nothing.
func (v Versions) Apply(got int64, write func(from, to int64) (bool, error), have func() (int64, error)) error {
	from := got - 1
	if v.OnGap == Apply {
		from = 0
	}
	written, err := write(from, got-1)
	if err != nil || written {
		return err
	}
	is, err := have()
	if err != nil {
		return err
	}
	switch order := Compare(is, got); {
	case order == Same || order == Stale:
		return nil
	case order == Next || v.OnGap == Apply:
		return fmt.Errorf("inbox: version %d was not written over version %d: the projection has moved on, or it has no row to write to", got, is)
	case v.OnGap == Halt:
		return once.Permanent(fmt.Errorf("inbox: version %d has come, and the one after %d is missing", got, is))
	}
	return once.RetryAfter(v.Every, fmt.Errorf("inbox: version %d has come before the one after %d", got, is))
}
