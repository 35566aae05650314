package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
)

// publishStages hold the contests of the outbox: the cost of putting a message
// in a transaction, and the throughput, latency and processor time of
// publishing.
func publishStages() (stages []stage) {
	for _, s := range []setting{settings()[0], settings()[1], settings()[3]} {
		stages = append(stages,
			stage{name: "outbox producer, " + s.name, loads: workers(1, 8), long: s.model, open: openProducing(s, turn.Put, (*producing).variants)},
			stage{name: "outbox producer in once.DoTx, " + s.name, loads: workers(1, 8), long: s.model, open: openProducing(s, "", (*producing).guarded)})
	}
	fast := settings()[0]
	stages = append(stages,
		stage{name: "outbox producer, processor time", loads: workers(8), open: byWork(openProducing(fast, turn.Put, (*producing).variants))},
		stage{name: "outbox producer in once.DoTx, processor time", loads: workers(8), open: byWork(openProducing(fast, "", (*producing).guarded))},
		stage{name: "outbox relay, processor time", loads: oneRelay, long: true, open: byWork(openRelaying(fast))})
	return slices.Concat(stages, relayStages(), endStages())
}

// outboxTopic is the topic of all messages.
const outboxTopic = "order.paid"

// producing is an arena of transactions that put a message.
type producing struct {
	*postgres
	rows  *pgstore.Store
	log   *pgstore.Store // writes messages into the database's log; nil: the server does not support it
	event *outbox.Outbox[pgx.Tx]
	entry *outbox.Outbox[pgx.Tx] // of the log
	pay   *once.Operation[struct{}]
}

func openProducing(s setting, scenario string,
	variants func(*producing) []variant) func(context.Context, *bench) (*arena, error) {

	return func(ctx context.Context, b *bench) (*arena, error) {
		p, err := openPostgres(ctx, b, s)
		if err != nil {
			return nil, err
		}
		w, err := newProducing(ctx, b, p)
		if err != nil {
			p.close()
			return nil, err
		}
		all, closeAll := variants(w), p.close
		if scenario != "" {
			all = append(all, b.peers.open(ctx, p.dsn, scenario, &b.report)...)
			closeAll = func() {
				b.peers.close(&b.report)
				p.close()
			}
		}
		return &arena{close: closeAll, contest: func(load) contest {
			return contest{unit: "transaction", variants: all}
		}}, nil
	}
}

// byWork is an arena that measures the processor time of client and server
// instead of elapsed time. It is not affected by other load, and does not
// include waiting.
func byWork(open func(context.Context, *bench) (*arena, error)) func(context.Context, *bench) (*arena, error) {
	return func(ctx context.Context, b *bench) (*arena, error) {
		a, err := open(ctx, b)
		if err != nil {
			return nil, err
		}
		timed := a.contest
		a.contest = func(l load) contest {
			c := timed(l)
			c.unit += ", where a second is one of processor time"
			worked := make([]variant, len(c.variants))
			for i, v := range c.variants {
				worked[i] = variant{v.name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
					t, err := v.turn(ctx, workers, length)
					if err == nil && t.Work <= 0 {
						err = errors.New("its processor time is not known")
					}
					t.PerSecond = float64(t.Units) / t.Work.Seconds()
					return t, err
				}}
			}
			c.variants = worked
			return c
		}
		return a, nil
	}
}

// handTable is the table of a hand-written outbox.
const handTable = `CREATE TABLE hand (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, topic text NOT NULL,
	ordering_key text NOT NULL, produced timestamptz NOT NULL DEFAULT now(), body bytea NOT NULL)`

func newProducing(ctx context.Context, b *bench, p *postgres) (*producing, error) {
	w := &producing{postgres: p, rows: pgstore.New(p.pool, &pgstore.Options{Schema: "once"}),
		pay: &once.Operation[struct{}]{Name: "pay"}}
	w.event = outbox.New(w.rows, nil)
	if err := w.rows.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := p.pool.Exec(ctx, handTable); err != nil {
		return nil, err
	}
	log, err := logStore(ctx, p, "once_log")
	if errors.Is(err, once.ErrInvalid) {
		b.report.note("messages in the log are left out: %v", err)
		return w, nil
	}
	w.log, w.entry = log, outbox.New(log, nil)
	return w, err
}

// logStore returns a store that writes messages into the log, with a slot that
// has already been read. Its own schema also names the slot.
func logStore(ctx context.Context, p *postgres, schema string) (*pgstore.Store, error) {
	if _, err := p.pool.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		return nil, err
	}
	log := pgstore.New(p.pool, &pgstore.Options{Schema: schema, Slot: schema, Outbox: pgstore.OutboxLogOnly})
	if err := log.Migrate(ctx); err != nil {
		return nil, err
	}
	tail, err := log.TailOutbox(ctx)
	if err != nil {
		return nil, err
	}
	if err := tail.Close(ctx); err != nil {
		return nil, err
	}
	return log, askOnce(ctx, p, log)
}

// askOnce makes a store look for its slot, which QueueOutbox cannot do.
func askOnce(ctx context.Context, p *postgres, log *pgstore.Store) error {
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	return log.PutTx(ctx, tx, outgoing(newMessage()))
}

func (w *producing) variants() []variant {
	rows, hand, none := w.inTable("once.once_outbox"), w.inTable("hand"), func(context.Context) (int, error) { return 0, nil }
	all := []variant{
		counted("bare transaction", 0, none, w.inOwn(nothing)),
		counted("row by hand", 1, hand, w.inOwn(insertByHand)),
		counted("row by hand, with COMMIT", 1, hand, w.withCommit(func(_ context.Context, b *pgx.Batch) error {
			b.Queue(handSQL, handArgs()...)
			return nil
		})),
		counted("row by hand, NOTIFY in the transaction", 1, hand, w.inOwn(func(ctx context.Context, tx pgx.Tx) error {
			if err := insertByHand(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT pg_notify('hand', '')")
			return err
		})),
		counted("Put", 1, rows, w.inOwn(put(w.event))),
		counted("QueueOutbox, with COMMIT", 1, rows, w.withCommit(queueOne(w.rows))),
	}
	if w.log != nil {
		inLog := w.inLog("once_log")
		all = append(all, counted("Put, OutboxLogOnly", 1, inLog, w.inOwn(put(w.entry))),
			counted("QueueOutbox, with COMMIT, OutboxLogOnly", 1, inLog, w.withCommit(queueOne(w.log))))
	}
	return all
}

// guarded are the same variants in a transaction of the store.
func (w *producing) guarded() []variant {
	rows, none := w.inTable("once.once_outbox"), func(context.Context) (int, error) { return 0, nil }
	all := []variant{
		counted("DoTx", 0, none, w.inDoTx(w.rows, nothing)),
		counted("DoTx, Put", 1, rows, w.inDoTx(w.rows, put(w.event))),
	}
	if w.log != nil {
		all = append(all, counted("DoTx, Put, OutboxLogOnly", 1, w.inLog("once_log"), w.inDoTx(w.log, put(w.entry))))
	}
	return all
}

// inOwn is a transaction that the caller began.
func (w *producing) inOwn(announce func(context.Context, pgx.Tx) error) func(context.Context) error {
	return func(ctx context.Context) error {
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := updateOne(ctx, tx); err != nil {
			return err
		}
		if err := announce(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// withCommit sends a batch together with COMMIT.
func (w *producing) withCommit(queue func(context.Context, *pgx.Batch) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := w.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, "begin"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, updateSQL, rand.IntN(accounts)); err != nil {
			return err
		}
		b := new(pgx.Batch)
		if err := queue(ctx, b); err != nil {
			return err
		}
		b.Queue("commit")
		return conn.SendBatch(ctx, b).Close()
	}
}

func (w *producing) inDoTx(s *pgstore.Store, announce func(context.Context, pgx.Tx) error) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := once.DoTx(ctx, s, w.pay.For(newID()), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
			if _, err := updateOne(ctx, tx); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, announce(ctx, tx)
		})
		return err
	}
}

func nothing(context.Context, pgx.Tx) error { return nil }

const handSQL = `INSERT INTO hand (id, topic, ordering_key, body) VALUES ($1, $2, $3, $4)`

func handArgs() []any {
	m := newMessage()
	return []any{m.ID, m.Topic, m.OrderingKey, m.Body}
}

func insertByHand(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, handSQL, handArgs()...)
	return err
}

func put(box *outbox.Outbox[pgx.Tx]) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error { return box.Put(ctx, tx, newMessage()) }
}

func queueOne(s *pgstore.Store) func(context.Context, *pgx.Batch) error {
	return func(_ context.Context, b *pgx.Batch) error {
		return s.QueueOutbox(b, outgoing(newMessage()))
	}
}

func outgoing(m *broker.Message) []store.Outgoing { return []store.Outgoing{{Message: *m}} }

// newMessage returns a message with an account as its ordering key.
func newMessage() *broker.Message {
	account := rand.Int64N(accounts)
	return &broker.Message{ID: newID(), Topic: outboxTopic, OrderingKey: strconv.FormatInt(account, 10), Body: bodyFor(account),
		Time: time.Now()}
}

// counted checks that each unit of a variant leaves a number of messages. A
// turn that fails the check has no cost.
func counted(name string, each int, since func(context.Context) (int, error), unit func(context.Context) error) variant {
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		if _, err := since(ctx); err != nil {
			return turn.Tally{}, err
		}
		tally, err := turn.Working(func() (turn.Tally, error) { return turn.Run(ctx, workers, length, unit) })
		if err != nil {
			return tally, err
		}
		switch n, err := since(ctx); {
		case err != nil:
			return tally, err
		case n != each*tally.Units:
			return tally, fmt.Errorf("%d transactions have put %d messages", tally.Units, n)
		}
		return tally, nil
	}}
}

// inTable returns the number of rows inserted since the last call.
func (w *producing) inTable(table string) func(context.Context) (int, error) {
	last := int64(0)
	return func(ctx context.Context) (n int, err error) {
		err = w.pool.QueryRow(ctx, "SELECT count(*), coalesce(max(seq), $1) FROM "+table+" WHERE seq > $1", last).Scan(&n, &last)
		return n, err
	}
}

// inLog returns the number of messages written into the log since the last
// call, and advances the slot.
func (w *producing) inLog(slot string) func(context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		err = w.pool.QueryRow(ctx, `SELECT count(*) FROM pg_logical_slot_get_binary_changes($1, NULL, NULL,
	'proto_version', '1', 'publication_names', $2, 'messages', 'true') WHERE get_byte(data, 0) = ascii('M')`, slot, slot).Scan(&n)
		return n, err
	}
}
