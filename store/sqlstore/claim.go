package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// Claim takes a free key, or returns what stands in the way. How it meets a transaction in flight on the key
// is in the package documentation.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return once.Record{}, err
	}
	if s.dialect == sqlschema.MySQL {
		return s.claimAlone(ctx, r)
	}
	end, err := s.write(ctx)
	if err != nil {
		return once.Record{}, err
	}
	defer end()
	c, err := s.claim(ctx, s.db, s.sql.Get, r)
	return c.Record, err
}

// claimed is a record, and whether the claim was made just now: not by an earlier one with the same token.
type claimed struct {
	once.Record
	fresh bool
}

func records(claims []claimed) []once.Record {
	recs := make([]once.Record, len(claims))
	for i, c := range claims {
		recs[i] = c.Record
	}
	return recs
}

// claimAlone claims in a transaction of its own. A single statement that waits for a rival would stay queued in the server
// after its caller has given up, and claim the key for nobody when the rival rolls back.
func (s *Store) claimAlone(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	claims, err := s.patiently(ctx, []once.ClaimRequest{r}, func(bound time.Duration) ([]claimed, error) {
		begun := time.Now()
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, s.fail(err)
		}
		defer tx.Rollback()
		claims, err := s.claimBounded(ctx, tx, time.Since(begun), bound, []once.ClaimRequest{r})
		if err == nil && holds(r, claims[0].Record) {
			err = tx.Commit()
		}
		return claims, s.fail(err)
	})
	if len(claims) == 1 {
		rec = claims[0].Record
	}
	return rec, err
}

// ClaimTx is Claim for each Request, inside a transaction that the caller began and ends.
func (s *Store) ClaimTx(ctx context.Context, tx *sql.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	claims, err := s.claimTx(ctx, tx, rs)
	if err != nil {
		return nil, err
	}
	return records(claims), nil
}

func (s *Store) claimTx(ctx context.Context, tx *sql.Tx, rs []once.ClaimRequest) ([]claimed, error) {
	claims := make([]claimed, 0, len(rs))
	for _, r := range rs {
		c, err := s.claim(ctx, tx, s.sql.GetLocked, r)
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// causeOf is the cause of a claim, or NULL.
func (s *Store) causeOf(r once.ClaimRequest) any {
	if r.Cause == ([16]byte{}) {
		return nil
	}
	return s.names.UUID(r.Cause)
}

const claimTries = 4

// claim tries until it has the key, or knows what has it. A rival that keeps moving is one that is running.
func (s *Store) claim(ctx context.Context, q sqltx.Querier, get sqlschema.Statement, r once.ClaimRequest) (claimed, error) {
	p := sqlschema.Params{
		"key": s.names.UUID(r.Key.UUID()), "scope": r.Key.Scope, "operation": r.Key.Operation, "id": r.Key.ID,
		"owner": s.names.UUID(r.Owner), "attempt": r.Attempt, "lease": r.Lease.Microseconds(),
		"fingerprint": bytesOf(r.Fingerprint), "caused": s.causeOf(r), "lock": s.names.Lock(r.Key.UUID()), "grain": int64(1),
	}
	if r.Expected != nil {
		first := min(r.Expected.KeepOutcome, r.Expected.KeepKey)
		p["keep"], p["grain"] = first.Microseconds(), sqlschema.Grain(first)
	}
	try := s.claimInSteps
	if s.dialect.ClaimsAtOnce() {
		try = s.claimAtOnce
	}
	fresh := false
	for range claimTries {
		found, took, err := try(ctx, q, get, p, r)
		if err != nil {
			return claimed{}, err
		}
		fresh = fresh || took
		if found != nil && found.Attempt > 0 {
			return claimed{found.record(), fresh && found.owner == r.Owner}, nil
		}
		if found != nil {
			break
		}
	}
	return claimed{Record: once.Record{Key: r.Key, Status: once.Running}}, nil
}

// claimAtOnce is for dialects that say that they can.
func (s *Store) claimAtOnce(ctx context.Context, q sqltx.Querier, _ sqlschema.Statement, p sqlschema.Params, r once.ClaimRequest) (found *row, took bool, err error) {
	rows, err := s.rows(ctx, q, s.sql.Insert, p)
	if err != nil || len(rows) == 0 {
		return nil, false, err
	}
	// PostgreSQL reads its clock once for the whole statement: of an earlier claim, some of the lease is over.
	took = s.dialect != sqlschema.PostgreSQL || rows[0].LeaseLeft == micros(r.Lease.Microseconds())
	return &rows[0], took, nil
}

// claimInSteps inserts, looks what is there, and takes that over where it is free. It returns nil if another try
// has to tell whether that succeeded.
func (s *Store) claimInSteps(ctx context.Context, q sqltx.Querier, get sqlschema.Statement, p sqlschema.Params, r once.ClaimRequest) (found *row, took bool, err error) {
	inserted, err := s.exec(ctx, q, s.sql.Insert, p)
	if err != nil && s.dialect.Failure(err) != sqlschema.Duplicate {
		return nil, false, err
	}
	is, err := s.get(ctx, q, get, r.Key)
	if err != nil {
		return nil, false, err
	}
	takeover := is.Status == once.Unknown && is.Attempt == r.Attempt && is.owner != r.Owner
	late := is.Attempt > 0 && is.owner == r.Owner // and released: nobody waits for this claim any more
	if is.Status != once.Absent && !takeover || late {
		return &is, inserted == 1, nil
	}
	taken, err := s.exec(ctx, q, s.sql.Take, p)
	return nil, taken == 1, err
}

const (
	shortestWait = 250 * time.Millisecond
	longestWait  = 4 * time.Second
	maxTrips     = 10 // of a claim that nothing stands in the way of, with what the driver adds
	longestTrip  = time.Second
)

// errBound is that of a claim that was given up at its bound, with its transaction. It may have waited, or be slow.
var errBound = errors.New("the claim has reached the bound of its waiting")

// patiently repeats a claim that was given up although nothing stands in its way: then the database, or this machine, was
// slow. The bound of its waiting grows.
func (s *Store) patiently(ctx context.Context, rs []once.ClaimRequest, claim func(bound time.Duration) ([]claimed, error)) ([]claimed, error) {
	for bound := shortestWait; ; bound *= 4 {
		claims, err := claim(bound)
		if !errors.Is(err, errBound) {
			return claims, err
		}
		switch locked, err := s.locked(ctx, rs[0].Key); {
		case err != nil:
			return nil, err
		case locked:
			return []claimed{{Record: once.Record{Key: rs[0].Key, Status: once.Running}}}, nil
		case bound >= longestWait:
			return nil, fmt.Errorf("%w: the database is slow: a claim took longer than %v, although nothing stands in its way", once.ErrConflict, bound)
		}
	}
}

// locked reports whether another transaction holds the row of a key. It looks more than once: what was given up at its
// bound may hold it for a moment longer.
func (s *Store) locked(ctx context.Context, k once.Key) (locked bool, err error) {
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 40 * time.Millisecond}
	for range 3 {
		_, err = s.get(ctx, s.db, s.sql.GetNoWait, k)
		if s.dialect.Failure(err) != sqlschema.LockTimeout {
			return false, err
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return false, err
		}
	}
	return true, nil
}

// claimBounded is claimTx for a transaction of our own, which is lost when the bound of its waiting is reached. A trip to
// the database takes about as long as BEGIN took: time on the way is not time that a claim has waited.
func (s *Store) claimBounded(ctx context.Context, tx *sql.Tx, trip, bound time.Duration, rs []once.ClaimRequest) ([]claimed, error) {
	if s.dialect != sqlschema.MySQL {
		return s.claimTx(ctx, tx, rs)
	}
	claims := make([]claimed, 0, len(rs))
	for _, r := range rs {
		limited, cancel := context.WithTimeout(ctx, max(r.Wait, bound)+maxTrips*min(trip, longestTrip))
		c, err := s.claim(limited, tx, s.sql.GetLocked, r)
		waited := limited.Err() != nil || s.dialect.Failure(err) == sqlschema.LockTimeout
		cancel()
		switch {
		case err != nil && waited && ctx.Err() == nil && len(rs) == 1:
			return nil, errBound
		case err != nil && waited && ctx.Err() == nil:
			return nil, fmt.Errorf("%w: the claims before this one are gone with the transaction: %w", once.ErrConflict, err)
		case err != nil:
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}
