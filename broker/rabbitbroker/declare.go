package rabbitbroker

import (
	"context"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
)

// unreached is a delivery limit that is never reached. Without one RabbitMQ 4 takes 20, and older ones put what was
// returned at the end of the queue; "-1" for no limit is not known to those.
const unreached = 1 << 30

// QueueOptions are what a queue is made with. The zero value is a quorum queue without a delivery limit.
type QueueOptions struct {
	// Classic makes a classic queue, which is on one node only.
	Classic bool

	// SingleActive lets one session at a time get messages, so that their order is kept across processes.
	SingleActive bool

	// DeadLetter is where messages go that are rejected, that expire, or that are too many. A quorum queue waits until
	// they have arrived there (at-least-once); a classic one does not. The exchange, or the queue that the routing key
	// names, should exist.
	DeadLetter *DeadLetter

	// Exchange is bound to the queue for each of the Topics, and made as a durable topic exchange unless it is there.
	Exchange string
	Topics   []string

	// Arguments are further ones, or other values for those that the fields above stand for.
	Arguments amqp.Table
}

// DeclareQueue makes a durable queue. If there is one of that name with other arguments, RabbitMQ says so in an error
// (406), and nothing is changed. Bindings that are there stay.
func (b *Broker) DeclareQueue(ctx context.Context, name string, o QueueOptions) error {
	l, err := b.connect(ctx)
	if err != nil {
		return err
	}
	err = l.During(ctx, func() error { return l.declare(name, o) })
	_ = l.close(ctx) // what was declared stays
	if err != nil {
		return fmt.Errorf("declare the queue %q: %w", name, err)
	}
	return nil
}

func (l *link) declare(name string, o QueueOptions) error {
	channel, err := l.amqp.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(name, true, false, false, false, o.arguments()); err != nil {
		return err
	}
	if o.Exchange == "" {
		return nil
	}
	if err := channel.ExchangeDeclare(o.Exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return err
	}
	for _, topic := range o.Topics {
		if err := channel.QueueBind(name, topic, o.Exchange, false, nil); err != nil {
			return err
		}
	}
	return nil
}

func (o *QueueOptions) arguments() amqp.Table {
	args := amqp.Table{"x-queue-type": "classic"}
	if !o.Classic {
		args["x-queue-type"] = "quorum"
		args["x-delivery-limit"] = int64(unreached)
	}
	if o.SingleActive {
		args["x-single-active-consumer"] = true
	}
	if o.DeadLetter != nil {
		args["x-dead-letter-exchange"] = o.DeadLetter.Exchange
		if o.DeadLetter.RoutingKey != "" {
			args["x-dead-letter-routing-key"] = o.DeadLetter.RoutingKey
		}
		if !o.Classic {
			args["x-dead-letter-strategy"] = "at-least-once"
			args["x-overflow"] = "reject-publish" // or the strategy is not taken
		}
	}
	maps.Copy(args, o.Arguments)
	return args
}
