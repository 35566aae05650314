package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/pgstore"
)

// consumeStages hold the contests of consumers: the same handler, once in a
// plain loop and once in a Consumer. They run on the fast disk and on the
// setting that is closest to production.
func consumeStages() (stages []stage) {
	together := sized([]int{64, 256}, 2, 8)
	for _, s := range []setting{settings()[0], settings()[3]} {
		stages = append(stages,
			stage{name: "consumer, " + s.name, loads: workers(1, 8, 32), open: openConsume(s, turn.Consume, (*consume).singly)},
			stage{name: "consumer in batches, " + s.name, loads: together, long: s.model,
				open: openConsume(s, turn.ConsumeBatch, (*consume).together)},
			stage{name: "consumer of a log, " + s.name, loads: sized([]int{64}, 2, 8), long: s.model,
				open: openConsume(s, turn.ConsumeLog, (*consume).inOrder)})
	}
	return stages
}

func sized(sizes []int, counts ...int) (loads []load) {
	for _, size := range sizes {
		for _, n := range counts {
			loads = append(loads, load{name: fmt.Sprintf("%d messages, %s", size, plural(n, "worker")), workers: n, size: size})
		}
	}
	return loads
}

// consume is an arena of consumers.
type consume struct {
	*postgres
	store *pgstore.Store
	again *pgstore.Store // for duplicates: a store that meets many of them looks first
	pay   *once.Operation[struct{}]
}

func openConsume(s setting, scenario string,
	variants func(*consume, load) []variant) func(context.Context, *bench) (*arena, error) {

	return func(ctx context.Context, b *bench) (*arena, error) {
		p, err := openPostgres(ctx, b, s)
		if err != nil {
			return nil, err
		}
		c := &consume{postgres: p, store: pgstore.New(p.pool, &pgstore.Options{Schema: "once"}),
			again: pgstore.New(p.pool, &pgstore.Options{Schema: "once"}), pay: &once.Operation[struct{}]{Name: "pay"}}
		if err := c.store.Migrate(ctx); err != nil {
			p.close()
			return nil, err
		}
		others := b.peers.open(ctx, p.dsn, scenario, &b.report)
		closeAll := func() {
			b.peers.close(&b.report)
			p.close()
		}
		return &arena{close: closeAll, contest: func(l load) contest {
			return contest{unit: "message; latencies are those of what is acknowledged together, from its delivery",
				variants: append(variants(c, l), others...)}
		}}, nil
	}
}

// singly runs a transaction per message.
func (c *consume) singly(l load) []variant {
	one := inbox.Consumer{Handler: inbox.Tx(c.store, payOne)}
	speculative := one
	speculative.Speculative = true
	duplicate := inbox.Consumer{Handler: inbox.Tx(c.again, payOne)}
	return []variant{
		inLoops("loop, a transaction for each message", 1, newStream("bare"), c.bare(payEach)),
		inLoops("loop, once.DoTx for each message", 1, newStream("bare"), c.guarded),
		guard("inbox.Tx", newStream(named("tx", l)), one),
		guard("inbox.Tx, speculative", newStream(named("speculative", l)), speculative),
		guard("inbox.Tx, ordering keys", ordered(newStream(named("ordered", l))), one),
		guard("inbox.Tx, duplicates", known(newStream(named("known", l)), l, false), duplicate),
		guard("inbox.Tx, duplicates, redelivered", known(newStream(named("again", l)), l, true), duplicate),
	}
}

// together sends the statements of a batch in one round trip.
func (c *consume) together(l load) []variant {
	batch := inbox.Consumer{Handler: inbox.Batch(c.store, payAll), BatchSize: l.size}
	duplicate := inbox.Consumer{Handler: inbox.Batch(c.again, payAll), BatchSize: l.size}
	log := batch
	log.Checkpoint = true
	return []variant{
		inLoops("loop, a transaction for a batch", l.size, newStream("bare"), c.bare(payAll)),
		guard("inbox.Batch", newStream(named("batch", l)), batch),
		guard("inbox.Batch, ordering keys", ordered(newStream(named("ordered", l))), batch),
		guard("inbox.Batch, Checkpoint", newLog(named("log", l), l.workers), log),
		guard("inbox.Batch, duplicates", known(newStream(named("known", l)), l, false), duplicate),
	}
}

// inOrder runs a transaction per batch of a partition and sends its statements
// one by one.
func (c *consume) inOrder(l load) []variant {
	each := inbox.Consumer{Handler: inbox.Tx(c.store, payOne), BatchSize: l.size, Checkpoint: true}
	return []variant{
		inLoops("loop, a transaction for a batch", l.size, newLog("bare", l.workers), c.bare(payEach)),
		guard("inbox.Tx, Checkpoint", newLog(named("log", l), l.workers), each),
	}
}

// guarded is the guard without a consumer.
func (c *consume) guarded(ctx context.Context, ms []*broker.Message) error {
	work := c.pay.For(ms[0].ID).Input(ms[0].Body)
	_, err := once.DoTx(ctx, c.store, work, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, payOne(ctx, tx, ms[0])
	})
	return err
}

// named gives sources of one variant different names, because consumers
// remember their positions.
func named(kind string, l load) string { return fmt.Sprintf("%s, %s", kind, l.name) }

func ordered(s *stream) *stream {
	s.ordered = true
	return s
}

// known has more messages than any window, so that no message is in it twice.
func known(s *stream, l load, again bool) *stream {
	s.known, s.again = int64(max(duplicates, 2*windowed*max(l.size, 1)*l.workers)), again
	return s
}

// windowed returns the receive window of a Consumer, as a multiple of what its
// handlers hold.
const windowed = 2

// payOne is the code of the user.
func payOne(ctx context.Context, tx pgx.Tx, m *broker.Message) error {
	account, err := accountOf(m)
	if err == nil {
		_, err = tx.Exec(ctx, updateSQL, account)
	}
	return err
}

func payEach(ctx context.Context, tx pgx.Tx, ms []*broker.Message) error {
	for _, m := range ms {
		if err := payOne(ctx, tx, m); err != nil {
			return err
		}
	}
	return nil
}

// payAll sends the statements of a batch in one round trip, in an order that
// avoids deadlocks.
func payAll(ctx context.Context, tx pgx.Tx, ms []*broker.Message) error {
	ids := make([]int, len(ms))
	for i, m := range ms {
		var err error
		if ids[i], err = accountOf(m); err != nil {
			return err
		}
	}
	slices.Sort(ids)
	b := new(pgx.Batch)
	for _, id := range ids {
		b.Queue(updateSQL, id)
	}
	return tx.SendBatch(ctx, b).Close()
}
