package rabbitbroker

import (
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// Config configures connections: TLS, authentication, the name of the
	// connection. Missing fields are taken from the URL and from the defaults of
	// amqp091-go, such as a heartbeat of 10 seconds. Its Dial may choose among
	// hosts. Its Recovery is ignored.
	Config amqp.Config

	// DeadLetter is where rejected messages are published. Default: nowhere, the
	// queue handles them.
	DeadLetter *DeadLetter

	// QueueDeadLetters states that the queues have an x-dead-letter-exchange,
	// which AMQP cannot query.
	QueueDeadLetters bool

	// MaxBody is the maximum size of a body in bytes. A larger one is
	// broker.ErrInvalid, because RabbitMQ would close the channel, and with it
	// all messages in progress. Default: 16 MiB, the max_message_size of
	// RabbitMQ 4.
	MaxBody int
}

// DeadLetter is a place for rejected messages.
type DeadLetter struct {
	Exchange   string // default: the default exchange, whose routing keys are names of queues
	RoutingKey string // default: the routing key of the message
}
