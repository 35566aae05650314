package engine

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
)

// sqliteSettings are the recommended ones, except synchronous(FULL): no test
// cuts the power.
const sqliteSettings = "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"

// SQLiteFile returns the DSN of a database in a file.
func SQLiteFile(file string) string { return "file:" + file + "?" + sqliteSettings }

// Fresh returns the DSN of a database, or a schema, that only this test uses.
// It is dropped at the end of the test. The server is that of package testenv.
func (e Engine) Fresh(t testing.TB) string {
	t.Helper()
	switch e.Name {
	case SQLite:
		return SQLiteFile(filepath.Join(t.TempDir(), "once.db"))
	case MariaDB:
		return freshMariaDB(t)
	default:
		return freshPostgres(t)
	}
}

// FreshDatabase is like Fresh, but on PostgreSQL the test gets its own
// database, not just a schema. Its connections and replication slots end with
// it.
func (e Engine) FreshDatabase(t testing.TB) string {
	t.Helper()
	if e.Name != Postgres && e.Name != PGStore {
		return e.Fresh(t)
	}
	dsn := testenv.Postgres(t)
	admin := open(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(admin))
	address, err := url.Parse(dsn)
	proof.Must(t, err)
	database := unique()
	mustExec(t, admin, "CREATE DATABASE "+database)
	t.Cleanup(func() { dropPostgres(t, admin, database) })
	address.Path = "/" + database
	return address.String()
}

// dropPostgres drops a database with its slots, which a killed process may
// still seem to read.
func dropPostgres(t testing.TB, admin *sql.DB, database string) {
	proof.Await(t, "the slots are free", func() bool {
		var left int
		err := admin.QueryRow(`SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots
			WHERE database = $1 AND active`, database).Scan(&left)
		if err == nil && left == 0 {
			_, err = admin.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`,
				database)
		}
		return err == nil && left == 0
	})
	mustExec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)")
}

func freshPostgres(t testing.TB) string {
	dsn := testenv.Postgres(t)
	admin := open(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(admin))
	schema := unique()
	mustExec(t, admin, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { mustExec(t, admin, "DROP SCHEMA "+schema+" CASCADE") })
	return dsn + "&search_path=" + schema
}

func freshMariaDB(t testing.TB) string {
	dsn := testenv.MariaDB(t)
	admin := open(t, "mysql", dsn)
	testenv.CheckMariaDB(t, asker(admin))
	database := unique()
	mustExec(t, admin, "CREATE DATABASE "+database)
	t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+database) })
	return dsn[:strings.LastIndex(dsn, "/")+1] + database
}

// with adds settings to a DSN. On PostgreSQL they replace existing ones, and
// elsewhere they come after them.
func (e Engine) with(dsn string, settings []string) (string, error) {
	if len(settings) == 0 {
		return dsn, nil
	}
	added := strings.Join(settings, "&")
	switch {
	case e.Name == Postgres || e.Name == PGStore:
		return testenv.WithSettings(dsn, settings...)
	case strings.Contains(dsn, "?"):
		return dsn + "&" + added, nil
	default:
		return dsn + "?" + added, nil
	}
}

func open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

func mustExec(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proof.Patience)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Errorf("%v\n%s", err, statement)
	}
}

func unique() string {
	var random [8]byte
	rand.Read(random[:])
	return "t" + hex.EncodeToString(random[:])
}
