package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
)

// opened returns a position that the test has open, and the next one.
func opened(t testing.TB, f *fixture, consumer string) (from, to store.Position) {
	t.Helper()
	from, err := f.OpenPosition(t.Context(), consumer, "0")
	if err != nil {
		t.Fatal(err)
	}
	return from, further(from)
}

func further(p store.Position) store.Position {
	p.Log, p.Offset = "log", p.Offset+1
	return p
}

func wantPosition(t testing.TB, f *fixture, want store.Position) {
	t.Helper()
	got, err := f.Positions(t.Context(), want.Consumer)
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("the position is %+v, %v, want %+v", got, err, want)
	}
}

// TransactAt adds two round trips to those of the work: BEGIN with the move,
// and COMMIT.
func TestTransactAtTakesTwoRoundTrips(t *testing.T) {
	w := &wire{}
	f := newFixture(t, w.into, one)
	p, _ := opened(t, f, "a")
	for range 5 { // until everything is prepared
		to := further(p)
		before := w.trips.Load()
		if err := f.TransactAt(t.Context(), p, to, nothing); err != nil {
			t.Fatal(err)
		}
		p = to
		if trips := w.trips.Load() - before; p.Offset > 2 && trips != 2 {
			t.Errorf("TransactAt took %d round trips, want 2", trips)
		}
	}
	wantPosition(t, f, p)
}

func TestLostCommitsOfAPosition(t *testing.T) {
	for name, lose := range map[string]int32{"request": loseRequest, "reply": loseReply} {
		t.Run(name, func(t *testing.T) {
			w := &wire{}
			f := newFixture(t, w.into, mode(pgx.QueryExecModeExec))
			from, to := opened(t, f, "a")
			w.lose.Store(lose)
			work := func(tx pgx.Tx) error { return f.write(t.Context(), tx, "a") }
			wantError(t, f.TransactAt(t.Context(), from, to, work), once.ErrOutcomeUnknown)
			if n := f.count(t, "a"); n != int(lose)-1 {
				t.Errorf("%d rows: the test did not do what it says", n)
			}
			if err := f.TransactAt(t.Context(), from, to, work); err != nil {
				t.Errorf("the same call again: %v", err)
			}
			wantPosition(t, f, to)
			if n := f.count(t, "a"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

func TestTheHandleOfAPositionRefusesToEnd(t *testing.T) {
	f := newFixture(t)
	from, to := opened(t, f, "a")
	var kept pgx.Tx
	err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
		kept = tx
		wantError(t, tx.Commit(t.Context()), once.ErrInTx)
		wantError(t, tx.Rollback(t.Context()), once.ErrInTx)
		_, err := tx.Exec(t.Context(), `COMMIT`)
		wantError(t, err, once.ErrInTx)
		return f.write(t.Context(), tx, "a")
	})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, f.write(t.Context(), kept, "late"), pgx.ErrTxClosed)
	wantPosition(t, f, to)
}

// A handler can reach the connection itself in two ways. Whatever it does
// there, only the transaction that moved the position is committed.
func TestAPositionMovedInATransactionBegunAnewIsNotCommitted(t *testing.T) {
	for name, conn := range map[string]func(pgx.Tx) (*pgx.Conn, error){
		"transaction": func(tx pgx.Tx) (*pgx.Conn, error) { return tx.Conn(), nil },
		"savepoint": func(tx pgx.Tx) (*pgx.Conn, error) {
			nested, err := tx.Begin(t.Context())
			if err != nil {
				return nil, err
			}
			return nested.Conn(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			from, to := opened(t, f, "a")
			err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
				raw, err := conn(tx)
				if err == nil {
					_, err = raw.Exec(t.Context(), `ROLLBACK; BEGIN`)
				}
				return errors.Join(err, f.write(t.Context(), tx, "a"))
			})
			wantError(t, err, once.ErrLeaseLost)
			wantPosition(t, f, from)
			if n := f.count(t, "a"); n != 0 {
				t.Errorf("%d rows, want 0", n)
			}
			if err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
				_, err := conn(tx) // and does no harm
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatTheHandlerOfAPositionLeavesBehind(t *testing.T) {
	f := newFixture(t)
	from, to := opened(t, f, "a")
	for text, work := range map[string]func(pgx.Tx) error{
		"was ignored": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT 1 / 0`)
			wantText(t, err, "22012")
			return nil
		},
		"still open": func(tx pgx.Tx) error {
			_, err := tx.Query(t.Context(), `SELECT generate_series(1, 100000)`)
			return err
		},
	} {
		err := f.TransactAt(t.Context(), from, to, work)
		wantText(t, err, text)
		if errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%v is ErrOutcomeUnknown, though nothing was committed", err)
		}
		wantPosition(t, f, from)
	}
	waitFor(t, func() bool { return f.pool.Stat().AcquiredConns() == 0 })
}

func TestErrorsOfCommitOfAPosition(t *testing.T) {
	states := map[string]error{"40001": once.ErrConflict, "40P01": once.ErrConflict, "40003": once.ErrOutcomeUnknown}
	for state, want := range states {
		f := newFixture(t)
		commitFault(t, f, `RAISE 'no' USING ERRCODE = '`+state+`'`)
		from, to := opened(t, f, "a")
		err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error { return f.write(t.Context(), tx, "a") })
		wantError(t, err, want)
		wantPosition(t, f, from)
	}
}

// At each isolation level and in each exec mode, the loser of a race gets an
// error that says that it has lost, or that it may try again.
func TestPositionsUnderEachIsolationLevel(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			f := newFixture(t, isolation(level))
			s := pgstore.New(f.pool, &pgstore.Options{Schema: f.schema, Isolation: level})
			from, to := opened(t, f, "a")
			begun, rival := make(chan struct{}), make(chan error, 1)
			err := s.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
				go func() {
					close(begun)
					rival <- s.TransactAt(t.Context(), from, to, func(pgx.Tx) error { return errors.New("it ran") })
				}()
				<-begun
				waitFor(t, func() bool { return f.waits(t) })
				return f.write(t.Context(), tx, "a")
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-rival; err != nil && !errors.Is(err, once.ErrConflict) {
				t.Errorf("the rival got %v", err)
			}
			if opened, err := s.OpenPosition(t.Context(), "a", "0"); err != nil || opened.Epoch != 2 || opened.Offset != 1 {
				t.Errorf("OpenPosition returned %+v, %v", opened, err)
			}
		})
	}
}

// waits reports whether a statement on the positions waits for a lock.
func (f *fixture) waits(t testing.TB) (waiting bool) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%once_position%')`, f.schema).Scan(&waiting); err != nil {
		t.Fatal(err)
	}
	return waiting
}

func TestWaitingForAPositionIsBounded(t *testing.T) {
	t.Parallel() // it takes as long as the bound
	f := newFixture(t)
	from, to := opened(t, f, "a")
	err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
		ended := make(chan error, 3)
		calls := []func() error{
			func() error { return f.TransactAt(t.Context(), from, to, nothing) },
			func() error { return f.SetPosition(t.Context(), to) },
			func() error { _, err := f.OpenPosition(t.Context(), "a", "0"); return err },
		}
		for _, call := range calls {
			go func() { ended <- call() }()
		}
		for range calls {
			select {
			case err := <-ended:
				wantError(t, err, once.ErrConflict)
			case <-time.After(testenv.Patience):
				return errors.New("it waits for ever")
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// A call that gave up must not move the position later.
	waitFor(t, func() bool { return !f.waits(t) })
	wantPosition(t, f, to)
}

// A caller whose context ends while it waits changes nothing.
func TestACallerLeavesWhileItWaitsForAPosition(t *testing.T) {
	f := newFixture(t)
	from, to := opened(t, f, "a")
	ctx, cancel := context.WithCancel(t.Context())
	err := f.TransactAt(t.Context(), from, to, func(tx pgx.Tx) error {
		left := make(chan error, 1)
		go func() { left <- f.TransactAt(ctx, from, to, func(pgx.Tx) error { return errors.New("it ran") }) }()
		waitFor(t, func() bool { return f.waits(t) })
		cancel()
		wantError(t, <-left, context.Canceled)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	wantPosition(t, f, to)
}
