package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hear listens until the test ends.
func hear(t testing.TB, s *pgstore.Store) store.Ear {
	t.Helper()
	e, err := s.HearOutbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func wantRing(t testing.TB, e store.Ear) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if err := e.Wait(ctx); err != nil {
		t.Errorf("Wait returned %v, want a ring", err)
	}
}

// wantSilence waits for a moment, and fails if something arrives.
func wantSilence(t testing.TB, e store.Ear) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantError(t, e.Wait(ctx), context.DeadlineExceeded)
}

// listener counts the notifications on the channel of a fixture.
func listener(t testing.TB, f *fixture) (told *atomic.Int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `LISTEN "`+f.schema+`.once_outbox"`); err != nil {
		t.Fatal(err)
	}
	told = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			told.Add(1)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended; conn.Close(context.Background()) })
	return told
}

// A listener of the own store, and one of another store that shares only the
// database, learn of each way to put a message.
func TestListenersLearnOfEachWayToPut(t *testing.T) {
	f := newFixture(t)
	other := f.again(t)
	near, far := hear(t, f.Store), hear(t, other)
	if !near.Far() || !far.Far() {
		t.Error("an ear is not far")
	}
	puts := map[string]func() error{
		"a transaction of the caller's": func() error {
			return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return f.PutTx(t.Context(), tx, messages("a")) })
		},
		"a batch of the caller's": func() error {
			b := new(pgx.Batch)
			return errors.Join(f.QueueOutbox(b, messages("a")), f.pool.SendBatch(t.Context(), b).Close())
		},
		"another position": func() error {
			p, to := opened(t, f, fmt.Sprintf("%x", random()))
			return f.TransactAt(t.Context(), p, to, func(tx pgx.Tx) error { return f.PutTx(t.Context(), tx, messages("a")) })
		},
		"claims": func() error {
			_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { return f.PutTx(t.Context(), tx, messages("a")) })
			return err
		},
		"a nested transaction": func() error {
			_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
				return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error { return f.PutTx(t.Context(), tx, messages("a")) })
			})
			return err
		},
	}
	for shape, do := range shapes(once.Policy{}) {
		puts[shape] = func() error {
			return do(t.Context(), f.Store, fmt.Sprintf("%x", random()), func(ctx context.Context, tx pgx.Tx) error {
				return f.PutTx(ctx, tx, messages("a"))
			})
		}
	}
	for name, put := range puts {
		t.Run(name, func(t *testing.T) {
			waitFor(t, func() bool { return !f.Notifying() })
			for _, e := range []store.Ear{near, far} { // notifications from before
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_ = e.Wait(ctx)
				cancel()
			}
			if err := put(); err != nil {
				t.Fatal(err)
			}
			wantRing(t, near)
			wantRing(t, far)
			f.wantPut(t, "a")
		})
	}
	waitFor(t, func() bool { return !f.Notifying() })
}

// A listener learns of what its own store commits without NOTIFY, and not of
// what another transaction did not commit.
func TestAStoreTellsItsOwnListenersWithoutNotify(t *testing.T) {
	f := newFixture(t)
	f.Mute()
	e := hear(t, f.Store)
	wantSilence(t, e)
	boom := errors.New("boom")
	for _, fails := range []error{boom, nil} {
		_, err := transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error {
			return errors.Join(f.PutTx(t.Context(), tx, messages("a")), fails)
		})
		wantError(t, err, fails)
		if fails == nil {
			wantRing(t, e)
		}
		wantSilence(t, e)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, e.Wait(ended), context.Canceled)
}

// No transaction that puts contains a NOTIFY: it is sent before the commit.
func TestNotifyIsNotInTheTransaction(t *testing.T) {
	f := newFixture(t)
	told := listener(t, f)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := f.PutTx(t.Context(), tx, messages("a")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return told.Load() == 2 }) // once more, in case the commit comes later
	waitFor(t, func() bool { return !f.Notifying() })
	before := told.Load()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, f.admin, `SELECT pg_notify($1, '')`, f.schema+".once_outbox")
	waitFor(t, func() bool { return told.Load() > before })
	if n := told.Load(); n != before+1 {
		t.Errorf("the transaction told of %d messages by itself", n-before-1)
	}
}

// Few NOTIFY are sent, however much is put.
func TestNotifiesAreFew(t *testing.T) {
	f := newFixture(t)
	told := listener(t, f)
	begun, rings := time.Now(), 0
	for time.Since(begun) < 200*time.Millisecond {
		if err := f.QueueOutbox(new(pgx.Batch), messages("a")); err != nil {
			t.Fatal(err)
		}
		rings++
	}
	waitFor(t, func() bool { return !f.Notifying() })
	limit := int64(time.Since(begun)/(5*time.Millisecond)) + 1
	must(t, f.admin, `SELECT pg_notify($1, '')`, f.schema+".once_outbox")
	waitFor(t, func() bool { return told.Load() > 1 })
	if n := told.Load(); n > limit || int64(rings) < 2*limit {
		t.Errorf("%d NOTIFY for %d rings, want at most %d", n, rings, limit)
	}
}

// Sending a NOTIFY waits for no connection, and delays no other call.
func TestNotifyWaitsForNoConnection(t *testing.T) {
	f := newFixture(t, onlyOne)
	told := listener(t, f)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.PutTx(t.Context(), tx, messages("a")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return !f.Notifying() })
	if waited := f.pool.Stat().CanceledAcquireCount(); told.Load() != 0 || waited > 0 {
		t.Errorf("%d NOTIFY were sent, and the pool was waited for in vain %d times", told.Load(), waited)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = transact(t.Context(), f.Store, newRequest(), func(tx pgx.Tx) error { return f.PutTx(t.Context(), tx, messages("b")) })
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return told.Load() > 0 })
}

// A listener has a connection of its own, opened like those of the pool. The
// pool can be closed while it is open.
func TestAListenerHasAConnectionOfItsOwn(t *testing.T) {
	connects := 0
	f := newFixture(t, onlyOne, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
		cfg.BeforeConnect = func(_ context.Context, cfg *pgx.ConnConfig) error {
			connects++
			cfg.RuntimeParams["application_name"] = "an ear"
			return nil
		}
	})
	e := hear(t, f.Store)
	if connects != 2 {
		t.Errorf("%d connections were made, want that of the pool and that of the ear", connects)
	}
	f.pool.Close()
	must(t, f.admin, `SELECT pg_notify($1, 'by hand')`, f.schema+".once_outbox")
	wantRing(t, e)
	e.Close()
	if err := e.Wait(t.Context()); !errors.Is(err, once.ErrClosed) {
		t.Errorf("Wait of a closed ear returned %v", err)
	}
}

// A listener whose connection breaks returns an error, and a new one works.
func TestAListenerReportsABrokenConnection(t *testing.T) {
	f := newFixture(t)
	e := hear(t, f.Store)
	must(t, f.admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1`, `listen "`+f.schema+`.once_outbox"`)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if err := e.Wait(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("Wait returned %v", err)
	}
	wantText(t, e.Wait(ctx), "does not receive notifications")
	e.Close()
	e = hear(t, f.Store)
	must(t, f.admin, `SELECT pg_notify($1, 'by hand')`, f.schema+".once_outbox")
	wantRing(t, e)
}

// Through a pooler in transaction mode, HearOutbox returns an error.
func TestHearOutboxFailsThroughAPooler(t *testing.T) {
	f := newFixture(t)
	s := pgstore.New(pool(t, bouncer(t), mode(pgx.QueryExecModeExec)), &pgstore.Options{Schema: f.schema})
	e, err := s.HearOutbox(t.Context())
	wantText(t, err, "pooler")
	if e != nil || errors.Is(err, once.ErrInvalid) {
		t.Errorf("there is an ear, or no hope: %v", err)
	}
}

// Stores that name a schema in two ways use one channel.
func TestASchemaNamedInTwoWaysHasOneChannel(t *testing.T) {
	f := newFixture(t)
	p := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = f.schema })
	unnamed := pgstore.New(p, nil)
	named, found := hear(t, f.Store), hear(t, unnamed)
	for i, s := range []*pgstore.Store{unnamed, f.Store} {
		if _, err := transact(t.Context(), s, newRequest(), func(tx pgx.Tx) error {
			return s.PutTx(t.Context(), tx, messages("a"))
		}); err != nil {
			t.Fatal(err)
		}
		wantRing(t, []store.Ear{named, found}[i])
	}
}
