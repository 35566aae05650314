package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlschema"
)

var transfer = &once.Operation[string]{Name: "transfer"}

const (
	accountTable = "CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL)"
	accounts     = "INSERT INTO account (id, n) VALUES (1, 0), (2, 0)"
)

func raise(id int) string { return fmt.Sprintf("UPDATE account SET n = n + 1 WHERE id = %d", id) }

// attempts does a unit of work whose first attempt meets a rival, and checks
// that its effect exists once in the end.
func attempts(t *testing.T, d *engine.Database, work func(ctx context.Context, tx engine.Tx, try int) error) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	try := 0
	answer, err := once.DoTx(ctx, d.Store, transfer.For("unit"), func(ctx context.Context, tx engine.Tx) (string, error) {
		if err := effect(ctx, tx, "unit"); err != nil {
			return "", err // the claim was lost
		}
		try++
		return fmt.Sprint("try ", try), work(ctx, tx, try)
	})
	if want := fmt.Sprint("try ", try); err != nil || answer != want {
		t.Errorf("DoTx returned %q, %v; want %q", answer, err, want)
	}
	wantEffects(t, d, "unit", 1)
	replayed, err := calls(d, transfer, "unit", never(t, "a replay"))["DoTx"](ctx)
	if replayed != answer || err != nil {
		t.Errorf("the replay is %q, %v; want %q", replayed, err, answer)
	}
	return try
}

// rival is another transaction, on its own connection.
type rival struct {
	engine.Tx
	waiting func(context.Context) bool // whether it waits for a lock
}

func newRival(t *testing.T, e engine.Engine, d *engine.Database, dsn string, settings ...string) *rival {
	t.Helper()
	tx, err := e.Connect(t, dsn, settings...).Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it may have ended
	if e.Dialect == sqlschema.MySQL {
		id, err := tx.Number(t.Context(), "SELECT CONNECTION_ID()")
		must(t, err)
		db, err := sql.Open("mysql", dsn)
		must(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return &rival{tx, func(ctx context.Context) bool {
			threads, err := proof.ThreadsThatWait(ctx, db)
			return err == nil && slices.Contains(threads, id)
		}}
	}
	id, err := tx.Number(t.Context(), "SELECT pg_backend_pid()")
	must(t, err)
	return &rival{tx, func(ctx context.Context) bool {
		n, err := d.Number(ctx, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event_type = 'Lock'", id))
		return err == nil && n == 1
	}}
}

// TestDeadlock has a rival that has locked what the work needs, and waits for
// what the work has locked. The database chooses the work as the victim:
// PostgreSQL because the rival never looks for deadlocks, and MariaDB because
// it has written more.
func TestDeadlock(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		quick, patient := []string(nil), []string(nil)
		if e.Dialect == sqlschema.PostgreSQL {
			quick, patient = []string{"deadlock_timeout=50ms"}, []string{"deadlock_timeout=1h"}
		}
		d, dsn := with(t, e, quick...)
		d.MustExec(t, accountTable, accounts)
		other := newRival(t, e, d, dsn, patient...)
		for range 50 {
			must(t, effect(t.Context(), other, "weight"))
		}
		must(t, other.Exec(t.Context(), raise(2)))
		var rivals sync.WaitGroup
		tries := attempts(t, d, func(ctx context.Context, tx engine.Tx, try int) error {
			rivals.Wait() // otherwise the next attempt may overtake the rival, which was just woken, and meet it again
			if err := tx.Exec(ctx, raise(1)); err != nil {
				return err
			}
			if try == 1 {
				rivals.Go(func() {
					if err := errors.Join(other.Exec(ctx, raise(1)), other.Commit(ctx)); err != nil {
						t.Errorf("the rival became the victim: %v", err)
					}
				})
				if err := waitFor("the rival waits for the work", 10*time.Second, func() bool { return other.waiting(ctx) }); err != nil {
					return err
				}
			}
			return tx.Exec(ctx, raise(2))
		})
		rivals.Wait()
		if tries != 2 {
			t.Errorf("the work ran %d times, want twice: once into the deadlock, once after it", tries)
		}
		if n := d.MustNumber(t, "SELECT sum(n) FROM account"); n != 4 {
			t.Errorf("the accounts sum up to %d, want 4: two from each", n)
		}
	}, servers...)
}

// TestLockTimeout has a rival that locks a row for longer than the session
// waits: 55P03, and MariaDB's 1205, which rolls back only a statement.
func TestLockTimeout(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		limit := "lock_timeout=100ms"
		if e.Dialect == sqlschema.MySQL {
			limit = "innodb_lock_wait_timeout=1"
		}
		d, dsn := with(t, e, limit)
		d.MustExec(t, accountTable, accounts)
		other := newRival(t, e, d, dsn)
		must(t, other.Exec(t.Context(), raise(1)))
		tries := attempts(t, d, func(ctx context.Context, tx engine.Tx, try int) error {
			err := tx.Exec(ctx, raise(1))
			if try == 1 {
				return errors.Join(err, other.Rollback(ctx))
			}
			return err
		})
		if tries != 2 {
			t.Errorf("the work ran %d times, want twice", tries)
		}
	}, servers...)
}

// levels returns the isolation levels of an engine, each with a setting of the
// connection.
func levels(e engine.Engine) map[string]string {
	switch e.Dialect {
	case sqlschema.PostgreSQL:
		return map[string]string{"read committed": "default_transaction_isolation=read%20committed",
			"repeatable read": "default_transaction_isolation=repeatable%20read", "serializable": "default_transaction_isolation=serializable"}
	default:
		return map[string]string{"read committed": "tx_isolation=%27READ-COMMITTED%27",
			"repeatable read": "tx_isolation=%27REPEATABLE-READ%27", "serializable": "tx_isolation=%27SERIALIZABLE%27"}
	}
}

// TestOvertakenBySomebodyElsesCommit changes a row after work has read it.
// MariaDB updates the newest row at every level, unless
// innodb_snapshot_isolation is on.
func TestOvertakenBySomebodyElsesCommit(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		for level, setting := range levels(e) {
			t.Run(level, func(t *testing.T) {
				d, dsn := with(t, e, setting)
				d.MustExec(t, accountTable, accounts)
				other := e.Connect(t, dsn)
				tries := attempts(t, d, func(ctx context.Context, tx engine.Tx, try int) error {
					if _, err := tx.Number(ctx, "SELECT n FROM account WHERE id = 1"); err != nil {
						return err
					}
					if try == 1 {
						must(t, other.Exec(ctx, raise(1)))
					}
					return tx.Exec(ctx, raise(1))
				})
				if want := map[string]int{"read committed": 1}[level]; want == 1 && tries != 1 || want == 0 && tries != 2 {
					t.Errorf("the work ran %d times", tries)
				}
				if n := d.MustNumber(t, "SELECT n FROM account WHERE id = 1"); n != 2 {
					t.Errorf("the account has %d, want 2: one from each", n)
				}
			})
		}
	}, postgres...)
}

// TestSerializationFailureAtTheEnd has two transactions, each of which reads
// what the other writes. All statements of the work succeed, and it fails when
// it is settled or committed. MariaDB locks what a serializable transaction
// reads, which makes this a deadlock.
func TestSerializationFailureAtTheEnd(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, dsn := with(t, e, levels(e)["serializable"])
		d.MustExec(t, accountTable, accounts)
		other := newRival(t, e, d, dsn, levels(e)["serializable"])
		swap := func(ctx context.Context, tx engine.Tx, from, to int) error {
			_, err := tx.Number(ctx, fmt.Sprintf("SELECT n FROM account WHERE id = %d", from))
			return errors.Join(err, tx.Exec(ctx, raise(to)))
		}
		tries := attempts(t, d, func(ctx context.Context, tx engine.Tx, try int) error {
			if err := swap(ctx, tx, 1, 2); err != nil || try > 1 {
				return err
			}
			must(t, swap(ctx, other, 2, 1))
			must(t, other.Commit(ctx))
			return nil
		})
		if tries != 2 {
			t.Errorf("the work ran %d times, want twice", tries)
		}
	}, postgres...)
}

// TestDuplicatesAtEachLevel races duplicates whose commits cause serialization
// failures in each other.
func TestDuplicatesAtEachLevel(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		for level, setting := range levels(e) {
			t.Run(level, func(t *testing.T) {
				d, dsn := with(t, e, setting)
				processes := []*engine.Database{d, e.Connect(t, dsn, setting), e.Connect(t, dsn, setting)}
				for round := range 3 {
					race(t, processes, fmt.Sprint("unit ", round))
				}
			})
		}
	}, servers...)
}

func race(t *testing.T, processes []*engine.Database, id string) {
	var wg sync.WaitGroup
	answers := make([]string, 2*len(processes))
	for i := range answers {
		wg.Go(func() {
			d := processes[i%len(processes)]
			answer, err := once.DoTx(t.Context(), d.Store, transfer.For(id), func(ctx context.Context, tx engine.Tx) (string, error) {
				return fmt.Sprint("call ", i), effect(ctx, tx, id)
			})
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
			answers[i] = answer
		})
	}
	wg.Wait()
	for _, answer := range answers {
		if answer != answers[0] {
			t.Errorf("the answers differ: %v", answers)
		}
	}
	wantEffects(t, processes[0], id, 1)
}

// TestSnapshotThatIsTooOld has a transaction of the caller in SQLite that read
// before another one wrote. It can never write (SQLITE_BUSY_SNAPSHOT), and its
// work does not begin.
func TestSnapshotThatIsTooOld(t *testing.T) {
	e := engine.All()[0]
	_, dsn := with(t, e)
	d := e.Connect(t, strings.Replace(dsn, "_txlock=immediate", "_txlock=deferred", 1))
	tx, err := d.Begin(t.Context())
	must(t, err)
	_, err = tx.Number(t.Context(), "SELECT count(*) FROM effect")
	must(t, err)
	d.MustExec(t, "INSERT INTO effect (name) VALUES ('overtaken')")
	_, err = once.InTx(t.Context(), d.Store, tx, transfer.For("unit"), func(context.Context) (string, error) {
		return "", never(t, "InTx")()
	})
	wantError(t, "InTx on an old snapshot", err, once.ErrConflict)
	must(t, tx.Rollback(t.Context()))
	if tries := attempts(t, d, func(context.Context, engine.Tx, int) error { return nil }); tries != 1 {
		t.Errorf("the work ran %d times", tries)
	}
}
