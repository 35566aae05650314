package storebroker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// source is a topic, or the queue of one of its consumers.
type source struct {
	broker *Broker
	topic  string
	keys   string // of the consumer; empty: of none yet
}

var (
	_ broker.Subscriber = (*source)(nil)
	_ broker.Lagger     = (*source)(nil)
)

// Name returns the name of the topic, which is the same for all its consumers.
func (c *source) Name() string { return store.TopicSource(c.topic) }

// For returns the source of a consumer.
func (c *source) For(keys string) broker.Source {
	return &source{broker: c.broker, topic: c.topic, keys: keys}
}

// check returns an error if the source cannot be used.
func (c *source) check() error {
	switch {
	case c.broker.err != nil:
		return c.broker.err
	case c.topic == "" || name.Check("topic", store.TopicSource(c.topic)) != nil:
		return fmt.Errorf("%w: storebroker: the topic %.40q: give 1 to %d printable bytes", broker.ErrInvalid, c.topic, name.Limit-len(store.TopicSource("")))
	case c.keys == "" || name.Check("consumer", store.QueueOf(c.keys)) != nil:
		return fmt.Errorf("%w: storebroker: %s needs to know its consumer, and got %.40q: use an inbox.Consumer, or For", broker.ErrInvalid, c.Name(), c.keys)
	}
	return nil
}

// Lag counts the messages in the queue of the consumer, up to 10,000. The age is by
// the clock of this process.
func (c *source) Lag(ctx context.Context) (broker.Lag, error) {
	if err := c.check(); err != nil {
		return broker.Lag{}, err
	}
	return store.QueueLag(ctx, c.broker.shelf, c.keys)
}

// Open begins to consume. If the consumer keeps its keys in another store, it
// becomes registered in this one.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if window < 1 {
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	}
	registers, err := c.register(ctx)
	if err != nil {
		return nil, err
	}
	s := newSession(c, window, registers)
	c.broker.enter(s)
	s.start()
	return s, nil
}

// register registers the consumer, unless it is registered. It reports whether the
// session has to register it again from time to time, because nobody else does.
func (c *source) register(ctx context.Context) (registers bool, err error) {
	all, err := c.broker.registry.Consumers(ctx)
	if err != nil {
		return false, fmt.Errorf("storebroker: the registered consumers could not be read: %w", err)
	}
	for _, is := range all {
		if _, same := store.MatchSource(is.Source, c.Name()); same && is.Keys == c.keys && is.Name != c.keys {
			return false, nil // it has another name
		}
	}
	before, err := c.broker.registry.Register(ctx, store.Consumer{Name: c.keys, Source: c.Name(), Keys: c.keys})
	if err != nil {
		return false, fmt.Errorf("storebroker: consumer %q could not be registered: %w", c.keys, err)
	}
	if before.Name == "" {
		return true, nil
	}
	if _, same := store.MatchSource(before.Source, c.Name()); !same {
		return false, fmt.Errorf("%w: storebroker: in the store that carries the messages, consumer %q is registered for %q, and not for %q. "+
			"Give it another name, or retire that one", broker.ErrInvalid, c.keys, before.Source, c.Name())
	}
	return true, nil
}

// holderName says who has a message. Each session has another one.
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("%sprocess %d on %s (session %s)", store.DeliveredTo, os.Getpid(), host, name.Format(name.Token()))
}

var errClosed = errors.New("storebroker: the session is closed")
