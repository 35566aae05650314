package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store/sqlschema"
)

// In MySQL, a claim waits for the transaction that has its row. This file
// bounds that wait.

const (
	shortestWait = 250 * time.Millisecond
	longestWait  = 4 * time.Second
	maxTrips     = 10 // round trips of a claim without a wait, with those of the driver
	longestTrip  = time.Second
)

// errBound is returned for a claim that was given up at its bound, together
// with its transaction. It has waited for another transaction, or the database
// is slow.
var errBound = errors.New("the claim has reached the bound of its wait")

// claimWithin calls try, which claims, with a bound for the wait. It repeats a
// claim that was given up at its bound although no transaction has its row:
// then the database, or this machine, is slow. The bound grows with each try.
// Locked reports that another transaction has the row.
func (d *database) claimWithin(ctx context.Context, rs []once.ClaimRequest,
	try func(bound time.Duration) error) (locked bool, err error) {

	for bound := shortestWait; ; bound *= 4 {
		if err := try(bound); !errors.Is(err, errBound) {
			return false, err
		}
		locked, err := d.locked(ctx, rs[0].Key)
		if err != nil || locked {
			return locked, err
		}
		if bound >= longestWait {
			return false, fmt.Errorf("%w: the database is slow: a claim took longer than %v, although no transaction "+
				"has its row", once.ErrConflict, bound)
		}
	}
}

// locked reports whether another transaction has the row of a key. It looks
// three times: the transaction of a claim that was given up may still have the
// row for a moment.
func (d *database) locked(ctx context.Context, k once.Key) (locked bool, err error) {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 40 * time.Millisecond}
	for range 3 {
		_, err = d.get(ctx, d.pool, d.sql.GetNoWait, k)
		if d.dialect.Failure(err) != sqlschema.LockTimeout {
			return false, err
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return false, err
		}
	}
	return true, nil
}

// waitOf bounds a claim: by its Wait or bound, whichever is longer, with room
// for its round trips. Trip is how long one takes.
func waitOf(r once.ClaimRequest, trip, bound time.Duration) time.Duration {
	return max(r.Wait, bound) + maxTrips*min(trip, longestTrip)
}
