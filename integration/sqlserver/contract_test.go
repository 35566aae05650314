package sqlserver_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/effectively-once/once/store/storetest"
	mssql "github.com/microsoft/go-mssqldb"
)

// database opens the database in ONCE_TEST_SQLSERVER, or skips the test if that
// is not set. No tool of this repository starts a SQL Server, so "make test"
// skips these tests.
func database(t testing.TB) *sql.DB {
	t.Helper()
	dsn := os.Getenv("ONCE_TEST_SQLSERVER")
	if dsn == "" {
		t.Skip("needs SQL Server: set ONCE_TEST_SQLSERVER to the DSN of a database whose name begins with once_test")
	}
	db := open(t, dsn)
	var name string
	must(t, db.QueryRow("SELECT DB_NAME()").Scan(&name))
	if !strings.HasPrefix(name, "once_test") {
		t.Fatalf("the database is called %q, not once_test...: nothing was changed in it", name)
	}
	return db
}

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlserver", dsn)
	must(t, err)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { db.Close() })
	return db
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fresh creates a schema for this test, with the tables of a store and one for
// effects.
func fresh(t testing.TB, db *sql.DB) *sqlstore.Options {
	t.Helper()
	o := &sqlstore.Options{Schema: "t" + rand.Text()}
	must(t, sqlstore.New(db, sqlstore.SQLServer, o).Migrate(t.Context()))
	mustExec(t, db, fmt.Sprintf("CREATE TABLE %s.effect (name nvarchar(255) NOT NULL, INDEX effect_name (name))", o.Schema))
	t.Cleanup(func() {
		for _, table := range []string{"effect", "once_record", "once_schema"} {
			mustExec(t, db, fmt.Sprintf("DROP TABLE %s.%s", o.Schema, table))
		}
		mustExec(t, db, "DROP SCHEMA "+o.Schema)
	})
	return o
}

func mustExec(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%v\n%s", err, statement)
	}
}

// The suite runs with and without READ_COMMITTED_SNAPSHOT.
func TestContract(t *testing.T) {
	db := database(t)
	for _, snapshot := range []string{"ON", "OFF"} {
		t.Run("READ_COMMITTED_SNAPSHOT "+snapshot, func(t *testing.T) {
			mustExec(t, db, "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT "+snapshot+" WITH ROLLBACK IMMEDIATE")
			storetest.RunTx(t, harness(db, fresh(t, db), open))
		})
	}
}

func harness(db *sql.DB, o *sqlstore.Options, open func(testing.TB, string) *sql.DB) storetest.TxHarness[*sql.Tx] {
	return storetest.TxHarness[*sql.Tx]{
		Open: func(t testing.TB) once.TxStore[*sql.Tx] {
			return sqlstore.New(open(t, os.Getenv("ONCE_TEST_SQLSERVER")), sqlstore.SQLServer, o)
		},
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s.effect (name) VALUES (@p1)", o.Schema), name)
			return err
		},
		Count:        func(ctx context.Context, name string) (int, error) { return count(ctx, db, o.Schema, name) },
		SeesInFlight: true,
	}
}

// count waits for rows that are being committed, for a short time.
func count(ctx context.Context, db *sql.DB, schema, name string) (n int, err error) {
	query := func(hint string) error {
		return db.QueryRowContext(ctx, fmt.Sprintf("SET LOCK_TIMEOUT 500; SELECT count(*) FROM %s.effect%s WHERE name = @p1", schema, hint), name).Scan(&n)
	}
	err = query("")
	var locked mssql.Error
	if errors.As(err, &locked) && locked.Number == 1222 {
		err = query(" WITH (READCOMMITTEDLOCK, READPAST)")
	}
	return n, err
}

// Claims run in transactions of other isolation levels. After a lost claim, a
// transaction must be as usable as before.
func TestCallersTransactions(t *testing.T) {
	db := database(t)
	mustExec(t, db, "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
	o := fresh(t, db)
	s := sqlstore.New(db, sqlstore.SQLServer, o)
	for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable, sql.LevelSnapshot} {
		for _, abort := range []string{"OFF", "ON"} {
			t.Run(fmt.Sprint(level, ", XACT_ABORT ", abort), func(t *testing.T) {
				id := func(part string) string { return fmt.Sprint(part, i, abort) }
				first, err := db.BeginTx(t.Context(), nil)
				must(t, err)
				defer first.Rollback()
				claimTx(t, s, first, request(id("flight"), "first"), once.Running)

				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
				must(t, err)
				defer tx.Rollback()
				_, err = tx.Exec("SET XACT_ABORT " + abort)
				must(t, err)
				if rec := claimTx(t, s, tx, request(id("flight"), "second"), once.Running); rec.LeaseLeft != 0 || rec.Owner != [16]byte{} {
					t.Errorf("a transaction in flight is shown as %+v", rec)
				}
				must(t, first.Commit())
				claimTx(t, s, tx, request(id("flight"), "second"), once.Running)

				r := request(id("own"), "second")
				must(t, s.SettleTx(t.Context(), tx, []once.Settlement{settlement(r, claimTx(t, s, tx, r, once.Running))}))
				// A claim in this transaction blocks no other key, at any
				// level.
				other, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if rec, err := s.Claim(other, request(id("beside"), "third")); err != nil || rec.Owner != owner("third") {
					t.Errorf("a claim of another key meanwhile: %+v, %v", rec, err)
				}
				must(t, tx.Commit())
				if rec, err := s.Get(t.Context(), r.Key); err != nil || rec.Status != once.Done {
					t.Errorf("after the commit, Get returned %+v, %v", rec, err)
				}
			})
		}
	}
}

func claimTx(t *testing.T, s *sqlstore.Store, tx *sql.Tx, r once.ClaimRequest, want once.Status) once.Record {
	t.Helper()
	recs, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
	must(t, err)
	if recs[0].Status != want {
		t.Errorf("the claim returned %+v, want %v", recs[0], want)
	}
	return recs[0]
}

func TestMigrateAtOnce(t *testing.T) {
	db := database(t)
	o := fresh(t, db)
	again := &sqlstore.Options{Schema: o.Schema, Prefix: "again_"}
	t.Cleanup(func() { mustExec(t, db, fmt.Sprintf("DROP TABLE %s.again_record, %[1]s.again_schema", o.Schema)) })
	failed := make(chan error, 16)
	var wg sync.WaitGroup
	for range cap(failed) {
		wg.Go(func() { failed <- sqlstore.New(db, sqlstore.SQLServer, again).Migrate(t.Context()) })
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		must(t, err)
	}
}

// The printed SQL runs as one batch, as the tools of administrators run it.
func TestPrintedSchema(t *testing.T) {
	db := database(t)
	o := fresh(t, db)
	printed := &sqlstore.Options{Schema: o.Schema, Prefix: "printed_"}
	t.Cleanup(func() { mustExec(t, db, fmt.Sprintf("DROP TABLE %s.printed_record, %[1]s.printed_schema", o.Schema)) })
	text, err := sqlstore.Schema(sqlstore.SQLServer, printed, 0)
	must(t, err)
	mustExec(t, db, text)
	s := sqlstore.New(db, sqlstore.SQLServer, printed)
	must(t, s.Migrate(t.Context()))
	if rec, err := s.Claim(t.Context(), request("1", "me")); err != nil || rec.Owner != owner("me") {
		t.Errorf("Claim returned %+v, %v", rec, err)
	}
}

// A due row is locked, with and without row versions.
func TestForgetPassesOverLockedRows(t *testing.T) {
	db := database(t)
	o := fresh(t, db)
	s := sqlstore.New(db, sqlstore.SQLServer, o)
	for _, id := range []string{"free", "locked"} {
		r := request(id, "me")
		rec, err := s.Claim(t.Context(), r)
		must(t, err)
		set := settlement(r, rec)
		set.KeepOutcome, set.KeepKey = 0, 0
		must(t, s.Settle(t.Context(), set))
	}
	tx, err := db.Begin()
	must(t, err)
	defer tx.Rollback()
	_, err = tx.Exec(fmt.Sprintf("UPDATE %s.once_record SET reason = N'locked' WHERE id = N'locked'", o.Schema))
	must(t, err)
	for _, want := range []int{1, 1} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if n, err := s.Forget(ctx, 10); n != want || err != nil {
			t.Errorf("Forget returned %d, %v; want %d", n, err, want)
		}
		_ = tx.Rollback()
	}
}
