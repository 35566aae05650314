package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/pgxresult"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// foreseen is the claim of one new key in a transaction whose end is foreseen.
// Its record is written once, as it will be after the commit. If the work can have
// only one outcome, it is written with the claim, and nothing follows if the
// attempt ends that way. Otherwise the claim takes the lock of the key and looks
// for a record, and the record is written with COMMIT.
type foreseen struct {
	store   *Store
	r       once.ClaimRequest
	began   time.Time
	known   bool  // the outcome
	created int64 // the time of the claim, if the outcome is not known
	ran     bool  // the record is that of a running claim
}

func (s *Store) newForeseen(r once.ClaimRequest) foreseen {
	return foreseen{store: s, r: r, began: time.Now(), known: !equal(r.Expected.Outcome, once.Outcome{})}
}

// isForeseen reports whether the end of a claim is foreseen, if its key is new.
func (s *Store) isForeseen(rs []once.ClaimRequest) bool {
	return s.records.reserves() && len(rs) == 1 && rs[0].Attempt == 0 && rs[0].Expected != nil && rs[0].Expected.Status == once.Done
}

// begin begins a transaction and claims, in one round trip. If the key is not
// new, it only begins, and the record is zero. Look may be nil.
func (f *foreseen) begin(ctx context.Context, conn *pgx.Conn, look *lookAhead) (rec once.Record, err error) {
	if f.known {
		return f.insert(ctx, conn, look)
	}
	return f.lock(ctx, conn, look)
}

// insert claims by inserting the record.
func (f *foreseen) insert(ctx context.Context, conn *pgx.Conn, look *lookAhead) (rec once.Record, err error) {
	b := new(pgx.Batch)
	b.Queue(f.store.begin)
	b.Queue(f.store.sql.insertEnd, f.record(f.r.Expected.Outcome)...).QueryRow(func(row pgx.Row) error {
		var created int64
		switch err := row.Scan(&created); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		rec = sqlschema.NewRecord(f.r, created)
		return nil
	})
	look.queue(b)
	return rec, explain(conn.SendBatch(ctx, b).Close())
}

// lock claims by the lock of the key.
func (f *foreseen) lock(ctx context.Context, conn *pgx.Conn, look *lookAhead) (rec once.Record, err error) {
	key := f.r.Key.UUID()
	var locked, isNew bool
	b := new(pgx.Batch)
	b.Queue(f.store.begin)
	b.Queue(f.store.sql.lockOne, uuid(key), f.store.records.lock(key)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&locked, &f.created)
	})
	b.Queue(f.store.sql.isNew, uuid(key)).QueryRow(func(row pgx.Row) error { return row.Scan(&isNew) })
	look.queue(b)
	switch err := conn.SendBatch(ctx, b).Close(); {
	case err != nil || !isNew:
		return rec, explain(err)
	case !locked:
		return once.Record{Key: f.r.Key, Status: once.Running}, nil
	}
	return sqlschema.NewRecord(f.r, f.created), nil
}

// settle queues what is still to be written when the attempt ends with these
// settlements.
func (f *foreseen) settle(b *pgx.Batch, sets []once.Settlement) error {
	if !f.ran && f.agrees(sets) {
		switch out := sets[0].Outcome; {
		case !f.known:
			b.Queue(f.store.sql.insertLast, f.recordOf(out, f.created)...)
		case f.isSlow() || !equal(out, f.r.Expected.Outcome):
			b.Queue(f.store.sql.mustAmend, f.amendment(out)...)
		}
		return nil
	}
	if !f.ran {
		if err := f.queueRunning(b); err != nil {
			return err
		}
	}
	return f.store.queueSettlements(b, sets)
}

// queueRunning queues the statement that leaves the record of a running claim.
func (f *foreseen) queueRunning(b *pgx.Batch) error {
	if f.known {
		b.Queue(f.store.sql.mustRun, uuid(f.r.Key.UUID()), uuid(f.r.Owner), f.r.Lease.Microseconds())
		return nil
	}
	w := newRecordsOf(1)
	w.add(f.r.Key.UUID(), f.r, time.UnixMicro(f.created), nil)
	return w.queue(b, f.store.sql.write)
}

// run leaves the record of a running claim, whatever end is foreseen. From then
// on the settlement must change it.
func (f *foreseen) run(ctx context.Context, conn *pgx.Conn) error {
	b := new(pgx.Batch)
	if err := f.queueRunning(b); err != nil {
		return err
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return settleFailed(err)
	}
	f.ran = true
	return nil
}

// agrees reports whether the attempt has ended as its request says, whatever its
// outcome.
func (f *foreseen) agrees(sets []once.Settlement) bool {
	return len(sets) == 1 && sets[0].Status == once.Done &&
		sets[0].Fence == (once.Fence{Key: f.r.Key, Owner: f.r.Owner, Attempt: 1}) &&
		sets[0].KeepOutcome == f.r.Expected.KeepOutcome && sets[0].KeepKey == f.r.Expected.KeepKey && sets[0].Reason == f.r.Expected.Reason
}

// check returns an error if the attempt has not ended as its request says.
func (f *foreseen) check(sets []once.Settlement) error {
	if f.agrees(sets) {
		return nil
	}
	return fmt.Errorf("%w: the body of a Speculative request did not settle as Expected says", once.ErrInvalid)
}

// isSlow reports whether the work has taken so long that the times of its
// record have to be written again.
func (f *foreseen) isSlow() bool {
	return time.Since(f.began) > min(f.r.Expected.KeepOutcome, f.r.Expected.KeepKey)/sqlschema.Grains
}

// record returns the arguments of openSQL and insertEndSQL.
func (f *foreseen) record(out once.Outcome) []any {
	return f.recordOf(out, f.store.records.lock(f.r.Key.UUID()))
}

// recordOf returns the arguments of insertLastSQL, and of statements that have
// the lock of the key in place of the time of the claim.
func (f *foreseen) recordOf(out once.Outcome, seventh int64) []any {
	r := f.r
	keep, keepKey := r.Expected.KeepOutcome, r.Expected.KeepKey
	return []any{uuid(r.Key.UUID()), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Fingerprint, seventh,
		out.Body, out.ContentType, flagsOf(out), int64(out.Sum), keep.Microseconds(), keepKey.Microseconds(),
		min(keep, keepKey).Microseconds(), sqlschema.Grain(min(keep, keepKey)), sqlschema.ValidText(r.Expected.Reason), causeOf(r)}
}

// amendment returns the arguments of mustAmendSQL.
func (f *foreseen) amendment(out once.Outcome) []any {
	return []any{uuid(f.r.Key.UUID()), uuid(f.r.Owner), out.Body, out.ContentType, flagsOf(out), int64(out.Sum),
		f.r.Expected.KeepOutcome.Microseconds(), f.r.Expected.KeepKey.Microseconds()}
}

// runForeseen leaves the record of a running claim if that of another end was
// foreseen. It is called before anything that may undo or end a part of the
// transaction.
func (h *handle) runForeseen(ctx context.Context) error {
	if h.foreseen == nil || h.foreseen.ran {
		return nil
	}
	if h.isBusy() || h.conn.PgConn().TxStatus() != 'T' {
		return fmt.Errorf("%w: this cannot be done while rows, a batch or a copy are open, or after a statement has failed: "+
			"close or finish them first, or use a nested transaction", once.ErrInTx)
	}
	return h.foreseen.run(ctx, h.conn)
}

// runBeforeConn is runForeseen before the connection is handed out. What the work
// then commits by itself must not leave its key free, or done. If there cannot be
// a record, it closes the connection.
func (h *handle) runBeforeConn() {
	if h.isClosed() || h.conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), endTime)
	defer cancel()
	if err := h.runForeseen(ctx); err != nil {
		h.refused = fmt.Errorf("Conn, LargeObjects: %w", err)
		_ = h.conn.Close(ctx)
	}
}

// runBeforeOwn is runForeseen before the work uses its own key by itself.
func (h *handle) runBeforeOwn(ctx context.Context, k once.Key) error {
	if h == nil || h.foreseen == nil || h.foreseen.r.Key != k {
		return nil
	}
	return h.runForeseen(ctx)
}

// guardedRows are rows whose connection counts as handed out.
type guardedRows struct {
	pgx.Rows
	of *handle
}

func (r guardedRows) Conn() *pgx.Conn {
	r.of.expose()
	return r.Rows.Conn()
}

// guardRows guards the connection of rows, if it matters.
func (h *handle) guardRows(rows pgx.Rows, err error) (pgx.Rows, error) {
	if h.foreseen == nil || h.foreseen.ran || rows == nil {
		return rows, err
	}
	return guardedRows{rows, h}, err
}

// guardedResults are results whose rows are guarded.
type guardedResults struct {
	pgx.BatchResults
	of *handle
}

func (r guardedResults) Query() (pgx.Rows, error) { return r.of.guardRows(r.BatchResults.Query()) }

// sendGuarded sends a batch. Functions that the work has added to its statements
// get rows that cannot be guarded.
func (h *handle) sendGuarded(ctx context.Context, tx pgx.Tx, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if q.Fn != nil {
			if err := h.runForeseen(ctx); err != nil {
				return pgxresult.FailedBatch{Error: err}
			}
			break
		}
	}
	results := tx.SendBatch(ctx, b)
	if h.foreseen == nil || h.foreseen.ran {
		return results
	}
	return guardedResults{results, h}
}
