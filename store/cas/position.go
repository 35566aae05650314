package cas

import (
	"context"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// A position is a document, and a consumer has one that lists its partitions.
func positionDoc(p store.Position) string { return docOf("position", p.Consumer, p.Partition) }

func partitionsDoc(consumer string) string { return docOf("partitions", consumer) }

// stands reports whether two positions agree in Epoch, Log and Offset.
func stands(a, b store.Position) bool {
	return a.Epoch == b.Epoch && a.Log == b.Log && a.Offset == b.Offset
}

// OpenPosition raises the Epoch of a row and returns the row.
func (c *Consuming[Tx]) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	if err := checkNames("Consumer", consumer, "Partition", partition); err != nil {
		return p, err
	}
	p, err = c.raise(ctx, store.Position{Consumer: consumer, Partition: partition}, func(*store.Position) {})
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
	_, err := c.raise(ctx, to, func(p *store.Position) { p.Log, p.Offset, p.Digest = to.Log, to.Offset, to.Digest })
	return err
}

// raise changes a row and raises its Epoch.
func (c *Consuming[Tx]) raise(ctx context.Context, at store.Position, change func(*store.Position)) (p store.Position, err error) {
	err = c.alone(ctx, func(tx Tx) error {
		d, _, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		p = store.Position{Consumer: at.Consumer, Partition: at.Partition}
		known, err := d.read(ctx, positionDoc(at), &p)
		if err != nil {
			return err
		}
		if !known {
			var partitions []string
			if _, err := d.read(ctx, partitionsDoc(at.Consumer), &partitions); err != nil {
				return err
			}
			partitions = append(partitions, at.Partition)
			slices.Sort(partitions)
			if err := d.write(partitionsDoc(at.Consumer), partitions); err != nil {
				return err
			}
		}
		p.Epoch++
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
	var is store.Position
	if _, err := d.read(ctx, positionDoc(from), &is); err != nil {
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
	var partitions []string
	if err := c.load(ctx, partitionsDoc(consumer), &partitions); err != nil {
		return nil, err
	}
	shelved, err := c.hasShelved(ctx, consumer)
	for i := 0; i < len(partitions) && err == nil; i++ {
		p := store.Position{Consumer: consumer, Partition: partitions[i]}
		err = c.load(ctx, positionDoc(p), &p)
		p.Shelved = shelved
		all = append(all, p)
	}
	return all, err
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
