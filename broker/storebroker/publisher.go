package storebroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

var errPublisherClosed = errors.New("storebroker: the publisher is closed")

// Close ends the use of this publisher.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// Publish puts messages into the queues of the consumers of their topics, in one
// call of the store.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	rows, takes, err := p.rows(ctx, ms, errs)
	if err == nil && len(rows) > 0 {
		err = p.broker.shelve(ctx, rows)
	}
	if err != nil && len(takes) == 1 && errors.Is(err, once.ErrInvalid) {
		err = fmt.Errorf("%w: %w", broker.ErrInvalid, err)
	}
	for _, i := range takes {
		errs[i] = err
	}
	if len(rows) > 0 {
		p.broker.wakeSessions()
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

// rows returns the rows of messages. takes has the indexes of the messages that a
// queue takes; the others get their errors.
func (p *publisher) rows(ctx context.Context, ms []*broker.Message, errs []error) (rows []store.Shelved, takes []int, err error) {
	for i, m := range ms {
		if errs[i] = m.Check(); errs[i] == nil {
			takes = append(takes, i)
		}
	}
	switch {
	case len(takes) == 0:
		return nil, nil, nil
	case p.closed.Load():
		return nil, takes, errPublisherClosed
	case p.broker.err != nil: // the messages are not at fault
		return nil, takes, errors.New(strings.TrimPrefix(p.broker.err.Error(), broker.ErrInvalid.Error()+": "))
	}
	queues, err := p.broker.queues(ctx)
	if err != nil {
		return nil, takes, fmt.Errorf("storebroker: the registered consumers could not be read: %w", err)
	}
	takes = slices.DeleteFunc(takes, func(i int) bool {
		of := queues[store.TopicSource(ms[i].Topic)]
		for _, keys := range of {
			rows = append(rows, store.NewQueued(keys, rowID(ms[i]), *ms[i]))
		}
		if len(of) == 0 {
			errs[i] = fmt.Errorf("%w: no consumer is registered for the topic %q. It is registered when it first runs", broker.ErrNotYet, ms[i].Topic)
		}
		return len(of) == 0
	})
	return rows, takes, nil
}

// queues returns who consumes, by the name of the source: the names in the keys of
// the consumers.
func (b *Broker) queues(ctx context.Context) (map[string][]string, error) {
	all, err := b.registry.Consumers(ctx)
	queues := make(map[string][]string)
	for _, c := range all {
		source, _ := store.SplitSource(c.Source)
		if !slices.Contains(queues[source], c.Keys) { // it may have several names
			queues[source] = append(queues[source], c.Keys)
		}
	}
	return queues, err
}

func (b *Broker) shelve(ctx context.Context, rows []store.Shelved) error {
	for i, row := range rows {
		rows[i] = store.SealShelved(b.sealing, row)
	}
	if err := b.shelf.Shelve(ctx, rows); err != nil {
		return fmt.Errorf("storebroker: messages could not be put into queues: %w", err)
	}
	return nil
}

// rowID returns the ID of a message's row. A message that is published again has
// the same ID, so the queue takes it once. Another message that has the same ID,
// perhaps by mistake, is another row: whether it is a duplicate is for the consumer
// to say.
func rowID(m *broker.Message) string {
	seq := m.Header[broker.SeqHeader]
	if _, err := strconv.ParseUint(seq, 10, 64); err != nil { // not from a relay
		seq = name.Format(name.Token())
	}
	if id := m.ID + "#" + seq; len(id) <= name.Limit {
		return id
	}
	return name.Format(name.Digest("row", m.ID, seq))
}
