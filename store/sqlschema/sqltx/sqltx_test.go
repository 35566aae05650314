//go:build go1.25

package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/store/sqlschema"
)

// fake is a driver and its only connection. It records its calls.
type fake struct {
	told   []string
	commit func(context.Context) error
	begin  func(context.Context) error
	life   context.Context
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { f.tell("connect"); return f, nil }
func (f *fake) Driver() driver.Driver                        { return nil }
func (f *fake) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (f *fake) Begin() (driver.Tx, error)                    { return nil, errors.New("without a context") }
func (f *fake) Close() error                                 { f.tell("close"); return nil }
func (f *fake) Rollback() error                              { f.tell("rollback"); return nil }
func (f *fake) tell(what string)                             { f.told = append(f.told, what) }

func (f *fake) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	f.tell("begin")
	f.life = ctx
	if f.begin != nil {
		return f, f.begin(ctx)
	}
	return f, nil
}

func (f *fake) Commit() error {
	f.tell("commit")
	if f.commit != nil {
		return f.commit(f.life)
	}
	return nil
}

func (f *fake) ExecContext(_ context.Context, statement string, _ []driver.NamedValue) (driver.Result, error) {
	f.tell(statement)
	return driver.RowsAffected(0), nil
}

func (f *fake) wantTold(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(f.told, want) {
		t.Errorf("the driver was told %q, want %q", f.told, want)
	}
}

// in runs a test in a synctest bubble.
func in(t *testing.T, f *fake, test func(*testing.T, *sql.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(f)
		test(t, db)
		synctest.Wait()
		f.told = append(f.told, "end")
		db.Close()
		f.told = f.told[:slices.Index(f.told, "end")]
	})
}

func begun(t *testing.T, db *sql.DB, d sqlschema.Dialect) *Transaction {
	t.Helper()
	tx, err := Begin(t.Context(), db, d)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestMySQLIsLeftAsItWas(t *testing.T) {
	f := &fake{}
	in(t, f, func(t *testing.T, db *sql.DB) {
		if err := begun(t, db, sqlschema.MySQL).Commit(); err != nil {
			t.Error(err)
		}
		tx := begun(t, db, sqlschema.MySQL)
		tx.Rollback()
		tx.Rollback() // again, as a deferred one does
	})
	f.wantTold(t, "connect", "SET autocommit=0", "begin", "commit", "SET autocommit=1",
		"SET autocommit=0", "begin", "rollback", "SET autocommit=1")
}

// A connection that may still be in its transaction is closed, so that no later
// statement commits it.
func TestConnectionInDoubtIsClosed(t *testing.T) {
	f := &fake{commit: func(context.Context) error { return errors.New("no reply") }}
	in(t, f, func(t *testing.T, db *sql.DB) {
		if err := begun(t, db, sqlschema.MySQL).Commit(); err == nil {
			t.Error("no error")
		}
	})
	f.wantTold(t, "connect", "SET autocommit=0", "begin", "commit", "close")
}

// In SQLite, the only connection may hold the whole database.
func TestSQLiteKeepsItsConnection(t *testing.T) {
	f := &fake{commit: func(context.Context) error { return errors.New("busy") }}
	in(t, f, func(t *testing.T, db *sql.DB) {
		if err := begun(t, db, sqlschema.SQLite).Commit(); err == nil {
			t.Error("no error")
		}
	})
	f.wantTold(t, "connect", "begin", "commit", "ROLLBACK")
}

func TestCommitIsBounded(t *testing.T) {
	f := &fake{commit: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	in(t, f, func(t *testing.T, db *sql.DB) {
		start := time.Now()
		if err := begun(t, db, sqlschema.PostgreSQL).Commit(); err == nil {
			t.Error("no error")
		}
		if took := time.Since(start); took != EndTime {
			t.Errorf("it took %v, want %v", took, EndTime)
		}
	})
	f.wantTold(t, "connect", "begin", "commit", "close")
}

func TestContextBoundsTheBeginning(t *testing.T) {
	f := &fake{begin: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	in(t, f, func(t *testing.T, db *sql.DB) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Begin(ctx, db, sqlschema.MySQL); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Begin returned %v", err)
		}
	})
	f.wantTold(t, "connect", "SET autocommit=0", "begin", "close")
}

func TestContextEndsNothingThatHasBegun(t *testing.T) {
	f := &fake{}
	in(t, f, func(t *testing.T, db *sql.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := Begin(ctx, db, sqlschema.PostgreSQL)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	})
	f.wantTold(t, "connect", "begin", "commit")
}
