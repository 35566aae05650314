package pgstore

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/deferredtx"
	"github.com/jackc/pgx/v5"
)

// recordTable says what differs between the ways to store records: [oneTable],
// or [partitions] that Forget drops. Everything else is the same in both.
type recordTable interface {
	// statements returns the SQL on records.
	statements() statements

	// lock returns the number of the advisory lock of a key.
	lock(key [16]byte) int64

	// lockBeforeClaim returns the statement that takes the lock of a key before
	// a speculative claim. It is nil if the claim itself takes the lock.
	lockBeforeClaim(key [16]byte) *deferredtx.Statement

	// reserves reports whether several claims of a transaction may reserve new
	// keys: see txClaims.
	reserves() bool

	// claimNew claims a key that was never seen. If it was, won is false and
	// nothing has changed.
	claimNew(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error)

	// queueClaim queues a claim of any key, whose record is read into rec. The
	// record stays zero if the claim has to be sent again.
	queueClaim(b *pgx.Batch, r once.ClaimRequest, rec *once.Record)

	// migrated is called after the tables were created or changed.
	migrated(ctx context.Context) error

	// forget forgets up to limit records.
	forget(ctx context.Context, limit int) (int, error)

	// checkArchivable returns an error if records cannot be archived before
	// they are forgotten.
	checkArchivable() error
}

// oneTable stores the records in one table.
type oneTable struct{ *Store }

func (t oneTable) statements() statements { return newStatements(t.names, oneTableMarks()) }

func (t oneTable) lock(key [16]byte) int64 { return t.names.Lock(key) }

func (t oneTable) lockBeforeClaim([16]byte) *deferredtx.Statement { return nil }

func (t oneTable) reserves() bool { return true }

func (t oneTable) migrated(context.Context) error { return nil }

func (t oneTable) checkArchivable() error { return nil }

func (t oneTable) claimNew(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	return t.batcher.claim(ctx, r)
}

func (t oneTable) queueClaim(b *pgx.Batch, r once.ClaimRequest, rec *once.Record) {
	key := r.Key.UUID()
	keep, grain := expectedKeep(r)
	b.Queue(t.sql.claim, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt,
		r.Lease.Microseconds(), r.Fingerprint, t.lock(key), keep, grain, causeOf(r)).Query(readInto(rec))
}

func (t oneTable) forget(ctx context.Context, limit int) (forgotten int, err error) {
	err = t.pool.QueryRow(ctx, t.sql.forget, int64(limit)).Scan(&forgotten)
	return forgotten, explain(err)
}
