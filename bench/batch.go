package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/store/pgstore"
)

// batchStages hold the contest of batch consumers.
func batchStages() (stages []stage) {
	var loads []load
	for _, size := range []int{64, 256} {
		for _, n := range []int{1, 8} {
			loads = append(loads, load{name: fmt.Sprintf("%d messages, %s", size, plural(n, "worker")), workers: n, size: size})
		}
	}
	for _, s := range settings()[:2] {
		stages = append(stages, stage{name: "batch, " + s.name, loads: loads, long: s.model,
			open: func(ctx context.Context, b *bench) (*arena, error) { return openBatch(ctx, b, s) }})
	}
	return stages
}

func openBatch(ctx context.Context, b *bench, s setting) (*arena, error) {
	p, err := openPostgres(ctx, b, s)
	if err != nil {
		return nil, err
	}
	store := pgstore.New(p.pool, &pgstore.Options{Schema: "once"})
	if err := store.Migrate(ctx); err != nil {
		p.close()
		return nil, err
	}
	return &arena{close: p.close, contest: func(l load) contest {
		return contest{unit: "message; latencies are those of a batch", variants: []variant{
			perMessage(l.size, repeated("bare batch", func(ctx context.Context) error {
				return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return updateMany(ctx, tx, l.size) })
			})),
			perMessage(l.size, repeated("Transact, pgstore, a claim for each", func(ctx context.Context) error {
				return transactMany(ctx, store, l.size)
			})),
		}}
	}}, nil
}

// perMessage counts the messages of a variant whose unit is a batch of this
// size.
func perMessage(size int, v variant) variant {
	return variant{v.name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		tally, err := v.turn(ctx, workers, length)
		tally.Units *= size
		tally.PerSecond *= float64(size)
		return tally, err
	}}
}

// updateMany sends its statements in one round trip. It sorts the accounts, so
// that transactions do not deadlock.
func updateMany(ctx context.Context, tx pgx.Tx, size int) error {
	ids := make([]int, size)
	for i := range ids {
		ids[i] = mathrand.IntN(accounts)
	}
	slices.Sort(ids)
	b := new(pgx.Batch)
	for _, id := range ids {
		b.Queue(updateSQL, id)
	}
	return tx.SendBatch(ctx, b).Close()
}

func transactMany(ctx context.Context, store *pgstore.Store, size int) error {
	requests := make([]once.ClaimRequest, size)
	for i := range requests {
		requests[i] = newRequest()
	}
	_, err := store.Transact(ctx, requests, func(tx pgx.Tx, recs []once.Record) ([]once.Settlement, error) {
		settlements := make([]once.Settlement, len(recs))
		for i, rec := range recs {
			settlements[i] = once.Settlement{
				Fence:  once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt},
				Status: once.Done, KeepOutcome: 3 * 24 * time.Hour, KeepKey: 30 * 24 * time.Hour,
			}
		}
		return settlements, updateMany(ctx, tx, size)
	})
	return err
}

// newRequest returns a claim of a new key.
func newRequest() once.ClaimRequest {
	r := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "consume", ID: newID()}}, Lease: 30 * time.Second}
	_, _ = rand.Read(r.Owner[:]) // it never fails
	return r
}
