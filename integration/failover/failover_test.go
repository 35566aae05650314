//go:build linux

// Package failover tests the store on a PostgreSQL whose primary is killed under
// load, and whose standby takes over.
package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { logtest.Main(m) }

// pair is a primary and its standby.
type pair struct {
	primary, standby *server.Instance
}

func start(t *testing.T) *pair {
	t.Helper()
	server.Need(t, server.Postgres)
	if os.Getenv(testenv.PostgresVersionVar) != "" {
		t.Skip("needs pg_basebackup, which only Debian's PostgreSQL has")
	}
	primary, err := server.StartPostgres(t.Context())
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, primary.Stop()) })
	pool := connect(t, primary)
	proof.Must(t, pgstore.New(pool, nil).Migrate(t.Context()))
	_, err = pool.Exec(t.Context(), `CREATE TABLE effect (name text NOT NULL)`)
	proof.Must(t, err)
	standby, err := server.StartStandby(t.Context(), primary)
	proof.Must(t, err)
	t.Cleanup(func() { proof.Must(t, standby.Stop()) })
	proof.Must(t, server.AwaitStandby(t.Context(), primary))
	return &pair{primary, standby}
}

func connect(t testing.TB, s *server.Instance) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(s.DSN())
	proof.Must(t, err)
	config.MaxConns = 8
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	proof.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (p *pair) set(t testing.TB, at *server.Instance, statements ...string) {
	t.Helper()
	pool := connect(t, at)
	for _, s := range append(statements, `SELECT pg_reload_conf()`) {
		_, err := pool.Exec(t.Context(), s)
		proof.Must(t, err)
	}
}

// ledger is another system, which can be asked.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *ledger) do(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id]++
}

func (l *ledger) lookUp(_ context.Context, k once.Key) (string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "paid " + k.ID, l.done[k.ID] > 0, nil
}

// Workers deliver units of work, several times each. The primary is killed, and
// the standby, which confirms each commit, takes over: nothing is doubled or lost.
func TestASynchronousStandbyLosesNothing(t *testing.T) {
	for _, level := range []string{"on", "remote_apply"} {
		t.Run(level, func(t *testing.T) {
			p := start(t)
			p.set(t, p.primary, `ALTER SYSTEM SET synchronous_standby_names = 'standby'`, `ALTER SYSTEM SET synchronous_commit = '`+level+`'`)
			const workers, units = 4, 400
			l := &ledger{done: make(map[string]int)}
			commit := &once.Operation[string]{Name: "commit"}
			call := &once.Operation[string]{Name: "call", Lookup: l.lookUp, Policy: once.Policy{Lease: time.Second}}
			var promoted atomic.Bool
			var progress, failed, replayed atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				stores := make([]*pgstore.Store, 2)
				for i, s := range []*server.Instance{p.primary, p.standby} {
					stores[i] = pgstore.New(connect(t, s), &pgstore.Options{Options: once.Options{Logger: proof.Logger(t)}})
				}
				store := func() *pgstore.Store {
					if promoted.Load() {
						return stores[1]
					}
					return stores[0]
				}
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range units {
						id := fmt.Sprint(i)
						for _, deliver := range []func(context.Context, *once.Report) (string, error){
							func(ctx context.Context, r *once.Report) (string, error) {
								return once.DoTx(ctx, store(), commit.For(id).Report(r), func(ctx context.Context, tx pgx.Tx) (string, error) {
									_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, id)
									return "paid " + id, err
								})
							},
							func(ctx context.Context, r *once.Report) (string, error) {
								return once.Do(ctx, store(), call.For(id).Report(r), func(context.Context, once.Key) (string, error) {
									l.do(id)
									return "paid " + id, nil
								})
							},
						} {
							repeat(t, &failed, func() error {
								ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
								defer cancel()
								var r once.Report
								got, err := deliver(ctx, &r)
								if err == nil && got != "paid "+id {
									err = fmt.Errorf("%w: %q for %s", errWrong, got, id)
								}
								if err == nil && r.Replayed {
									replayed.Add(1)
								}
								return err
							})
						}
						progress.Add(1)
					}
				}()
			}
			proof.Await(t, "half of the units are done", func() bool { return progress.Load() >= workers*units/2 || t.Failed() })
			proof.Must(t, p.primary.Kill())
			p.set(t, p.standby, `ALTER SYSTEM SET synchronous_standby_names = ''`) // there is none any more
			proof.Must(t, server.Promote(t.Context(), p.standby))
			promoted.Store(true)
			wg.Wait()
			t.Logf("%d deliveries, %d replayed, %d failed and were repeated", 2*workers*units, replayed.Load(), failed.Load())
			rows := counts(t, connect(t, p.standby))
			for verb, found := range map[string]map[string]int{"DoTx": rows, "Do": l.done} {
				doubled, lost := 0, 0
				for i := range units {
					n := found[fmt.Sprint(i)]
					doubled, lost = doubled+max(n-1, 0), lost+max(1-n, 0)
				}
				t.Logf("%s: %d units, %d doubled, %d lost", verb, units, doubled, lost)
				if doubled+lost > 0 {
					t.Errorf("%s doubled or lost effects", verb)
				}
			}
		})
	}
}

var errWrong = errors.New("wrong answer")

// repeat repeats a delivery until it succeeds.
func repeat(t *testing.T, failed *atomic.Int64, deliver func() error) {
	deadline := time.Now().Add(proof.Patience)
	for {
		err := deliver()
		if err == nil {
			return
		}
		if errors.Is(err, errWrong) || time.Now().After(deadline) {
			t.Errorf("a delivery ended with %v", err)
			return
		}
		failed.Add(1)
		proof.Pause(20 * time.Millisecond)
	}
}

func counts(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT name, count(*) FROM effect GROUP BY name`)
	proof.Must(t, err)
	found := make(map[string]int)
	var name string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { found[name] = n; return nil })
	proof.Must(t, err)
	return found
}

// An asynchronous standby that is behind when it takes over has neither the keys
// nor the rows of what was acknowledged. Rows are lost with their keys, so a
// repeat restores them. Outside effects happen twice.
func TestAnAsynchronousStandbyLosesWhatItHasNotReceived(t *testing.T) {
	p := start(t)
	l := &ledger{done: make(map[string]int)}
	commit := &once.Operation[string]{Name: "commit"}
	call := &once.Operation[string]{Name: "call", OnUnknown: once.Park}
	deliver := func(s *server.Instance, id string) {
		t.Helper()
		store := pgstore.New(connect(t, s), nil)
		_, err := once.DoTx(t.Context(), store, commit.For(id), func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, id)
			return "paid", err
		})
		proof.Must(t, err)
		_, err = once.Do(t.Context(), store, call.For(id), func(context.Context, once.Key) (string, error) {
			l.do(id)
			return "paid", nil
		})
		proof.Must(t, err)
	}
	deliver(p.primary, "before")
	caughtUp(t, p)
	p.set(t, p.standby, `ALTER SYSTEM SET primary_conninfo = ''`) // it receives nothing more
	until(t, p.standby, `SELECT count(*) = 0 FROM pg_stat_wal_receiver`)
	deliver(p.primary, "late")
	proof.Must(t, p.primary.Kill())
	proof.Must(t, server.Promote(t.Context(), p.standby))
	if found := counts(t, connect(t, p.standby)); found["before"] != 1 || found["late"] != 0 {
		t.Errorf("after the failover the rows are %v: the standby was not behind", found)
	}
	deliver(p.standby, "before")
	deliver(p.standby, "late")
	found := counts(t, connect(t, p.standby))
	if found["before"] != 1 || found["late"] != 1 || l.done["before"] != 1 || l.done["late"] != 2 {
		t.Errorf("after the repeats the rows are %v, and outside effects %v", found, l.done)
	}
}

// caughtUp waits until the standby has applied all that the primary has written.
func caughtUp(t *testing.T, p *pair) {
	t.Helper()
	var end string
	proof.Must(t, connect(t, p.primary).QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&end))
	until(t, p.standby, `SELECT pg_last_wal_replay_lsn() >= '`+end+`'::pg_lsn`)
}

// until waits until a query returns true.
func until(t *testing.T, at *server.Instance, query string) {
	t.Helper()
	pool := connect(t, at)
	proof.Settled(t, proof.Patience, func() (open []string) {
		var holds bool
		proof.Must(t, pool.QueryRow(t.Context(), query).Scan(&holds))
		if !holds {
			open = append(open, query)
		}
		return open
	})
}
