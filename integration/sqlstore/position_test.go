package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// opened opens a position, and returns it and the next one.
func opened(t testing.TB, s *sqlstore.Store) (from, to store.Position) {
	t.Helper()
	from, err := s.OpenPosition(t.Context(), "billing", "0")
	must(t, err)
	to = from
	to.Log, to.Offset, to.Digest = "log", from.Offset+1, [16]byte{1}
	return from, to
}

func wantPosition(t testing.TB, s *sqlstore.Store, want store.Position) {
	t.Helper()
	got, err := s.Positions(t.Context(), want.Consumer)
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("the position is %+v, %v, want %+v", got, err, want)
	}
}

func writes(t testing.TB, name string) func(*sql.Tx) error {
	return func(tx *sql.Tx) error { return effect(t.Context(), tx, name) }
}

// The work ignores a deadlock. What it writes then is in another transaction.
func TestSwallowedDeadlockUnderAPositionCommitsNothing(t *testing.T) {
	s, db := engines[2].migrated(t)
	from, to := opened(t, s)
	d := newDeadlock(t, db)
	d.check(t, s.TransactAt(t.Context(), from, to, func(tx *sql.Tx) error { return d.passOver(t, tx) }))
	wantPosition(t, s, from)
	idle(t, db)
}

// Another transaction makes the same move after the database has silently
// rolled back this one. The row is where it should be, but nothing of this
// transaction may be committed.
func TestSameMoveByAnotherTransactionIsNoticed(t *testing.T) {
	t.Run("as is", func(t *testing.T) { sameMoveByAnother(t) })
	t.Run("rows found count", func(t *testing.T) { sameMoveByAnother(t, "clientFoundRows=true") })
}

func sameMoveByAnother(t *testing.T, settings ...string) {
	s, db := engines[2].migrated(t, settings...)
	from, to := opened(t, s)
	err := s.TransactAt(t.Context(), from, to, func(tx *sql.Tx) error {
		must(t, effect(t.Context(), tx, "first"))
		if _, err := tx.Exec("ROLLBACK"); err != nil { // as a deadlock does
			return err
		}
		must(t, s.TransactAt(t.Context(), from, to, writes(t, "other")))
		return effect(t.Context(), tx, "first")
	})
	if !errors.Is(err, once.ErrLeaseLost) {
		t.Errorf("TransactAt returned %v, want ErrLeaseLost", err)
	}
	if first, other := count(t, db, "first"), count(t, db, "other"); first != 0 || other != 1 {
		t.Errorf("committed: %d rows of the first and %d of the other, want none and one", first, other)
	}
	wantPosition(t, s, to)
	idle(t, db)
}

// A handler must not send a statement that commits implicitly. If it does, the
// row can still be opened.
func TestEarlyCommitLeavesAPositionThatCanBeOpened(t *testing.T) {
	s, db := engines[2].migrated(t)
	from, to := opened(t, s)
	no := errors.New("no")
	err := s.TransactAt(t.Context(), from, to, func(tx *sql.Tx) error {
		_, err := tx.Exec("CREATE TABLE early (n int)")
		return errors.Join(err, no)
	})
	if !errors.Is(err, no) {
		t.Errorf("TransactAt returned %v, want the error of the work", err)
	}
	next, _ := opened(t, s)
	if next.Epoch != from.Epoch+1 || next.Offset != to.Offset {
		t.Errorf("OpenPosition returned %+v", next)
	}
	idle(t, db)
}

func TestWorkThatEndsItsTransactionFailsTransactAt(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		from, to := opened(t, s)
		for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
			err := s.TransactAt(t.Context(), from, to, end)
			if err == nil || !strings.Contains(err.Error(), "ended the transaction") || errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("after a %s in the body, TransactAt returned %v", name, err)
			}
			from, to = opened(t, s)
		}
		must(t, s.TransactAt(t.Context(), from, to, writes(t, "row")))
		wantPosition(t, s, to)
		idle(t, db)
	})
}

func TestSwallowedErrorUnderAPositionInPostgresCommitsNothing(t *testing.T) {
	s, db := engines[1].migrated(t)
	from, to := opened(t, s)
	err := s.TransactAt(t.Context(), from, to, func(tx *sql.Tx) error {
		must(t, effect(t.Context(), tx, "lost"))
		_, _ = tx.Exec("SELECT 1/0")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "its error was ignored") || errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("TransactAt returned %v, want one that says that an error was ignored", err)
	}
	wantPosition(t, s, from)
	if count(t, db, "lost") != 0 {
		t.Error("the row was committed")
	}
}

// A trigger ends the connection during COMMIT.
func TestLostCommitOfAPositionIsUnknown(t *testing.T) {
	s, db := engines[1].migrated(t)
	mustExec(t, db, `CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION cut()`)
	from, to := opened(t, s)
	if err := s.TransactAt(t.Context(), from, to, writes(t, "cut")); !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Errorf("TransactAt returned %v, want ErrOutcomeUnknown: nobody knows how far the COMMIT came", err)
	}
	wantPosition(t, s, from)
	idle(t, db)
}

// This test takes as long as the bound.
func TestWaitingForAPositionIsBounded(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s, db := e.migrated(t)
			from, to := opened(t, s)
			must(t, s.TransactAt(t.Context(), from, to, func(*sql.Tx) error {
				ended := make(chan error, 3)
				calls := []func() error{
					func() error { return s.TransactAt(t.Context(), from, to, writes(t, "unwanted")) },
					func() error { return s.SetPosition(t.Context(), to) },
					func() error { _, err := s.OpenPosition(t.Context(), "billing", "0"); return err },
				}
				for _, call := range calls {
					go func() { ended <- call() }()
				}
				for range calls {
					select {
					case err := <-ended:
						if !errors.Is(err, once.ErrConflict) {
							t.Errorf("beside a transaction in flight: %v, want ErrConflict", err)
						}
					case <-time.After(testenv.Patience):
						return errors.New("it waits forever")
					}
				}
				return nil
			}))
			wantPosition(t, s, to) // the call that gave up does not take it away later
			idle(t, db)
			wantPosition(t, s, to)
		})
	}
}

// The snapshot of the transaction is older than the messages that another one
// puts aside.
func TestBlockedKeysAreFresh(t *testing.T) {
	for _, e := range engines[1:] {
		t.Run(e.name, func(t *testing.T) {
			s, db := e.migrated(t)
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			defer tx.Rollback()
			var n int
			must(t, tx.QueryRow("SELECT count(*) FROM effect").Scan(&n)) // where MySQL takes its snapshot
			must(t, s.Shelve(t.Context(), []store.Shelved{aside("1", "order 7")}))
			got, err := s.BlockedTx(t.Context(), tx, "billing", []string{"order 6", "order 7"}, true)
			if err != nil || len(got) != 1 || got[0] != "order 7" {
				t.Errorf("BlockedTx returned %q, %v", got, err)
			}
		})
	}
}

// Many transactions read an empty shelf while another one fills it.
func TestLookingAtTheShelfBlocksNobody(t *testing.T) {
	s, db := engines[2].migrated(t)
	var open []*sql.Tx
	for i := range 8 {
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		defer tx.Rollback()
		_, err = s.BlockedTx(t.Context(), tx, "billing", []string{fmt.Sprint("order ", i)}, true)
		must(t, err)
		open = append(open, tx)
	}
	for _, tx := range open {
		must(t, tx.Commit())
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	must(t, s.Shelve(ctx, []store.Shelved{aside("1", "order 1")}))
}
