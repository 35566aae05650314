package main

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// fewest is a number of rows with which each state occurs.
const fewest = 1000

// inStep is the number of rows that a statement inserts.
const inStep = 250_000

// database is a store that can be filled with statements.
type database struct {
	store once.Store
	exec  func(ctx context.Context, statement string) error
	full  bool // it was filled by an earlier run
	words dialect
	after []string // statements once it is full
	close func()
}

// dialect is what the statements of the databases differ in.
type dialect struct {
	series string                       // rows with the numbers i from %d to %d
	digest func(parts ...string) string // name.Digest of expressions
	random string                       // a UUID
	bytes  string                       // a body
}

// openPostgres opens a database of the server, which it drops in the end unless its
// name was chosen.
func openPostgres(ctx context.Context, s settings) (*database, error) {
	dsn := os.Getenv(testenv.PostgresVar)
	if dsn == "" {
		return nil, noServer()
	}
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	of := cmp.Or(s.database, fmt.Sprintf("consoleload_%d", time.Now().UnixNano()))
	full := false
	err = admin.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", of).Scan(&full)
	if err == nil && !full {
		_, err = admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{of}.Sanitize())
	}
	if err != nil {
		_ = admin.Close(ctx)
		return nil, err
	}
	drop := func() {
		if s.database == "" {
			_, _ = admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+of+" WITH (FORCE)")
		}
		_ = admin.Close(context.WithoutCancel(ctx))
	}
	at, err := url.Parse(dsn)
	if err != nil {
		drop()
		return nil, err
	}
	at.Path = "/" + of
	config, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		drop()
		return nil, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		drop()
		return nil, err
	}
	opened := pgstore.New(pool, nil)
	db := &database{store: opened, full: full, close: func() { pool.Close(); drop() }, words: dialect{
		series: "generate_series(%d::bigint, %d) AS i",
		random: "gen_random_uuid()",
		bytes:  `'\x7b7d'::bytea`,
		digest: func(parts ...string) string {
			text := "'once.key.1'::bytea"
			for _, p := range parts {
				text += fmt.Sprintf(" || int8send(octet_length(%s)) || convert_to(%[1]s, 'UTF8')", p)
			}
			return "(SELECT encode(set_byte(set_byte(h, 6, (get_byte(h, 6) & 15) | 128), 8, (get_byte(h, 8) & 63) | 128), 'hex')::uuid " +
				"FROM (SELECT substring(sha256(" + text + ") FROM 1 FOR 16) AS h OFFSET 0) AS d)"
		},
	}}
	db.exec = func(ctx context.Context, statement string) error {
		_, err := pool.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	// The vacuum is what autovacuum does in time.
	db.after = []string{"VACUUM ANALYZE"}
	if err := opened.Migrate(ctx); err != nil {
		db.close()
		return nil, err
	}
	return db, nil
}

// digests lets SQLite compute keys.
var digests = sync.OnceValue(func() error {
	return sqlite.RegisterDeterministicScalarFunction("digest", -1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		parts := make([]string, len(args))
		for i, arg := range args {
			parts[i] = fmt.Sprint(arg)
		}
		sum := name.Digest(parts...)
		return sum[:], nil
	})
})

// openSQLite opens a file, which it deletes in the end unless its name was chosen.
func openSQLite(ctx context.Context, s settings) (*database, error) {
	if err := digests(); err != nil {
		return nil, err
	}
	file, remove := s.database, func() {}
	_, err := os.Stat(file)
	full := err == nil
	if file == "" {
		dir, err := os.MkdirTemp("", "consoleload-")
		if err != nil {
			return nil, err
		}
		file, remove = filepath.Join(dir, "once.db"), func() { _ = os.RemoveAll(dir) }
	}
	pool, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_pragma=cache_size(-200000)")
	if err != nil {
		remove()
		return nil, err
	}
	pool.SetMaxOpenConns(8)
	opened := sqlstore.New(pool, sqlstore.SQLite, nil)
	db := &database{store: opened, full: full, close: func() { _ = pool.Close(); remove() }, after: []string{"ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"}, words: dialect{
		series: "(WITH RECURSIVE n(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT i FROM n)",
		random: "randomblob(16)",
		bytes:  `x'7b7d'`,
		digest: func(parts ...string) string { return "digest(" + strings.Join(parts, ", ") + ")" },
	}}
	db.exec = func(ctx context.Context, statement string) error {
		_, err := pool.ExecContext(ctx, statement)
		return err
	}
	if err := opened.Migrate(ctx); err != nil {
		db.close()
		return nil, err
	}
	return db, nil
}

// The parts of the key with the number i, as SQL. Of twenty operations, half are of
// one of a thousand tenants.
const (
	operationSQL = `CASE i %% 20 WHEN 0 THEN 'order' WHEN 1 THEN 'pay' WHEN 2 THEN 'pay/charge' WHEN 3 THEN 'mail' ELSE 'task-' || (i %% 20) END`
	scopeSQL     = `CASE WHEN i %% 20 < 10 THEN '' ELSE 'tenant-' || (i / 20 %% 1000) END`
	idSQL        = `'order-' || (i / 20)`
)

// keyOf returns the key with the number i.
func keyOf(i int) once.Key {
	k := once.Key{ID: fmt.Sprint("order-", i/20)}
	switch op := i % 20; op {
	case 0:
		k.Operation = "order"
	case 1:
		k.Operation = "pay"
	case 2:
		k.Operation = "pay/charge"
	case 3:
		k.Operation = "mail"
	default:
		k.Operation = fmt.Sprint("task-", op)
	}
	if i%20 >= 10 {
		k.Scope = fmt.Sprint("tenant-", i/20%1000)
	}
	return k
}

// statusSQL is the status of the key with the number i: of a thousand, one is
// unknown, one is parked and two are running. The others are done, and the oldest
// fifth has lost its answer.
const statusSQL = `CASE i %% 1000 WHEN 7 THEN 2 WHEN 500 THEN 3 WHEN 13 THEN 1 WHEN 901 THEN 1 ELSE 4 END`

const (
	span  = 30 * 24 * time.Hour // the age of the oldest key
	aDay  = 24 * time.Hour
	older = 5 // one in so many is older than its answer is kept
)

func (db *database) fill(ctx context.Context, s settings) error {
	now := time.Now().UnixMicro()
	for first := 0; first < s.keys; first += inStep {
		last := min(first+inStep, s.keys) - 1
		series := fmt.Sprintf(db.words.series, first, last)
		if err := db.exec(ctx, db.recordsSQL(series, now, s.keys)); err != nil {
			return err
		}
	}
	for first := 0; first < s.messages; first += inStep {
		last := min(first+inStep, s.messages) - 1
		series := fmt.Sprintf(db.words.series, first, last)
		for _, statement := range []string{db.outboxSQL(series, now, s.messages), db.shelfSQL(series, now, s.messages)} {
			if err := db.exec(ctx, statement); err != nil {
				return err
			}
		}
	}
	all := append([]string{db.consumersSQL(now), db.positionsSQL()}, db.after...)
	for _, statement := range all {
		if err := db.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// recordsSQL inserts keys in the order of their age. A tenth is caused by another.
func (db *database) recordsSQL(series string, now int64, keys int) string {
	d := db.words
	inner := fmt.Sprintf(`SELECT i, %s AS scope, %s AS operation, %s AS id, %s AS status, %d + i * %d AS created FROM `,
		scopeSQL, operationSQL, idSQL, statusSQL, now-span.Microseconds(), max(span.Microseconds()/int64(keys), 1))
	inner = strings.ReplaceAll(inner, "%%", "%") + series
	return fmt.Sprintf(`INSERT INTO once_record ("key", scope, operation, id, status, attempt, owner, lease_until, outcome, content_type,
	outcome_until, key_until, due, reason, created, updated, cause)
SELECT %s, scope, operation, id, status, CASE WHEN status = 4 THEN 1 ELSE 3 END, %s, CASE WHEN status = 1 THEN %d ELSE created + 30000000 END,
	CASE WHEN status = 4 THEN %s END, CASE WHEN status = 4 THEN 'application/json' ELSE '' END,
	CASE WHEN status = 4 THEN %[5]d + i %% 1000 - CASE WHEN i < %[6]d THEN %[7]d ELSE 0 END END, CASE WHEN status = 4 THEN %[5]d + i %% 1000 END,
	CASE WHEN status = 4 THEN %[5]d + i %% 1000 END, CASE WHEN status IN (2, 3) THEN 'read tcp 10.0.0.7:443: connection reset by peer' END,
	created, created + 40000, CASE WHEN operation = 'mail' THEN %[8]s END
FROM (%[9]s) AS r`, d.digest("scope", "operation", "id"), d.random, now+time.Hour.Microseconds(), d.bytes,
		now+span.Microseconds(), keys/older, 2*span.Microseconds(), d.digest("''", "'order'", "id"), inner)
}

// outboxSQL inserts messages of which eight in ten wait to be published, and one in
// ten was. The others are delayed, held and stuck.
func (db *database) outboxSQL(series string, now int64, messages int) string {
	return fmt.Sprintf(`INSERT INTO once_outbox (created, due, changed, attempts, lane, state, id, topic, ordering_key, reason, header, cause, body)
SELECT %d + i * %d, CASE WHEN state IN (%d, %d) THEN %d END, CASE WHEN state > 1 THEN %d END, CASE WHEN state = %d THEN 10 ELSE 0 END, i / 7 %% 16, state,
	'm-' || i, 'topic-' || (i %% 10), 'order-' || i, CASE WHEN state = %[7]d THEN 'the broker refuses the message of ' || (1 + i %% 3) || ' MB' ELSE '' END, '{}',
	'["","order","order-' || i || '"]', %[8]s
FROM (SELECT i, CASE i %% 100 WHEN 0 THEN %[7]d WHEN 1 THEN %[9]d ELSE CASE WHEN i %% 100 < 10 THEN %[3]d WHEN i %% 100 < 20 THEN %[4]d ELSE 0 END END AS state FROM %[10]s) AS m`,
		now-aDay.Microseconds(), max(aDay.Microseconds()/int64(messages), 1), int(store.Delayed), int(store.Published), now+time.Hour.Microseconds(), now-1,
		int(store.Stuck), db.words.bytes, int(store.Held), series)
}

// shelfSQL inserts messages of ten consumers: three of ten are parked, and three
// were handled after that.
func (db *database) shelfSQL(series string, now int64, messages int) string {
	d := db.words
	return fmt.Sprintf(`INSERT INTO once_shelf (version, state, due, attempts, created, updated, ended, id, consumer_id, lane, consumer, key_id, message_id, topic,
	ordering_key, produced, origin, reason, history, header, body)
SELECT 1, state, CASE WHEN state = %d THEN %d END, 10, created, created + 1000, CASE WHEN state > %d THEN %d END, %s, %s, %s, consumer, message_id, message_id, topic,
	message_id, '', '', CASE i %% 3 WHEN 0 THEN 'no such customer c-' || i ELSE 'read tcp 10.0.0.7:443: connection reset by peer' END, '', '{}', %s
FROM (SELECT i, 'consumer-' || (i %% 10) AS consumer, 'n-' || i AS message_id, 'topic-' || (i %% 7) AS topic, %d + i * %[13]d AS created,
	CASE WHEN i / 10 %% 10 < 3 THEN %[3]d WHEN i / 10 %% 10 < 6 THEN %[11]d WHEN i / 10 %% 10 < 7 THEN %[12]d ELSE %[1]d END AS state FROM %[10]s) AS m`,
		int(store.Waiting), now+time.Hour.Microseconds(), int(store.Parked), now, d.digest("'shelf'", "consumer", "message_id"), d.digest("'consumer'", "consumer"),
		d.digest("'lane'", "consumer", "message_id"), d.bytes, now-span.Microseconds(), series, int(store.Handled), int(store.Discarded),
		max(span.Microseconds()/int64(messages), 1))
}

func (db *database) consumersSQL(now int64) string {
	series := fmt.Sprintf(db.words.series, 0, 49)
	return fmt.Sprintf(`INSERT INTO once_consumer (id, name, source, key_name, seen)
SELECT %s, name, source, name, %d FROM (SELECT 'consumer-' || i AS name, 'topic-' || (i %% 7) AS source FROM %s) AS c`,
		db.words.digest("'registered'", "name", "source"), now, series)
}

func (db *database) positionsSQL() string {
	series := fmt.Sprintf(db.words.series, 0, 1199)
	return fmt.Sprintf(`INSERT INTO once_position (id, consumer_id, consumer, partition_name, epoch, log_name, log_offset, digest)
SELECT %s, %s, consumer, place, 1, 'log', 1000, %s FROM (SELECT 'consumer-' || (i %% 50) AS consumer, 'partition-' || i AS place FROM %s) AS p`,
		db.words.digest("'position'", "consumer", "place"), db.words.digest("'consumer'", "consumer"), db.words.digest("''"), series)
}
