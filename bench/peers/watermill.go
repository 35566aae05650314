package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectively-once/once/bench/internal/turn"
)

// watermillTopics consume Watermill topics in the transaction that stores their
// offset, as its documentation advises for exactly-once delivery. Each worker
// has its own topic, because a topic has one subscriber at a time. The messages
// are already in the database: reading them is measured, writing them is not.
type watermillTopics struct {
	pool   *pgxpool.Pool
	size   int // messages per transaction
	prefix string
	schema sql.DefaultPostgreSQLSchema
}

const (
	messagesPerMillisecond = 5 // per worker: more than any turn takes
	messagesAtOnce         = 50
	consumerGroup          = "bench"
)

func (o *opened) addWatermill() {
	name := "Watermill SQL " + version("github.com/ThreeDotsLabs/watermill-sql/v4") + ", TxFromContext"
	o.addTopics(name, turn.Consume, 1)
	o.addTopics(name+", 64 messages", turn.ConsumeLog, 64)
}

func (o *opened) addTopics(name, scenario string, size int) {
	payload := func(string) string { return "BYTEA" }
	schema := sql.DefaultPostgreSQLSchema{SubscribeBatchSize: size, GeneratePayloadType: payload}
	w := &watermillTopics{pool: o.pool, size: size, prefix: fmt.Sprintf("by%d_", size), schema: schema}
	o.add(peer{turn.Peer{Name: name, Scenario: scenario}, w.run})
}

func (w *watermillTopics) run(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second+10*length, errTooFew)
	defer cancel()
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(w.pool), sql.SubscriberConfig{
		ConsumerGroup: consumerGroup, SchemaAdapter: w.schema, OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
	if err != nil {
		return turn.Tally{}, err
	}
	defer subscriber.Close()
	if err := w.provide(ctx, subscriber, workers, int(length.Milliseconds())*messagesPerMillisecond+2*w.size); err != nil {
		return turn.Tally{}, err
	}
	return w.consumeAll(ctx, subscriber, workers, length)
}

var (
	errTooFew   = errors.New("the messages were used up, or not delivered: make the turn shorter with -turn")
	errTurnOver = errors.New("the turn is over")
)

// consumeAll ends when the turn is over, and finishes the current messages.
func (w *watermillTopics) consumeAll(ctx context.Context, subscriber *sql.Subscriber, workers int,
	length time.Duration) (turn.Tally, error) {

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	m := turn.NewMeter(length, func() { stop(errTurnOver) })
	var running sync.WaitGroup
	for i := range workers {
		messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), w.topic(i))
		if err != nil {
			stop(err)
			break
		}
		running.Go(func() {
			if err := w.consume(ctx, messages, i, workers, m); err != nil {
				stop(err)
			}
		})
	}
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errTurnOver) {
		return turn.Tally{}, err
	}
	return m.Tally()
}

// consume handles the messages of a topic.
func (w *watermillTopics) consume(ctx context.Context, messages <-chan *message.Message, worker, workers int,
	m *turn.Meter) error {

	begun, done := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case message := <-messages:
			if err := w.handle(message, worker, workers); err != nil {
				return err
			}
		}
		if done++; done%w.size == 0 {
			now := time.Now()
			m.Done(w.size, now.Sub(begun))
			begun = now
		}
	}
}

// handle does the work of the other variants in the subscriber's transaction.
// Workers share no accounts, so that their transactions do not block each
// other.
func (w *watermillTopics) handle(message *message.Message, worker, workers int) error {
	tx, ok := sql.TxFromContext(message.Context())
	if !ok {
		return fmt.Errorf("message %s has no transaction", message.UUID)
	}
	account, err := strconv.Atoi(strings.TrimLeft(string(message.Payload[:numberSize]), " "))
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(message.Context(), updateSQL, account/workers*workers+worker); err != nil {
		return err
	}
	message.Ack()
	return nil
}

func (w *watermillTopics) topic(worker int) string { return w.prefix + strconv.Itoa(worker) }

const (
	numberSize = 8
	bodySize   = 300
)

// provideSQL is the statement of its Publisher for generated messages.
const provideSQL = `INSERT INTO %s (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid()::text, convert_to(lpad((random() * %d)::int::text, %d) || repeat('x', %d), 'UTF8'), '{}',
	pg_current_xact_id()
FROM generate_series(1, %d)`

// provide creates topics, removes consumed messages, and refills them.
func (w *watermillTopics) provide(ctx context.Context, s *sql.Subscriber, workers, messages int) error {
	for i := range workers {
		if err := s.SubscribeInitialize(w.topic(i)); err != nil {
			return err
		}
		if err := w.fill(ctx, w.topic(i), messages); err != nil {
			return err
		}
	}
	return nil
}

func (w *watermillTopics) fill(ctx context.Context, topic string, messages int) error {
	table, offsets := w.schema.MessagesTable(topic), sql.DefaultPostgreSQLOffsetsAdapter{}.MessagesOffsetsTable(topic)
	_, err := w.pool.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE (transaction_id, "offset") <=
(SELECT last_processed_transaction_id, offset_acked FROM %s WHERE consumer_group = $1)`, table, offsets), consumerGroup)
	if err != nil {
		return err
	}
	var left int
	if err := w.pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&left); err != nil {
		return err
	}
	b := new(pgx.Batch)
	text := fmt.Sprintf(provideSQL, table, accounts-1, numberSize, bodySize-numberSize, messagesAtOnce)
	for ; left < messages; left += messagesAtOnce {
		b.Queue("BEGIN")
		b.Queue(text)
		b.Queue("COMMIT")
	}
	if err := w.pool.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err = w.pool.Exec(ctx, "VACUUM ANALYZE "+table)
	return err
}
