package servicebusbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
)

const (
	sendsAtOnce = 16 // of one Publish
	closeTime   = 5 * time.Second
)

var errPublisherClosed = errors.New("servicebusbroker: the publisher is closed")

// publisher sends to queues and topics.
type publisher struct {
	client *azservicebus.Client

	mu      sync.Mutex
	senders map[string]*azservicebus.Sender // by queue or topic; nil after Close
}

// run is the messages of a Publish that go to one session of one entity, in order.
// Only these share a batch, because a batch belongs to one partition: that of its
// first message.
type run struct {
	topic   string
	indexes []int
}

// Publish sends messages and waits until Service Bus has accepted each.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	out, errs := make([]*azservicebus.Message, len(ms)), make([]error, len(ms))
	var sends sync.WaitGroup
	turns := make(chan struct{}, sendsAtOnce)
	for _, r := range runs(ms, out, errs) {
		turns <- struct{}{}
		sends.Go(func() {
			defer func() { <-turns }()
			p.send(ctx, r, out, errs)
		})
	}
	sends.Wait()
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// runs encodes messages and returns the runs of those without an error.
func runs(ms []*broker.Message, out []*azservicebus.Message, errs []error) (rs []*run) {
	type place struct{ topic, session string }
	byPlace := make(map[place]*run)
	for i, m := range ms {
		if out[i], errs[i] = encode(m); errs[i] != nil {
			continue
		}
		at := place{m.Topic, *out[i].SessionID}
		r := byPlace[at]
		if r == nil {
			r = &run{topic: m.Topic}
			byPlace[at] = r
			rs = append(rs, r)
		}
		r.indexes = append(r.indexes, i)
	}
	return rs
}

// send sends a run, batch by batch. What comes after a batch that failed is not
// sent, because its order would be lost.
func (p *publisher) send(ctx context.Context, r *run, out []*azservicebus.Message, errs []error) {
	sender, err := p.sender(r.topic)
	for rest := r.indexes; len(rest) > 0; {
		var n int
		if err == nil {
			n, err = sendFirst(ctx, sender, rest, out)
		}
		if errors.Is(err, azservicebus.ErrMessageTooLarge) {
			errs[rest[0]] = fmt.Errorf("%w: message %q is larger than %q accepts", broker.ErrInvalid, deref(out[rest[0]].MessageID), r.topic)
			n, err = 1, nil
		}
		if err != nil {
			for _, i := range rest {
				errs[i] = fmt.Errorf("servicebusbroker: publish to %q: %w", r.topic, err)
			}
			return
		}
		rest = rest[n:]
	}
}

// sendFirst sends as many of the first messages as fit into a batch, and returns
// how many. If it fails, none of them was confirmed.
func sendFirst(ctx context.Context, sender *azservicebus.Sender, indexes []int, out []*azservicebus.Message) (n int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if len(indexes) == 1 {
		return 1, sender.SendMessage(ctx, out[indexes[0]], nil)
	}
	batch, err := sender.NewMessageBatch(ctx, nil)
	if err != nil {
		return 0, err
	}
	for _, i := range indexes {
		err := batch.AddMessage(out[i], nil)
		if errors.Is(err, azservicebus.ErrMessageTooLarge) {
			break
		}
		if err != nil {
			return 0, err
		}
		n++
	}
	if n == 0 { // a batch may be smaller than the largest message
		return 1, sender.SendMessage(ctx, out[indexes[0]], nil)
	}
	return n, sender.SendMessageBatch(ctx, batch, nil)
}

// sender returns the sender of a queue or topic. It does not connect.
func (p *publisher) sender(topic string) (*azservicebus.Sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.senders == nil {
		return nil, errPublisherClosed
	}
	if s := p.senders[topic]; s != nil {
		return s, nil
	}
	s, err := p.client.NewSender(topic, nil)
	if err == nil {
		p.senders[topic] = s
	}
	return s, err
}

// Close closes the senders, within five seconds.
func (p *publisher) Close() error {
	p.mu.Lock()
	senders := p.senders
	p.senders = nil
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var errs []error
	for _, s := range senders {
		errs = append(errs, s.Close(ctx))
	}
	return errors.Join(errs...)
}
