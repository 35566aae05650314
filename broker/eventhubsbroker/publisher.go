package eventhubsbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
)

// mostSends is how many batches of one Publish are on their way at a time.
const mostSends = 32

// errEarlier is the error of a message that was not sent because an earlier one
// of its ordering key failed.
var errEarlier = errors.New("eventhubsbroker: not sent, because an earlier message of its ordering key failed")

// publisher has a client for each hub that it publishes to.
type publisher struct {
	options *Options

	mu     sync.Mutex
	closed bool
	hubs   map[string]*azeventhubs.ProducerClient
}

// Close closes the clients. Messages that wait for a confirmation fail.
func (p *publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for hub, client := range p.hubs {
		delete(p.hubs, hub)
		errs = append(errs, client.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// client returns the client of a hub.
func (p *publisher) client(hub string) (*azeventhubs.ProducerClient, error) {
	if err := checkHub(hub); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, inflight.ErrClosed
	}
	if c := p.hubs[hub]; c != nil {
		return c, nil
	}
	c, err := p.options.producer(hub)
	if err == nil {
		p.hubs[hub] = c
	}
	return c, err
}

// Publish sends the messages of each ordering key one batch after another, and
// those of different keys concurrently.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	type line struct{ hub, key string }
	var order []line
	lines := make(map[line][]int) // indexes of messages
	for i, m := range ms {
		if errs[i] = m.Check(); errs[i] != nil {
			continue
		}
		l := line{m.Topic, m.OrderingKey}
		if lines[l] == nil {
			order = append(order, l)
		}
		lines[l] = append(lines[l], i)
	}
	var sends sync.WaitGroup
	slots := make(chan struct{}, mostSends)
	for _, l := range order {
		slots <- struct{}{}
		sends.Add(1)
		go func() {
			defer func() { <-slots; sends.Done() }()
			p.send(ctx, l.hub, l.key, ms, lines[l], errs)
		}()
	}
	sends.Wait()
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

// send sends the messages with the indexes in rest, which have one hub and one
// ordering key. It sets their errors. After a failure it stops, so that no message
// overtakes an earlier one. A message that can never be accepted holds up nothing.
func (p *publisher) send(ctx context.Context, hub, key string, ms []*broker.Message, rest []int, errs []error) {
	client, err := p.client(hub)
	var options *azeventhubs.EventDataBatchOptions
	if key != "" {
		partition := partitionKey(key)
		options = &azeventhubs.EventDataBatchOptions{PartitionKey: &partition}
	}
	for len(rest) > 0 {
		var batch *azeventhubs.EventDataBatch
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			batch, err = client.NewEventDataBatch(ctx, options)
		}
		if err != nil {
			p.fail(hub, rest, errs, err)
			return
		}
		var sent []int
		sent, rest, err = fill(batch, ms, rest, errs)
		if err == nil && len(sent) > 0 {
			err = client.SendEventDataBatch(ctx, batch, nil)
		}
		if err != nil {
			p.fail(hub, sent, errs, err)
			for _, i := range rest {
				errs[i] = fmt.Errorf("%w: %w", errEarlier, err)
			}
			return
		}
	}
}

// fill adds messages to an empty batch. Those that are too large for it are
// marked as invalid. It returns which are in the batch, and which are left.
func fill(batch *azeventhubs.EventDataBatch, ms []*broker.Message, at []int, errs []error) (in, left []int, err error) {
	for n, i := range at {
		err := batch.AddEventData(encode(ms[i]), nil)
		switch {
		case err == nil:
			in = append(in, i)
		case !errors.Is(err, azeventhubs.ErrEventDataTooLarge):
			return append(in, i), at[n+1:], err
		case len(in) > 0:
			return in, at[n:], nil
		default:
			errs[i] = fmt.Errorf("%w: message %q with a body of %d bytes is too large for the hub %q: with its headers it does not fit "+
				"into one message of the link, which is 256 KB in the basic tier and 1 MB in the others",
				broker.ErrInvalid, ms[i].ID, len(ms[i].Body), ms[i].Topic)
		}
	}
	return in, nil, nil
}

// fail sets the error of messages whose confirmation is missing.
func (p *publisher) fail(hub string, at []int, errs []error, err error) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	for _, i := range at {
		switch {
		case errs[i] != nil:
		case closed:
			errs[i] = inflight.ErrClosed
		case errors.Is(err, broker.ErrInvalid):
			errs[i] = err
		default:
			errs[i] = fmt.Errorf("eventhubsbroker: the hub %q has not confirmed the message: %w", hub, err)
		}
	}
}
