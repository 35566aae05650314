package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlstore"
)

var (
	sends = &once.Operation[string]{Name: "send", OnUnknown: once.Park, Policy: once.Policy{Lease: 500 * time.Millisecond, Wait: once.NoWait}}
	books = &once.Operation[string]{Name: "book", Policy: once.Policy{Lease: 500 * time.Millisecond, Wait: 20 * time.Second}}
)

func answer(context.Context, once.Key) (string, error) { return "done", nil }

// Do gives up waiting for an open transaction on its key. The statement that it
// has sent must not claim the key later, when nobody does the work.
func TestDoThatGivesUpWaitingLeavesNoClaim(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		_, err = once.InTx(t.Context(), s, tx, sends.For("1"), func(context.Context) (string, error) { return "", nil })
		must(t, err)
		if e.name != "sqlite" { // where every writer waits for this one, as long as busy_timeout says
			begun := time.Now()
			_, err = once.Do(t.Context(), s, sends.For("1"), answer)
			if !errors.Is(err, once.ErrInProgress) {
				t.Errorf("Do beside a transaction in flight: %v", err)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("refused after %v", took)
			}
		}
		must(t, tx.Rollback())
		got, err := once.Do(t.Context(), s, sends.For("1"), answer)
		if got != "done" || err != nil {
			t.Errorf("Do afterwards: %q, %v", got, err)
		}
	})
}

// A claim waits for another transaction longer than its own lease, and then
// gets the key.
func TestClaimThatWaitedLongerThanItsLeaseIsStillUsed(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for name, run := range map[string]func(id string) (string, error){
			"DoTx": func(id string) (string, error) { return once.DoTx(t.Context(), s, books.For(id), nothing) },
			"InTx": func(id string) (string, error) {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					return "", err
				}
				got, err := once.InTx(t.Context(), s, tx, books.For(id), func(context.Context) (string, error) { return "done", nil })
				return got, errors.Join(err, tx.Commit())
			},
		} {
			rival, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			_, err = once.InTx(t.Context(), s, rival, books.For(name), func(context.Context) (string, error) { return "", nil })
			must(t, err)
			ended := make(chan error, 1)
			time.AfterFunc(1200*time.Millisecond, func() { ended <- rival.Rollback() })
			got, err := run(name)
			must(t, <-ended)
			if seen := name == "InTx" && errors.Is(err, once.ErrInProgress); !seen && (got != "done" || err != nil) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			if got, err := once.DoTx(t.Context(), s, books.For(name), nothing); got != "done" || err != nil {
				t.Errorf("after %s: %q, %v", name, got, err)
			}
		}
	})
}

func TestAutocommitOffIsRefused(t *testing.T) {
	open := freshMariaDB(t)
	must(t, sqlstore.New(open(t), sqlstore.MySQL, nil).Migrate(t.Context()))
	_, err := once.Do(t.Context(), sqlstore.New(open(t, "autocommit=0"), sqlstore.MySQL, nil), sends.For("1"), answer)
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func nothing(context.Context, *sql.Tx) (string, error) { return "done", nil }
