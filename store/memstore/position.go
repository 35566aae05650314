package memstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// place identifies the row of a position.
type place struct{ consumer, partition string }

func placeOf(p store.Position) place { return place{p.Consumer, p.Partition} }

// stands reports whether two positions agree in Epoch, Log and Offset.
func stands(a, b store.Position) bool {
	return a.Epoch == b.Epoch && a.Log == b.Log && a.Offset == b.Offset
}

// OpenPosition raises the Epoch of a row and returns the row. If a transaction
// in flight has it, it returns [once.ErrConflict].
func (s *Store) OpenPosition(ctx context.Context, consumer, partition string) (p store.Position, err error) {
	if err := checkNames("Consumer", consumer, "Partition", partition); err != nil {
		return p, err
	}
	err = s.do(ctx, func(time.Time) error {
		p, err = s.raise(place{consumer, partition}, func(*store.Position) {})
		p.Shelved = s.hasShelved(consumer)
		return err
	})
	return p, err
}

// SetPosition writes a row and raises its Epoch. If a transaction in flight has
// it, it returns [once.ErrConflict].
func (s *Store) SetPosition(ctx context.Context, to store.Position) error {
	if err := checkPosition(to); err != nil {
		return err
	}
	return s.do(ctx, func(time.Time) error {
		_, err := s.raise(placeOf(to), func(p *store.Position) {
			p.Log, p.Offset, p.Digest = to.Log, to.Offset, to.Digest
		})
		return err
	})
}

// raise changes a row and raises its Epoch.
func (s *Store) raise(at place, change func(*store.Position)) (store.Position, error) {
	if s.moving[at] != nil {
		return store.Position{}, errMoving(at)
	}
	p := s.positions[at]
	p.Consumer, p.Partition = at.consumer, at.partition
	p.Epoch++
	change(&p)
	s.positions[at] = p
	return p, nil
}

func errMoving(at place) error {
	return fmt.Errorf("%w: a transaction on the position of %q in partition %q is in flight: repeat the call",
		once.ErrConflict, at.consumer, at.partition)
}

// TransactAt moves a position and runs body in one transaction. If another
// transaction in flight has the row, it returns [once.ErrConflict].
func (s *Store) TransactAt(ctx context.Context, from, to store.Position, body func(*Tx) error) error {
	if err := checkMove(from, to); err != nil {
		return err
	}
	tx := s.Begin()
	tx.managed = true
	defer tx.end(false) // also if body panics; after the commit it does nothing
	moved := false
	err := s.within(ctx, tx, func(time.Time) (err error) {
		moved, err = s.move(tx, from, to)
		return err
	})
	if err != nil || !moved {
		return err
	}
	if err := body(tx); err != nil {
		return err
	}
	return tx.end(true)
}

// move returns false if the row is already at to.
func (s *Store) move(tx *Tx, from, to store.Position) (moved bool, err error) {
	at := placeOf(from)
	if s.moving[at] != nil {
		return false, errMoving(at)
	}
	switch is := s.positions[at]; {
	case stands(is, from):
		to.Shelved = false
		tx.positions[at], s.moving[at] = to, tx
		return true, nil
	case stands(is, to) && is.Digest == to.Digest:
		return false, nil
	default:
		return false, fmt.Errorf("%w: the position of %q in partition %q is at %d of %q in epoch %d, not at %d of %q in %d",
			once.ErrLeaseLost, at.consumer, at.partition, is.Offset, is.Log, is.Epoch, from.Offset, from.Log, from.Epoch)
	}
}

// Positions returns the rows of a consumer, by partition.
func (s *Store) Positions(ctx context.Context, consumer string) (all []store.Position, err error) {
	err = s.do(ctx, func(time.Time) error {
		shelved := s.hasShelved(consumer)
		for at, p := range s.positions {
			if at.consumer == consumer {
				p.Shelved = shelved
				all = append(all, p)
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b store.Position) int { return strings.Compare(a.Partition, b.Partition) })
	return all, err
}

func checkPosition(p store.Position) error {
	return checkNames("Consumer", p.Consumer, "Partition", p.Partition, "Log", p.Log)
}

func checkMove(from, to store.Position) error {
	switch {
	case placeOf(from) != placeOf(to) || from.Epoch != to.Epoch:
		return fmt.Errorf("%w: a move is from and to one row in one epoch", once.ErrInvalid)
	case from.Log == to.Log && from.Offset == to.Offset:
		return fmt.Errorf("%w: a move to where the position is, at %d of %q, cannot be told from its repetition",
			once.ErrInvalid, to.Offset, to.Log)
	}
	return checkPosition(to)
}
