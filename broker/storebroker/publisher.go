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
	if err == nil && len(takes) > 0 {
		err = p.broker.shelve(ctx, slices.Concat(rows...))
		defer p.broker.wakeSessions()
	}
	for n, i := range takes {
		if errs[i] = err; errors.Is(err, once.ErrInvalid) { // one of them is at fault, or a queue is full
			errs[i] = p.broker.shelveAlone(ctx, rows[n])
		}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

// rows returns the rows of each message that a queue takes. takes has their indexes;
// the others get their errors.
func (p *publisher) rows(ctx context.Context, ms []*broker.Message, errs []error) (rows [][]store.Shelved, takes []int, err error) {
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
		var of []store.Shelved
		id := rowID(ms[i])
		for _, keys := range queues[store.TopicSource(ms[i].Topic)] {
			of = append(of, store.NewQueued(keys, id, *ms[i]))
		}
		if len(of) > 0 {
			rows = append(rows, of)
		} else {
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

// shelveAlone puts one message into queues. If the store refuses it, that is for
// good, unless a queue has messages: it may be full. It is refused twice before it
// is at fault, because a full queue may become empty before it is looked at.
func (b *Broker) shelveAlone(ctx context.Context, rows []store.Shelved) error {
	var refused error
	for range 2 {
		if refused = b.shelve(ctx, rows); !errors.Is(refused, once.ErrInvalid) {
			return refused
		}
		full, err := b.notEmpty(ctx, rows)
		if err != nil {
			return err
		}
		if len(full) > 0 {
			return fmt.Errorf("%w: the queue of %s may be full, and its topic waits for it: start that consumer, or retire it: %v",
				broker.ErrNotYet, strings.Join(full, " or "), refused)
		}
	}
	return fmt.Errorf("%w: %w", broker.ErrInvalid, refused)
}

// notEmpty returns the names of those whose queues have messages.
func (b *Broker) notEmpty(ctx context.Context, rows []store.Shelved) (names []string, err error) {
	for _, row := range rows {
		found, err := b.shelf.Shelved(ctx, store.ShelfQuery{Consumer: row.Consumer, Limit: 1, Bodiless: true})
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			keys, _ := store.QueueOwner(row.Consumer)
			names = append(names, strconv.Quote(keys))
		}
	}
	return names, nil
}

func (b *Broker) shelve(ctx context.Context, rows []store.Shelved) error {
	rows = slices.Clone(rows)
	for i, row := range rows {
		rows[i] = store.SealShelved(b.sealing, row)
	}
	if b.many == nil { // such a store may keep a queue in one document, where calls get in each other's way
		select {
		case b.turn <- struct{}{}:
			defer func() { <-b.turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := untilNoConflict(ctx, func() error { return b.shelf.Shelve(ctx, rows) }); err != nil {
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
