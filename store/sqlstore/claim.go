package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Claim takes a free key, or returns the record that has it. The package
// documentation says how long it waits for another transaction on the key.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return once.Record{}, err
	}
	if s.dialect == sqlschema.MySQL {
		return s.claimInOwnTx(ctx, r)
	}
	end, err := s.queue.wait(ctx)
	if err != nil {
		return once.Record{}, err
	}
	defer end()
	c, err := s.claim(ctx, s.pool, s.sql.Insert, s.sql.Get, r)
	return c.Record, err
}

// ClaimTx is Claim for each request, inside a transaction that the caller began
// and ends.
func (s *Store) ClaimTx(ctx context.Context, tx *sql.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if err := s.readyTx(ctx, tx); err != nil {
		return nil, err
	}
	made, err := s.claimTx(ctx, tx, rs)
	if err != nil {
		return nil, err
	}
	return recordsOf(made), nil
}

func (s *Store) claimTx(ctx context.Context, tx *sql.Tx, rs []once.ClaimRequest) ([]claimed, error) {
	made := make([]claimed, 0, len(rs))
	for _, r := range rs {
		c, err := s.claim(ctx, tx, s.sql.Insert, s.sql.GetLocked, r)
		if err != nil {
			return nil, err
		}
		made = append(made, c)
	}
	return made, nil
}

// claimInOwnTx is Claim for MySQL, in a transaction of its own. A single
// statement would remain in the queue of the server when its caller has given
// up, and claim the key for nobody when the other transaction rolls back.
func (s *Store) claimInOwnTx(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	rs := []once.ClaimRequest{r}
	locked, err := s.claimWithin(ctx, rs, func(bound time.Duration) error {
		begun := time.Now()
		tx, err := s.pool.BeginTx(ctx, nil)
		if err != nil {
			return s.explain(err)
		}
		defer tx.Rollback()
		made, err := s.claimBounded(ctx, tx, time.Since(begun), bound, rs)
		if err != nil {
			return err
		}
		if rec = made[0].Record; holds(r, rec) {
			err = tx.Commit()
		}
		return s.explain(err)
	})
	if locked {
		rec = running(r.Key).Record
	}
	if err != nil {
		return once.Record{}, err
	}
	return rec, nil
}

// claimBounded is claimTx for a transaction of the store's own, which is lost
// when a claim reaches its bound. Trip is how long BEGIN took, so about a round
// trip: the bound leaves room for those.
func (s *Store) claimBounded(ctx context.Context, tx *sql.Tx, trip, bound time.Duration,
	rs []once.ClaimRequest) ([]claimed, error) {

	if s.dialect != sqlschema.MySQL {
		return s.claimTx(ctx, tx, rs)
	}
	made := make([]claimed, 0, len(rs))
	for _, r := range rs {
		limited, cancel := context.WithTimeout(ctx, waitOf(r, trip, bound))
		c, err := s.claim(limited, tx, s.sql.InsertOwn, s.sql.GetLocked, r)
		waited := limited.Err() != nil || s.dialect.Failure(err) == sqlschema.LockTimeout
		cancel()
		switch {
		case err == nil:
			made = append(made, c)
		case !waited || ctx.Err() != nil:
			return nil, err
		case len(rs) == 1:
			return nil, errBound
		default:
			return nil, fmt.Errorf("%w: the claims before this one are lost with the transaction: %w", once.ErrConflict, err)
		}
	}
	return made, nil
}

// claimed is the result of a claim.
type claimed struct {
	once.Record
	fresh bool // this claim took the key, not an earlier one with the same token
}

func recordsOf(made []claimed) []once.Record {
	recs := make([]once.Record, len(made))
	for i, c := range made {
		recs[i] = c.Record
	}
	return recs
}

// bytesOf returns NULL for a nil slice, which some drivers send as an empty one.
func bytesOf(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// running is the result of a claim on a key that an open transaction has
// claimed.
func running(k once.Key) claimed {
	return claimed{Record: once.Record{Key: k, Status: once.Running}}
}

// holds reports whether a claim was granted. A claim whose lease lapsed while
// the statement waited is granted too: nobody else has the key.
func holds(r once.ClaimRequest, rec once.Record) bool {
	return rec.HeldBy(r.Owner)
}

func fenceOf(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}

// claimTries bounds how often a claim is repeated because another claim on the
// key came between its statements.
const claimTries = 4

// claim repeats its statements until it has the key, or knows the record that
// has it. After claimTries, a key that keeps changing hands counts as running.
func (s *Store) claim(ctx context.Context, db sqltx.DB, insert, get sqlschema.Statement,
	r once.ClaimRequest) (claimed, error) {

	p := s.claimParams(r)
	for range claimTries {
		found, took, err := s.tryClaim(ctx, db, insert, get, p, r)
		if err != nil {
			return claimed{}, err
		}
		if found == nil {
			continue
		}
		if found.Attempt == 0 { // others have the key, or had it
			break
		}
		return claimed{found.Seen(), took && found.LastOwner == r.Owner}, nil
	}
	return running(r.Key), nil
}

func (s *Store) claimParams(r once.ClaimRequest) sqlschema.Params {
	p := sqlschema.Params{
		"key": s.names.UUID(r.Key.UUID()), "scope": r.Key.Scope, "operation": r.Key.Operation, "id": r.Key.ID,
		"owner": s.names.UUID(r.Owner), "attempt": r.Attempt, "lease": r.Lease.Microseconds(),
		"fingerprint": bytesOf(r.Fingerprint), "lock": s.names.Lock(r.Key.UUID()), "grain": int64(1),
	}
	if r.Cause != ([16]byte{}) {
		p["caused"] = s.names.UUID(r.Cause)
	}
	if r.Expected != nil {
		first := min(r.Expected.KeepOutcome, r.Expected.KeepKey)
		p["keep"], p["grain"] = first.Microseconds(), sqlschema.Grain(first)
	}
	return p
}

// tryClaim returns the row of the key and whether this claim took it. A nil row
// asks for another try.
func (s *Store) tryClaim(ctx context.Context, db sqltx.DB, insert, get sqlschema.Statement, p sqlschema.Params,
	r once.ClaimRequest) (found *records.Row, took bool, err error) {

	if s.sql.ClaimsAtOnce() {
		return s.claimAtOnce(ctx, db, p, r)
	}
	return s.claimInSteps(ctx, db, insert, get, p, r)
}

// claimAtOnce claims in one statement, which returns the row. In PostgreSQL, a
// cheaper one is sent before it, if the key is probably new.
func (s *Store) claimAtOnce(ctx context.Context, db sqltx.DB, p sqlschema.Params,
	r once.ClaimRequest) (found *records.Row, took bool, err error) {

	mayBeNew := s.dialect == sqlschema.PostgreSQL && r.Attempt == 0
	if mayBeNew && !s.losses.High() {
		found, err := s.insertNew(ctx, db, p, r)
		if err != nil {
			return nil, false, err
		}
		if found != nil {
			s.losses.Count(false)
			return found, true, nil
		}
	}
	rows, err := s.rows(ctx, db, s.sql.Insert, p)
	if err != nil || len(rows) == 0 {
		return nil, false, err
	}
	// PostgreSQL reads its clock once for the whole statement, so a new claim
	// has its whole lease left. An earlier claim with the same token has less.
	took = s.dialect != sqlschema.PostgreSQL || rows[0].LeaseLeft == r.Lease.Truncate(time.Microsecond)
	if mayBeNew {
		s.losses.Count(!took)
	}
	return &rows[0], took, nil
}

// insertNew claims a key that is new. The row is nil if it is not.
func (s *Store) insertNew(ctx context.Context, db sqltx.DB, p sqlschema.Params, r once.ClaimRequest) (*records.Row, error) {
	rows, err := db.QueryContext(ctx, s.sql.InsertNew.Text, s.sql.InsertNew.Args(p)...)
	if err != nil {
		return nil, s.explain(err)
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, s.explain(rows.Err())
	}
	var created int64
	if err := rows.Scan(&created); err != nil {
		return nil, s.explain(err)
	}
	if rows.Next(); rows.Err() != nil { // the statement failed after its row
		return nil, s.explain(rows.Err())
	}
	return &records.Row{Record: sqlschema.NewRecord(r, created), LastOwner: r.Owner}, nil
}

// claimInSteps inserts the row of a key. If the key is not new, it reads the row,
// and takes it over if the key is free.
//
// In SQLite, others may come between the steps. They may end what this claim has
// taken, and the key may be over when the row is read. The claim does not take it
// again: it has had its effect.
func (s *Store) claimInSteps(ctx context.Context, db sqltx.DB, insert, get sqlschema.Statement, p sqlschema.Params,
	r once.ClaimRequest) (found *records.Row, took bool, err error) {

	found, took, err = s.insert(ctx, db, insert, p, r)
	if err != nil || found != nil {
		return found, took, err
	}
	is, err := s.get(ctx, db, get, r.Key)
	if err != nil {
		return nil, false, err
	}
	if !took {
		takeover := is.Status == once.Unknown && is.Attempt == r.Attempt && is.LastOwner != r.Owner
		late := is.Attempt > 0 && is.LastOwner == r.Owner // and released: nobody waits for this claim any more
		if is.Status != once.Absent && !takeover || late {
			return &is, false, nil
		}
		if taken, err := s.exec(ctx, db, s.sql.Take, p); err != nil || taken == 0 {
			return nil, false, err
		}
		if is, err = s.get(ctx, db, get, r.Key); err != nil {
			return nil, false, err
		}
	}
	if is.Status == once.Absent && is.LastOwner != r.Owner {
		return &records.Row{}, false, nil
	}
	return &is, true, nil
}

// leastTime is in 2001. A smaller insert ID is not the time of a claim: it is 0
// if the statement sets none, and that of an AUTO_INCREMENT column if somebody
// has added one to the table.
const leastTime = 1e15

// insert inserts the row of a key that is new. Found is that row. It is nil if
// the key is not new, or if the row has to be read.
func (s *Store) insert(ctx context.Context, db sqltx.DB, insert sqlschema.Statement, p sqlschema.Params,
	r once.ClaimRequest) (found *records.Row, inserted bool, err error) {

	sent := time.Now()
	result, err := s.prepared.on(db).ExecContext(ctx, insert.Text, insert.Args(p)...)
	if s.dialect.Failure(err) == sqlschema.Duplicate {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, s.explain(err)
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 || s.dialect != sqlschema.MySQL {
		return nil, n > 0, err
	}
	left := (r.Lease - time.Since(sent)).Truncate(time.Microsecond) // it may have begun before a wait for a lock
	created, err := result.LastInsertId()
	if err != nil || created < leastTime || left <= 0 {
		return nil, true, err
	}
	found = &records.Row{Record: sqlschema.NewRecord(r, created), LastOwner: r.Owner}
	found.LeaseLeft = left
	return found, true, nil
}
