//go:build linux

// Package tiered tests a cache in Redis in front of a store in PostgreSQL.
package tiered

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/cachetest"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/effectively-once/once/store/tiered"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // connections are lost on purpose
	logtest.Main(m)
}

// database is an empty one, with the tables of the store and one for the rows of
// work.
type database struct {
	dsn  string
	pool *pgxpool.Pool
}

func newDatabase(t *testing.T) *database {
	e, err := engine.Named(engine.PGStore)
	proof.Must(t, err)
	d := &database{dsn: e.FreshDatabase(t)}
	d.pool = d.connect(t, nil)
	proof.Must(t, pgstore.New(d.pool, nil).Migrate(t.Context()))
	_, err = d.pool.Exec(t.Context(), `CREATE TABLE effect (name text NOT NULL)`)
	proof.Must(t, err)
	return d
}

func (d *database) connect(t testing.TB, tracer pgx.QueryTracer) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(d.dsn)
	proof.Must(t, err)
	config.MaxConns, config.ConnConfig.Tracer = 16, tracer
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	proof.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

func (d *database) write(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, name)
	return err
}

func (d *database) count(ctx context.Context, name string) (n int, err error) {
	err = d.pool.QueryRow(ctx, `SELECT count(*) FROM effect WHERE name = $1`, name).Scan(&n)
	return n, err
}

// sharedCache returns a cache of this test on the shared server.
func sharedCache(t *testing.T) *redisstore.Cache {
	client := dial(t, testenv.Redis(t))
	config, err := client.ConfigGet(t.Context(), "dir").Result()
	proof.Must(t, err)
	testenv.CheckRedis(t, config)
	return redisstore.NewCache(client, fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano()))
}

func dial(t testing.TB, dsn string) *redis.Client {
	o, err := redis.ParseURL(dsn)
	proof.Must(t, err)
	o.ContextTimeoutEnabled = true
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func conformance(t *testing.T, cache tiered.Cache, o *tiered.Options) {
	d := newDatabase(t)
	var stores []*tiered.TxStore[pgx.Tx]
	storetest.RunTx(t, storetest.TxHarness[pgx.Tx]{
		Open: func(t testing.TB) once.TxStore[pgx.Tx] {
			s := tiered.NewTx(pgstore.New(d.connect(t, nil), nil), cache, o)
			stores = append(stores, s)
			return s
		},
		Begin:        d.pool.Begin,
		Commit:       func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback:     func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		Effect:       d.write,
		Count:        d.count,
		SeesInFlight: true,
	})
	var all tiered.Stats
	for _, s := range stores {
		is := s.Stats()
		all.Hits, all.Misses, all.Failed, all.Left = all.Hits+is.Hits, all.Misses+is.Misses, all.Failed+is.Failed, all.Left+is.Left
	}
	if t.Logf("%+v", all); all.Hits == 0 {
		t.Error("no answer came from the cache")
	}
}

func TestConformance(t *testing.T) { conformance(t, sharedCache(t), nil) }

func TestConformanceWithACacheThatMisbehaves(t *testing.T) {
	conformance(t, &cachetest.Unreliable{Cache: sharedCache(t)}, &tiered.Options{Wait: 10 * time.Millisecond})
}

// statements counts what a pool sends.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	s.n.Add(int64(b.Batch.Len()))
	return ctx
}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func TestDuplicatesSendNoStatement(t *testing.T) {
	d, sent := newDatabase(t), new(statements)
	pool := d.connect(t, sent)
	store := tiered.NewTx(pgstore.New(pool, nil), sharedCache(t), &tiered.Options{Wait: time.Minute})
	call := &once.Operation[string]{Name: "call", OnUnknown: once.Park}
	commit := &once.Operation[string]{Name: "commit"}
	fast := &once.Operation[string]{Name: "fast", Speculative: true}
	calls := map[string]func() (string, error){
		"Do": func() (string, error) {
			return once.Do(t.Context(), store, call.For("1"), func(context.Context, once.Key) (string, error) { return "done", nil })
		},
		"Do, redelivered": func() (string, error) {
			return once.Do(t.Context(), store, call.For("1").Redelivered(), func(context.Context, once.Key) (string, error) { return "done", nil })
		},
		"DoTx": func() (string, error) {
			return once.DoTx(t.Context(), store, commit.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) { return "done", d.write(ctx, tx, "1") })
		},
		"DoTx, speculative": func() (string, error) {
			return once.DoTx(t.Context(), store, fast.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) { return "done", d.write(ctx, tx, "2") })
		},
	}
	for name, call := range calls {
		_, err := call()
		proof.Must(t, err)
		before, acquired := sent.n.Load(), pool.Stat().AcquireCount()
		if before == 0 {
			t.Fatal("nothing is counted")
		}
		for range 5 {
			got, err := call()
			if got != "done" || err != nil {
				t.Errorf("%s: a duplicate returned %q, %v", name, got, err)
			}
		}
		if n, taken := sent.n.Load()-before, pool.Stat().AcquireCount()-acquired; n != 0 || taken != 0 {
			t.Errorf("%s: five duplicates sent %d statements, and took a connection %d times", name, n, taken)
		}
	}
}

// Workers deliver each unit of work several times while Redis is killed, wiped and
// suspended.
func TestARedisInTroubleCostsTimeAndNoEffect(t *testing.T) {
	server.Need(t, server.Redis)
	d := newDatabase(t)
	s, err := server.StartRedis(t.Context())
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, s.Stop()) })
	const workers, units, deliveries = 4, 150, 4
	pay := &once.Operation[string]{Name: "pay"}
	sum := make([]tiered.Stats, workers)
	var progress atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			client := dial(t, s.DSN())
			store := tiered.NewTx(pgstore.New(d.connect(t, nil), &pgstore.Options{Options: once.Options{Logger: proof.Logger(t)}}),
				redisstore.NewCache(client, "pay:"), nil)
			for n := range units * deliveries {
				id := fmt.Sprint((n/deliveries + w*7) % units)
				got, err := once.DoTx(t.Context(), store, pay.For(id), func(ctx context.Context, tx pgx.Tx) (string, error) {
					return "paid " + id, d.write(ctx, tx, id)
				})
				if err != nil || got != "paid "+id {
					t.Errorf("the call %s returned %q, %v", id, got, err)
				}
				progress.Add(1)
			}
			sum[w] = store.Stats()
		}()
	}
	const all = workers * units * deliveries
	await := func(n int64) {
		t.Helper()
		proof.Await(t, fmt.Sprintf("%d of %d calls are made", n, all), func() bool { return progress.Load() >= n || t.Failed() })
	}
	for i := 1; i < 6; i++ {
		await(int64(i * all / 6))
		switch i {
		case 1, 4:
			proof.Must(t, s.Kill())
		case 2, 5:
			proof.Must(t, s.Restart(t.Context()))
			proof.Must(t, dial(t, s.DSN()).FlushAll(t.Context()).Err())
		case 3:
			proof.Must(t, s.Pause())
			await(progress.Load() + all/20)
			proof.Must(t, s.Resume())
		}
	}
	wg.Wait()
	var doubled, lost int
	for id := range units {
		n, err := d.count(t.Context(), fmt.Sprint(id))
		proof.Must(t, err)
		doubled, lost = doubled+max(n-1, 0), lost+max(1-n, 0)
	}
	t.Logf("%d calls: %d doubled, %d lost; by worker %+v", all, doubled, lost, sum)
	if doubled+lost > 0 {
		t.Error("effects were doubled or lost")
	}
	var hits, failed int64
	for _, is := range sum {
		hits, failed = hits+is.Hits, failed+is.Failed
	}
	if hits == 0 || failed == 0 {
		t.Errorf("%d hits and %d failures: the cache did not take part, or was never in trouble", hits, failed)
	}
}
