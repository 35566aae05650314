// Package txpublish publishes beside transactions.
package txpublish

import (
	"context"
	"database/sql"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
)

type shop struct {
	store  *sqlstore.Store
	events *outbox.Outbox[*sql.Tx]
	ours   broker.Publisher
	rabbit *amqp.Channel
	nc     *nats.Conn
	js     jetstream.JetStream
	kafka  *kafka.Writer
	sqs    *sqs.Client
	redis  *redis.Client
	op     *once.Operation[string]
}

func (s *shop) pay(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		if err := s.events.Put(ctx, tx, &broker.Message{Topic: "paid"}); err != nil {
			return "", err
		}
		_ = s.ours.Publish(ctx, nil)                                                          // want `txpublish: s.ours.Publish publishes even if once.DoTx rolls back, and again if it is repeated: put the message into the outbox, with tx`
		_ = s.rabbit.PublishWithContext(ctx, "shop", "paid", false, false, amqp.Publishing{}) // want `txpublish: s.rabbit.PublishWithContext`
		_ = s.nc.Publish("paid", nil)                                                         // want `txpublish: s.nc.Publish`
		_ = s.js.Publish(ctx, "paid", nil)                                                    // want `txpublish: s.js.Publish`
		_ = s.kafka.WriteMessages(ctx)                                                        // want `txpublish: s.kafka.WriteMessages`
		_, _ = s.sqs.SendMessage(ctx, nil)                                                    // want `txpublish: s.sqs.SendMessage`
		s.redis.Publish(ctx, "paid", 1)                                                       // want `txpublish: s.redis.Publish`
		return "", nil
	})
}

func (s *shop) consumers() {
	_ = inbox.Tx(s.store, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		return s.announce(ctx) // want `txpublish: s.kafka.WriteMessages \(in announce\) publishes even if inbox.Tx rolls back`
	})
	_ = inbox.Do(s.store, s.op, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		return "", s.announce(ctx) // that is an effect like any other
	})
}

func (s *shop) announce(ctx context.Context) error { return s.kafka.WriteMessages(ctx) }
