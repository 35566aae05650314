package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

	mu sync.Mutex // guards the arrivals
}

// arrival is what the Tag of a delivery points to. Sessions use the same delivery
// numbers, so it includes the session. RabbitMQ breaks a session that settles a
// number twice, so it notes what is settled.
type arrival struct {
	session *session
	raw     *amqp.Delivery
	settled bool // that was sent
	dead    bool // its dead letter is stored
}

var errSettled = fmt.Errorf("rabbitbroker: %w", broker.ErrSettled)

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
			Message: m, Redelivered: again, Tag: &arrival{session: n, raw: &d},
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
	return n.settleAll(ctx, ds, n.sendAck)
}

func (n *session) sendAck(number uint64) error { return n.channel.Ack(number, false) }

// Return returns messages at once. It ignores the delay.
func (n *session) Return(ctx context.Context, ds []broker.Delivery, _ time.Duration) error {
	return n.settleAll(ctx, ds, func(number uint64) error { return n.channel.Nack(number, false, true) })
}

// Reject publishes messages to Options.DeadLetter and acks those that are
// confirmed. Without a DeadLetter it rejects them to the queue.
func (n *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if n.dead == nil {
		return n.settleAll(ctx, ds, func(number uint64) error { return n.channel.Reject(number, false) })
	}
	as, err := n.own(ds)
	if err != nil {
		return err
	}
	stored, fresh, err := n.divide(as)
	letters, errs := make([]publishing, len(fresh)), make([]error, len(fresh))
	for i, a := range fresh {
		letters[i] = deadLetter(a.raw, n.options.DeadLetter.RoutingKey, reason)
	}
	if len(letters) > 0 {
		n.dead.send(ctx, letters, errs)
	}
	n.mu.Lock()
	for i, a := range fresh {
		if a.dead = errs[i] == nil; a.dead {
			stored = append(stored, a)
		}
	}
	n.mu.Unlock()
	return errors.Join(append(errs, err, n.settle(ctx, stored, n.sendAck))...)
}

// divide returns those of the arrivals that have a dead letter from an earlier
// try, and those without. It returns an error if some are settled.
func (n *session) divide(as []*arrival) (dead, fresh []*arrival, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range as {
		switch {
		case a.settled:
			err = errSettled
		case a.dead:
			dead = append(dead, a)
		default:
			fresh = append(fresh, a)
		}
	}
	return dead, fresh, err
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

// settleAll is settle for deliveries.
func (n *session) settleAll(ctx context.Context, ds []broker.Delivery, send func(number uint64) error) error {
	as, err := n.own(ds)
	if err != nil {
		return err
	}
	return n.settle(ctx, as, send)
}

// settle calls send for each arrival that is not settled. It stops when send
// fails, which breaks the session, and when ctx ends.
func (n *session) settle(ctx context.Context, as []*arrival, send func(number uint64) error) (refused error) {
	err := n.link.During(ctx, func() error {
		for i, a := range as {
			err := ctx.Err()
			switch {
			case err != nil:
			case n.begin(a):
				err = send(a.raw.DeliveryTag)
			default:
				refused = errSettled
			}
			if err != nil {
				return fmt.Errorf("%d of %d messages were not settled: %w", len(as)-i, len(as), err)
			}
		}
		return nil
	})
	return errors.Join(refused, err)
}

// begin notes that an arrival is settled, and returns false if it was before.
func (n *session) begin(a *arrival) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := a.settled
	a.settled = true
	return !was
}

// own returns the arrivals of deliveries. It fails if one is of another session.
func (n *session) own(ds []broker.Delivery) ([]*arrival, error) {
	as := make([]*arrival, len(ds))
	for i, d := range ds {
		a, ok := d.Tag.(*arrival)
		if !ok || a.session != n {
			return nil, fmt.Errorf("%w: the delivery is of another session", broker.ErrInvalid)
		}
		as[i] = a
	}
	return as, nil
}
