package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlschema/publishing"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// appears returns a presence, or nil. It ends with the test.
func appears(t *testing.T, s *sqlstore.Store) store.Present {
	t.Helper()
	p, err := s.AppearRelay(t.Context())
	must(t, err)
	if p != nil {
		t.Cleanup(p.Close)
	}
	return p
}

// fileOf returns the name of the file that relays lock.
func fileOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var file string
	must(t, db.QueryRow("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file))
	return file + "-relays"
}

// Others could not see the lock of a file that was replaced, so it ends the presence.
func TestAPresenceEndsWithItsFile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("relays lock files on Linux only")
	}
	for name, spoil := range map[string]func(string) error{
		"removed":  os.Remove,
		"replaced": func(file string) error { return os.Rename(emptyFile(t), file) },
	} {
		db := freshSQLite(t)(t)
		s := sqlstore.New(db, sqlstore.SQLite, nil)
		must(t, s.Migrate(t.Context()))
		p := appears(t, s)
		_, err := p.Look(t.Context(), nil)
		must(t, err)
		must(t, spoil(fileOf(t, db)))
		if _, err := p.Look(t.Context(), nil); err == nil {
			t.Errorf("%s: the relay looked, and is still present", name)
		}
		after := appears(t, s)
		missing, err := after.Look(t.Context(), [][16]byte{p.ID()})
		must(t, err)
		if len(missing) > 0 {
			t.Errorf("%s: a relay is missing whose lock is in another file", name)
		}
	}
}

func emptyFile(t *testing.T) string {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	must(t, f.Close())
	return f.Name()
}

func TestNoRelayAppearsInMemory(t *testing.T) {
	db := open(t, "sqlite", "file::memory:")
	db.SetMaxOpenConns(1)
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	if p := appears(t, s); p != nil {
		t.Errorf("a relay appeared in a database that no other process sees: %x", p.ID())
	}
}

// relayHolders are the databases that tell a relay's lock from others by its
// session.
var relayHolders = map[string]struct {
	engine
	holder string // asks which session has the lock of a relay, by the hexadecimal digits of its ID
	kill   string // that session
}{
	"mariadb": {engines[2], "SELECT IS_USED_LOCK('once-relay-%x')", "KILL %d"},
	"postgres": {engines[1], "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND " +
		"lpad(to_hex(classid::bigint << 32 | objid::bigint), 16, '0') = right('%x', 16)", "SELECT pg_terminate_backend(%d, 30000)"},
}

// Relays must not use up the connections of a pool.
func TestRelaysLeaveConnections(t *testing.T) {
	for name, e := range relayHolders {
		t.Run(name, func(t *testing.T) {
			first, db := e.migrated(t)
			db.SetMaxOpenConns(9)
			second := sqlstore.New(db, e.dialect, nil)
			p := appears(t, first)
			if p == nil || appears(t, second) == nil {
				t.Fatal("two relays do not appear in a pool of 9 connections")
			}
			if appears(t, second) != nil {
				t.Error("a third relay appeared in a pool of 9 connections")
			}
			p.Close()
			p.Close()
			if appears(t, second) == nil {
				t.Error("no relay appears after another has left")
			}
			if appears(t, first) != nil {
				t.Error("a relay that left twice made room for two others")
			}
		})
	}
}

// The lock of a relay ends when its connection is closed by the server, and the
// relay learns of it.
func TestAPresenceEndsWithItsConnection(t *testing.T) {
	for name, e := range relayHolders {
		t.Run(name, func(t *testing.T) {
			s, db := e.migrated(t)
			p, other := appears(t, s), appears(t, s)
			mustExec(t, db, fmt.Sprintf(e.kill, number(t, db, fmt.Sprintf(e.holder, p.ID()))))
			if _, err := p.Look(t.Context(), nil); err == nil {
				t.Error("the relay looked on a connection that the server has closed")
			}
			awaitMissing(t, other, p.ID())
		})
	}
}

// awaitMissing waits until a relay is missing. The server ends its lock a moment
// after its connection.
func awaitMissing(t *testing.T, p store.Present, gone [16]byte) {
	t.Helper()
	proof.Await(t, "the relay is missing", func() bool {
		missing, err := p.Look(t.Context(), [][16]byte{gone})
		must(t, err)
		return len(missing) == 1
	})
}

// Where nothing tells whether a pooler is between, no relay appears.
func TestNoRelayAppearsUnlessItsSessionIsKnown(t *testing.T) {
	_, direct := engines[1].migrated(t)
	schema := new(sqlstore.Options)
	must(t, direct.QueryRow("SELECT current_schema()").Scan(&schema.Schema))
	appearsIn := func(t *testing.T, db *sql.DB) bool {
		return appears(t, sqlstore.New(db, sqlstore.PostgreSQL, schema)) != nil
	}
	if !appearsIn(t, direct) {
		t.Error("no relay appears through pgx")
	}
	dsn, _ := dsns.Load(direct)
	if appearsIn(t, open(t, "postgres", dsn.(string))) {
		t.Error("a relay appeared through lib/pq, which tells no process")
	}
	if appearsIn(t, hooked(t, direct, func(context.Context, string) func() { return func() {} })) {
		t.Error("a relay appeared through a driver that hides pgx")
	}
	for _, mode := range []string{"exec", "simple_protocol"} {
		pooled := withSettings(t, testenv.PgBouncer(t), "default_query_exec_mode="+mode)
		if appearsIn(t, open(t, "pgx", pooled)) {
			t.Errorf("a relay appeared through PgBouncer: %s", mode)
		}
	}
}

// A relay that could not look would have to begin anew again and again.
func TestNoRelayAppearsThatCannotLook(t *testing.T) {
	admin := open(t, "pgx", testenv.Postgres(t))
	testenv.CheckPostgres(t, asker(admin))
	database, role := unique(), unique()
	at := withDatabase(t, testenv.Postgres(t), database)
	mustExec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { mustExec(t, admin, "DROP ROLE "+role) })
	mustExec(t, admin, "CREATE DATABASE "+database+" OWNER "+role)
	t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)") })
	mustExec(t, open(t, "pgx", at), "REVOKE SELECT ON pg_locks FROM PUBLIC")
	u, err := url.Parse(at)
	must(t, err)
	u.User = url.UserPassword(role, "secret")
	s := sqlstore.New(open(t, "pgx", u.String()), sqlstore.PostgreSQL, nil)
	must(t, s.Migrate(t.Context()))
	p, err := s.AppearRelay(t.Context())
	if err != nil {
		return
	}
	defer p.Close()
	_, err = p.Look(t.Context(), nil)
	t.Errorf("a relay appeared, and its Look returns %v", err)
}

// With each protocol of pgx, also on a pool of its own, whose connections keep their
// sessions when they are closed.
func TestRelaysAppearThroughPgx(t *testing.T) {
	pools := map[string]func(testing.TB, string) *sql.DB{"pool": pgxPool}
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		pools[mode] = func(t testing.TB, dsn string) *sql.DB {
			return open(t, "pgx", withSettings(t, dsn, "default_query_exec_mode="+mode))
		}
	}
	for name, opened := range pools {
		t.Run(name, func(t *testing.T) {
			_, db := engines[1].migrated(t)
			dsn, _ := dsns.Load(db)
			s := sqlstore.New(opened(t, dsn.(string)), sqlstore.PostgreSQL, nil)
			p, other := appears(t, s), appears(t, s)
			if p == nil || other == nil {
				t.Fatal("no relay appears")
			}
			for range 3 {
				if missing, err := p.Look(t.Context(), [][16]byte{other.ID()}); err != nil || len(missing) > 0 {
					t.Fatalf("a relay sees %x missing, %v", missing, err)
				}
			}
			other.Close()
			awaitMissing(t, p, other.ID())
		})
	}
}

func pgxPool(t testing.TB, dsn string) *sql.DB {
	pool, err := pgxpool.New(t.Context(), dsn)
	must(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { db.Close() })
	return db
}

// Relays of both stores take part in one outbox.
func TestRelaysOfBothStoresSeeEachOther(t *testing.T) {
	s, db := engines[1].migrated(t)
	dsn, _ := dsns.Load(db)
	pool, err := pgxpool.New(t.Context(), dsn.(string))
	must(t, err)
	t.Cleanup(pool.Close)
	own, err := pgstore.New(pool, nil).AppearRelay(t.Context())
	must(t, err)
	defer own.Close()
	p := appears(t, s)
	missing, err := own.Look(t.Context(), [][16]byte{p.ID()})
	if err != nil || len(missing) > 0 {
		t.Errorf("a relay of pgstore sees %x missing, %v", missing, err)
	}
	missing, err = p.Look(t.Context(), [][16]byte{own.ID()})
	if err != nil || len(missing) > 0 {
		t.Errorf("a relay of sqlstore sees %x missing, %v", missing, err)
	}
	p.Close()
	awaitMissing(t, own, p.ID())
	p = appears(t, s)
	own.Close()
	awaitMissing(t, p, own.ID())
}

// pooler is what the connection of a client is through a pooler: a session of the
// server that others have too, and soon another one.
type pooler struct{ *sql.Conn }

func session(t *testing.T, db *sql.DB) (conn *sql.Conn, pid uint32) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	return conn, pid
}

// Whatever a pooler does, the lanes of a relay that is present are not freed.
func TestAPoolerFreesNoLanes(t *testing.T) {
	_, db := engines[1].migrated(t)
	first, pid := session(t, db)
	second, _ := session(t, db)
	third, _ := session(t, db)
	pool, via := sqltx.Querier{DB: third}, &pooler{first}
	lock := func() *publishing.RelayLock {
		t.Helper()
		l, err := publishing.LockRelay(t.Context(), sqltx.Querier{DB: via}, pool, pid)
		must(t, err)
		return l
	}
	l, other := lock(), lock()
	if l == nil || other == nil {
		t.Fatal("no relay appears")
	}
	if missing, err := l.Look(t.Context(), [][16]byte{other.ID()}); err != nil || len(missing) > 0 {
		t.Errorf("of a relay whose lock is of the same session, another sees %x missing, %v", missing, err)
	}
	via.Conn = second
	if _, err := l.Look(t.Context(), nil); err == nil {
		t.Error("the relay looked in a session that does not have its lock")
	}
	if lock() != nil {
		t.Error("a relay appeared in a session of another process than the server named")
	}
	via.Conn = first
	if _, err := l.Look(t.Context(), nil); err != nil {
		t.Errorf("the relay did not look in its session: %v", err)
	}
	if _, err := first.ExecContext(t.Context(), "SELECT pg_advisory_unlock_all()"); err != nil { // as DISCARD ALL does
		t.Fatal(err)
	}
	if _, err := l.Look(t.Context(), nil); err == nil {
		t.Error("the relay looked in its session, which has lost its lock")
	}
	pool.DB = first
	if l, err := publishing.LockRelay(t.Context(), sqltx.Querier{DB: via}, pool, pid); l != nil || err != nil {
		t.Errorf("a relay appeared whose lock the pool does not see, %v", err)
	}
	if n := number(t, db, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", pid)); n > 0 {
		t.Errorf("%d locks stay in a session whose relay has not appeared", n)
	}
}
