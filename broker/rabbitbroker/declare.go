package rabbitbroker

import (
	"context"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
)

// noDeliveryLimit is a delivery limit that is never reached. Without a limit,
// RabbitMQ 4 uses 20, and older versions put returned messages at the end of the
// queue. Older versions do not know -1.
const noDeliveryLimit = 1 << 30

// QueueOptions configures a queue. The zero value is a quorum queue without a
// delivery limit.
type QueueOptions struct {
	// Classic declares a classic queue, which is on one node only.
	Classic bool

	// SingleActive delivers to one session at a time, which keeps the order of
	// messages across processes.
	SingleActive bool

	// DeadLetter is where messages go that are rejected, that expire, or that
	// exceed a limit of the queue. A quorum queue waits until they have arrived
	// (at-least-once), a classic one does not. The exchange, or the queue that
	// the routing key names, should exist.
	DeadLetter *DeadLetter

	// Exchange is bound to the queue for each of the Topics. It is declared as a
	// durable topic exchange.
	Exchange string
	Topics   []string

	// Arguments are additional arguments. They override those of the other
	// fields.
	Arguments amqp.Table
}

// DeclareQueue declares a durable queue. If a queue of that name exists with
// other arguments, RabbitMQ returns an error (406) and changes nothing.
// Existing bindings stay.
//
// Call it at each start of the program. RabbitMQ 3.10 may lose a binding that it
// has confirmed if it is killed. Publish then returns an error, and a relay keeps
// its messages until the queue is bound again.
func (b *Broker) DeclareQueue(ctx context.Context, name string, o QueueOptions) error {
	l, err := b.dialer.connect(ctx)
	if err != nil {
		return err
	}
	err = l.During(ctx, func() error { return l.declare(name, o) })
	_ = l.close(ctx) // the queue is declared
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
		args["x-delivery-limit"] = int64(noDeliveryLimit)
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
			args["x-overflow"] = "reject-publish" // which the strategy requires
		}
	}
	maps.Copy(args, o.Arguments)
	return args
}
