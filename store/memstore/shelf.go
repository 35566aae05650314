package memstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// shelved is a message on the shelf. It gets its Seq when its transaction
// commits.
type shelved struct {
	store.Shelved
	due time.Time
}

// identity identifies a message on the shelf.
type identity struct{ consumer, id string }

func (m shelved) identity() identity { return identity{m.Consumer, m.Message.ID} }

// at returns a copy of the message for a reader.
func (m shelved) at(now time.Time, bodiless bool) store.Shelved {
	is := own(m.Shelved)
	if is.State == store.Waiting {
		is.Due = m.due.Sub(now)
	}
	if bodiless {
		is.Message.Body, is.Message.Header = nil, nil
	}
	return is
}

func own(m store.Shelved) store.Shelved {
	m.Message.Body, m.Message.Header = bytes.Clone(m.Message.Body), maps.Clone(m.Message.Header)
	return m
}

func isOpen(m store.Shelved, parkedToo bool) bool {
	return m.State == store.Waiting || m.State == store.Parked && parkedToo
}

func (s *Store) hasShelved(consumer string) bool {
	for _, m := range s.shelf {
		if m.Consumer == consumer && isOpen(m.Shelved, true) {
			return true
		}
	}
	return false
}

// Shelve sets messages aside.
func (s *Store) Shelve(ctx context.Context, ms []store.Shelved) error {
	tx := s.Begin()
	defer tx.Rollback()
	if err := s.ShelveTx(ctx, tx, ms); err != nil {
		return err
	}
	return tx.Commit()
}

// ShelveTx is like Shelve in the caller's transaction. The messages get their
// Seq and their times when it commits.
func (s *Store) ShelveTx(ctx context.Context, tx *Tx, ms []store.Shelved) error {
	for _, m := range ms {
		if err := checkShelved(m); err != nil {
			return err
		}
	}
	return s.within(ctx, tx, func(now time.Time) error {
		tx.shelve(ms, now)
		return nil
	})
}

// shelve adds messages that are set aside at the commit.
func (tx *Tx) shelve(ms []store.Shelved, now time.Time) {
	for _, m := range ms {
		m = own(m)
		m.Version, m.Message.Attempt = 1, 0
		tx.shelved = append(tx.shelved, shelved{m, now.Add(m.Due)})
	}
}

// BlockedTx returns those ordering keys that have Waiting messages on the
// shelf, or Parked ones if parkedToo is set.
func (s *Store) BlockedTx(ctx context.Context, tx *Tx, consumer string, orderingKeys []string,
	parkedToo bool) (blocked []string, err error) {

	err = s.within(ctx, tx, func(time.Time) error {
		has := make(map[string]bool)
		for _, m := range s.seenBy(tx) {
			if m.Consumer == consumer && isOpen(m.Shelved, parkedToo) {
				has[m.Message.OrderingKey] = true
			}
		}
		for _, key := range orderingKeys {
			if key != "" && has[key] {
				blocked = append(blocked, key)
				delete(has, key) // return each once
			}
		}
		return nil
	})
	return blocked, err
}

// seenBy returns the shelf as a transaction sees it, in no order.
func (s *Store) seenBy(tx *Tx) []shelved {
	all := slices.Clone(tx.shelved)
	for seq, m := range s.shelf {
		switch changed, ok := tx.changed[seq]; {
		case !ok:
			all = append(all, m)
		case !changed.gone():
			all = append(all, changed)
		}
	}
	return all
}

// gone reports whether a change to this deletes the message.
func (m shelved) gone() bool { return m.State == store.Handled && m.History == "" }

// Change writes the state of a message, if its Version has not changed since it
// was read.
func (s *Store) Change(ctx context.Context, m store.Shelved) error {
	if err := checkState(m); err != nil {
		return err
	}
	return s.do(ctx, func(now time.Time) error {
		tx := s.Begin()
		defer tx.letGo()
		err := s.change(tx, m, now)
		if err == nil {
			s.applyShelf(tx, now)
		}
		return err
	})
}

// ChangeMany is Change for each message.
func (s *Store) ChangeMany(ctx context.Context, ms []store.Shelved) (changed []bool, err error) {
	for _, m := range ms {
		if err := checkState(m); err != nil {
			return nil, err
		}
	}
	changed = make([]bool, len(ms))
	err = s.do(ctx, func(now time.Time) error {
		tx := s.Begin()
		defer tx.letGo()
		for i, m := range ms {
			err := s.change(tx, m, now)
			if changed[i] = err == nil; err != nil && !errors.Is(err, once.ErrLeaseLost) {
				return err
			}
		}
		s.applyShelf(tx, now)
		return nil
	})
	return changed, err
}

// ChangeTx is like Change in the caller's transaction. If another transaction
// in flight has changed the message, it returns [once.ErrConflict].
func (s *Store) ChangeTx(ctx context.Context, tx *Tx, m store.Shelved) error {
	if err := checkState(m); err != nil {
		return err
	}
	return s.within(ctx, tx, func(now time.Time) error { return s.change(tx, m, now) })
}

func (s *Store) change(tx *Tx, m store.Shelved, now time.Time) error {
	if holder := s.changing[m.Seq]; holder != nil && holder != tx {
		return fmt.Errorf("%w: a transaction on shelved message %d is in flight: repeat the call", once.ErrConflict, m.Seq)
	}
	is, known := s.shelf[m.Seq]
	if changed, ok := tx.changed[m.Seq]; ok {
		is, known = changed, !changed.gone()
	}
	if !known || is.Version != m.Version {
		return fmt.Errorf("%w: shelved message %d is gone, or was changed after version %d",
			once.ErrLeaseLost, m.Seq, m.Version)
	}
	is.State, is.Attempts, is.Reason, is.History = m.State, m.Attempts, m.Reason, m.History
	is.Version, is.Updated, is.due = m.Version+1, now, now.Add(m.Due)
	tx.changed[m.Seq], s.changing[m.Seq] = is, tx
	return nil
}

// applyShelf applies the changes of tx to the shelf.
func (s *Store) applyShelf(tx *Tx, now time.Time) {
	for seq, m := range tx.changed {
		if m.gone() {
			delete(s.shelf, seq)
			delete(s.aside, m.identity())
		} else {
			s.shelf[seq] = m
		}
	}
	for _, m := range tx.shelved {
		if s.aside[m.identity()] {
			continue
		}
		s.seq++
		m.Seq, m.Created, m.Updated = s.seq, now, now
		s.shelf[m.Seq], s.aside[m.identity()] = m, true
	}
}

// ForgetShelved deletes Handled and Discarded messages that were last changed
// longer ago than keep.
func (s *Store) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: ForgetShelved with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	err = s.do(ctx, func(now time.Time) error {
		for seq, m := range s.shelf {
			if forgotten == limit {
				break
			}
			if !isOpen(m.Shelved, true) && now.Sub(m.Updated) > keep && s.changing[seq] == nil {
				delete(s.shelf, seq)
				delete(s.aside, m.identity())
				forgotten++
			}
		}
		return nil
	})
	return forgotten, err
}

// Shelved returns messages by Seq.
func (s *Store) Shelved(ctx context.Context, q store.ShelfQuery) (page []store.Shelved, err error) {
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	err = s.do(ctx, func(now time.Time) error {
		held := make(map[identity]bool) // ordering keys of the messages so far
		for _, seq := range s.mayShow(q) {
			m := s.shelf[seq]
			lane := identity{m.Consumer, m.Message.OrderingKey}
			ready := m.State == store.Waiting && !now.Before(m.due) && !held[lane]
			if wanted(q, m.Shelved) && (ready || !q.Ready) && len(page) < limit {
				page = append(page, m.at(now, q.Bodiless))
			}
			held[lane] = held[lane] || lane.id != "" && isOpen(m.Shelved, q.BehindParked)
		}
		return nil
	})
	return page, err
}

// mayShow returns the messages that a query may select, or that hold others of
// their ordering key, by Seq. Most messages on a shelf were settled long ago.
func (s *Store) mayShow(q store.ShelfQuery) (seqs []int64) {
	for seq, m := range s.shelf {
		ofConsumer := q.Consumer == "" || q.Consumer == m.Consumer
		if ofConsumer && (isOpen(m.Shelved, true) || !q.Ready && wanted(q, m.Shelved)) {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}

// wanted reports whether a query selects a message. It does not check Ready.
func wanted(q store.ShelfQuery, m store.Shelved) bool {
	return m.Seq > q.After && (q.Consumer == "" || q.Consumer == m.Consumer) &&
		(len(q.States) == 0 || slices.Contains(q.States, m.State)) &&
		!(q.NoQueued && isQueued(m)) && (len(q.IDs) == 0 || slices.Contains(q.IDs, m.Message.ID)) &&
		(q.OrderingKey == "" || q.OrderingKey == m.Message.OrderingKey) && (q.Topic == "" || q.Topic == m.Message.Topic)
}

// isQueued reports whether a message waits in the queue of a consumer.
func isQueued(m store.Shelved) bool {
	_, queue := store.QueueOwner(m.Consumer)
	return queue && m.State == store.Waiting
}

func checkShelved(m store.Shelved) error {
	if err := checkNames("Consumer", m.Consumer); err != nil {
		return err
	}
	err := checkNames("ID", m.Message.ID, "Key", m.Key, "OrderingKey", m.Message.OrderingKey, "Topic", m.Message.Topic)
	if err != nil {
		return fmt.Errorf("message %.40q: %w", m.Message.ID, err)
	}
	return checkState(m)
}

const longestText = 64 << 10

func checkState(m store.Shelved) error {
	if m.State < store.Waiting || m.State > store.Discarded {
		return fmt.Errorf("%w: a message on the shelf has no state %d", once.ErrInvalid, m.State)
	}
	for what, text := range map[string]string{"Reason": m.Reason, "History": m.History, "Origin": m.Origin} {
		if len(text) > longestText {
			return fmt.Errorf("%w: the %s has %d bytes, the limit is %d: shorten it",
				once.ErrInvalid, what, len(text), longestText)
		}
	}
	return nil
}
