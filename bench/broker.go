package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/pgstore"
)

// carrier is a system that carries messages, for contests of its official client
// with the adapter and with a consumer over it.
type carrier struct {
	name   string
	client string        // the variant of the official client
	away   time.Duration // the round trip that is added in the second stage
	log    bool          // consumers use Checkpoint
	batch  int           // how many messages are received at once, as the documentation of the service recommends
	window int           // deliveries in flight of all workers; 0: as a Consumer has them by default, twice what workers hold
	open   func(ctx context.Context, away time.Duration) (*depot, error)
}

// depot is an open carrier.
type depot struct {
	publisher broker.Publisher                             // at its side of the added round trip
	work      func(context.Context) (time.Duration, error) // processor time of a server that is not in this process; nil: there is none
	working   bool                                         // turns are measured in processor time
	queue     func(ctx context.Context, shape queueShape) (*queue, error)
	close     func()
}

// queueShape is what a turn needs of a queue.
type queueShape struct {
	workers int
	batch   int            // how many messages are received at once
	window  int            // deliveries in flight
	store   *pgstore.Store // for the members of a group; nil: there is none
}

// queue has the messages of one turn.
type queue struct {
	topic    string
	keys     int // how many ordering keys its messages have; 0: none
	source   broker.Source
	official func(ctx context.Context, handle handleBatch) error // consumes with the official client until ctx ends
	drop     func()
}

// handleBatch is the code of the user.
type handleBatch func(ctx context.Context, bodies [][]byte) error

func carriers() []carrier {
	return []carrier{sqsCarrier("SQS, standard", false), sqsCarrier("SQS, FIFO", true), serviceBusCarrier(false), serviceBusCarrier(true),
		eventHubsCarrier(), pubsubCarrier(), redisCarrier(), kafkaCarrier(), rabbitCarrier(), natsCarrier()}
}

// brokerStages hold the contests of brokers. In the first two of each, a handler
// parses the message, so that the adapter is measured: its processor time, with
// that of the client and the server, and the time that it takes when a request
// takes some. In the third, the handler does the transaction of the other contests
// of consumers.
func brokerStages() (stages []stage) {
	for _, c := range carriers() {
		stages = append(stages,
			stage{name: c.name + ", processor time", loads: workers(1, 8), open: openCarrier(c, 0)},
			stage{name: fmt.Sprintf("%s, RTT +%v", c.name, c.away), loads: workers(1, 8), open: openCarrier(c, c.away)},
			stage{name: fmt.Sprintf("%s, RTT +%v, PostgreSQL", c.name, c.away), loads: workers(1, 8), open: openCarrierOnPostgres(c)})
	}
	for i := range stages {
		stages[i].name = "broker, " + stages[i].name
		stages[i].long = true
	}
	return stages
}

func (c carrier) shape(workers int) queueShape {
	return queueShape{workers: workers, batch: c.batch, window: cmp.Or(c.window, windowed*c.batch*workers)}
}

func openCarrier(c carrier, away time.Duration) func(context.Context, *bench) (*arena, error) {
	return func(ctx context.Context, _ *bench) (*arena, error) {
		if _, err := turn.OwnWork(); err != nil && away == 0 {
			return nil, fmt.Errorf("%w: the system tells no processor time: %w", errNoServer, err)
		}
		d, err := c.open(ctx, away)
		if err != nil {
			return nil, err
		}
		d.working = away == 0
		return &arena{close: d.close, contest: func(l load) contest {
			s := c.shape(l.workers)
			return contest{unit: "message", variants: []variant{
				d.variant(c.client, s, func(ctx context.Context, q *queue, handle handleBatch) error { return q.official(ctx, handle) }, parseAll),
				d.variant("Receive and Ack", s, receiveAndAck(s), parseAll),
			}}
		}}, nil
	}
}

// parseAll is a handler that takes next to no time.
func parseAll(_ context.Context, bodies [][]byte) error {
	for _, body := range bodies {
		if _, err := accountIn(body); err != nil {
			return err
		}
	}
	return nil
}

func openCarrierOnPostgres(c carrier) func(context.Context, *bench) (*arena, error) {
	return func(ctx context.Context, b *bench) (*arena, error) {
		p, err := openPostgres(ctx, b, settings()[0])
		if err != nil {
			return nil, err
		}
		store := pgstore.New(p.pool, &pgstore.Options{Schema: "once"})
		if err := store.Migrate(ctx); err != nil {
			p.close()
			return nil, err
		}
		d, err := c.open(ctx, c.away)
		if err != nil {
			p.close()
			return nil, err
		}
		closeAll := func() {
			d.close()
			p.close()
		}
		return &arena{close: closeAll, contest: func(l load) contest {
			return contest{unit: "message", variants: d.onPostgres(c, p, store, l)}
		}}, nil
	}
}

// onPostgres compares transactions of the user's with those of a Consumer: one
// for each message, or for what was received of a partition. A Consumer
// acknowledges each message by itself, and its handler waits for the answer. More
// handlers make up for that.
func (d *depot) onPostgres(c carrier, p *postgres, store *pgstore.Store, l load) []variant {
	s := c.shape(l.workers)
	s.store = store
	bare := func(ctx context.Context, bodies [][]byte) error {
		if c.log {
			return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return payBodies(ctx, tx, bodies) })
		}
		for _, body := range bodies {
			err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return payBodies(ctx, tx, [][]byte{body}) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	consume := func(speculative bool, handlers int) consuming {
		return func(ctx context.Context, q *queue, handle handleBatch) error {
			return runCountedOn(ctx, inbox.Consumer{
				Name: q.topic, Source: q.source, Concurrency: handlers * s.workers, Window: s.window, Checkpoint: c.log, BatchSize: s.batch,
				Speculative: speculative, Handler: inbox.Tx(store, func(ctx context.Context, tx pgx.Tx, m *broker.Message) error {
					if err := payOne(ctx, tx, m); err != nil {
						return err
					}
					return handle(ctx, [][]byte{m.Body})
				})})
		}
	}
	variants := []variant{
		d.variant(c.client, s, func(ctx context.Context, q *queue, handle handleBatch) error { return q.official(ctx, handle) }, bare),
		d.variant("inbox.Tx", s, consume(false, 1), nil),
	}
	if !c.log {
		variants = append(variants, d.variant("inbox.Tx, speculative", s, consume(true, 1), nil),
			d.variant("inbox.Tx, speculative, four handlers for each worker", s, consume(true, 4), nil))
	}
	return variants
}

func payBodies(ctx context.Context, tx pgx.Tx, bodies [][]byte) error {
	for _, body := range bodies {
		if err := payOne(ctx, tx, &broker.Message{Body: body}); err != nil {
			return err
		}
	}
	return nil
}

// runCountedOn runs a consumer until ctx ends, and fails if a message could not be
// handled.
func runCountedOn(ctx context.Context, c inbox.Consumer) error {
	c.Stats = new(inbox.Stats)
	if err := c.Run(ctx); err != nil {
		return err
	}
	if n := c.Stats.Failed.Load() + c.Stats.Shelved.Load() + c.Stats.Parked.Load() + c.Stats.Prevented.Load(); n > 0 {
		return fmt.Errorf("%d messages were not handled", n)
	}
	return nil
}

// consuming consumes a queue until ctx ends.
type consuming func(ctx context.Context, q *queue, handle handleBatch) error

// receiveAndAck consumes with one session, as a Consumer does: one goroutine
// receives what fits into the window, and workers handle and acknowledge it.
func receiveAndAck(s queueShape) consuming {
	return func(ctx context.Context, q *queue, handle handleBatch) (err error) {
		session, err := q.source.Open(ctx, s.window)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, session.Close(context.WithoutCancel(ctx))) }()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		batches := make(chan []broker.Delivery)
		var running sync.WaitGroup
		for range s.workers {
			running.Go(func() {
				for ds := range batches {
					if err := handleAndAck(context.WithoutCancel(ctx), session, ds, handle); err != nil {
						cancel(err)
					}
				}
			})
		}
		for ctx.Err() == nil {
			ds, err := session.Receive(ctx, s.window)
			if err != nil && ctx.Err() == nil {
				cancel(err)
			}
			for batch := range slices.Chunk(ds, s.batch) {
				batches <- batch
			}
		}
		close(batches)
		running.Wait()
		return failureOf(ctx)
	}
}

func handleAndAck(ctx context.Context, session broker.Session, ds []broker.Delivery, handle handleBatch) error {
	bodies := make([][]byte, len(ds))
	for i, d := range ds {
		bodies[i] = d.Message.Body
	}
	if err := handle(ctx, bodies); err != nil {
		return err
	}
	return session.Ack(ctx, ds)
}

// failureOf returns why a context has ended, unless that is the end of a turn.
func failureOf(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, errTurnOver) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// inWorkers repeats step in workers until ctx ends, or one of them fails.
func inWorkers(ctx context.Context, workers int, step func(ctx context.Context, worker int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := step(ctx, w); err != nil && ctx.Err() == nil {
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	return failureOf(ctx)
}

// variant consumes messages that wait in a queue of the turn's own.
func (d *depot) variant(name string, s queueShape, consume consuming, handle handleBatch) variant {
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		q, err := d.queue(ctx, s)
		if err != nil {
			return turn.Tally{}, err
		}
		defer q.drop()
		n := waiting(length, workers)
		if err := d.fill(ctx, q, n); err != nil {
			return turn.Tally{}, fmt.Errorf("fill the queue: %w", err)
		}
		timed, cancel := context.WithTimeout(ctx, longestTurn)
		defer cancel()
		over, end := context.WithCancelCause(timed)
		defer end(nil)
		t := &tape{all: n, length: length, clock: d.clock(ctx), stop: func() { end(errTurnOver) }}
		err = consume(over, q, func(ctx context.Context, bodies [][]byte) error {
			if handle != nil {
				if err := handle(ctx, bodies); err != nil {
					return err
				}
			}
			t.handled(len(bodies))
			return nil
		})
		if err != nil {
			return turn.Tally{}, err
		}
		return t.tally()
	}}
}

// clock returns what turns are measured in.
func (d *depot) clock(ctx context.Context) func() (time.Duration, error) {
	if !d.working {
		begun := time.Now()
		return func() (time.Duration, error) { return time.Since(begun), nil }
	}
	return func() (time.Duration, error) {
		own, err := turn.OwnWork()
		if err != nil || d.work == nil {
			return own, err
		}
		server, err := d.work(ctx)
		return own + server, err
	}
}

// waiting is how many messages wait in a queue at first.
func waiting(length time.Duration, workers int) int {
	return int(length.Milliseconds()) * 40 * max(1, min(workers, 4)/2)
}

var fillings atomic.Int64

// fill publishes messages with different accounts.
func (d *depot) fill(ctx context.Context, q *queue, n int) error {
	const atOnce = 1000
	run := fillings.Add(1)
	s := newStream(q.topic)
	ms := make([]*broker.Message, 0, atOnce)
	for i := range n {
		m := &broker.Message{ID: fmt.Sprintf("%d-%d", run, i), Topic: q.topic, Body: bodyFor(s.account(int64(i)))}
		if q.keys > 0 {
			m.OrderingKey = fmt.Sprint(i % q.keys)
		}
		if ms = append(ms, m); len(ms) == atOnce || i == n-1 {
			if errs := d.publisher.Publish(ctx, ms); errs != nil {
				return errors.Join(errs...)
			}
			ms = ms[:0]
		}
	}
	return nil
}

// tape counts handled messages. It begins after some of them, when all workers
// run, and ends before the last ones, when some workers no longer find any.
type tape struct {
	all    int
	length time.Duration
	clock  func() (time.Duration, error)
	stop   func()

	mu           sync.Mutex
	count        int
	first, begun time.Time
	from         int           // the count when it began
	at           time.Duration // of the clock when it began
	result       turn.Tally
	failed       error
}

func (t *tape) handled(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count += n
	now := time.Now()
	switch {
	case t.result.Units > 0 || t.failed != nil:
	case t.first.IsZero():
		t.first = now
	case t.begun.IsZero():
		if t.count >= t.all/5 || now.Sub(t.first) >= t.length {
			t.begun, t.from = now, t.count
			t.at, t.failed = t.clock()
		}
	case t.count >= t.all*9/10 || now.Sub(t.begun) >= 4*t.length:
		t.end()
	}
}

// end ends the turn. The mutex is held.
func (t *tape) end() {
	defer t.stop()
	at, err := t.clock()
	if err != nil {
		t.failed = err
		return
	}
	took, units := at-t.at, t.count-t.from
	each := took / time.Duration(units) // the latencies are not measured
	t.result = turn.Tally{Units: units, PerSecond: float64(units) / took.Seconds(), P50: each, P99: each}
}

func (t *tape) tally() (turn.Tally, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil && t.result.Units == 0 {
		t.failed = fmt.Errorf("only %d of %d messages were handled in time", t.count, t.all)
	}
	return t.result, t.failed
}

// routed returns the address of a server that is some time away, and what ends the
// way to it.
func routed(address string, away time.Duration) (string, func(), error) {
	if away == 0 {
		return address, func() {}, nil
	}
	proxy, err := startDelay(address, away/2)
	if err != nil {
		return "", nil, err
	}
	return proxy.address(), proxy.close, nil
}

// listen returns a free port.
func listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

// closeSoon closes a client.
func closeSoon(c interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}
