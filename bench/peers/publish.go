package main

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/oagudo/outbox"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/effectively-once/once/bench/internal/turn"
)

// publishing are libraries with a transactional outbox.
type publishing struct {
	pool *pgxpool.Pool
	std  *stdsql.DB
	body []byte
}

const (
	outboxTopic = "order_paid"
	relayBatch  = 1000
)

// oagudoTable is the table of its documentation.
const oagudoTable = `CREATE TABLE outbox (id UUID PRIMARY KEY, created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	scheduled_at TIMESTAMP WITH TIME ZONE NOT NULL, metadata BYTEA, payload BYTEA NOT NULL, times_attempted INTEGER NOT NULL);
CREATE INDEX idx_outbox_created_at ON outbox (created_at);
CREATE INDEX idx_outbox_scheduled_at ON outbox (scheduled_at)`

func (o *opened) addPublishing(ctx context.Context) error {
	config := *o.pool.Config().ConnConfig
	p := &publishing{pool: o.pool, std: stdlib.OpenDB(config), body: []byte(strings.Repeat("x", bodySize))}
	p.std.SetMaxOpenConns(connections)
	p.std.SetMaxIdleConns(connections)
	o.closers = append(o.closers, func() { _ = p.std.Close() })
	if _, err := o.pool.Exec(ctx, oagudoTable); err != nil {
		return err
	}
	subscriber, err := p.subscriber(logSchema(), sql.DefaultPostgreSQLOffsetsAdapter{}, consumerGroup)
	if err == nil {
		err = subscriber.SubscribeInitialize(outboxTopic)
	}
	if err == nil {
		subscriber, err = p.subscriber(queueSchema(), queueOffsets(), "")
	}
	if err == nil {
		err = subscriber.SubscribeInitialize(outboxTopic)
	}
	if err != nil {
		return err
	}
	jobs, err := river.NewClient(riverpgxv5.New(o.pool), &river.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	watermill, oagudo := "Watermill SQL "+version("github.com/ThreeDotsLabs/watermill-sql/v4"), "oagudo/outbox "+version("github.com/oagudo/outbox")
	o.addPut(watermill, "watermill_"+outboxTopic, p.inTx(p.watermill(false)))
	o.addPut(watermill+", forwarder", "watermill_"+outboxTopic, p.inTx(p.watermill(true)))
	o.addPut(oagudo, "outbox", p.oagudo())
	o.addPut("River "+version("github.com/riverqueue/river")+", InsertTx", "river_job", p.inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := jobs.InsertTx(ctx, tx, announceArgs{Body: string(p.body)}, nil)
		return err
	}))
	o.addWhole(watermill+", 100 at once", p.inTx(p.watermill(false)), p.relayWhole)
	o.addRelay(watermill+", 1000 at once", p.fillLog, p.relayLog)
	o.addRelay(watermill+" as a queue, 1000 at once", p.fillQueue, p.relayQueue)
	o.addRelay(oagudo+", 1000 at once", p.fillOagudo, p.relayOagudo)
	return nil
}

// announceArgs are the arguments of a job that publishes.
type announceArgs struct {
	Body string `json:"body"`
}

func (announceArgs) Kind() string { return "announce" }

func bytea(string) string { return "BYTEA" }

func logSchema() sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{SubscribeBatchSize: relayBatch, GeneratePayloadType: bytea}
}

func queueName(topic string) string { return `"queue_` + topic + `"` }

func queueSchema() sql.PostgreSQLQueueSchema {
	return sql.PostgreSQLQueueSchema{SubscribeBatchSize: relayBatch, GeneratePayloadType: bytea, GenerateMessagesTableName: queueName}
}

func queueOffsets() sql.PostgreSQLQueueOffsetsAdapter {
	return sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true, GenerateMessagesTableName: queueName}
}

func (p *publishing) subscriber(schema sql.SchemaAdapter, offsets sql.OffsetsAdapter, group string) (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(p.pool), sql.SubscriberConfig{ConsumerGroup: group, SchemaAdapter: schema,
		OffsetsAdapter: offsets, PollInterval: time.Millisecond}, watermill.NopLogger{})
}

// addPut adds a way to put a message, and counts its rows.
func (o *opened) addPut(name, table string, unit func(context.Context) error) {
	count := func(ctx context.Context) (n int, err error) {
		err = o.pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n)
		return n, err
	}
	o.add(peer{turn.Peer{Name: name, Scenario: turn.Put}, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		before, err := count(ctx)
		if err != nil {
			return turn.Tally{}, err
		}
		tally, err := turn.Working(func() (turn.Tally, error) { return turn.Run(ctx, workers, length, unit) })
		if err != nil {
			return tally, err
		}
		after, err := count(ctx)
		if err == nil && after-before != tally.Units {
			err = fmt.Errorf("%d transactions have put %d messages", tally.Units, after-before)
		}
		return tally, err
	}})
}

func (p *publishing) inTx(announce func(context.Context, pgx.Tx) error) func(context.Context) error {
	return func(ctx context.Context) error {
		tx, err := p.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, updateSQL, someAccount()); err != nil {
			return err
		}
		if err := announce(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// watermill publishes in the caller's transaction, as in its documentation,
// with the envelope of the forwarder if the message is for another broker.
func (p *publishing) watermill(forwarded bool) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		var publisher message.Publisher
		publisher, err := sql.NewPublisher(sql.TxFromPgx(tx), sql.PublisherConfig{SchemaAdapter: logSchema()}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		if forwarded {
			publisher = forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outboxTopic})
		}
		m := message.NewMessage(watermill.NewUUID(), p.body)
		m.SetContext(ctx)
		return publisher.Publish(outboxTopic, m)
	}
}

// oagudo runs the transaction itself, over database/sql.
func (p *publishing) oagudo() func(context.Context) error {
	writer := outbox.NewWriter(outbox.NewDBContext(p.std, outbox.SQLDialectPostgres))
	return func(ctx context.Context) error {
		return writer.WriteOne(ctx, outbox.NewMessage(p.body), func(ctx context.Context, tx outbox.TxQueryer) error {
			_, err := tx.ExecContext(ctx, updateSQL, someAccount())
			return err
		})
	}
}

// addRelay adds a way to publish a backlog, and checks that each message
// arrives once.
func (o *opened) addRelay(name string, fill func(context.Context, int) error, relay func(context.Context, *counter) error) {
	o.add(peer{turn.Peer{Name: name, Scenario: turn.Relay}, func(ctx context.Context, _ int, length time.Duration) (turn.Tally, error) {
		n := turn.Backlog(length)
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second+time.Duration(n)*time.Millisecond/2)
		defer cancel()
		if err := fill(ctx, n); err != nil {
			return turn.Tally{}, err
		}
		c := &counter{times: make([]uint8, n), full: make(chan struct{})}
		return turn.Working(func() (turn.Tally, error) {
			begun := time.Now()
			err := relay(ctx, c)
			took := time.Since(begun)
			if err == nil {
				err = c.check()
			}
			return turn.Tally{Units: n, PerSecond: float64(n) / took.Seconds(), P50: took, P99: took}, err
		})
	}})
}

// counter counts how often each message of a backlog arrived.
type counter struct {
	mu    sync.Mutex
	came  int
	times []uint8
	full  chan struct{} // closed when all messages have arrived
}

func (c *counter) count(id string) {
	n, err := strconv.ParseInt(id[max(len(id)-12, 0):], 16, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && n >= 1 && n <= int64(len(c.times)) {
		c.times[n-1]++
	}
	if c.came++; c.came == len(c.times) {
		close(c.full)
	}
}

func (c *counter) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.times {
		if n != 1 {
			return fmt.Errorf("a message was published %d times; %d came for %d", n, c.came, len(c.times))
		}
	}
	return nil
}

// Publish implements MessagePublisher of oagudo.
func (c *counter) Publish(_ context.Context, m *outbox.Message) error {
	c.count(m.ID.String())
	return nil
}

const (
	backlogID   = `'00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0')`
	backlogBody = `convert_to(lpad(i::text, 300, 'x'), 'UTF8')`
)

func (p *publishing) fill(ctx context.Context, n int, table, insert string) error {
	for _, statement := range []string{"TRUNCATE " + table, fmt.Sprintf(insert+" FROM generate_series(1, %d) AS i", n),
		"VACUUM ANALYZE " + table, "CHECKPOINT"} {
		if _, err := p.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// fillLog renumbers the messages, starting at the offset of the consumer group.
func (p *publishing) fillLog(ctx context.Context, n int) error {
	table := logSchema().MessagesTable(outboxTopic)
	return p.fill(ctx, n, table, "INSERT INTO "+table+" (uuid, payload, metadata, transaction_id) SELECT "+backlogID+", "+
		backlogBody+", '{}', pg_current_xact_id()")
}

func (p *publishing) fillQueue(ctx context.Context, n int) error {
	table := queueName(outboxTopic)
	return p.fill(ctx, n, table, "INSERT INTO "+table+" (uuid, payload, metadata) SELECT "+backlogID+", "+backlogBody+", '{}'")
}

func (p *publishing) fillOagudo(ctx context.Context, n int) error {
	return p.fill(ctx, n, "outbox", "INSERT INTO outbox (id, created_at, scheduled_at, payload, times_attempted) SELECT ("+backlogID+
		")::uuid, now() - interval '1 day' + i * interval '1 microsecond', now() - interval '1 day', "+backlogBody+", 0")
}

func (p *publishing) relayLog(ctx context.Context, c *counter) error {
	return p.follow(ctx, c, logSchema(), sql.DefaultPostgreSQLOffsetsAdapter{}, consumerGroup)
}

func (p *publishing) relayQueue(ctx context.Context, c *counter) error {
	return p.follow(ctx, c, queueSchema(), queueOffsets(), "")
}

// follow is a plain loop over a subscriber: one message after the other.
func (p *publishing) follow(ctx context.Context, c *counter, schema sql.SchemaAdapter, offsets sql.OffsetsAdapter, group string) error {
	subscriber, err := p.subscriber(schema, offsets, group)
	if err != nil {
		return err
	}
	defer subscriber.Close() // waits for the acknowledgement of the last batch
	messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), outboxTopic)
	if err != nil {
		return err
	}
	for {
		select {
		case m := <-messages:
			c.count(m.UUID)
			m.Ack()
		case <-c.full:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// relayOagudo polls as often as it can.
func (p *publishing) relayOagudo(ctx context.Context, c *counter) error {
	reader := outbox.NewReader(outbox.NewDBContext(p.std, outbox.SQLDialectPostgres), c, outbox.WithInterval(time.Millisecond),
		outbox.WithReadBatchSize(relayBatch), outbox.WithDeleteBatchSize(relayBatch))
	reader.Start()
	select {
	case <-c.full:
	case <-ctx.Done():
		return ctx.Err()
	}
	return reader.Stop(ctx)
}

// addWhole adds a way to put messages while they are published. Its turn ends
// when all are published.
func (o *opened) addWhole(name string, unit func(context.Context) error, relay func(context.Context, func()) (stop func(), err error)) {
	o.add(peer{turn.Peer{Name: name, Scenario: turn.EndToEnd}, func(ctx context.Context, workers int, length time.Duration) (tally turn.Tally, err error) {
		var came atomic.Int64
		stop, err := relay(ctx, func() { came.Add(1) })
		if err != nil {
			return tally, err
		}
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second+10*length)
		defer cancel()
		return turn.Working(func() (turn.Tally, error) {
			tally, err := turn.Run(ctx, workers, length, unit)
			for err == nil && int(came.Load()) < tally.Units {
				select {
				case <-ctx.Done():
					err = fmt.Errorf("%d of %d messages were published: %w", came.Load(), tally.Units, ctx.Err())
				case <-time.After(time.Millisecond):
				}
			}
			return tally, err
		})
	}})
}

// relayWhole subscribes with default batch size and interval.
func (p *publishing) relayWhole(ctx context.Context, came func()) (stop func(), err error) {
	schema := sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea}
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(p.pool), sql.SubscriberConfig{ConsumerGroup: consumerGroup, SchemaAdapter: schema,
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{}, PollInterval: 100 * time.Millisecond}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), outboxTopic)
	if err != nil {
		return nil, err
	}
	go func() {
		for m := range messages {
			came()
			m.Ack()
		}
	}()
	return func() { _ = subscriber.Close() }, nil
}
