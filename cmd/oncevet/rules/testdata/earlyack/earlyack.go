// Package earlyack settles messages.
package earlyack

import (
	"context"
	"database/sql"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"
)

type shop struct {
	store  *sqlstore.Store
	ch     *amqp.Channel
	reader *kafka.Reader
	sqs    *sqs.Client
	op     *once.Operation[string]
}

func (s *shop) handlers(d amqp.Delivery, m jetstream.Msg) {
	_ = inbox.Tx(s.store, func(ctx context.Context, tx *sql.Tx, _ *broker.Message) error {
		return d.Ack(false) // want `earlyack: d.Ack settles the message inside inbox.Tx, before its work is recorded: leave it to the consumer`
	})
	_ = inbox.Do(s.store, s.op, func(ctx context.Context, key once.Key, _ *broker.Message) (string, error) {
		defer m.Ack()          // want `earlyack: m.Ack settles the message inside inbox.Do`
		return "", s.done(ctx) // want `earlyack: s.reader.CommitMessages \(in done\) settles the message`
	})
}

func (s *shop) done(ctx context.Context) error { return s.reader.CommitMessages(ctx) }

func (s *shop) inside(ctx context.Context, d amqp.Delivery) error {
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), func(ctx context.Context, tx *sql.Tx) (string, error) {
		if err := d.Ack(false); err != nil { // want `earlyack: d.Ack settles the message inside once.DoTx, before its work is recorded: acknowledge after once.DoTx has returned nil`
			return "", err
		}
		return "", nil
	})
	return err
}

func (s *shop) before(ctx context.Context, d amqp.Delivery) error {
	if err := d.Ack(false); err != nil { // want `earlyack: d.Ack acknowledges the message before once.DoTx has recorded its work`
		return err
	}
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) beforeByTag(ctx context.Context, d amqp.Delivery) error {
	_ = s.ch.Ack(d.DeliveryTag, false) // want `earlyack: s.ch.Ack acknowledges the message before once.DoTx`
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) loop(ctx context.Context, deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		if _, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows); err != nil {
			_ = d.Nack(false, true)
			continue
		}
		_ = d.Ack(false)
	}
}

func (s *shop) skipped(ctx context.Context, d amqp.Delivery) error {
	if len(d.Body) == 0 {
		return d.Ack(false) // it is nothing
	}
	if len(d.Body) > 1000 {
		_ = d.Ack(false)
		return nil
	}
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) previous(ctx context.Context, last, d amqp.Delivery) error {
	_ = last.Ack(false) // another message
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) rows(context.Context, *sql.Tx) (string, error) { return "", nil }

func (s *shop) deferred(ctx context.Context, d amqp.Delivery) error {
	defer d.Ack(false) // want `earlyack: d.Ack acknowledges the message also if once.DoTx fails`
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) handles(ctx context.Context, d amqp.Delivery) error {
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}

func (s *shop) byHelper(ctx context.Context, d amqp.Delivery) error {
	_ = d.Ack(false) // want `earlyack: d.Ack acknowledges the message before once.DoTx has recorded its work`
	return s.handles(ctx, d)
}

func (s *shop) afterHelper(ctx context.Context, d amqp.Delivery) error {
	if err := s.handles(ctx, d); err != nil {
		return d.Nack(false, true)
	}
	return d.Ack(false)
}

func (s *shop) inGoroutine(ctx context.Context, d, last amqp.Delivery) {
	go func() {
		_ = s.handles(ctx, d)
	}()
	_ = last.Ack(false) // another message
	_ = d.Ack(false)    // want `earlyack: d.Ack acknowledges the message while once.DoTx handles it in a goroutine`
}

func (s *shop) rejectsDeferred(ctx context.Context, d amqp.Delivery) error {
	defer d.Nack(false, true) // which does nothing after an acknowledgement
	_, err := once.DoTx(ctx, s.store, s.op.For(d.MessageId), s.rows)
	return err
}
