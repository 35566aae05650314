package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/deferredtx"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// partitions stores the records in partitions, and forgets by dropping one. A
// partition takes new keys for some time, the newest one. Which partitions
// exist is read by each statement.
type partitions struct {
	*Store
	parted  sqlschema.Partitioned
	every   time.Duration // how long a partition takes new keys
	wait    time.Duration // for the lock to add or to drop one
	janitor janitorStatements
}

// defaultWait is the default of Options.PartitionWait. After a change had to be
// given up, the next one waits restFactor times as long, so that changes take
// no more than a twentieth of the time of the claims.
const (
	defaultWait = 50 * time.Millisecond
	restFactor  = 20
)

func newRecordTable(s *Store, o *Options) (recordTable, error) {
	switch {
	case o.Partition < 0 || o.PartitionWait < 0:
		return nil, fmt.Errorf("%w: Partition is %v and PartitionWait %v: neither may be negative", once.ErrInvalid, o.Partition, o.PartitionWait)
	case o.Partition == 0:
		return oneTable{s}, nil
	case o.Isolation != "" && o.Isolation != pgx.ReadCommitted:
		return nil, wrongLevel(string(o.Isolation))
	}
	p := &partitions{Store: s, parted: s.names.Partitioned(), every: o.Partition, wait: cmp.Or(o.PartitionWait, defaultWait)}
	p.janitor = newJanitorStatements(fill(s.names, p.marks()))
	return p, nil
}

func wrongLevel(level string) error {
	return fmt.Errorf("%w: the isolation level of the transaction is %q, but a store with Partition needs %q: at any other, "+
		"the snapshot is older than the lock of a key and may miss its record. Set Options.Isolation for DoTx and "+
		"default_transaction_isolation for other calls, or begin your own transaction with it", once.ErrInvalid, level, pgx.ReadCommitted)
}

func (p *partitions) lock(key [16]byte) int64 { return p.parted.Lock(key) }

// lockBeforeClaim returns a statement, because the snapshot of the claim has to
// be newer than the lock.
func (p *partitions) lockBeforeClaim(key [16]byte) *deferredtx.Statement {
	return &deferredtx.Statement{SQL: p.sql.lock, Args: []any{p.lock(key)}}
}

func (p *partitions) reserves() bool { return false }

func (p *partitions) migrated(ctx context.Context) error {
	_, err := p.rotateIfDue(ctx)
	return err
}

func (p *partitions) checkArchivable() error {
	return fmt.Errorf("%w: records in partitions are forgotten together, so none can be archived first: "+
		"for an archive, use tables without Options.Partition", errors.ErrUnsupported)
}

// claimNew sends the claim and what takes its lock in one round trip. If the
// claim is lost, no statement has failed.
func (p *partitions) claimNew(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	key := r.Key.UUID()
	sql := p.sql.claimNew
	if r.AsyncCommit {
		sql = p.sql.claimAsync
	}
	var created int64
	b := new(pgx.Batch)
	b.Queue(p.sql.gateNew, p.lock(key)).QueryRow(readGate)
	b.Queue(sql, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Lease.Microseconds(), r.Fingerprint, p.lock(key), causeOf(r)).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&created}, func() error { won = true; return nil })
		return err
	})
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil || !won {
		return rec, false, err
	}
	return sqlschema.NewRecord(r, created), true, nil
}

func (p *partitions) queueClaim(b *pgx.Batch, r once.ClaimRequest, rec *once.Record) {
	key := r.Key.UUID()
	b.Queue(p.sql.gate, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt, p.lock(key)).QueryRow(readGate)
	b.Queue(p.sql.claim, uuid(key), r.Key.Scope, r.Key.Operation, r.Key.ID, uuid(r.Owner), r.Attempt,
		r.Lease.Microseconds(), r.Fingerprint, p.lock(key), causeOf(r)).Query(readInto(rec))
}

// readGate reads the result of gateSQL or gateNewSQL. At a wrong isolation
// level, the claim after it does nothing.
func readGate(row pgx.Row) error {
	var level, word string
	if err := row.Scan(&level, &word); err != nil {
		return err
	}
	if level != string(pgx.ReadCommitted) {
		return wrongLevel(level)
	}
	return nil
}

// oneTableMarks replace the marks for partitions in statements on one table.
func oneTableMarks() []string {
	return []string{"{part}", "", "{insert}", "", "{oid}", "", "{unseen}", ""}
}

func (p *partitions) marks() []string {
	return []string{"{part}", "part, ", "{insert}", newestSQL + ", ", "{newest}", newestSQL, "{parts}", p.parted.Parts(),
		"{oid}", " # " + p.parted.OID(), "{unseen}", unseenSQL}
}

// statements replaces the statements that differ in partitions.
func (p *partitions) statements() statements {
	text := fill(p.names, p.marks())
	st := newStatements(p.names, p.marks())
	st.lock, st.gate, st.gateNew = text(lockSQL), text(gateSQL), text(gateNewSQL)
	st.claim = text(claimInPartsSQL)
	st.claimNew, st.claimAsync = text(claimNewestSQL), text(claimNewestSQL+asyncCommitSQL+` RETURNING created`)
	st.claimNew += ` RETURNING created`
	st.reopen = text(reopenInPartsSQL)
	return st
}

const (
	// newestSQL is the partition that takes new rows. While a transaction holds
	// a lock on the table, as any that has written to it does, that does not
	// change.
	newestSQL = `(SELECT max(id) FROM {parts})`

	// unseenSQL is 0. It fails with keyRecorded if any partition has a row.
	unseenSQL = ` + coalesce((SELECT CAST(CASE WHEN u.status >= 0 THEN '` + keyRecorded + `' END AS smallint) FROM {table} u WHERE u.key = $1::uuid), 0)`

	// levelSQL is the isolation level of the transaction.
	levelSQL = `current_setting('transaction_isolation')`

	// lockSQL takes the lock of a key before openSQL or lookSQL, so that their
	// snapshot is newer. It fails with keyInFlight if the lock is held, and
	// with otherLevel at another isolation level.
	lockSQL = `SELECT CAST(CASE WHEN pg_try_advisory_xact_lock($1::bigint{oid}) THEN '1' ELSE '` + keyInFlight + `' END AS smallint),
	CAST(CASE ` + levelSQL + ` WHEN 'read committed' THEN '1' ELSE '` + otherLevel + `' END AS smallint)`

	// gateNewSQL takes the lock of a key if it is free, and leaves the result
	// for the next statement in a setting that ends with the transaction. So no
	// statement fails, and both are sent in one round trip.
	gateNewSQL = `SELECT ` + levelSQL + `, set_config('once.gate', CASE WHEN ` + levelSQL + ` <> 'read committed' THEN ''
	WHEN pg_try_advisory_xact_lock($1::bigint{oid}) THEN ($1::bigint{oid})::text ELSE 'busy' END, true)`

	// gateSQL is gateNewSQL for any key. If the record is not free, it takes no
	// lock.
	gateSQL = `WITH {clock} SELECT ` + levelSQL + `, set_config('once.gate', CASE WHEN ` + levelSQL + ` <> 'read committed' THEN ''
	WHEN EXISTS (SELECT FROM {table} r WHERE r.key = $1::uuid AND NOT {free}) THEN ''
	WHEN pg_try_advisory_xact_lock($7::bigint{oid}) THEN ($7::bigint{oid})::text ELSE 'busy' END, true)`

	// claimNewestSQL claims a key that was never seen, after gateNewSQL. It
	// does nothing with any other key.
	claimNewestSQL = `INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, created, updated, cause)
SELECT {insert}$1::uuid, $2::text, $3::text, $4::text, 1, 1, $5::uuid, {begun} + $6::bigint, $7::bytea, {begun}, {begun}, $9::uuid
WHERE current_setting('once.gate', true) = ($8::bigint{oid})::text AND NOT EXISTS (SELECT FROM {table} u WHERE u.key = $1::uuid)`

	// claimInPartsSQL takes the place of claimSQL, after gateSQL. It does not
	// update a row that is free, but deletes it and inserts one into the newest
	// partition: a row of an older partition that has expired must stay
	// expired. It returns no row if the record has changed in the meantime.
	claimInPartsSQL = `WITH {clock},
seen AS (SELECT r.*, {free} AS free FROM {table} r WHERE r.key = $1::uuid),
gate AS (SELECT current_setting('once.gate', true) AS word),
freed AS (DELETE FROM {table} r WHERE r.key = $1::uuid AND {free} AND current_setting('once.gate', true) = ($9::bigint{oid})::text
	RETURNING r.attempt, r.created, r.key_until),
mine AS (
	INSERT INTO {table} (part, key, scope, operation, id, status, attempt, owner, lease_until, fingerprint, created, updated, cause)
	SELECT {insert}$1::uuid, $2::text, $3::text, $4::text, 1, CASE WHEN f.key_until <= now THEN 1 ELSE coalesce(f.attempt, 0) + 1 END,
		$5::uuid, now + $7::bigint, $8::bytea, CASE WHEN f.key_until <= now THEN now ELSE coalesce(f.created, now) END, now, $10::uuid
	FROM clock CROSS JOIN gate LEFT JOIN freed f ON true
	WHERE gate.word = ($9::bigint{oid})::text AND (f.attempt IS NOT NULL OR NOT EXISTS (SELECT FROM seen))
	RETURNING *)
SELECT {columns} FROM mine r, clock
UNION ALL SELECT {columns} FROM seen r, clock WHERE NOT r.free
UNION ALL SELECT $1::uuid, $2::text, $3::text, $4::text, 1, 0, NULL, 0, 0, NULL, NULL, '', 0, 0, '', now, now, NULL, 0
	FROM gate, clock WHERE word = 'busy' AND NOT EXISTS (SELECT FROM seen WHERE NOT free)`
)
