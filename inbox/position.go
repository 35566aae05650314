package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// positions handles the items of a log in transactions that also move the
// position of their partition.
type positions[T any] struct {
	*txHandler[T]
	offsets store.Positions[T]

	rereads *rereads
	mu      sync.Mutex
	open    map[string]*partition[T] // by lane
	rivals  map[string]rival         // by lane
}

func newPositions[T any](h *txHandler[T]) (*positions[T], error) {
	ps, ok := once.As[store.Positions[T]](h.txStore)
	if !ok || h.txShelf == nil {
		return nil, invalid("Checkpoint of consumer %q needs a store that keeps positions and a shelf: %T does not", h.Name, h.txStore)
	}
	return &positions[T]{txHandler: h, offsets: ps}, nil
}

// newSession forgets the positions, which another process may have moved.
func (h *positions[T]) newSession(r *rereads) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rereads, h.open, h.rivals = r, make(map[string]*partition[T]), make(map[string]rival)
}

// handle handles items of one partition, except those that are read again.
func (h *positions[T]) handle(ctx context.Context, items []*item) []result {
	var current []*item
	for _, it := range items {
		if !h.rereads.isStale(it) {
			current = append(current, it)
		}
	}
	results := repeated(result{kind: reread}, items)
	if len(current) > 0 {
		merge(results, items, current, h.handleCurrent(ctx, current))
	}
	return results
}

// handleCurrent handles the items that are after the position of their
// partition. The others are duplicates.
func (h *positions[T]) handleCurrent(ctx context.Context, items []*item) []result {
	p, err := h.partition(ctx, items[0])
	switch {
	case errors.Is(err, errReread):
		return repeated(result{kind: reread}, items)
	case errors.Is(err, ErrLogChanged):
		return repeated(result{kind: again}, items)
	case errors.Is(err, once.ErrCorrupt): // of the position, so no message is at fault: all wait until a person sets it
		return repeated(h.troubled(ctx, items[0], err), items)
	case err != nil:
		return repeated(h.refused(ctx, items[0], err), items)
	}
	results, rest := repeated(result{kind: again}, items), []*item(nil)
	last, known := p.at.Offset, p.at.Log != ""
	var redelivered []int
	for i, it := range items {
		switch at := it.Position.Offset; {
		case known && at == p.at.Offset && p.at.Digest != [16]byte{} && digest(it.Message) != p.at.Digest:
			h.fatal(fmt.Errorf("%w: the message at %s is not the one that consumer %q has handled there: %s",
				ErrLogChanged, it.Origin, h.keys, logChangedHint))
			return repeated(result{kind: again}, items)
		case (known || len(rest) > 0) && at <= last: // redelivered, perhaps among later ones after a lost ack
			redelivered = append(redelivered, i)
		default:
			rest, last = append(rest, it), at
		}
	}
	merge(results, items, rest, p.handle(ctx, rest))
	for _, i := range redelivered {
		if p.at.Log != "" && items[i].Position.Offset <= p.at.Offset { // otherwise, its other delivery is tried again, too
			results[i] = result{kind: duplicate}
		}
	}
	return results
}

const logChangedHint = "give the consumer a new name, or set its position with Admin.SetPosition if you know where to continue"

var errReread = errors.New("inbox: the partition is read again from its position")

// rereadDistance is how many messages it costs less to pass over than to seek. A
// source that keeps no place is always asked to seek, because only that shows
// whether its log still reaches as far as the position.
const rereadDistance = 1000

// partition returns the partition of an item. It opens its position for the
// first item of a session.
func (h *positions[T]) partition(ctx context.Context, first *item) (*partition[T], error) {
	if p := h.opened(first.lane); p != nil {
		return p, nil
	}
	if p, err := h.rivalPartition(ctx, first); err != nil || p != nil {
		return p, err
	}
	at, err := h.offsets.OpenPosition(ctx, h.keys, first.Position.Partition)
	if err != nil {
		return nil, err
	}
	if at.Log == store.RetiredLog {
		err := fmt.Errorf("%w: consumer %q was retired when it was at %d in %s. To have it continue, set its position there with Admin.SetPosition: "+
			"the Log of the messages that it receives now is %q", ErrLogChanged, h.keys, at.Offset, at.Partition, first.Position.Log)
		h.fatal(err)
		return nil, err
	}
	if at.Log != "" && at.Log != first.Position.Log {
		err := fmt.Errorf("%w: consumer %q has read %q up to %d in %s, and this is %q: %s", ErrLogChanged, h.keys, at.Log,
			at.Offset, at.Partition, first.Position.Log, logChangedHint)
		h.fatal(err)
		return nil, err
	}
	if at.Log == "" {
		if err := h.begins(ctx, at); err != nil {
			return nil, err
		}
	}
	p := &partition[T]{txHandler: h.txHandler, offsets: h.offsets, lane: first.lane, at: at, shelfInUse: at.Shelved}
	h.mu.Lock()
	h.open[first.lane] = p
	h.mu.Unlock()
	near := int64(rereadDistance)
	if isPlaceless(h.Source) {
		near = -1
	}
	if ahead := at.Offset - first.Position.Offset; at.Log != "" && (ahead < -1 || ahead > near) {
		// The broker is far behind the position, or remembers none. Or it is
		// ahead: there may be nothing in between, or the database was restored
		// from a backup.
		if h.rereads.ask(first.lane, broker.Position{Log: at.Log, Partition: at.Partition, Offset: at.Offset}) {
			return nil, errReread
		}
	}
	return p, nil
}

// begins returns an error if the consumer is retired, and its position cannot say so
// because it had handled nothing of the partition: this process was paused. One that
// is retired after this read has a higher epoch.
func (h *positions[T]) begins(ctx context.Context, at store.Position) error {
	registry, ok := once.As[store.Registry](h.store)
	if !ok {
		return nil
	}
	rows, err := registryRows(ctx, registry)
	if err == nil && areRetired(rows, h.keys) {
		err = fmt.Errorf("%w: consumer %q was retired before it had handled anything in %s", ErrLogChanged, h.keys, at.Partition)
		h.fatal(err)
	}
	return err
}

// opened returns the open partition of a lane, or nil if its position has to be
// opened.
func (h *positions[T]) opened(lane string) *partition[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.open[lane]
	if p == nil || p.phase == owned {
		return p
	}
	if p.phase == lost {
		h.rivals[lane] = rival{since: p.overtaken}
	}
	delete(h.open, lane)
	return nil
}

// rival is another process that has the same partition.
type rival struct {
	at    store.Position
	since time.Time // when at was first seen
}

// rivalStall is how long a rival may leave its position unmoved, although there
// are messages, before its partition is taken over.
const rivalStall = 10 * time.Second

// rivalPartition returns a partition on standby while another process moves its
// position, or nil. Without it, two processes that do not know of each other
// would take the partition from each other with every batch.
func (h *positions[T]) rivalPartition(ctx context.Context, first *item) (*partition[T], error) {
	h.mu.Lock()
	seen, ok := h.rivals[first.lane]
	h.mu.Unlock()
	if !ok {
		return nil, nil
	}
	rows, err := h.offsets.Positions(ctx, h.keys)
	if err != nil {
		return nil, err
	}
	for _, at := range rows {
		if at.Partition != first.Position.Partition || at.Damaged != nil { // a damaged one does not tell whether it moves
			continue
		}
		at.Shelved = false
		if at != seen.at {
			seen = rival{at, time.Now()}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(seen.since) > rivalStall {
		delete(h.rivals, first.lane)
		return nil, nil
	}
	h.rivals[first.lane] = seen
	p := &partition[T]{txHandler: h.txHandler, offsets: h.offsets, lane: first.lane, phase: standby}
	if seen.at.Log == first.Position.Log { // offsets of another log do not compare
		p.at = seen.at
	}
	return p, nil
}
