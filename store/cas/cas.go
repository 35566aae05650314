// Package cas makes a store out of an engine that writes one item if it is still
// as it was read: compare-and-swap. The rules of the contract are here, so the
// adapter of a database without transactions over several requests, or without a
// query language, is an [Engine] of two methods and what it adds to it.
//
// # What a store consists of
//
//	an adapter writes   and gets
//	Engine              Store: once.Store, store.Reopener
//	TxEngine            Transactions: the methods of once.TxStore
//	DocEngine           Shelving: store.Registry, store.Shelf
//	                    Consuming: also store.TxShelf, store.Positions
//	QueueEngine         Publishing: store.Outbox
//	Clock, or takes a   leases and retention by the engine's clock
//	LearnedClock
//
// [Row] has the fields to store, and says when the engine may delete them.
// [Selects] applies a query to a record, for a [once.Lister].
//
// # Transactions
//
// A transaction collects writes and is sent as one request, which the engine
// applies as a whole, and only if the rows of the keys still have the versions
// that were read. See [Transactions].
//
// The compatibility promise is that of package once.
package cas

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lossrate"
)

// Engine keeps rows.
type Engine interface {
	// Load returns the row of a key, or the zero Stored if there is none. It sees
	// every Put that has returned, and no damaged row: that is once.ErrCorrupt.
	Load(ctx context.Context, k once.Key) (Stored, error)

	// Put writes a row if what is stored has the version over, and returns it with
	// its new version. If over is empty, it writes the row only if none is stored.
	// Otherwise it writes nothing and returns [ErrStale], with what is stored, or
	// with the zero Stored if the engine does not tell that.
	//
	// A new version differs from all that the key ever had, also before the row was
	// deleted. ErrOutcomeRefused is as for Settle of once.Store. After any other
	// error, the row may or may not have been written.
	Put(ctx context.Context, row Row, over string) (Stored, error)
}

// Stored is a row as an engine has it.
type Stored struct {
	Row
	Version string // opaque; empty: there is no row
}

// ErrStale means that a write was refused because the row has another version.
var ErrStale = errors.New("cas: the row has another version")

// Store is a [once.Store] on an engine. Adapters embed it.
type Store struct {
	engine  Engine
	clock   Clock
	options *once.Options
	held    held
	silent  atomic.Bool // refused writes do not tell what is stored
	lost    lossrate.Rate
}

// New returns a store. The options are what Options.Ready returned.
func New(e Engine, c Clock, o *once.Options) *Store {
	return &Store{engine: e, clock: c, options: o}
}

// Options returns the options of the store.
func (s *Store) Options() *once.Options { return s.options }

// held has rows as this store has written them for claims that run.
type held struct {
	mu   sync.Mutex
	rows map[[16]byte]Stored
}

// maxHeld bounds the rows of claims that nobody ends here.
const maxHeld = 4096

func (h *held) keep(row Stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rows == nil {
		h.rows = make(map[[16]byte]Stored)
	}
	for id := range h.rows {
		if len(h.rows) < maxHeld {
			break
		}
		delete(h.rows, id)
	}
	h.rows[row.Key.UUID()] = row
}

// take returns a row and forgets it.
func (h *held) take(k once.Key) (row Stored, ok bool) {
	id := k.UUID()
	h.mu.Lock()
	defer h.mu.Unlock()
	row, ok = h.rows[id]
	delete(h.rows, id)
	return row, ok
}

// tries is how often a call meets a write of another caller before it gives up.
const tries = 16

// Claim takes a key if it is free, and otherwise returns the record that is in
// the way. A new key takes one request, because the engine decides who creates
// its row. So does a duplicate, if refused writes tell what is stored. Otherwise
// it takes two, unless so many recent claims met duplicates that the row is read
// first.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	is, now, err := s.claim(ctx, r, Row.claim)
	if rec := is.Record(now); err != nil || !rec.HeldBy(r.Owner) {
		return rec, err
	}
	s.held.keep(is)
	return is.Record(now), nil
}

// claim writes what take makes of the row, and returns the row that is then
// stored.
func (s *Store) claim(ctx context.Context, r once.ClaimRequest, take func(Row, once.ClaimRequest, Now) (Row, bool)) (
	was Stored, now Now, err error) {

	look := s.silent.Load() && s.lost.High()
	defer func() {
		if err == nil {
			s.lost.Count(was.Owner != r.Owner)
		}
	}()
	for range tries {
		if now, err = s.now(ctx); err != nil {
			return Stored{}, now, err
		}
		if look {
			if was, err = s.load(ctx, r.Key); err != nil {
				return Stored{}, now, err
			}
			look = false
		}
		row, ok := take(was.Row, r, now)
		if !ok {
			return was, now, nil
		}
		if was, err = s.engine.Put(ctx, row, was.Version); !errors.Is(err, ErrStale) {
			return was, now, err
		}
		if was, err = s.found(ctx, was, r.Key); err != nil {
			return Stored{}, now, err
		}
	}
	return Stored{}, now, errBusy(r.Key)
}

// Get returns the record of a key as it is now.
func (s *Store) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return rec, err
	}
	was, err := s.load(ctx, k)
	return was.Record(now), err
}

// Extend sets the lease to end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return s.change(ctx, fence.Key, func(r Row, now Now) (Row, bool, error) {
		is, err := r.extend(fence, d, now)
		return is, true, err
	})
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	return s.change(ctx, set.Key, func(r Row, now Now) (Row, bool, error) { return r.settle(set, now) })
}

// Reopen frees the key of a Done or Expired record.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	return s.change(ctx, fence.Key, func(r Row, now Now) (Row, bool, error) { return r.reopen(fence, keepKey, reason, now) })
}

// change writes what a function makes of the row, unless it changes nothing. It
// need not read a row that this store has written for a claim: if others have
// written it since, the engine refuses the write.
func (s *Store) change(ctx context.Context, k once.Key, to func(Row, Now) (is Row, changed bool, err error)) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	was, remembered := s.held.take(k)
	if !remembered {
		if was, err = s.load(ctx, k); err != nil {
			return err
		}
	}
	for range tries {
		is, changed, err := to(was.Row, now)
		if remembered && (err != nil || !changed) {
			if was, err = s.load(ctx, k); err != nil {
				return err
			}
			remembered = false
			continue
		}
		if err != nil || !changed {
			return err
		}
		if was, err = s.engine.Put(ctx, is, was.Version); !errors.Is(err, ErrStale) {
			if err == nil && is.Status == once.Running {
				s.held.keep(was)
			}
			return err
		}
		remembered = false
		if was, err = s.found(ctx, was, k); err != nil {
			return err
		}
		if now, err = s.now(ctx); err != nil {
			return err
		}
	}
	return errBusy(k)
}

// found returns what is stored, given what a refused Put returned.
func (s *Store) found(ctx context.Context, is Stored, k once.Key) (Stored, error) {
	if is.Version == "" {
		s.silent.Store(true)
		return s.load(ctx, k)
	}
	return is, checkParts(is, k)
}

func (s *Store) load(ctx context.Context, k once.Key) (Stored, error) {
	was, err := s.engine.Load(ctx, k)
	if err != nil {
		return Stored{}, err
	}
	return was, checkParts(was, k)
}

// checkParts refuses a row that has the parts of another key.
func checkParts(was Stored, k once.Key) error {
	if was.Version == "" || was.Key == k && was.Attempt > 0 {
		return nil
	}
	return fmt.Errorf("%w: the row of %s %q has attempt %d, and the parts of another key: %q, %q, %q", once.ErrCorrupt,
		k.Operation, k.ID, was.Attempt, was.Key.Scope, was.Key.Operation, was.Key.ID)
}

func (s *Store) now(ctx context.Context) (Now, error) {
	if err := ctx.Err(); err != nil {
		return Now{}, err
	}
	return s.clock.Now(ctx)
}

func errBusy(k once.Key) error {
	return fmt.Errorf("%w: others have written the row of %s %q %d times meanwhile", once.ErrConflict, k.Operation, k.ID, tries)
}
