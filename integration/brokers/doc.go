// Package brokers runs the adapters of brokers against real ones.
package brokers

import (
	_ "github.com/effectively-once/once/broker/eventhubsbroker"
	_ "github.com/effectively-once/once/broker/kafkabroker"
	_ "github.com/effectively-once/once/broker/natsbroker"
	_ "github.com/effectively-once/once/broker/pubsubbroker"
	_ "github.com/effectively-once/once/broker/rabbitbroker"
	_ "github.com/effectively-once/once/broker/redisbroker"
	_ "github.com/effectively-once/once/broker/servicebusbroker"
	_ "github.com/effectively-once/once/broker/sqsbroker"
	_ "github.com/effectively-once/once/internal/fakeamqp"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/rabbitmq/amqp091-go"
	_ "github.com/twmb/franz-go/pkg/kfake"
)
