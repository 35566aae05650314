package cas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// A position is a document, and a consumer has one that lists its partitions.
func positionDoc(p store.Position) string { return docOf("position", p.Consumer, p.Partition) }

func partitionsDoc(consumer string) string { return docOf("partitions", consumer) }

// storedPosition is a position as it is decoded. A field that is missing is no zero.
type storedPosition struct {
	Consumer, Partition, Log *string
	Offset, Epoch            *int64
	Digest                   []int
}

// position returns the position, or why it is damaged.
func (s storedPosition) position(at store.Position) (p store.Position, err error) {
	p = store.Position{Consumer: at.Consumer, Partition: at.Partition}
	if s.Consumer == nil || s.Partition == nil || s.Log == nil || s.Offset == nil || s.Epoch == nil || len(s.Digest) != len(p.Digest) {
		return p, errors.New("a field is missing")
	}
	for i, b := range s.Digest {
		p.Digest[i] = byte(b)
	}
	p.Log, p.Offset, p.Epoch = *s.Log, *s.Offset, *s.Epoch
	switch {
	case *s.Consumer != at.Consumer || *s.Partition != at.Partition:
		err = fmt.Errorf("it is that of %q in partition %q", *s.Consumer, *s.Partition)
	case p.Epoch < 1:
		err = fmt.Errorf("it has the epoch %d", p.Epoch)
	case p.Log == "" && (p.Offset != 0 || p.Digest != [16]byte{}):
		err = fmt.Errorf("it has the offset %d, and no log", p.Offset)
	}
	return p, err
}

// readPosition decodes a position with read. ok is false if there is none. If it is
// damaged, the error is that for its Damaged, and of the position there are only the
// names.
func readPosition(at store.Position, read func(name string, into any) (bool, error)) (p store.Position, ok bool, err error) {
	var s storedPosition
	ok, err = read(positionDoc(at), &s)
	p = store.Position{Consumer: at.Consumer, Partition: at.Partition}
	if err == nil && ok {
		is, why := s.position(at)
		if why == nil {
			return is, true, nil
		}
		err = fmt.Errorf("%w: %w", once.ErrCorrupt, why)
	}
	if errors.Is(err, once.ErrCorrupt) {
		err = store.DamagedPosition(at.Consumer, at.Partition, err)
	}
	return p, ok, err
}

var errNoPosition = errors.New("its document is gone")

// partitions are those of a consumer, sorted. The document is written when there is
// one, so an empty one is damaged.
type partitions []string

// UnmarshalJSON reads partitions.
func (p *partitions) UnmarshalJSON(text []byte) error {
	err := json.Unmarshal(text, (*[]string)(p))
	if err == nil && len(*p) == 0 {
		err = errors.New("it is empty")
	}
	return err
}

// stands reports whether two positions agree in Epoch, Log and Offset.
func stands(a, b store.Position) bool {
	return a.Epoch == b.Epoch && a.Log == b.Log && a.Offset == b.Offset
}

// OpenPosition raises the Epoch of a row and returns the row.
func (c *Consuming[Tx]) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	if err := checkNames("Consumer", consumer, "Partition", partition); err != nil {
		return p, err
	}
	p, err = c.raise(ctx, store.Position{Consumer: consumer, Partition: partition}, false, func(*store.Position) {})
	if err == nil {
		p.Shelved, err = c.hasShelved(ctx, consumer)
	}
	return p, err
}

// SetPosition writes a row and raises its Epoch.
func (c *Consuming[Tx]) SetPosition(ctx context.Context, to store.Position) error {
	if err := checkPosition(to); err != nil {
		return err
	}
	_, err := c.raise(ctx, to, true, func(p *store.Position) { p.Log, p.Offset, p.Digest = to.Log, to.Offset, to.Digest })
	return err
}

// raise changes a row and raises its Epoch. A damaged one is an error, unless the
// change repairs it.
func (c *Consuming[Tx]) raise(ctx context.Context, at store.Position, repairs bool, change func(*store.Position)) (p store.Position, err error) {
	err = c.alone(ctx, func(tx Tx) error {
		d, now, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		var known bool
		p, known, err = readPosition(at, func(name string, into any) (bool, error) { return d.read(ctx, name, into) })
		damage := err
		if err != nil && !errors.Is(err, once.ErrCorrupt) {
			return err
		}
		var all partitions
		_, err = d.read(ctx, partitionsDoc(at.Consumer), &all)
		switch listed := slices.Contains(all, at.Partition); {
		case errors.Is(err, once.ErrCorrupt): // which Positions shows
		case err != nil:
			return err
		case listed && !known && damage == nil:
			damage = store.DamagedPosition(at.Consumer, at.Partition, errNoPosition)
		case !listed:
			all = append(all, at.Partition)
			slices.Sort(all)
			if err := d.write(partitionsDoc(at.Consumer), all); err != nil {
				return err
			}
		}
		switch {
		case damage == nil:
			p.Epoch++
		case !repairs:
			return damage
		default:
			p.Epoch = int64(now.Changed()) // which is after all that it can have had
		}
		change(&p)
		return d.write(positionDoc(at), p)
	})
	return p, err
}

// TransactAt moves a position and runs body in one transaction.
func (c *Consuming[Tx]) TransactAt(ctx context.Context, from, to store.Position, body func(Tx) error) error {
	if err := checkMove(from, to); err != nil {
		return err
	}
	tx, ended := c.Docs.Begin(), false
	defer func() {
		if !ended { // body failed, panicked or ended its goroutine
			c.Docs.Rollback(tx)
		}
	}()
	d, _, err := c.in(ctx, tx)
	if err != nil {
		return err
	}
	is, _, err := readPosition(from, func(name string, into any) (bool, error) { return d.read(ctx, name, into) })
	if err != nil {
		return err
	}
	switch {
	case stands(is, from):
	case stands(is, to) && is.Digest == to.Digest:
		return nil
	default:
		return fmt.Errorf("%w: the position of %q in partition %q is at %d of %q in epoch %d, not at %d of %q in %d",
			once.ErrLeaseLost, from.Consumer, from.Partition, is.Offset, is.Log, is.Epoch, from.Offset, from.Log, from.Epoch)
	}
	to.Shelved = false
	if err := d.write(positionDoc(from), to); err != nil {
		return err
	}
	if err := body(tx); err != nil {
		return err
	}
	ended = true
	return c.Docs.Commit(context.WithoutCancel(ctx), tx)
}

// Positions returns the rows of a consumer, by partition.
func (c *Consuming[Tx]) Positions(ctx context.Context, consumer string) (all []store.Position, err error) {
	shelved, err := c.hasShelved(ctx, consumer)
	if errors.Is(err, once.ErrCorrupt) { // which Shelved shows
		shelved = true
	} else if err != nil {
		return nil, err
	}
	var listed partitions
	if err := c.load(ctx, partitionsDoc(consumer), &listed); errors.Is(err, once.ErrCorrupt) {
		err = fmt.Errorf("the partitions of %q cannot be listed: %w. Delete this document: each partition is listed again when its consumer "+
			"opens it, and the positions themselves stay", consumer, err)
		return []store.Position{{Consumer: consumer, Shelved: shelved, Damaged: err}}, nil
	} else if err != nil {
		return nil, err
	}
	for _, partition := range listed {
		at := store.Position{Consumer: consumer, Partition: partition}
		p, ok, err := readPosition(at, func(name string, into any) (bool, error) { return c.loadDoc(ctx, name, into) })
		switch {
		case err == nil && !ok:
			p.Damaged = store.DamagedPosition(consumer, partition, errNoPosition)
		case errors.Is(err, once.ErrCorrupt):
			p.Damaged = err
		case err != nil:
			return nil, err
		}
		p.Shelved = shelved
		all = append(all, p)
	}
	return all, nil
}

func checkPosition(p store.Position) error {
	return checkNames("Consumer", p.Consumer, "Partition", p.Partition, "Log", p.Log)
}

func checkMove(from, to store.Position) error {
	switch {
	case from.Consumer != to.Consumer || from.Partition != to.Partition || from.Epoch != to.Epoch:
		return fmt.Errorf("%w: a move is from and to one row in one epoch", once.ErrInvalid)
	case from.Log == to.Log && from.Offset == to.Offset:
		return fmt.Errorf("%w: a move to where the position is, at %d of %q, cannot be told from its repetition",
			once.ErrInvalid, to.Offset, to.Log)
	}
	return checkPosition(to)
}
