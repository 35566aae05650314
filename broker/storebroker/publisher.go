package storebroker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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
	return p.put(ctx, ms, func(ctx context.Context, _ []int, rows [][]store.Shelved) ([]bool, error) {
		return nil, p.broker.shelf.Shelve(ctx, slices.Concat(rows...))
	})
}

// HandsOver reports whether an outbox is in the store of the publisher. Neither may
// have a wrapper of its own, which would not see the calls that HandOver replaces.
func (p *publisher) HandsOver(from store.Relayable) bool {
	h := p.broker.handOver
	return h != nil && reflect.ValueOf(h).Comparable() && any(h) == any(from) && any(h) == any(p.broker.shelf)
}

// HandOver puts messages into the queues of the consumers of their topics, and ends
// them in the outbox, in one call of the store.
func (p *publisher) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, as []*broker.Message, then store.Ending) []error {
	return p.put(ctx, as, func(ctx context.Context, of []int, rows [][]store.Shelved) ([]bool, error) {
		out := make([]store.Outgoing, len(of))
		for n, i := range of {
			out[n] = ms[i]
		}
		return p.broker.handOver.HandOver(ctx, relay, out, rows, then)
	})
}

// putting puts the rows of the messages with these indexes into queues. A message
// that is false in has is not there to be published any more. A nil has means all.
type putting func(ctx context.Context, of []int, rows [][]store.Shelved) (has []bool, err error)

// errTaken is the error of a message that HandOver does not find.
var errTaken = fmt.Errorf("%w: the message is no longer in the outbox, or another relay has its lane", once.ErrLeaseLost)

func (p *publisher) put(ctx context.Context, ms []*broker.Message, how putting) []error {
	errs := make([]error, len(ms))
	rows, takes, err := p.rows(ctx, ms, errs)
	var has []bool
	if err == nil && len(takes) > 0 {
		has, err = p.broker.shelve(ctx, takes, rows, how)
		defer p.broker.wakeSessions()
	}
	taken := make(map[string]bool) // ordering keys of messages that were taken
	for n, i := range takes {
		key := ms[i].OrderingKey
		switch {
		case rows == nil || !errors.Is(err, once.ErrInvalid):
			errs[i] = orTaken(has, n, err)
		case taken[key]:
			errs[i] = errTaken
		default: // one of them is at fault, or a queue is full
			errs[i] = p.broker.shelveAlone(ctx, i, rows[n], how)
			taken[key] = key != "" && errors.Is(errs[i], once.ErrLeaseLost)
		}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

// orTaken returns the error of the n-th message that was put.
func orTaken(has []bool, n int, err error) error {
	if err == nil && has != nil && !has[n] {
		return errTaken
	}
	return err
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
		all, err := queues.of(ms[i].Topic)
		for _, keys := range all {
			of = append(of, store.NewQueued(keys, id, *ms[i]))
		}
		if errs[i] = err; err == nil {
			rows = append(rows, of)
		}
		return err != nil
	})
	return rows, takes, nil
}

// queues are the names in the keys of the consumers that there are, by the name of
// their source.
type queues struct {
	keys    map[string][]string
	damaged []store.Consumer // registered too: nobody knows for what source, or under which keys
}

// of returns whose queues take a message. If a consumer of its topic cannot be read,
// the message waits, or that consumer would lose it.
func (q queues) of(topic string) (keys []string, err error) {
	source := store.TopicSource(topic)
	for _, c := range q.damaged {
		if name, _ := store.SplitSource(c.Source); c.Source == "" || name == source {
			return nil, fmt.Errorf("%w: a consumer that may be one of the topic %q cannot be read: its messages wait, so that it loses none: %w",
				broker.ErrNotYet, topic, c.Damaged)
		}
	}
	if len(q.keys[source]) == 0 {
		return nil, fmt.Errorf("%w: no consumer is registered for the topic %q. It is registered when it first runs", broker.ErrNotYet, topic)
	}
	return q.keys[source], nil
}

// queues returns who consumes.
func (b *Broker) queues(ctx context.Context) (queues, error) {
	all, err := b.registry.Consumers(ctx)
	q := queues{keys: make(map[string][]string)}
	for _, c := range all {
		if !c.IsLegible() {
			q.damaged = append(q.damaged, c)
			continue
		}
		source, _ := store.SplitSource(c.Source)
		if !slices.Contains(q.keys[source], c.Keys) { // it may have several names
			q.keys[source] = append(q.keys[source], c.Keys)
		}
	}
	return q, err
}

// shelveAlone puts one message into queues. If the store refuses it, that is for
// good, unless a queue has messages: it may be full. It is refused twice before it
// is at fault, because a full queue may become empty before it is looked at.
func (b *Broker) shelveAlone(ctx context.Context, i int, rows []store.Shelved, how putting) error {
	var refused error
	for range 2 {
		has, err := b.shelve(ctx, []int{i}, [][]store.Shelved{rows}, how)
		if refused = orTaken(has, 0, err); !errors.Is(refused, once.ErrInvalid) {
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

// shelve seals rows and puts them into queues.
func (b *Broker) shelve(ctx context.Context, of []int, rows [][]store.Shelved, how putting) (has []bool, err error) {
	sealed := make([][]store.Shelved, len(rows))
	for i := range rows {
		for _, row := range rows[i] {
			sealed[i] = append(sealed[i], store.SealShelved(b.sealing, row))
		}
	}
	if b.many == nil { // such a store may keep a queue in one document, where calls get in each other's way
		select {
		case b.turn <- struct{}{}:
			defer func() { <-b.turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	err = untilNoConflict(ctx, func() (err error) {
		has, err = how(ctx, of, sealed)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("storebroker: messages could not be put into queues: %w", err)
	}
	return has, nil
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
