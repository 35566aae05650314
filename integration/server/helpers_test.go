//go:build linux

package server

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// privateTemp puts the test's homes into a directory that must be empty in the
// end. Other accounts cannot enter the directory of t.TempDir.
func privateTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "once-test-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("something was left behind: %v", err)
			_ = os.RemoveAll(dir)
		}
	})
	return dir
}

// need skips the test, or returns a directory for homes.
func need(t *testing.T, kinds ...Kind) string {
	t.Helper()
	Need(t, kinds...)
	return privateTemp(t)
}

// started checks that an instance started without an error, and stops it at the
// end of the test.
func started(t *testing.T) func(*Instance, error) *Instance {
	return func(i *Instance, err error) *Instance {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := i.Stop(); err != nil {
				t.Error(err)
			}
		})
		return i
	}
}

func starter(k Kind) func(context.Context) (*Instance, error) {
	return map[Kind]func(context.Context) (*Instance, error){Postgres: StartPostgres, MariaDB: StartMariaDB,
		RabbitMQ: func(ctx context.Context) (*Instance, error) { return StartRabbitMQ(ctx) }, Redis: StartRedis}[k]
}

var everyKind = []Kind{Postgres, MariaDB, PgBouncer, RabbitMQ, Redis}

// open opens a database with the driver for the instance's kind.
func open(t *testing.T, i *Instance) *sql.DB {
	t.Helper()
	name, dsn := "pgx", i.DSN()
	switch i.engine.kind() {
	case MariaDB:
		name = "mysql"
	case PgBouncer:
		dsn += "&default_query_exec_mode=exec"
	}
	db, err := sql.Open(name, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// ask runs a query with one row and one column.
func ask(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = db.QueryRowContext(ctx, query).Scan(&answer)
		return answer, err
	}
}

// mustAsk is ask for queries that cannot fail.
func mustAsk(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	answer, err := ask(db)(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func mustExec(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if _, err := db.ExecContext(ctx, query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// members returns the server's processes, at least one.
func members(t *testing.T, pid int) []status {
	t.Helper()
	all, err := family(pid)
	if err != nil || len(all) == 0 {
		t.Fatalf("the processes of %d: %v, %v", pid, all, err)
	}
	return all
}

func anyLives(all []status) bool {
	for _, member := range all {
		if member.lives() {
			return true
		}
	}
	return false
}
