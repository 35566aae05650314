package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/rabbitbroker/internal/parcel"
	amqp "github.com/rabbitmq/amqp091-go"
)

var errClosed = errors.New("rabbitbroker: the publisher is closed")

// publisher writes one batch after the other, and waits for the confirms of many at once.
type publisher struct {
	broker   *Broker
	exchange string
	turn     chan struct{}          // holds one element while somebody connects or writes
	outlet   atomic.Pointer[outlet] // nil: none yet; one without a link: closed
}

// Publish sends messages and waits for the confirms.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	ps, errs := make([]parcel.Parcel, len(ms)), make([]error, len(ms))
	for i, m := range ms {
		ps[i], errs[i] = parcel.Pack(m, p.broker.options.MaxBody)
	}
	p.send(ctx, ps, errs)
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// Close takes leave of the broker, for at most five seconds.
func (p *publisher) Close() error {
	if o := p.outlet.Swap(new(outlet)); o != nil && o.link != nil {
		return o.link.close(context.Background())
	}
	return nil
}

// send publishes the parcels that have no error yet, and sets the errors of those that are not confirmed.
func (p *publisher) send(ctx context.Context, ps []parcel.Parcel, errs []error) {
	o, err := p.take(ctx)
	if err != nil {
		fill(errs, err)
		return
	}
	confirms := make([]*amqp.DeferredConfirmation, len(ps))
	err = o.link.During(ctx, func() error { return o.write(ctx, p.exchange, ps, errs, confirms) })
	<-p.turn
	for i, confirm := range confirms {
		if confirm != nil {
			errs[i] = o.await(ctx, confirm, ps[i].Key)
		}
	}
	fill(errs, err)
}

// fill gives the error to those that have none. It is nil if all were written.
func fill(errs []error, err error) {
	for i := range errs {
		if errs[i] == nil && err != nil {
			errs[i] = fmt.Errorf("publish to RabbitMQ: %w", err)
		}
	}
}

// take returns an outlet that is open, and the turn to write to it.
func (p *publisher) take(ctx context.Context) (*outlet, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o, err := p.open(ctx)
	if err != nil {
		<-p.turn
	}
	return o, err
}

func (p *publisher) open(ctx context.Context) (_ *outlet, err error) {
	last := p.outlet.Load()
	var l *link
	switch {
	case last != nil && last.link == nil:
		return nil, errClosed
	case last == nil || last.link.isClosed():
		if l, err = p.broker.connect(ctx); err != nil {
			return nil, err
		}
	case last.channel.IsClosed():
		l = last.link
	default:
		return last, nil
	}
	next, err := l.outlet(ctx)
	if err != nil {
		l.Cut()
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if !p.outlet.CompareAndSwap(last, next) { // closed meanwhile
		l.Cut()
		return nil, errClosed
	}
	return next, nil
}

// outlet is a channel in confirm mode. Who writes to it has the publisher's turn.
type outlet struct {
	link    *link
	channel *amqp.Channel
	synced  chan struct{} // received from when all returns so far are in the map
	ended   chan struct{} // closed when the channel is, and the map is complete
	cause   error         // why it has ended; to be read after that

	mu       sync.Mutex
	returned map[uint64]string // why, by number
}

func (l *link) outlet(ctx context.Context) (*outlet, error) {
	o := &outlet{
		link: l, synced: make(chan struct{}), ended: make(chan struct{}), returned: make(map[uint64]string),
	}
	err := l.During(ctx, func() (err error) {
		if o.channel, err = l.amqp.Channel(); err != nil {
			return err
		}
		return o.channel.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	go o.collect(o.channel.NotifyReturn(make(chan amqp.Return)), o.channel.NotifyClose(make(chan *amqp.Error, 1)))
	return o, nil
}

// collect writes down what is returned. RabbitMQ returns a message before it confirms it, and the amqp091 reader hands
// over the one before it looks at the other: so what was returned is in the map, or here, when its confirm is seen.
func (o *outlet) collect(returns <-chan amqp.Return, closes <-chan *amqp.Error) {
	defer close(o.ended)
	for {
		select {
		case r, open := <-returns:
			if !open {
				o.cause = reason(closes)
				return
			}
			o.mu.Lock()
			o.returned[parcel.Number(&r)] = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
			o.mu.Unlock()
		case o.synced <- struct{}{}:
		}
	}
}

// reason is why a channel was closed. The library says it before it closes anything.
func reason(closes <-chan *amqp.Error) error {
	select {
	case err := <-closes:
		if err != nil {
			return err
		}
	default:
	}
	return amqp.ErrClosed
}

// write publishes parcels, in order, and stops at the first that the connection does not take.
func (o *outlet) write(ctx context.Context, exchange string, ps []parcel.Parcel, errs []error,
	confirms []*amqp.DeferredConfirmation) (err error) {

	for i := range ps {
		if errs[i] != nil {
			continue
		}
		if errs[i] = ps[i].Fits(o.link.amqp.Config.FrameSize); errs[i] != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		ps[i].Stamp(o.channel.GetNextPublishSeqNo())
		confirms[i], err = o.channel.PublishWithDeferredConfirm(exchange, ps[i].Key, true, false, ps[i].Publishing)
		if err != nil {
			if o.channel.IsClosed() {
				<-o.ended
				return o.cause
			}
			o.link.Cut() // half a message may be on its way
			return err
		}
	}
	return nil
}

// await waits for a confirm.
func (o *outlet) await(ctx context.Context, confirm *amqp.DeferredConfirmation, key string) error {
	select {
	case <-confirm.Done():
	default:
		if _, err := confirm.WaitContext(ctx); err != nil {
			return fmt.Errorf("RabbitMQ has not confirmed the message: %w", err)
		}
	}
	if confirm.Acked() {
		if why, ok := o.wasReturned(confirm.DeliveryTag); ok {
			return fmt.Errorf("RabbitMQ has returned the message (%s): bind a queue that takes %q", why, key)
		}
		return nil
	}
	if !o.channel.IsClosed() {
		return errors.New("RabbitMQ has refused the message: a queue is full, or has failed")
	}
	<-o.ended
	return fmt.Errorf("RabbitMQ has not confirmed the message: %w", o.cause)
}

func (o *outlet) wasReturned(number uint64) (why string, ok bool) {
	select {
	case <-o.synced:
	case <-o.ended:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	why, ok = o.returned[number]
	delete(o.returned, number)
	return why, ok
}
