package storebroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// Lease is how long a message stays with a process that has died. A living
	// process renews its leases three times in that time. Default: 10 seconds. At
	// least a second.
	Lease time.Duration

	// Poll is the longest interval between two looks for messages that were
	// published with another Broker value, such as that of another process. Default:
	// 200 ms.
	Poll time.Duration

	Logger *slog.Logger // default: that of the store's Options
}

// Broker carries messages through a store. It is safe for concurrent use.
type Broker struct {
	options  Options
	err      error // why the store cannot carry messages
	sealing  *once.Sealing
	shelf    store.Shelf
	many     store.ShelfBatch // nil: rows are changed one by one
	registry store.Registry
	handOver store.HandOver // nil: the store has none

	turn chan struct{} // has an element while messages are published, if that is done in turns

	mu   sync.Mutex
	open map[*session]struct{}
}

// New returns a broker on a store. Whether the store can carry messages is checked
// when a source is opened. A nil Options means the defaults.
func New(s once.Store, o *Options) *Broker {
	b := &Broker{turn: make(chan struct{}, 1), open: make(map[*session]struct{})}
	if o != nil {
		b.options = *o
	}
	b.options.Lease = cmp.Or(b.options.Lease, 10*time.Second)
	b.options.Poll = cmp.Or(b.options.Poll, 200*time.Millisecond)
	if b.err = b.use(s); b.err != nil {
		b.err = fmt.Errorf("%w: storebroker: %w", broker.ErrInvalid, b.err)
	}
	return b
}

// use finds what the broker needs of a store.
func (b *Broker) use(s once.Store) error {
	if s == nil || s.Options() == nil {
		return errors.New("the store is nil, or has no Options")
	}
	b.sealing = &s.Options().Sealing
	b.options.Logger = logs.Of(cmp.Or(b.options.Logger, s.Options().Logger))
	var shelves, registers bool
	b.shelf, shelves = once.As[store.Shelf](s)
	b.registry, registers = once.As[store.Registry](s)
	b.many, _ = once.As[store.ShelfBatch](s)
	b.handOver, _ = once.As[store.HandOver](s)
	switch {
	case !shelves || !registers:
		return fmt.Errorf("%T cannot carry messages: it is no store.Shelf and store.Registry. Use another broker, or a store that has both", s)
	case b.options.Lease < time.Second || b.options.Poll < time.Millisecond:
		return fmt.Errorf("the Lease is %v and Poll %v: give at least a second, and a millisecond", b.options.Lease, b.options.Poll)
	}
	return b.sealing.Validate()
}

// Queue returns the source of a topic, which is a [broker.Subscriber]: each
// consumer has a queue of its own, with the messages that are published to the
// topic after the consumer was registered. Sessions are [broker.Delayer] and
// [broker.DeadLetterer]. A rejected message stays in the queue, Parked and with its
// reason, until a person decides about it: see inbox.Admin.
func (b *Broker) Queue(topic string) broker.Source { return &source{broker: b, topic: topic} }

// Publisher returns a publisher. A message goes to the queue of each consumer that
// is registered for its topic. If there is none, its error is a
// [broker.ErrNotYet].
func (b *Broker) Publisher() broker.Publisher { return &publisher{broker: b} }

// wakeSessions makes sessions look for messages.
func (b *Broker) wakeSessions() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.open {
		wake.Signal(s.news)
	}
}

func (b *Broker) enter(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[s] = struct{}{}
}

func (b *Broker) leave(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, s)
}

// shelved reads rows.
func (b *Broker) shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	rows, err := b.shelf.Shelved(ctx, q)
	for i := range rows {
		rows[i] = store.OpenShelved(b.sealing, rows[i], q.Bodiless)
	}
	return rows, err
}

// change changes rows, and returns an error for each, as Change does.
func (b *Broker) change(ctx context.Context, rows []store.Shelved) []error {
	errs, sealed := make([]error, len(rows)), make([]store.Shelved, len(rows))
	for i, row := range rows {
		sealed[i] = store.SealReason(b.sealing, row)
	}
	if b.many != nil && len(rows) > 1 {
		var changed []bool
		err := untilNoConflict(ctx, func() (err error) {
			changed, err = b.many.ChangeMany(ctx, sealed)
			return err
		})
		for i := range errs {
			if errs[i] = err; err == nil && !changed[i] {
				errs[i] = once.ErrLeaseLost
			}
		}
		return errs
	}
	for i, row := range sealed {
		errs[i] = untilNoConflict(ctx, func() error { return b.shelf.Change(ctx, row) })
	}
	return errs
}

// untilNoConflict repeats a call that other transactions get in the way of, until ctx
// ends or the store has had a few seconds for it. Such a call has changed nothing.
func untilNoConflict(ctx context.Context, call func() error) error {
	pause := &backoff.Backoff{First: 2 * time.Millisecond, Limit: 200 * time.Millisecond}
	for end := time.Now().Add(conflictTime); ; {
		err := call()
		if !errors.Is(err, once.ErrConflict) || time.Now().After(end) || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

const conflictTime = 5 * time.Second
