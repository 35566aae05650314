package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/redis/go-redis/v9"
)

// evictionTime is how long the setting that evicts streams is not read again.
const evictionTime = time.Minute

// publisher appends messages to streams. It connects on first use.
type publisher struct {
	broker *Broker

	mu      sync.Mutex
	client  redis.UniversalClient // nil: not connected
	closed  bool
	checked map[string]time.Time // by address of a server: when it was last seen to evict no streams
}

func newPublisher(b *Broker) *publisher {
	return &publisher{broker: b, checked: make(map[string]time.Time)}
}

var errPublisherClosed = errors.New("redisbroker: the publisher is closed")

// Publish appends messages and waits for the answers. Messages of one server are
// sent in one pipeline, so that they keep their order.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	if len(ms) == 0 {
		return nil
	}
	errs := make([]error, len(ms))
	fields := make([][]any, len(ms))
	for i, m := range ms {
		if fields[i], errs[i] = encode(m); errs[i] == nil && len(m.Topic) == 0 {
			errs[i] = fmt.Errorf("%w: a message needs a stream", broker.ErrInvalid)
		}
	}
	byNode := make(map[*redis.Client][]int)
	for i, m := range ms {
		if errs[i] != nil {
			continue
		}
		node, err := p.node(ctx, m.Topic)
		if err != nil {
			errs[i] = err
			continue
		}
		byNode[node] = append(byNode[node], i)
	}
	for node, at := range byNode {
		p.append(ctx, node, ms, fields, at, errs)
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// append appends the messages with the indexes at, which one server has.
func (p *publisher) append(ctx context.Context, node *redis.Client, ms []*broker.Message, fields [][]any, at []int, errs []error) {
	added := make([]*redis.StringCmd, len(at))
	var confirmed *redis.IntCmd
	o := &p.broker.options
	_, _ = node.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its error
		for j, i := range at {
			added[j] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: ms[i].Topic, Values: fields[i]})
		}
		if o.Replicas > 0 {
			confirmed = redis.NewIntCmd(ctx, "wait", o.Replicas, o.ConfirmTimeout.Milliseconds())
			return pipe.Process(ctx, confirmed)
		}
		return nil
	})
	unconfirmed := p.unconfirmed(confirmed)
	moved := false
	for j, i := range at {
		if err := added[j].Err(); err != nil {
			errs[i] = fmt.Errorf("redisbroker: append to the stream %q: %w", ms[i].Topic, err)
			moved = true
		} else if unconfirmed != nil {
			errs[i] = unconfirmed
		}
	}
	if cluster, ok := p.connected().(*redis.ClusterClient); ok && moved {
		cluster.ReloadState(ctx) // a slot may have moved
	}
}

// unconfirmed returns an error if not enough replicas have the messages.
func (p *publisher) unconfirmed(confirmed *redis.IntCmd) error {
	o := &p.broker.options
	switch {
	case confirmed == nil:
		return nil
	case confirmed.Err() != nil:
		return fmt.Errorf("redisbroker: wait for %d replicas: %w", o.Replicas, confirmed.Err())
	case confirmed.Val() < int64(o.Replicas):
		return fmt.Errorf("redisbroker: %d of %d replicas confirmed the message within %v", confirmed.Val(), o.Replicas, o.ConfirmTimeout)
	}
	return nil
}

// node returns the server of a stream, which evicts no streams.
func (p *publisher) node(ctx context.Context, stream string) (*redis.Client, error) {
	client, err := p.connect()
	if err != nil {
		return nil, err
	}
	node, err := nodeOf(ctx, client, stream)
	if err != nil {
		return nil, fmt.Errorf("redisbroker: find the server of the stream %q: %w", stream, err)
	}
	address := node.Options().Addr
	p.mu.Lock()
	checked := time.Since(p.checked[address]) < evictionTime
	p.mu.Unlock()
	if checked {
		return node, nil
	}
	if err := checkEviction(ctx, node); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.checked[address] = time.Now()
	p.mu.Unlock()
	return node, nil
}

func (p *publisher) connect() (redis.UniversalClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errPublisherClosed
	case p.client != nil:
		return p.client, nil
	}
	var err error
	p.client, err = connect(p.broker.client)
	return p.client, err
}

func (p *publisher) connected() redis.UniversalClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// Close closes the connections of the publisher.
func (p *publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.client == nil {
		return nil
	}
	client := p.client
	p.client = nil
	return client.Close()
}
