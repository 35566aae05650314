package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// 64 concurrent calls of DoTx, by stores that share only the database, call the
// handler once.
func TestRepeatsDoNotEnterTheHandler(t *testing.T) {
	const repeats, keys = 64, 4
	policy := once.Policy{Wait: once.NoWait}
	for name, newFixture := range layouts {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			var partition time.Duration
			if name == "partitions" {
				partition = always
			}
			shared := pool(t, server(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 24 })
			levels := []pgx.TxIsoLevel{"", pgx.RepeatableRead, pgx.Serializable}
			if partition > 0 {
				levels = levels[:1] // the others are refused
			}
			for _, level := range levels {
				stores := make([]*pgstore.Store, repeats)
				for i := range stores {
					stores[i] = pgstore.New(shared, &pgstore.Options{Schema: f.schema, Isolation: level, Partition: partition})
				}
				for shape, do := range map[string]guarded{"no outcome": guard(policy, struct{}{}, false), "an outcome": guard(policy, 7, false)} {
					for n := range keys {
						id := fmt.Sprint(level, shape, n)
						var entered, answered atomic.Int64
						var ready, ended sync.WaitGroup
						start := make(chan struct{})
						ready.Add(repeats)
						for _, s := range stores {
							ended.Add(1)
							go func() {
								defer ended.Done()
								ready.Done()
								<-start
								err := do(t.Context(), s, id, func(ctx context.Context, tx pgx.Tx) error {
									entered.Add(1)
									return f.write(ctx, tx, id)
								})
								if err == nil {
									answered.Add(1)
								}
							}()
						}
						ready.Wait()
						close(start)
						ended.Wait()
						if n := entered.Load(); n != 1 {
							t.Errorf("%s: the handler was entered %d times", id, n)
						}
						if answered.Load() == 0 {
							t.Errorf("%s: nobody got an answer", id)
						}
						f.want(t, id, 1)
					}
				}
			}
		})
	}
}

// A batch does not call the handler for a key that is committed while the batch
// looks for its keys.
func TestABatchDoesNotEnterTheHandlerForARepeat(t *testing.T) {
	const rounds, size = 30, 2000
	f := newFixture(t)
	one := guard(once.Policy{}, 7, false)
	stores := []*pgstore.Store{f.again(t), f.again(t, isolation(pgx.RepeatableRead)), f.again(t, isolation(pgx.Serializable))}
	for n := range rounds {
		id, many := fmt.Sprint(n), stores[n%len(stores)]
		get(t, many, keyOf("none")) // so that it has checked its tables
		rs := make([]once.ClaimRequest, size)
		for i := range rs {
			rs[i] = newRequest()
		}
		rs[size-1].Key = keyOf(id)
		held, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			ended <- one(t.Context(), f.Store, id, func(ctx context.Context, tx pgx.Tx) error {
				err := f.write(ctx, tx, id)
				close(held)
				<-goOn
				return err
			})
		}()
		<-held
		batched := make(chan error, 1)
		go func() {
			_, err := many.Transact(t.Context(), rs, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
				if rec := recs[size-1]; rec.Owner == rs[size-1].Owner {
					t.Errorf("round %d: the handler was entered for a key that is done", n)
				}
				return nil, errors.New("enough")
			})
			batched <- err
		}()
		waitFor(t, func() bool {
			var active bool
			err := f.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE state = 'active' AND query LIKE '%WITH ORDINALITY AS u (%' AND pid <> pg_backend_pid())`).Scan(&active)
			return err == nil && active || len(batched) > 0
		})
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-batched
		f.want(t, id, 1)
	}
}
