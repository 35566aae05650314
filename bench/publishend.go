package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/pgstore"
)

// endStages hold the contests of the whole path, from a transaction to the
// broker.
func endStages() []stage {
	whole := openProducing(settings()[0], turn.EndToEnd, (*producing).endToEnd)
	return []stage{
		{name: "outbox latency", loads: []load{{name: "50 per second", workers: 1}}, long: true, open: openLatency},
		{name: "outbox end to end, processor time", loads: workers(8), long: true, open: byWork(whole)},
	}
}

// arrivals is a broker that records when each message first arrived.
type arrivals struct {
	mu    sync.Mutex
	first map[string]time.Time
	again int
	came  chan struct{} // signals an arrival
}

func newArrivals() *arrivals {
	return &arrivals{first: make(map[string]time.Time), came: make(chan struct{}, 1)}
}

func (a *arrivals) Publish(_ context.Context, ms []*broker.Message) []error {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range ms {
		if _, known := a.first[m.ID]; known {
			a.again++
		} else {
			a.first[m.ID] = now
		}
	}
	select {
	case a.came <- struct{}{}:
	default:
	}
	return nil
}

func (a *arrivals) Close() error { return nil }

func (a *arrivals) at(id string) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.first[id]
	return at, known
}

func (a *arrivals) empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.first) == 0
}

// await waits for all messages, and reports a repeated one as an error.
func (a *arrivals) await(ctx context.Context, ids []string) error {
	for _, id := range ids {
		for {
			if _, there := a.at(id); there {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("message %s was not published: %w", id, context.Cause(ctx))
			case <-a.came:
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.again > 0 {
		return fmt.Errorf("%d messages were published more than once", a.again)
	}
	return nil
}

// reader publishes what it finds, until ctx ends.
type reader func(ctx context.Context, to *arrivals) error

// beside runs a reader beside work.
func beside(ctx context.Context, read reader, to *arrivals, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reading sync.WaitGroup
	reading.Go(func() {
		if err := read(ctx, to); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	err := work(ctx)
	cause := context.Cause(ctx)
	cancel(nil)
	reading.Wait()
	return errors.Join(err, cause)
}

func relayed(r outbox.Relay) reader {
	return func(ctx context.Context, to *arrivals) error {
		r.Publisher = to
		return r.Run(ctx)
	}
}

// endToEnd runs transactions with one message each, and the relay that
// publishes them.
func (w *producing) endToEnd() []variant {
	all := []variant{
		w.whole("bare transaction, no message", nil, func(ctx context.Context, _ *broker.Message) error { return w.inOwn(nothing)(ctx) }),
		w.whole("Put, Relay", relayed(outbox.Relay{Store: w.rows}), func(ctx context.Context, m *broker.Message) error {
			return w.inOwn(func(ctx context.Context, tx pgx.Tx) error { return w.event.Put(ctx, tx, m) })(ctx)
		}),
		w.whole("QueueOutbox, with COMMIT, Relay", relayed(outbox.Relay{Store: w.rows}), func(ctx context.Context, m *broker.Message) error {
			return w.withCommit(queueThis(w.rows, m))(ctx)
		}),
	}
	if w.log != nil {
		all = append(all, w.whole("QueueOutbox, with COMMIT, OutboxLogOnly, Relay", relayed(outbox.Relay{Store: w.log}),
			func(ctx context.Context, m *broker.Message) error { return w.withCommit(queueThis(w.log, m))(ctx) }))
	}
	return all
}

// whole is a variant whose turn ends when all of its messages are published.
// The relay acquires its leases before the turn.
func (w *producing) whole(name string, read reader, unit func(context.Context, *broker.Message) error) variant {
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (tally turn.Tally, err error) {
		ctx, cancel := context.WithTimeout(ctx, longestTurn+10*length)
		defer cancel()
		var mu sync.Mutex
		var ids []string
		one := func(ctx context.Context) error {
			m := newMessage()
			mu.Lock()
			ids = append(ids, m.ID)
			mu.Unlock()
			return unit(ctx, m)
		}
		if read == nil {
			return turn.Working(func() (turn.Tally, error) { return turn.Run(ctx, workers, length, one) })
		}
		to := newArrivals()
		err = beside(ctx, read, to, func(ctx context.Context) error {
			if err := one(ctx); err != nil {
				return err
			}
			if err := to.await(ctx, ids); err != nil {
				return err
			}
			var err error
			tally, err = turn.Working(func() (turn.Tally, error) {
				tally, err := turn.Run(ctx, workers, length, one)
				return tally, errors.Join(err, to.await(ctx, ids))
			})
			return err
		})
		return tally, err
	}}
}

func queueThis(s *pgstore.Store, m *broker.Message) func(context.Context, *pgx.Batch) error {
	return func(_ context.Context, b *pgx.Batch) error { return s.QueueOutbox(b, outgoing(m)) }
}

// latencies is an arena with occasional messages and no other work.
type latencies struct {
	*producing
	far    *pgxpool.Pool // as if in another process
	rowsAt *pgstore.Store
	logAt  *pgstore.Store
}

func openLatency(ctx context.Context, b *bench) (*arena, error) {
	p, err := openPostgres(ctx, b, settings()[0])
	if err != nil {
		return nil, err
	}
	l := &latencies{}
	if l.producing, err = newProducing(ctx, b, p); err == nil {
		l.far, err = pgxpool.New(ctx, p.dsn)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	l.rowsAt = pgstore.New(l.far, &pgstore.Options{Schema: "once"})
	closeAll := func() {
		l.far.Close()
		p.close()
	}
	if l.log == nil {
		closeAll()
		return nil, errors.New("the server's wal_level is not logical, which the baseline needs")
	}
	l.logAt = pgstore.New(l.far, &pgstore.Options{Schema: "once_log", Slot: "once_log", Outbox: pgstore.OutboxLogOnly})
	return &arena{close: closeAll, contest: func(load) contest {
		return contest{unit: "message; latencies are from the reply to COMMIT to the publisher", latency: true, variants: l.variants()}
	}}, nil
}

func (l *latencies) variants() []variant {
	byHand := func(ctx context.Context, tx pgx.Tx, m *broker.Message) error {
		_, err := tx.Exec(ctx, handSQL, m.ID, m.Topic, m.OrderingKey, m.Body)
		return err
	}
	notify := func(ctx context.Context, tx pgx.Tx, m *broker.Message) error {
		if err := byHand(ctx, tx, m); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pg_notify('hand', '')")
		return err
	}
	put := func(box *outbox.Outbox[pgx.Tx]) func(context.Context, pgx.Tx, *broker.Message) error {
		return func(ctx context.Context, tx pgx.Tx, m *broker.Message) error { return box.Put(ctx, tx, m) }
	}
	return []variant{
		l.late("bare logical replication", l.replicate, byHand),
		l.late("LISTEN, NOTIFY in the transaction, DELETE RETURNING", l.listen, notify),
		l.late("Put, Relay of the same process", relayed(outbox.Relay{Store: l.rows}), put(l.event)),
		l.late("Put, Relay of another process", relayed(outbox.Relay{Store: l.rowsAt}), put(l.event)),
		l.late("Put, OutboxLogOnly, Relay of another process", relayed(outbox.Relay{Store: l.logAt}), put(l.entry)),
	}
}

const (
	betweenPuts    = 20 * time.Millisecond
	latencyLengths = 20   // lengths per turn
	settled        = 10   // warm-up messages
	atOnce         = 1000 // nanoseconds: recorded if a message arrived before the reply to COMMIT
)

// late is a variant whose transactions run one by one.
func (l *latencies) late(name string, read reader, announce func(context.Context, pgx.Tx, *broker.Message) error) variant {
	return variant{name, func(ctx context.Context, _ int, length time.Duration) (tally turn.Tally, err error) {
		ctx, cancel := context.WithTimeout(ctx, longestTurn+2*latencyLengths*length)
		defer cancel()
		to, n := newArrivals(), int(latencyLengths*length/betweenPuts)
		err = beside(ctx, read, to, func(ctx context.Context) error {
			tick := time.NewTicker(betweenPuts)
			defer tick.Stop()
			one := func() (id string, committed time.Time, err error) {
				<-tick.C
				m := newMessage()
				err = l.inOwn(func(ctx context.Context, tx pgx.Tx) error { return announce(ctx, tx, m) })(ctx)
				return m.ID, time.Now(), err
			}
			for to.empty() { // the reader has started
				if _, _, err := one(); err != nil {
					return err
				}
			}
			var took []time.Duration
			for i := range settled + n {
				id, committed, err := one()
				if err != nil {
					return err
				}
				if err := to.await(ctx, []string{id}); err != nil {
					return err
				}
				if at, _ := to.at(id); i >= settled {
					took = append(took, max(at.Sub(committed), atOnce))
				}
			}
			slices.Sort(took)
			tally = turn.Tally{Units: n, PerSecond: float64(time.Second / betweenPuts), P50: took[n/2], P99: took[n*99/100]}
			return nil
		})
		return tally, err
	}}
}

// listen is a hand-written relay with LISTEN.
func (l *latencies) listen(ctx context.Context, to *arrivals) error {
	conn, err := l.far.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "LISTEN hand"); err != nil {
		return err
	}
	for {
		rows, _ := conn.Query(ctx, "DELETE FROM hand RETURNING id, topic, body")
		ms, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*broker.Message, error) {
			m := new(broker.Message)
			return m, row.Scan(&m.ID, &m.Topic, &m.Body)
		})
		if err != nil {
			return err
		}
		to.Publish(ctx, ms)
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			return err
		}
	}
}
