package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

const updateSQL = `UPDATE account SET bal = bal + 1 WHERE id = $1`

// guardedStages hold the main contest: guarded transactions.
func guardedStages() (stages []stage) {
	for _, s := range settings() {
		stages = append(stages, stage{name: "guarded transaction, " + s.name, loads: workers(1, 8, 32), long: s.model != s.away,
			open: func(ctx context.Context, b *bench) (*arena, error) { return openGuarded(ctx, b, s) }})
	}
	return stages
}

func openGuarded(ctx context.Context, b *bench, s setting) (*arena, error) {
	p, err := openPostgres(ctx, b, s)
	if err != nil {
		return nil, err
	}
	g, err := newGuarded(ctx, p)
	if err != nil {
		p.close()
		return nil, err
	}
	variants := append(g.variants(), b.peers.open(ctx, p.dsn, turn.Guarded, &b.report)...)
	closeAll := func() {
		b.peers.close(&b.report)
		p.close()
	}
	return &arena{close: closeAll, contest: func(load) contest {
		return contest{unit: "transaction", variants: variants}
	}}, nil
}

type guarded struct {
	pool  *pgxpool.Pool
	db    *sql.DB
	store *pgstore.Store
	again *pgstore.Store         // for duplicates: a store that meets many of them looks first
	mixed map[int]*pgstore.Store // by the share of duplicates, in percent
	std   *sqlstore.Store
	pay   *once.Operation[struct{}]
	quote *once.Operation[string]

	speculativePay   *once.Operation[struct{}]
	speculativeQuote *once.Operation[string]
}

func newGuarded(ctx context.Context, p *postgres) (*guarded, error) {
	g := &guarded{
		pool:  p.pool,
		db:    p.std,
		store: pgstore.New(p.pool, &pgstore.Options{Schema: "once"}),
		again: pgstore.New(p.pool, &pgstore.Options{Schema: "once"}),
		mixed: make(map[int]*pgstore.Store),
		std:   sqlstore.New(p.std, sqlstore.PostgreSQL, &sqlstore.Options{Schema: "once"}),
		pay:   &once.Operation[struct{}]{Name: "pay"},
		quote: &once.Operation[string]{Name: "quote"},

		speculativePay:   &once.Operation[struct{}]{Name: "pay", Speculative: true},
		speculativeQuote: &once.Operation[string]{Name: "quote", Speculative: true},
	}
	for _, percent := range shares {
		g.mixed[percent] = pgstore.New(p.pool, &pgstore.Options{Schema: "once"})
	}
	if err := g.store.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := p.pool.Exec(ctx, `CREATE TABLE done (id text PRIMARY KEY)`); err != nil {
		return nil, err
	}
	return g, seedDuplicates(ctx, func(ctx context.Context, id string) error {
		_, err := once.DoTx(ctx, g.store, g.pay.For(id), updateOne)
		return err
	})
}

func (g *guarded) variants() []variant {
	variants := []variant{
		repeated("bare transaction", g.bare),
		repeated("bare, BEGIN sent with its statement", g.pipelined),
		repeated("bare, database/sql over pgx", func(ctx context.Context) error { return bareTx(ctx, g.db, updateOneSQL) }),
		repeated("by hand: the key is a row", g.byHand),
		repeated("by hand: the key is a row, database/sql over pgx", func(ctx context.Context) error {
			return handTx(ctx, g.db, `INSERT INTO done (id) VALUES ($1) ON CONFLICT DO NOTHING`, updateOneSQL)
		}),
		repeated("DoTx, pgstore, no outcome", g.nothing(g.pay)),
		repeated("DoTx, pgstore, 300 bytes", g.answer(g.quote)),
		repeated("DoTx, pgstore, speculative, no outcome", g.nothing(g.speculativePay)),
		repeated("DoTx, pgstore, speculative, 300 bytes", g.answer(g.speculativeQuote)),
		repeated("InTx, pgstore, no outcome", g.inTx),
		repeated("DoTx, sqlstore over pgx, no outcome", func(ctx context.Context) error {
			_, err := once.DoTx(ctx, g.std, g.pay.For(newID()), updateOneSQL)
			return err
		}),
		repeated("DoTx, pgstore, duplicate", g.duplicate(g.pay)),
		repeated("DoTx, pgstore, speculative, duplicate", g.duplicate(g.speculativePay)),
		repeated("DoTx, pgstore, duplicate, Redelivered", func(ctx context.Context) error {
			_, err := once.DoTx(ctx, g.again, g.pay.For(someDuplicate()).Redelivered(), updateOne)
			return err
		}),
		repeated("DoTx, pgstore, new key, Redelivered", func(ctx context.Context) error {
			_, err := once.DoTx(ctx, g.store, g.pay.For(newID()).Redelivered(), updateOne)
			return err
		}),
	}
	for _, percent := range shares {
		variants = append(variants, repeated(fmt.Sprintf("DoTx, pgstore, %d %% duplicates", percent), func(ctx context.Context) error {
			_, err := once.DoTx(ctx, g.mixed[percent], g.pay.For(mixedID(percent)), updateOne)
			return err
		}))
	}
	return variants
}

func (g *guarded) nothing(op *once.Operation[struct{}]) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := once.DoTx(ctx, g.store, op.For(newID()), updateOne)
		return err
	}
}

func (g *guarded) answer(op *once.Operation[string]) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := once.DoTx(ctx, g.store, op.For(newID()), func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := updateOne(ctx, tx)
			return answer300, err
		})
		return err
	}
}

func (g *guarded) duplicate(op *once.Operation[struct{}]) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := once.DoTx(ctx, g.again, op.For(someDuplicate()), updateOne)
		return err
	}
}

// bare is the plain transaction in three round trips.
func (g *guarded) bare(ctx context.Context) error {
	tx, err := g.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := updateOne(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// pipelined is the fastest plain transaction that does not know its statements
// in advance: two round trips.
func (g *guarded) pipelined(ctx context.Context) error {
	conn, err := g.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := new(pgx.Batch)
	b.Queue("begin")
	b.Queue(updateSQL, mathrand.IntN(accounts))
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "commit")
	return err
}

func (g *guarded) inTx(ctx context.Context) error {
	tx, err := g.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	_, err = once.InTx(ctx, g.store, tx, g.pay.For(newID()), func(ctx context.Context) (struct{}, error) {
		return updateOne(ctx, tx)
	})
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// byHand is what is written without a library: the transaction inserts the key,
// and does nothing if it was there.
func (g *guarded) byHand(ctx context.Context) error {
	tx, err := g.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	tag, err := tx.Exec(ctx, `INSERT INTO done (id) VALUES ($1) ON CONFLICT DO NOTHING`, newID())
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	if _, err := updateOne(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// updateOne is the code of the user, the same in all variants with a pgx.Tx.
func updateOne(ctx context.Context, tx pgx.Tx) (struct{}, error) {
	_, err := tx.Exec(ctx, updateSQL, mathrand.IntN(accounts))
	return struct{}{}, err
}

func updateOneSQL(ctx context.Context, tx *sql.Tx) (struct{}, error) {
	_, err := tx.ExecContext(ctx, updateSQL, mathrand.IntN(accounts))
	return struct{}{}, err
}

// answer300 takes 300 bytes when it is stored, including the quotes of JSON.
var answer300 = strings.Repeat("x", 298)

// newID returns a random ID, because callers' keys are random.
func newID() string {
	return rand.Text() //nolint:unstablekey // each turn of a measurement is work of its own
}

// duplicates are keys that are done. There are many, so that workers seldom
// meet.
const duplicates = 500

func duplicateID(i int) string { return fmt.Sprint("duplicate-", i) }

func someDuplicate() string { return duplicateID(mathrand.IntN(duplicates)) }

// shares are how many of 100 keys are duplicates, where the keys are mixed.
var shares = []int{1, 10, 50}

func mixedID(percent int) string {
	if mathrand.IntN(100) < percent {
		return someDuplicate()
	}
	return newID()
}

// seedDuplicates does the work of all of them.
func seedDuplicates(ctx context.Context, work func(ctx context.Context, id string) error) error {
	const workers = 16
	errs := make([]error, workers)
	var seeding sync.WaitGroup
	for w := range workers {
		seeding.Go(func() {
			for i := w; i < duplicates && errs[w] == nil; i += workers {
				errs[w] = work(ctx, duplicateID(i))
			}
		})
	}
	seeding.Wait()
	return errors.Join(errs...)
}
