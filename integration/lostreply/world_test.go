package lostreply_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// world is a site with a store that goes through the proxy.
type world struct {
	*site
	deaf   bool // the driver waits for a silent connection even after the context of the call has ended
	store  once.Store
	renew  func()     // nil if not needed
	around once.Store // the same records, through the direct connection
	begins func(ctx context.Context) (callersTx, error)
	doTx   func(ctx context.Context, w once.Work[int], run func(ctx context.Context, write writer) (int, error)) (int, error)
	tellTx func(ctx context.Context, w once.Work[told], run func(ctx context.Context, write writer) (told, error)) (told, error)
	runs   atomic.Int64
	asked  atomic.Int64 // the number of calls of Lookup
}

// told is an empty answer, so a store knows the outcome before the work begins.
type told struct{}

// writer writes an effect in a transaction.
type writer func(ctx context.Context, id string, run int) error

// callersTx is a transaction of the caller's.
type callersTx struct {
	write            writer
	inTx             func(ctx context.Context, w once.Work[int], run func(context.Context) (int, error)) (int, error)
	commit, rollback func() error
}

// worlds are the stores and drivers of all tests.
var worlds = []struct {
	name string
	make func(*testing.T) *world
}{
	{"sqlstore, pgx", func(t *testing.T) *world { return newSQLWorld(t, "pgx", sqlstore.PostgreSQL) }},
	{"sqlstore, pq", func(t *testing.T) *world { return newSQLWorld(t, "pq", sqlstore.PostgreSQL) }},
	{"sqlstore, mysql", func(t *testing.T) *world { return newSQLWorld(t, "mysql", sqlstore.MySQL) }},
	{"pgstore", func(t *testing.T) *world { return newPGWorld(t, new(pgstore.Options)) }},
	{"pgstore, partitions", func(t *testing.T) *world { return newPGWorld(t, &pgstore.Options{Partition: time.Hour}) }},
}

func onEach(t *testing.T, test func(*testing.T, *world)) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w.make(t))
		})
	}
}

func newSQLWorld(t *testing.T, driver string, dialect sqlstore.Dialect) *world {
	w := &world{site: newSite(t, driver), deaf: driver == "pq"}
	migrated := sqlstore.New(w.direct, dialect, nil)
	if err := migrated.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.around = migrated
	store := sqlstore.New(w.through, dialect, nil)
	insert := w.insert()
	writerOf := func(tx *sql.Tx) writer {
		return func(ctx context.Context, id string, run int) error {
			_, err := tx.ExecContext(ctx, insert, id, run)
			return err
		}
	}
	w.store, w.doTx, w.tellTx = store, doTx[int](store, writerOf), doTx[told](store, writerOf)
	w.begins = func(ctx context.Context) (callersTx, error) {
		tx, err := w.through.BeginTx(ctx, nil)
		if err != nil {
			return callersTx{}, err
		}
		return callersTx{writerOf(tx), inTx(store, tx), tx.Commit, tx.Rollback}, nil
	}
	return w
}

func newPGWorld(t *testing.T, o *pgstore.Options) *world {
	w := &world{site: newSite(t, "pgx")}
	pool := openPool(t, w.dsn)
	store := pgstore.New(pool, o)
	w.around = pgstore.New(openPool(t, w.site.around), o)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert := w.insert()
	writerOf := func(tx pgx.Tx) writer {
		return func(ctx context.Context, id string, run int) error {
			_, err := tx.Exec(ctx, insert, id, run)
			return err
		}
	}
	w.renew = func() { // a store that has lost claims lately sends another request first
		store = pgstore.New(pool, o)
		w.store, w.doTx, w.tellTx = store, doTx[int](store, writerOf), doTx[told](store, writerOf)
	}
	w.renew()
	w.begins = func(ctx context.Context) (callersTx, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return callersTx{}, err
		}
		return callersTx{writerOf(tx), inTx(store, tx), func() error { return tx.Commit(ctx) },
			func() error { return tx.Rollback(context.WithoutCancel(ctx)) }}, nil
	}
	return w
}

func openPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func doTx[T, Tx any](store once.TxStore[Tx], writerOf func(Tx) writer) func(context.Context, once.Work[T],
	func(context.Context, writer) (T, error)) (T, error) {

	return func(ctx context.Context, w once.Work[T], run func(context.Context, writer) (T, error)) (T, error) {
		return once.DoTx(ctx, store, w, func(ctx context.Context, tx Tx) (T, error) { return run(ctx, writerOf(tx)) })
	}
}

func inTx[Tx any](store once.TxStore[Tx], tx Tx) func(context.Context, once.Work[int], func(context.Context) (int, error)) (int, error) {
	return func(ctx context.Context, w once.Work[int], run func(context.Context) (int, error)) (int, error) {
		return once.InTx(ctx, store, tx, w, run)
	}
}

func (s *site) insert() string {
	return fmt.Sprintf("INSERT INTO effect (id, run) VALUES (%s, %s)", s.mark(1), s.mark(2))
}

// elsewhere writes an effect through the direct connection, as in another
// system.
func (w *world) elsewhere(ctx context.Context, id string, run int) error {
	_, err := w.direct.ExecContext(ctx, w.insert(), id, run)
	return err
}

// lease is far longer than any call may take here. A call that took its own
// claim for a rival would wait for it, which the tests notice.
const lease = 5 * time.Minute

// operation guards an effect elsewhere and has a Lookup.
func (w *world) operation(t *testing.T) *once.Operation[int] {
	return &once.Operation[int]{Name: "work", Policy: once.Policy{Lease: lease}, Lookup: func(_ context.Context, key once.Key) (int, bool, error) {
		w.asked.Add(1)
		runs := w.effects(t, key.ID)
		if len(runs) == 0 {
			return 0, false, nil
		}
		return runs[0], true, nil
	}}
}

// verb is a way to do a unit of work. The answer is the number of the run that
// did it.
type verb struct {
	name  string
	again bool // the work was done before, and this is a redelivery
	call  func(ctx context.Context, t *testing.T, w *world, id string) (int, error)
}

var (
	plain       = verb{"Do", false, do}
	inOneTx     = verb{"DoTx", false, doInTx}
	inCallersTx = verb{"InTx", false, doInCallersTx}
	redelivered = verb{"a redelivery", true, redeliver}

	verbs = []verb{plain, inOneTx, {"DoTx without an answer", false, tellInTx},
		{"DoTx without a statement", false, doNothingInTx}, inCallersTx, redelivered}
)

func do(ctx context.Context, t *testing.T, w *world, id string) (int, error) {
	return once.Do(ctx, w.store, w.operation(t).For(id), func(ctx context.Context, _ once.Key) (int, error) {
		run := int(w.runs.Add(1))
		return run, w.elsewhere(ctx, id, run)
	})
}

func doInTx(ctx context.Context, t *testing.T, w *world, id string) (int, error) {
	return w.doTx(ctx, w.operation(t).For(id), func(ctx context.Context, write writer) (int, error) {
		run := int(w.runs.Add(1))
		return run, write(ctx, id, run)
	})
}

// tellInTx reads the answer from the effect.
func tellInTx(ctx context.Context, t *testing.T, w *world, id string) (int, error) {
	op := &once.Operation[told]{Name: "work", Policy: once.Policy{Lease: lease}}
	_, err := w.tellTx(ctx, op.For(id), func(ctx context.Context, write writer) (told, error) {
		return told{}, write(ctx, id, int(w.runs.Add(1)))
	})
	if effects := w.effects(t, id); err == nil && len(effects) > 0 {
		return effects[0], nil
	}
	return 0, err
}

// doNothingInTx has no effect except the record. Its answer counts the runs,
// and must not change.
func doNothingInTx(ctx context.Context, t *testing.T, w *world, id string) (int, error) {
	return w.doTx(ctx, w.operation(t).For(id), func(context.Context, writer) (int, error) { return int(w.runs.Add(1)), nil })
}

func doInCallersTx(ctx context.Context, t *testing.T, w *world, id string) (answer int, err error) {
	tx, err := w.begins(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.rollback() }()
	answer, err = tx.inTx(ctx, w.operation(t).For(id), func(ctx context.Context) (int, error) {
		run := int(w.runs.Add(1))
		return run, tx.write(ctx, id, run)
	})
	if err != nil {
		return 0, err
	}
	return answer, tx.commit()
}

func redeliver(ctx context.Context, t *testing.T, w *world, id string) (int, error) {
	return once.Do(ctx, w.store, w.operation(t).For(id).Redelivered(), func(context.Context, once.Key) (int, error) {
		t.Error("a redelivery ran the work again")
		return 0, nil
	})
}
