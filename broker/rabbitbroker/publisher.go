package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

var errClosed = errors.New("rabbitbroker: the publisher is closed")

// publisher writes one batch at a time, and waits for the confirms of several
// batches concurrently.
//
// After a confirm that did not come in time, it uses another channel. RabbitMQ
// may lose a message on its way from a channel to the leader of a quorum queue.
// It then confirms nothing more on that channel, because the queue waits for
// the missing number.
type publisher struct {
	dialer   dialer
	maxBody  int
	exchange string
	turn     chan struct{}                  // has one element while a goroutine connects or writes
	current  atomic.Pointer[confirmChannel] // nil before the first use; without a link after Close
}

// Publish sends messages and waits for the confirms.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	ps, errs := make([]publishing, len(ms)), make([]error, len(ms))
	for i, m := range ms {
		ps[i], errs[i] = encode(m, p.maxBody)
	}
	p.send(ctx, ps, errs)
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// Close closes the connection, within five seconds.
func (p *publisher) Close() error {
	if o := p.current.Swap(new(confirmChannel)); o != nil && o.link != nil {
		return o.link.close(context.Background())
	}
	return nil
}

// send publishes the messages that have no error yet, and sets the errors of
// those that are not confirmed.
func (p *publisher) send(ctx context.Context, ps []publishing, errs []error) {
	o, err := p.take(ctx)
	if err != nil {
		fill(errs, err)
		return
	}
	defer o.leave()
	confirms := make([]*amqp.DeferredConfirmation, len(ps))
	err = o.link.During(ctx, func() error { return o.write(ctx, p.exchange, ps, errs, confirms) })
	<-p.turn
	for i, confirm := range confirms {
		if confirm != nil {
			errs[i] = o.await(ctx, confirm, ps[i].key)
		}
	}
	fill(errs, err)
}

// fill sets err, which may be nil, for the messages that have no error.
func fill(errs []error, err error) {
	for i := range errs {
		if errs[i] == nil && err != nil {
			errs[i] = fmt.Errorf("publish to RabbitMQ: %w", err)
		}
	}
}

// take waits for the turn to write, and returns an open channel, which the
// caller leaves.
func (p *publisher) take(ctx context.Context) (*confirmChannel, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		o, err := p.open(ctx)
		if err != nil {
			<-p.turn
			return nil, err
		}
		if o.enter() {
			return o, nil
		}
	}
}

// open returns the current channel, or opens one if that is closed.
func (p *publisher) open(ctx context.Context) (_ *confirmChannel, err error) {
	last := p.current.Load()
	var l *link
	switch {
	case last != nil && last.link == nil:
		return nil, errClosed
	case last == nil || last.link.isClosed():
		if l, err = p.dialer.connect(ctx); err != nil {
			return nil, err
		}
	case last.channel.IsClosed() || last.isRetired():
		l = last.link
	default:
		return last, nil
	}
	next, err := l.openConfirmChannel(ctx)
	if err != nil {
		l.Cut()
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if !p.current.CompareAndSwap(last, next) { // Close was called meanwhile
		l.Cut()
		return nil, errClosed
	}
	return next, nil
}

// confirmChannel is a channel in confirm mode. A goroutine writes to it while
// it has the turn of the publisher.
type confirmChannel struct {
	link    *link
	channel *amqp.Channel
	synced  chan struct{} // sends once all returns so far are in the map
	ended   chan struct{} // closed after the channel, when the map is complete
	cause   error         // why it has ended; set before ended is closed

	mu       sync.Mutex
	returned map[uint64]string // reasons, by number
	batches  int               // batches that use the channel
	retired  bool              // takes no more batches, and is closed after those
}

// enter counts a batch, unless the channel is retired.
func (c *confirmChannel) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return false
	}
	c.batches++
	return true
}

// leave ends a batch. The last one closes a retired channel.
func (c *confirmChannel) leave() {
	c.mu.Lock()
	c.batches--
	last := c.retired && c.batches == 0
	c.mu.Unlock()
	if last {
		go func() { _ = c.channel.Close() }() // waits for an answer; without one it ends with the connection
	}
}

func (c *confirmChannel) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
}

func (c *confirmChannel) isRetired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retired
}

// openConfirmChannel opens a channel in confirm mode.
func (l *link) openConfirmChannel(ctx context.Context) (*confirmChannel, error) {
	o := &confirmChannel{
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

// collect records returned messages. RabbitMQ returns a message before it
// confirms it, and the reader of amqp091 passes on the return before it reads
// the confirm. So when a confirm is seen, its return is in the map or in this
// goroutine.
func (c *confirmChannel) collect(returns <-chan amqp.Return, closes <-chan *amqp.Error) {
	defer close(c.ended)
	for {
		select {
		case r, open := <-returns:
			if !open {
				c.cause = reason(closes)
				return
			}
			c.mu.Lock()
			c.returned[numberOf(&r)] = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
			c.mu.Unlock()
		case c.synced <- struct{}{}:
		}
	}
}

// reason returns why a channel was closed. The library reports it before it
// closes Go channels.
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

// write publishes messages in order, and stops at the first that cannot be
// written.
func (c *confirmChannel) write(ctx context.Context, exchange string, ps []publishing, errs []error,
	confirms []*amqp.DeferredConfirmation) (err error) {

	for i := range ps {
		if errs[i] != nil {
			continue
		}
		if errs[i] = ps[i].checkSize(c.link.amqp.Config.FrameSize); errs[i] != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		ps[i].stamp(c.channel.GetNextPublishSeqNo())
		confirms[i], err = c.channel.PublishWithDeferredConfirm(exchange, ps[i].key, true, false, ps[i].Publishing)
		if err != nil {
			if c.channel.IsClosed() {
				<-c.ended
				return c.cause
			}
			c.link.Cut() // half a message may have been sent
			return err
		}
	}
	return nil
}

// await waits for the confirm of a message.
func (c *confirmChannel) await(ctx context.Context, confirm *amqp.DeferredConfirmation, key string) error {
	select {
	case <-confirm.Done():
	default:
		if _, err := confirm.WaitContext(ctx); err != nil {
			c.retire()
			return fmt.Errorf("RabbitMQ has not confirmed the message: %w", err)
		}
	}
	if confirm.Acked() {
		if why, ok := c.wasReturned(confirm.DeliveryTag); ok {
			return fmt.Errorf("RabbitMQ has returned the message (%s): bind a queue that takes %q", why, key)
		}
		return nil
	}
	if !c.channel.IsClosed() {
		return errors.New("RabbitMQ has rejected the message: a queue is full or has failed")
	}
	<-c.ended
	return fmt.Errorf("RabbitMQ has not confirmed the message: %w", c.cause)
}

// wasReturned reports whether a message was returned, and why.
func (c *confirmChannel) wasReturned(number uint64) (why string, ok bool) {
	select {
	case <-c.synced:
	case <-c.ended:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	why, ok = c.returned[number]
	delete(c.returned, number)
	return why, ok
}
