package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/pgstore"
)

// smallest is how many rows the smallest table of the growth contests has. Each
// other has ten times as many as the one before.
const smallest = 100_000

// growthStages hold the contests of what must not get slower as a table grows.
// The baseline is the smallest table.
func growthStages() []stage {
	var loads []load
	for _, o := range growthOperations() {
		loads = append(loads, load{name: o.name, workers: 1})
	}
	return []stage{{name: "growth", loads: loads, large: true, open: openGrowth}}
}

// growthOperation makes a variant for a table.
type growthOperation struct {
	name, unit string
	latency    bool
	on         func(*grown) variant
}

func growthOperations() []growthOperation {
	one := func(unit func(*grown) func(context.Context) error) func(*grown) variant {
		return func(g *grown) variant { return repeated(g.name, unit(g)) }
	}
	return []growthOperation{
		{"claim", "claim", true, one(func(g *grown) func(context.Context) error { return g.claim })},
		{"read a record", "read", true, one(func(g *grown) func(context.Context) error { return g.read })},
		{"a page of all", "page of 100", true, one(func(g *grown) func(context.Context) error { return g.page })},
		{"a page of unknown ones", "page of 100", true, one(func(g *grown) func(context.Context) error { return g.unknown })},
		{"forget", "record", false, func(g *grown) variant { return variant{g.name, g.forget} }},
		{"relay beside kept rows", "message", false, (*grown).relay},
	}
}

// grown is a store whose tables have a number of rows.
type grown struct {
	relaying
	name   string
	prefix string
	known  []once.Key // some of those in the table
}

func openGrowth(ctx context.Context, b *bench) (*arena, error) {
	p, err := openPostgres(ctx, b, setting{name: "fast disk"})
	if err != nil {
		return nil, err
	}
	var all []*grown
	for rows := smallest; rows <= b.rows; rows *= 10 {
		g, err := grow(ctx, b, p, rows)
		if err != nil {
			p.close()
			return nil, err
		}
		all = append(all, g)
	}
	operations := make(map[string]growthOperation)
	for _, o := range growthOperations() {
		operations[o.name] = o
	}
	return &arena{close: p.close, contest: func(l load) contest {
		o := operations[l.name]
		c := contest{unit: o.unit, latency: o.latency}
		for _, g := range all {
			c.variants = append(c.variants, o.on(g))
		}
		return c
	}}, nil
}

// openSQL makes some of the records unknown.
const openSQL = `UPDATE once.%srecord SET status = 2, lease_until = 0, outcome = NULL, outcome_until = NULL, key_until = NULL
WHERE key IN (SELECT key FROM once.%[1]srecord LIMIT 1000)`

// keptSQL inserts messages that were published and are kept.
const keptSQL = `INSERT INTO once.%soutbox (lane, id, topic, ordering_key, produced, body, state, due)
SELECT hashint4(i) & 15, gen_random_uuid()::text, '` + outboxTopic + `', '', '2026-01-02T03:04:05.678901Z', 'x', 4, $2::bigint
FROM generate_series(1, $1::int) i`

func grow(ctx context.Context, b *bench, p *postgres, rows int) (*grown, error) {
	g := &grown{name: plural(rows, "row"), prefix: fmt.Sprintf("g%d_", rows)}
	g.relaying = relaying{postgres: p, rows: pgstore.New(p.pool, &pgstore.Options{Schema: "once", Prefix: g.prefix})}
	err := g.relaying.rows.Migrate(ctx)
	if err == nil {
		err = fill(ctx, p, b, g.prefix, rows)
	}
	if err == nil {
		_, err = p.pool.Exec(ctx, fmt.Sprintf(openSQL, g.prefix))
	}
	if err == nil {
		_, err = p.pool.Exec(ctx, fmt.Sprintf(keptSQL, g.prefix), rows, distantFuture)
	}
	for _, table := range []string{"record", "outbox"} {
		for _, statement := range tidy("once." + g.prefix + table) {
			if err == nil {
				_, err = p.pool.Exec(ctx, statement)
			}
		}
	}
	for len(g.known) < duplicates && err == nil {
		var page once.RecordPage
		if page, err = g.store().List(ctx, once.RecordQuery{After: newRequest().Key, Limit: 1}); len(page.Records) == 1 {
			g.known = append(g.known, page.Records[0].Key)
		}
	}
	return g, err
}

func (g *grown) store() *pgstore.Store { return g.relaying.rows }

func (g *grown) claim(ctx context.Context) error {
	_, err := g.store().Claim(ctx, newRequest())
	return err
}

func (g *grown) read(ctx context.Context) error {
	rec, err := g.store().Get(ctx, g.known[rand.IntN(len(g.known))])
	if err == nil && rec.Status == once.Absent {
		err = errors.New("the record is not there")
	}
	return err
}

// page reads a page that begins anywhere.
func (g *grown) page(ctx context.Context) error {
	return g.list(ctx, once.RecordQuery{After: newRequest().Key})
}

func (g *grown) unknown(ctx context.Context) error {
	return g.list(ctx, once.RecordQuery{Status: []once.Status{once.Unknown}})
}

func (g *grown) list(ctx context.Context, q once.RecordQuery) error {
	q.Limit = 100
	page, err := g.store().List(ctx, q)
	if err == nil && len(page.Records) == 0 {
		err = errors.New("the page is empty")
	}
	return err
}

// forget measures how long it takes to forget records that expired before the
// turn.
func (g *grown) forget(ctx context.Context, _ int, length time.Duration) (turn.Tally, error) {
	n := int(length.Milliseconds()) * expiredPerMillisecond / 10
	if _, err := g.pool.Exec(ctx, fmt.Sprintf(fillSQL, g.prefix), n, distantPast); err != nil {
		return turn.Tally{}, err
	}
	return turn.Working(func() (turn.Tally, error) {
		begun, left := time.Now(), n
		for left > 0 {
			some, err := g.store().Forget(ctx, 1000)
			if err != nil || some == 0 {
				return turn.Tally{}, errors.Join(err, fmt.Errorf("%d of %d records were not forgotten", left, n))
			}
			left -= some
		}
		took := time.Since(begun)
		return turn.Tally{Units: n, PerSecond: float64(n) / took.Seconds(), P50: took, P99: took}, nil
	})
}

// relay publishes a backlog that is put in front of the kept rows.
func (g *grown) relay() variant {
	in := g.inOutboxOf("once."+g.prefix+"outbox", "")
	in.fill, in.waiting, in.clean = in.fill[1:], "", []string{"CHECKPOINT"}
	return g.backlog(g.name, turn.Backlog, in, g.relaying.relay(outbox.Relay{Store: g.store()}))
}
