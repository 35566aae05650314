package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

// session is a consumer with its own connection. Closing the connection ends it.
type session struct {
	name    string // of the source
	queue   string
	options Options
	link    *link
	channel *amqp.Channel
	dead    *publisher // nil: the queue handles rejected messages

	in    chan broker.Delivery // its capacity is the window, so RabbitMQ sends no more than fit
	ended chan struct{}        // closed when no more deliveries arrive
	cause error                // why it has ended; set before ended is closed
}

// tag is the Tag of a delivery. Sessions use the same delivery numbers, so it
// includes the session.
type tag struct {
	session *session
	raw     *amqp.Delivery
}

func (n *session) consume(window int) (err error) {
	if n.channel, err = n.link.amqp.Channel(); err != nil {
		return err
	}
	closes := n.channel.NotifyClose(make(chan *amqp.Error, 1))
	if err := n.channel.Qos(window, 0, false); err != nil {
		return err
	}
	deliveries, err := n.channel.Consume(n.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go n.pump(deliveries, closes)
	return nil
}

// pump moves deliveries to the channel that Receive reads without waiting.
func (n *session) pump(deliveries <-chan amqp.Delivery, closes <-chan *amqp.Error) {
	defer close(n.ended)
	for d := range deliveries {
		m, again := decode(&d, n.queue)
		n.in <- broker.Delivery{
			Message: m, Redelivered: again, Tag: tag{n, &d},
			Origin: fmt.Sprintf("queue %s, exchange %q", n.queue, d.Exchange),
		}
	}
	n.cause = fmt.Errorf("the session of %s is broken: %w", n.name, reason(closes))
	if !n.channel.IsClosed() {
		n.cause = fmt.Errorf("the session of %s is broken: RabbitMQ has cancelled it: is the queue gone?", n.name)
	}
}

// Receive waits for messages.
func (n *session) Receive(ctx context.Context, max int) (ds []broker.Delivery, err error) {
	if max < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least 1", broker.ErrInvalid, max)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-n.ended: // RabbitMQ redelivers what has arrived
		return nil, n.cause
	default:
	}
	select {
	case d := <-n.in:
		ds = append(ds, d)
	case <-n.ended:
		return nil, n.cause
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(ds) < max {
		select {
		case d := <-n.in:
			ds = append(ds, d)
		default:
			return ds, nil
		}
	}
	return ds, nil
}

// Ack sends acks. RabbitMQ does not confirm them.
func (n *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	return n.settle(ctx, ds, func(number uint64) error { return n.channel.Ack(number, false) })
}

// Return returns messages at once. It ignores the delay.
func (n *session) Return(ctx context.Context, ds []broker.Delivery, _ time.Duration) error {
	return n.settle(ctx, ds, func(number uint64) error { return n.channel.Nack(number, false, true) })
}

// Reject publishes messages to Options.DeadLetter and acks those that are
// confirmed. Without a DeadLetter it rejects them to the queue.
func (n *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if n.dead == nil {
		return n.settle(ctx, ds, func(number uint64) error { return n.channel.Reject(number, false) })
	}
	raws, err := n.own(ds)
	if err != nil {
		return err
	}
	letters, errs := make([]publishing, len(ds)), make([]error, len(ds))
	for i, raw := range raws {
		letters[i] = deadLetter(raw, n.options.DeadLetter.RoutingKey, reason)
	}
	n.dead.send(ctx, letters, errs)
	var kept []broker.Delivery
	for i, d := range ds {
		if errs[i] == nil {
			kept = append(kept, d)
		}
	}
	return errors.Join(append(errs, n.Ack(ctx, kept))...)
}

// KeepsRejected reports whether the Options have a place for dead letters.
func (n *session) KeepsRejected() bool {
	return n.dead != nil || n.options.QueueDeadLetters
}

// Close closes the connections.
func (n *session) Close(ctx context.Context) error {
	err := n.link.close(ctx)
	if n.dead != nil {
		err = errors.Join(err, n.dead.Close())
	}
	return err
}

// settle calls send for each delivery, and stops at the first error.
func (n *session) settle(ctx context.Context, ds []broker.Delivery, send func(number uint64) error) error {
	raws, err := n.own(ds)
	if err != nil {
		return err
	}
	return n.link.During(ctx, func() error {
		for i, raw := range raws {
			err := ctx.Err()
			if err == nil {
				err = send(raw.DeliveryTag)
			}
			if err != nil {
				return fmt.Errorf("%d of %d messages were not settled: %w", len(ds)-i, len(ds), err)
			}
		}
		return nil
	})
}

// own returns the raw deliveries. It fails if one is of another session.
func (n *session) own(ds []broker.Delivery) ([]*amqp.Delivery, error) {
	raws := make([]*amqp.Delivery, len(ds))
	for i, d := range ds {
		t, ok := d.Tag.(tag)
		if !ok || t.session != n {
			return nil, fmt.Errorf("%w: the delivery is of another session", broker.ErrInvalid)
		}
		raws[i] = t.raw
	}
	return raws, nil
}
