package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// engine is a database that the tests run on.
type engine struct {
	name    string
	dialect sqlstore.Dialect
	// fresh makes a database, or a schema, that only this test uses, and
	// returns how to open it: with more settings for the driver, which each
	// engine spells in its own way.
	fresh func(testing.TB) func(testing.TB, ...string) *sql.DB
}

var engines = []engine{
	{"sqlite", sqlstore.SQLite, freshSQLite},
	{"postgres", sqlstore.PostgreSQL, freshPostgres},
	{"mariadb", sqlstore.MySQL, freshMariaDB},
}

func onEach(t *testing.T, test func(*testing.T, engine)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) { test(t, e) })
	}
}

// sqliteSettings are those that package sqlstore recommends, except
// synchronous(FULL), since no test cuts the power.
const sqliteSettings = "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"

func freshSQLite(t testing.TB) func(testing.TB, ...string) *sql.DB {
	file := filepath.Join(t.TempDir(), "once.db")
	return func(t testing.TB, settings ...string) *sql.DB {
		dsn := "file:" + file + "?"
		if len(settings) == 0 {
			dsn += sqliteSettings
		}
		for _, s := range settings {
			dsn += s + "&"
		}
		return open(t, "sqlite", dsn)
	}
}

func freshPostgres(t testing.TB) func(testing.TB, ...string) *sql.DB {
	admin := open(t, "pgx", testenv.Postgres(t))
	testenv.CheckPostgres(t, asker(admin))
	schema := unique()
	mustExec(t, admin, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { mustExec(t, admin, "DROP SCHEMA "+schema+" CASCADE") })
	return func(t testing.TB, settings ...string) *sql.DB {
		return open(t, "pgx", withSettings(t, testenv.Postgres(t), append(settings, "search_path="+schema)...))
	}
}

func withDatabase(t testing.TB, dsn, database string) string {
	u, err := url.Parse(dsn)
	must(t, err)
	u.Path = "/" + database
	return u.String()
}

func withMariaDB(t testing.TB, database string) string {
	config, err := mysql.ParseDSN(testenv.MariaDB(t))
	must(t, err)
	config.DBName = database
	return config.FormatDSN()
}

func withSettings(t testing.TB, dsn string, settings ...string) string {
	t.Helper()
	dsn, err := testenv.WithSettings(dsn, settings...)
	must(t, err)
	return dsn
}

func freshMariaDB(t testing.TB) func(testing.TB, ...string) *sql.DB {
	admin := open(t, "mysql", testenv.MariaDB(t))
	testenv.CheckMariaDB(t, asker(admin))
	database := unique()
	mustExec(t, admin, "CREATE DATABASE "+database)
	t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+database) })
	return func(t testing.TB, settings ...string) *sql.DB {
		dsn := withMariaDB(t, database) + "?"
		for _, s := range settings {
			dsn += s + "&"
		}
		return open(t, "mysql", dsn[:len(dsn)-1])
	}
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

func open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	must(t, err)
	db.SetMaxIdleConns(16)
	dsns.Store(db, dsn)
	t.Cleanup(func() { dsns.Delete(db); db.Close() })
	return db
}

var dsns sync.Map // the DSN of each *sql.DB that is open

func unique() string {
	var random [8]byte
	rand.Read(random[:])
	return "t" + hex.EncodeToString(random[:])
}

// migrated returns a store on a new database with its tables, and a table for
// effects.
func (e engine) migrated(t testing.TB, settings ...string) (*sqlstore.Store, *sql.DB) {
	t.Helper()
	db := e.fresh(t)(t, settings...)
	s := sqlstore.New(db, e.dialect, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	return s, db
}

const effectTable = "CREATE TABLE effect (name varchar(255) NOT NULL)"

func effect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO effect (name) VALUES ('%s')", name))
	return err
}

func count(t testing.TB, db *sql.DB, name string) int {
	t.Helper()
	return number(t, db, fmt.Sprintf("SELECT count(*) FROM effect WHERE name = '%s'", name))
}

func number(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	must(t, db.QueryRow(query).Scan(&n))
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustExec(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			t.Fatalf("%v\n%s", err, statement)
		}
	}
}

func key(id string) once.Key { return once.Key{Scope: "tenant", Operation: "pay", ID: id} }

func token(name string) (t [16]byte) {
	copy(t[:], name)
	return t
}

func request(id, who string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: key(id), Owner: token(who)}, Lease: time.Hour, Fingerprint: []byte("print")}
}

func hold(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}

func settlement(rec once.Record, status once.Status) once.Settlement {
	return once.Settlement{Fence: hold(rec), Status: status, KeepOutcome: time.Hour, KeepKey: 2 * time.Hour,
		Outcome: once.Outcome{Body: []byte("answer"), ContentType: "text/plain", Sum: 7}}
}

func effectIn(schema string) func(context.Context, *sql.Tx, string) error {
	return func(ctx context.Context, tx *sql.Tx, name string) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s.effect (name) VALUES ('%s')", schema, name))
		return err
	}
}

func begin(db *sql.DB) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }
}
