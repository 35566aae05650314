package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Tx is a transaction on the records and the values of a [Store]. It sees what
// is committed and what it has written. Its writes are applied at its commit,
// all or none.
//
// Until it ends, a key that it has claimed or settled is its own. Other claims of
// the key return Running with LeaseLeft 0 at once, whatever their Wait. Other
// settlements and extensions return [once.ErrConflict], and so do other writes of a
// position or a shelved message that it has written. Values are not guarded: the
// last commit wins.
type Tx struct {
	store   *Store
	managed bool // Transact or TransactAt ends it
	ended   bool
	begun   int64 // restored of the store, when the transaction began
	rows    map[[16]byte]row
	values  map[string]string

	positions map[place]store.Position
	shelved   []shelved         // messages that it set aside
	changed   map[int64]shelved // messages on the shelf that it changed
	put       []*outgoing       // messages that it put into the outbox
}

// Begin returns a transaction that the caller ends, for ClaimTx, SettleTx and [once.InTx].
func (s *Store) Begin() *Tx {
	return &Tx{store: s, begun: s.restored.Load(), rows: make(map[[16]byte]row), values: make(map[string]string),
		positions: make(map[place]store.Position), changed: make(map[int64]shelved)}
}

// Set writes a value when the transaction commits. After the end of the
// transaction it has no effect.
func (tx *Tx) Set(name, value string) {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.values[name] = value
}

// Get returns a value as the transaction sees it.
func (tx *Tx) Get(name string) (value string, ok bool) {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if value, ok = tx.values[name]; !ok {
		value, ok = tx.store.values[name]
	}
	return value, ok
}

// Value returns a value that is committed.
func (s *Store) Value(name string) (value string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.values[name]
	return value, ok
}

// Commit applies the writes of the transaction. In the body of Transact or
// TransactAt it returns an error.
func (tx *Tx) Commit() error {
	if tx.managed {
		return fmt.Errorf("%w: this transaction is committed when its body returns nil", once.ErrInvalid)
	}
	return tx.end(true)
}

// Rollback drops the writes of the transaction. After its end, and in the body
// of Transact or TransactAt, it does nothing.
func (tx *Tx) Rollback() {
	if !tx.managed {
		_ = tx.end(false) // fails only if it has already ended
	}
}

func (tx *Tx) end(commit bool) error {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.ended {
		return errEnded()
	}
	tx.ended = true
	tx.letGo()
	switch {
	case commit && tx.begun != s.restored.Load():
		return errRestored
	case s.closed:
		return once.ErrClosed
	case commit:
		maps.Copy(s.rows, tx.rows)
		maps.Copy(s.values, tx.values)
		maps.Copy(s.positions, tx.positions)
		s.applyShelf(tx, time.Now())
		s.outbox.add(tx.put)
	}
	return nil
}

var errRestored = fmt.Errorf("%w: another server has taken over", once.ErrOutcomeUnknown)

// letGo lets other calls write the rows that this transaction has written. If the
// store was restored meanwhile, others may have taken them.
func (tx *Tx) letGo() {
	letGoOf(tx, tx.store.taken, tx.rows)
	letGoOf(tx, tx.store.moving, tx.positions)
	letGoOf(tx, tx.store.changing, tx.changed)
}

func letGoOf[K comparable, V any](tx *Tx, holders map[K]*Tx, written map[K]V) {
	for k := range written {
		if holders[k] == tx {
			delete(holders, k)
		}
	}
}

func errEnded() error {
	return fmt.Errorf("%w: the transaction has ended, or is of another store: begin one", once.ErrInvalid)
}

// Transact claims, calls body and settles in one transaction.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	tx := s.Begin()
	tx.managed = true
	defer tx.end(false) // also if body panics; after the commit it does nothing
	claimed, err := s.ClaimTx(ctx, tx, rs)
	if err != nil || !holdsAny(rs, claimed) {
		return claimed, err
	}
	sets, err := body(tx, slices.Clone(claimed))
	if err != nil {
		return nil, err
	}
	if err := s.settleAll(context.WithoutCancel(ctx), tx, sets, true); err != nil {
		return nil, err
	}
	return claimed, tx.end(true)
}

func holdsAny(rs []once.ClaimRequest, recs []once.Record) bool {
	for i, rec := range recs {
		if rec.Status == once.Running && rec.Owner == rs[i].Owner {
			return true
		}
	}
	return false
}

// ClaimTx claims in the caller's transaction.
func (s *Store) ClaimTx(ctx context.Context, tx *Tx, rs []once.ClaimRequest) (recs []once.Record, err error) {
	err = s.within(ctx, tx, func(now time.Time) error {
		for _, r := range rs {
			recs = append(recs, s.claim(tx, r, instantOf(now)))
		}
		return nil
	})
	return recs, err
}

// SettleTx settles in the caller's transaction. After an error the caller rolls
// back.
func (s *Store) SettleTx(ctx context.Context, tx *Tx, sets []once.Settlement) error {
	return s.settleAll(ctx, tx, sets, false)
}

// settleAll settles. If mustChange is set, a settlement that was applied before
// is an error.
func (s *Store) settleAll(ctx context.Context, tx *Tx, sets []once.Settlement, mustChange bool) error {
	return s.within(ctx, tx, func(now time.Time) error {
		for _, set := range sets {
			changed, err := s.settle(tx, set, instantOf(now))
			if err == nil && mustChange && !changed {
				err = lost(set.Fence)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// within runs a step of a transaction, which must not have ended.
func (s *Store) within(ctx context.Context, tx *Tx, step func(now time.Time) error) error {
	return s.do(ctx, func(now time.Time) error {
		if tx == nil || tx.store != s || tx.ended {
			return errEnded()
		}
		return step(now)
	})
}
