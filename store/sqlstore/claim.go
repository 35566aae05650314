package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Claim takes a free key, or returns what stands in the way. How it meets a transaction in flight on the key
// is in the package documentation.
func (s *Store) Claim(ctx context.Context, r once.Request) (once.Record, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return once.Record{}, err
	}
	if s.dialect == sqlschema.MySQL {
		return s.claimAlone(ctx, r)
	}
	return s.claim(ctx, s.db, s.sql.Get, r)
}

// claimAlone claims in a transaction of its own. A single statement that waits for a rival would stay queued in the server
// after its caller has given up, and claim the key for nobody when the rival rolls back.
func (s *Store) claimAlone(ctx context.Context, r once.Request) (once.Record, error) {
	begun := time.Now()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return once.Record{}, s.fail(err)
	}
	defer tx.Rollback()
	recs, err := s.claimBounded(ctx, tx, time.Since(begun), []once.Request{r})
	if err != nil {
		return once.Record{}, s.fail(err)
	}
	if !holdsAny([]once.Request{r}, recs) {
		return recs[0], nil
	}
	return recs[0], s.fail(tx.Commit())
}

// ClaimTx is Claim for each Request, inside a transaction that the caller began and ends.
func (s *Store) ClaimTx(ctx context.Context, tx *sql.Tx, rs []once.Request) ([]once.Record, error) {
	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	recs := make([]once.Record, 0, len(rs))
	for _, r := range rs {
		rec, err := s.claim(ctx, tx, s.sql.GetLocked, r)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

const claimTries = 4

// claim tries until it has the key, or knows what has it. A rival that keeps moving is one that is running.
func (s *Store) claim(ctx context.Context, q sqltx.Querier, get sqlschema.Statement, r once.Request) (once.Record, error) {
	p := sqlschema.Params{
		"key": s.names.UUID(r.Key.UUID()), "scope": r.Key.Scope, "operation": r.Key.Operation, "id": r.Key.ID,
		"owner": s.names.UUID(r.Owner), "attempt": r.Attempt, "lease": r.Lease.Microseconds(),
		"fingerprint": bytesOf(r.Fingerprint), "lock": s.names.Lock(r.Key.UUID()), "grain": int64(1),
	}
	if r.Likely != nil {
		first := min(r.Likely.KeepOutcome, r.Likely.KeepKey)
		p["keep"], p["grain"] = first.Microseconds(), sqlschema.Grain(first)
	}
	try := s.claimInSteps
	if s.dialect.ClaimsAtOnce() {
		try = s.claimAtOnce
	}
	for range claimTries {
		found, err := try(ctx, q, get, p, r)
		if err != nil {
			return once.Record{}, err
		}
		if found != nil && found.Attempt > 0 {
			return found.record(), nil
		}
		if found != nil {
			break
		}
	}
	return once.Record{Key: r.Key, Status: once.Running}, nil
}

// claimAtOnce is for dialects that say that they can.
func (s *Store) claimAtOnce(ctx context.Context, q sqltx.Querier, _ sqlschema.Statement, p sqlschema.Params, _ once.Request) (*row, error) {
	rows, err := s.rows(ctx, q, s.sql.Insert, p)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// claimInSteps inserts, looks what is there, and takes that over where it is free. It returns nil if another try
// has to tell whether that succeeded.
func (s *Store) claimInSteps(ctx context.Context, q sqltx.Querier, get sqlschema.Statement, p sqlschema.Params, r once.Request) (*row, error) {
	if _, err := s.exec(ctx, q, s.sql.Insert, p); err != nil && s.dialect.Failure(err) != sqlschema.Duplicate {
		return nil, err
	}
	found, err := s.get(ctx, q, get, r.Key)
	if err != nil {
		return nil, err
	}
	takeover := found.Status == once.Unknown && found.Attempt == r.Attempt && found.owner != r.Owner
	late := found.Attempt > 0 && found.owner == r.Owner // and released: nobody waits for this claim any more
	if found.Status != once.Absent && !takeover || late {
		return &found, nil
	}
	_, err = s.exec(ctx, q, s.sql.Take, p)
	return nil, err
}

const (
	shortestWait = 250 * time.Millisecond
	mostTrips    = 10 // of a claim that nothing stands in the way of, with what the driver adds
	longestTrip  = time.Second
)

// claimBounded is ClaimTx for a transaction of our own, which is lost when the bound of its waiting is reached. A trip to
// the database takes about as long as BEGIN took: time on the way is not time that a claim has waited.
func (s *Store) claimBounded(ctx context.Context, tx *sql.Tx, trip time.Duration, rs []once.Request) ([]once.Record, error) {
	if s.dialect != sqlschema.MySQL {
		return s.ClaimTx(ctx, tx, rs)
	}
	recs := make([]once.Record, 0, len(rs))
	for _, r := range rs {
		limited, cancel := context.WithTimeout(ctx, max(r.Wait, shortestWait)+mostTrips*min(trip, longestTrip))
		rec, err := s.claim(limited, tx, s.sql.GetLocked, r)
		waited := limited.Err() != nil || s.dialect.Failure(err) == sqlschema.LockTimeout
		cancel()
		switch {
		case err != nil && waited && ctx.Err() == nil && len(rs) == 1:
			rec = once.Record{Key: r.Key, Status: once.Running}
		case err != nil && waited && ctx.Err() == nil:
			return nil, fmt.Errorf("%w: the claims before this one are gone with the transaction: %w", once.ErrConflict, err)
		case err != nil:
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}
