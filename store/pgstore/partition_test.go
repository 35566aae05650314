package pgstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// newPartitioned returns a fixture whose store has partitions.
func newPartitioned(t testing.TB, every time.Duration, changes ...func(*pgxpool.Config)) *fixture {
	t.Helper()
	admin := pool(t, server(t))
	name := schema(t, admin)
	p := pool(t, server(t), changes...)
	f := &fixture{Store: pgstore.New(p, &pgstore.Options{Schema: name, Partition: every}), admin: admin, pool: p, schema: name}
	if err := pgstore.New(p, &pgstore.Options{Schema: name, Partition: time.Hour}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, admin, `CREATE TABLE `+f.effects()+` (name text NOT NULL)`)
	return f
}

// janitor calls Forget repeatedly until the test ends.
func janitor(t testing.TB, s *pgstore.Store, pause time.Duration) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			if _, err := s.Forget(ctx, 100); err != nil && ctx.Err() == nil {
				t.Errorf("Forget: %v", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// keysOnly is a store without an outbox, which partitions do not change.
type keysOnly struct {
	*pgstore.Store
	PutTx struct{}
}

func TestConformancePartitioned(t *testing.T) {
	const every = time.Second
	again := func(f *fixture, t testing.TB, dsn string, changes ...func(*pgxpool.Config)) *pgstore.Store {
		return pgstore.New(pool(t, dsn, changes...), &pgstore.Options{Schema: f.schema, Partition: every, PartitionWait: 5 * time.Millisecond})
	}
	t.Run("direct", func(t *testing.T) {
		f := newPartitioned(t, every)
		janitor(t, again(f, t, server(t)), 5*time.Millisecond)
		conform(t, f, true, func(t testing.TB) keysOnly { return keysOnly{Store: again(f, t, server(t))} })
		testenv.Await(t, "the records are spread over five partitions", func() bool { // at once, unless few cases were chosen
			var parts int
			err := f.admin.QueryRow(t.Context(), `SELECT max(id) FROM `+f.schema+`.once_part`).Scan(&parts)
			return err == nil && parts >= 5
		})
	})
	t.Run("PgBouncer", func(t *testing.T) {
		f := newPartitioned(t, every)
		janitor(t, again(f, t, bouncer(t), mode(pgx.QueryExecModeExec)), 5*time.Millisecond)
		conform(t, f, true, func(t testing.TB) keysOnly {
			return keysOnly{Store: again(f, t, bouncer(t), mode(pgx.QueryExecModeExec))}
		})
	})
}
