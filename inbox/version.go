package inbox

import (
	"fmt"
	"time"

	"github.com/effectively-once/once"
)

// Order is the position of an event's version relative to the projection's.
type Order int

const (
	Next  Order = iota // the next version
	Same               // the same version: a duplicate
	Stale              // an older one
	Gap                // a later one: versions in between are missing
)

// Compare compares the version of an event, got, with the version of a
// projection, have. A have of 0 means that there is none yet.
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

// OnGap says what happens to an event whose predecessors have not arrived.
type OnGap int

const (
	Wait  OnGap = iota // retry it, and park it after Retry.Attempts
	Halt               // park it at once
	Apply              // apply it: events hold the whole state, and the latest wins
)

// Versions applies versioned events to a projection so that it never goes back.
// The next version is written, and the same and older ones are skipped. OnGap
// says what happens to an event that arrives too early.
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
	Every time.Duration // retry interval of an early event; default: that of Consumer.Retry
}

// Apply applies the event with version got. write must change the projection if
// its version is between from and to, in one statement, and report whether it
// did. have returns the version of the projection, or 0 if there is none.
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
		return once.Permanent(fmt.Errorf("inbox: version %d arrived, but the version after %d is missing", got, is))
	}
	return once.RetryAfter(v.Every, fmt.Errorf("inbox: version %d has come before the one after %d", got, is))
}
