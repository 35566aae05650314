//go:build linux

package crash

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

const sqliteSettings = "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"

// places are n places on an engine: files of SQLite, which has one writer at a time, or one and the same database.
func places(t *testing.T, engine string, n int) []place {
	all := make([]place, n)
	dsn := ""
	switch engine {
	case Postgres, PGStore, Parts:
		dsn = postgresDatabase(t)
	case MariaDB:
		dsn = mariaDatabase(t)
	}
	for i := range all {
		all[i] = place{Engine: engine, DSN: dsn}
		if engine == SQLite {
			all[i].DSN = "file:" + filepath.Join(t.TempDir(), "once.db") + sqliteSettings
		}
	}
	return all
}

// postgresDatabase makes a database of its own on the server that was started for tests.
func postgresDatabase(t *testing.T) string {
	dsn := testenv.Postgres(t)
	db := open(t, "pgx", dsn)
	testenv.CheckPostgres(t, asker(db))
	name := fmt.Sprintf("crash_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+name+" WITH (FORCE)") })
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	return address.String()
}

func mariaDatabase(t *testing.T) string {
	dsn := testenv.MariaDB(t)
	db := open(t, "mysql", dsn)
	testenv.CheckMariaDB(t, asker(db))
	name := fmt.Sprintf("crash_%d", time.Now().UnixNano())
	mustExec(t, db, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+name) })
	return dsn[:strings.LastIndex(dsn, "/")+1] + name
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}
