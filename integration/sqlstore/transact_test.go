package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/sqlstore"
)

type body = func(*sql.Tx, []once.Record) ([]once.Settlement, error)

// doing returns a body that calls do and then settles its claim as done.
func doing(do func(*sql.Tx) error) body {
	return func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
		return []once.Settlement{settlement(recs[0], once.Done)}, do(tx)
	}
}

func writing(ctx context.Context, name string) body {
	return doing(func(tx *sql.Tx) error { return effect(ctx, tx, name) })
}

// idle checks that no connection was leaked.
func idle(t *testing.T, db *sql.DB) {
	t.Helper()
	proof.Await(t, "all connections are back in the pool", func() bool { return db.Stats().InUse == 0 })
}

// untilBlocked waits until a transaction in the database of db waits for
// another one.
func untilBlocked(t *testing.T, db *sql.DB) {
	t.Helper()
	proof.Await(t, "a transaction waits", func() bool {
		threads, err := proof.ThreadsThatWait(t.Context(), db)
		proof.Must(t, err)
		for _, thread := range threads {
			if number(t, db, `SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id = `+fmt.Sprint(thread)) > 0 {
				return true
			}
		}
		return false
	})
}

func TestSwallowedDeadlockCommitsNothing(t *testing.T) {
	s, db := engines[2].migrated(t)
	d := newDeadlock(t, db)
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("deadlock", "a")},
		doing(func(tx *sql.Tx) error { return d.passOver(t, tx) }))
	d.check(t, err)
	absent(t, s, "deadlock")
	idle(t, db)
}

// deadlock makes a deadlock in MariaDB, which rolls back a transaction that
// then continues as if nothing had happened.
type deadlock struct {
	db        *sql.DB
	rival     *sql.Tx
	swallowed error
}

func newDeadlock(t *testing.T, db *sql.DB) *deadlock {
	t.Helper()
	mustExec(t, db, "CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL)", "INSERT INTO account VALUES (1, 0), (2, 0)")
	rival, err := db.Begin()
	must(t, err)
	t.Cleanup(func() { _ = rival.Rollback() })
	// The rival has written more, so it is the other one that InnoDB ends.
	for i := range 20 {
		must(t, effect(t.Context(), rival, fmt.Sprint("rival ", i)))
	}
	_, err = rival.Exec("UPDATE account SET n = n + 1 WHERE id = 1")
	must(t, err)
	return &deadlock{db: db, rival: rival}
}

// passOver runs into the deadlock and ignores its error.
func (d *deadlock) passOver(t *testing.T, tx *sql.Tx) error {
	must(t, effect(t.Context(), tx, "before"))
	if _, err := tx.Exec("UPDATE account SET n = n + 10 WHERE id = 2"); err != nil {
		return err
	}
	locked := make(chan error, 1)
	go func() {
		_, err := d.rival.Exec("UPDATE account SET n = n + 1 WHERE id = 2")
		locked <- err
	}()
	untilBlocked(t, d.db)
	_, d.swallowed = tx.Exec("UPDATE account SET n = n + 10 WHERE id = 1")
	must(t, effect(t.Context(), tx, "after")) // continues as if nothing had happened
	return <-locked
}

// check checks the result of the transaction, and ends the rival.
func (d *deadlock) check(t *testing.T, err error) {
	t.Helper()
	if d.swallowed == nil || !strings.Contains(d.swallowed.Error(), "1213") {
		t.Fatalf("the update returned %v, want a deadlock: the test has not forced what it is about", d.swallowed)
	}
	if !errors.Is(err, once.ErrLeaseLost) {
		t.Errorf("the transaction returned %v, want ErrLeaseLost", err)
	}
	must(t, d.rival.Rollback())
	if before, after := count(t, d.db, "before"), count(t, d.db, "after"); before != 0 || after != 0 {
		t.Errorf("committed: %d rows of before and %d of after the deadlock, want none", before, after)
	}
}

func absent(t *testing.T, s *sqlstore.Store, id string) {
	t.Helper()
	if rec, err := s.Get(t.Context(), key(id)); rec.Status != once.Absent || err != nil {
		t.Errorf("Get returned %+v, %v; want nothing", rec, err)
	}
}

// In MySQL, transactions switch autocommit off. Their connections return to the
// pool with it on.
func TestConnectionsComeBackAsTheyWere(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		db.SetMaxOpenConns(1)
		boom := errors.New("boom")
		for i, work := range []body{
			writing(t.Context(), "one"),
			doing(func(*sql.Tx) error { return boom }),
			func(*sql.Tx, []once.Record) ([]once.Settlement, error) { panic("out") },
			writing(t.Context(), "two"),
		} {
			func() {
				defer func() { _ = recover() }()
				_, err := s.Transact(t.Context(), []once.ClaimRequest{request(fmt.Sprint(i), "a")}, work)
				if err != nil && !errors.Is(err, boom) {
					t.Error(err)
				}
			}()
			mustExec(t, db, "INSERT INTO effect (name) VALUES ('outside')")
			if n := count(t, db, "outside"); n != i+1 {
				t.Errorf("after transaction %d: %d rows were committed on its connection, want %d", i, n, i+1)
			}
		}
		idle(t, db)
		if e.dialect == sqlstore.MySQL {
			if n := number(t, db, "SELECT @@autocommit"); n != 1 {
				t.Error("autocommit is off on a connection in the pool")
			}
		}
	})
}

func TestSwallowedErrorInPostgresCommitsNothing(t *testing.T) {
	s, db := engines[1].migrated(t)
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("swallow", "a")}, doing(func(tx *sql.Tx) error {
		must(t, effect(t.Context(), tx, "lost"))
		_, _ = tx.Exec("SELECT 1/0")
		return nil
	}))
	if err == nil || !strings.Contains(err.Error(), "its error was ignored") || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("Transact returned %v, want one that says that an error was ignored", err)
	}
	absent(t, s, "swallow")
	if count(t, db, "lost") != 0 {
		t.Error("the row was committed")
	}
}

func TestCommitByTheWorkIsAnError(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
			_, err := s.Transact(t.Context(), []once.ClaimRequest{request(name, "a")}, doing(end))
			if err == nil || !strings.Contains(err.Error(), "ended the transaction") || errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("after a %s in the body, Transact returned %v", name, err)
			}
		}
		absent(t, s, "rollback")
		if rec, err := s.Get(t.Context(), key("commit")); rec.Status != once.Parked || err != nil {
			t.Errorf("after a Commit in the body, the record is %+v, %v; want it parked", rec, err)
		}
		idle(t, db)
		lives(t, s)
	})
}

// The body settles its claim twice. The second settlement changes nothing, as
// after an implicit commit.
func TestSettlementWithoutEffectCommitsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request("twice", "a")}, func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
			set := settlement(recs[0], once.Done)
			return []once.Settlement{set, set}, effect(t.Context(), tx, "twice")
		})
		if !errors.Is(err, once.ErrLeaseLost) {
			t.Errorf("Transact returned %v, want ErrLeaseLost", err)
		}
		absent(t, s, "twice")
		if count(t, db, "twice") != 0 {
			t.Error("the row was committed")
		}
	})
}

// A constraint is checked at COMMIT.
func TestRefusedCommitIsNotUnknown(t *testing.T) {
	for _, e := range engines[:2] {
		t.Run(e.name, func(t *testing.T) {
			s, db := e.migrated(t, refuseSettings(e)...)
			mustExec(t, db, "CREATE TABLE parent (id int PRIMARY KEY)",
				"CREATE TABLE child (id int REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
			_, err := s.Transact(t.Context(), []once.ClaimRequest{request("orphan", "a")}, doing(func(tx *sql.Tx) error {
				_, err := tx.Exec("INSERT INTO child VALUES (1)")
				return err
			}))
			if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict) {
				t.Errorf("Transact returned %v, want a plain error: the database refused", err)
			}
			absent(t, s, "orphan")
			if n := number(t, db, "SELECT count(*) FROM child"); n != 0 {
				t.Error("the row was committed")
			}
			idle(t, db)
			lives(t, s)
		})
	}
}

func refuseSettings(e engine) []string {
	if e.dialect == sqlstore.SQLite {
		return []string{sqliteSettings, "_pragma=foreign_keys(1)"}
	}
	return nil
}

// A trigger ends the connection during COMMIT.
func TestLostCommitIsUnknown(t *testing.T) {
	s, db := engines[1].migrated(t)
	mustExec(t, db, `CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$`,
		"CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cut()")
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("cut", "a")}, writing(t.Context(), "cut"))
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("Transact returned %v, want ErrOutcomeUnknown: nobody knows how far the COMMIT came", err)
	}
	absent(t, s, "cut")
	idle(t, db)
}

// Each of two transactions reads what the other one writes.
func TestSerializationFailureIsAConflict(t *testing.T) {
	s, db := engines[1].migrated(t, "default_transaction_isolation=serializable")
	mustExec(t, db, "CREATE TABLE shift (n int)", "INSERT INTO shift VALUES (1), (2)")
	rival, err := db.Begin()
	must(t, err)
	defer rival.Rollback()
	swap := func(tx *sql.Tx, n int) error {
		var sum int
		if err := tx.QueryRow("SELECT sum(n) FROM shift").Scan(&sum); err != nil {
			return err
		}
		_, err := tx.Exec("UPDATE shift SET n = n + $1 WHERE n = $2", sum, n)
		return err
	}
	must(t, swap(rival, 1))
	_, err = s.Transact(t.Context(), []once.ClaimRequest{request("serial", "a")}, doing(func(tx *sql.Tx) error {
		return errors.Join(swap(tx, 2), rival.Commit())
	}))
	if !errors.Is(err, once.ErrConflict) {
		t.Errorf("Transact returned %v, want ErrConflict", err)
	}
	absent(t, s, "serial")
}

// In SQLite's rollback journal mode, a reader blocks only the commit of a
// writer.
func TestBusyCommitIsAConflict(t *testing.T) {
	open := freshSQLite(t)
	db, readers := open(t, "_pragma=busy_timeout(50)"), open(t, "_pragma=busy_timeout(50)")
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	reader, err := readers.Begin()
	must(t, err)
	defer reader.Rollback()
	if _, err := reader.Exec("SELECT count(*) FROM effect"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Transact(t.Context(), []once.ClaimRequest{request("busy", "a")}, writing(t.Context(), "busy"))
	if !errors.Is(err, once.ErrConflict) {
		t.Errorf("Transact returned %v, want ErrConflict", err)
	}
	must(t, reader.Rollback())
	if count(t, db, "busy") != 0 {
		t.Error("the row was committed")
	}
	_, err = s.Transact(t.Context(), []once.ClaimRequest{request("busy", "a")}, writing(t.Context(), "busy"))
	must(t, err)
	if count(t, db, "busy") != 1 {
		t.Error("the repeated transaction was not committed")
	}
}

// DoTx repeats the transaction until it succeeds.
func TestConflictInTheBodyIsRetried(t *testing.T) {
	db := freshSQLite(t)(t, "_pragma=busy_timeout(1)")
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	mustExec(t, db, effectTable)
	rival, err := db.Begin()
	must(t, err)
	must(t, effect(t.Context(), rival, "rival"))
	if _, err := s.Transact(t.Context(), []once.ClaimRequest{request("body", "a")}, writing(t.Context(), "mine")); !errors.Is(err, once.ErrConflict) {
		t.Errorf("Transact beside a writer returned %v, want ErrConflict", err)
	}
	must(t, rival.Rollback())
	op := &once.Operation[string]{Name: "pay"}
	tries := 0
	_, err = once.DoTx(t.Context(), s, op.For("retried"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		if tries++; tries == 1 {
			other, err := db.Conn(ctx)
			must(t, err)
			defer other.Close()
			_, busy := other.ExecContext(ctx, "INSERT INTO effect (name) VALUES ('other')")
			return "", fmt.Errorf("wrapped: %w", busy)
		}
		return "done", effect(ctx, tx, "mine")
	})
	must(t, err)
	if n := count(t, db, "mine"); n != 1 || tries != 2 {
		t.Errorf("%d rows after %d tries, want 1 after 2", n, tries)
	}
}

func TestTransactionOutlivesTheContextOfItsCaller(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Transact(ctx, []once.ClaimRequest{request("leaves", "a")}, doing(func(tx *sql.Tx) error {
			cancel()
			return effect(t.Context(), tx, "leaves")
		}))
		must(t, err)
		if count(t, db, "leaves") != 1 {
			t.Error("the row was not committed")
		}
		if _, err := s.Transact(ctx, []once.ClaimRequest{request("late", "a")}, writing(t.Context(), "late")); !errors.Is(err, context.Canceled) {
			t.Errorf("Transact with a context that is over returned %v", err)
		}
		absent(t, s, "late")
		idle(t, db)
	})
}
