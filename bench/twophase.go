package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/store/pgstore"
)

// twoPhaseStages hold the contest of work outside the database: claim, work,
// record the outcome. The work takes no time.
func twoPhaseStages() (stages []stage) {
	for _, s := range settings()[:2] {
		stages = append(stages, stage{name: "claim and complete, " + s.name, loads: workers(1, 8, 32), long: s.model,
			open: func(ctx context.Context, b *bench) (*arena, error) { return openTwoPhase(ctx, b, s) }})
	}
	return stages
}

func openTwoPhase(ctx context.Context, b *bench, s setting) (*arena, error) {
	p, err := openPostgres(ctx, b, s)
	if err != nil {
		return nil, err
	}
	variants, err := twoPhaseVariants(ctx, p.pool)
	if err != nil {
		p.close()
		return nil, err
	}
	variants = append(variants, b.peers.open(ctx, p.dsn, turn.TwoPhase, &b.report)...)
	closeAll := func() {
		b.peers.close(&b.report)
		p.close()
	}
	return &arena{close: closeAll, contest: func(load) contest {
		return contest{unit: "piece of work", variants: variants}
	}}, nil
}

func twoPhaseVariants(ctx context.Context, pool *pgxpool.Pool) ([]variant, error) {
	store := pgstore.New(pool, &pgstore.Options{Schema: "once"})
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE answer (id text PRIMARY KEY, body text NOT NULL)`); err != nil {
		return nil, err
	}
	charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend}
	async := &once.Operation[string]{Name: "async", OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour, AsyncCommit: true}
	again := pgstore.New(pool, &pgstore.Options{Schema: "once"}) // a store that meets many duplicates looks first
	do := func(ctx context.Context, store *pgstore.Store, work once.Work[string]) error {
		_, err := once.Do(ctx, store, work, func(context.Context, once.Key) (string, error) { return answer300, nil })
		return err
	}
	if err := seedDuplicates(ctx, func(ctx context.Context, id string) error { return do(ctx, store, charge.For(id)) }); err != nil {
		return nil, err
	}
	variants := []variant{
		repeated("two bare commits of 300 bytes", func(ctx context.Context) error { return writeTwice(ctx, pool, newID()) }),
		repeated("Do, pgstore, 300 bytes", func(ctx context.Context) error { return do(ctx, store, charge.For(newID())) }),
		repeated("Do, pgstore, 300 bytes, AsyncCommit", func(ctx context.Context) error { return do(ctx, store, async.For(newID())) }),
		repeated("Do, pgstore, duplicate", func(ctx context.Context) error { return do(ctx, again, charge.For(someDuplicate())) }),
	}
	for _, percent := range shares {
		mixed := pgstore.New(pool, &pgstore.Options{Schema: "once"})
		variants = append(variants, repeated(fmt.Sprintf("Do, pgstore, 300 bytes, %d %% duplicates", percent), func(ctx context.Context) error {
			return do(ctx, mixed, charge.For(mixedID(percent)))
		}))
	}
	return variants, nil
}

func writeTwice(ctx context.Context, pool *pgxpool.Pool, id string) error {
	if _, err := pool.Exec(ctx, `INSERT INTO answer (id, body) VALUES ($1, $2)`, id, answer300); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `UPDATE answer SET body = $2 WHERE id = $1`, id, answer300)
	return err
}
