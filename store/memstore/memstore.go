// Package memstore remembers keys in memory: for tests, and as the model to read before writing another store.
//
// It keeps every rule of [once.Store], [once.TxStore] and [once.Lister], and of [store.Registry], [store.Positions],
// [store.TxShelf], [store.Outbox], [store.Bell], [store.Archivable] and [store.Reopener], within one process, for as
// long as the process lives: it survives no crash. Its clock is the monotonic one, so a change of the wall clock changes
// no claim and no expiry, and time can be faked with testing/synctest. Nothing is forgotten before Forget runs, which
// looks at every record. Its compatibility is that of package once.
//
// What a record goes through is in row.go and retention.go, transactions are in tx.go, what is kept for consumers is in
// consumer.go, position.go and shelf.go, and what relays publish in outbox.go and lane.go. This file is the rest: one
// mutex and a map.
package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Options are the options of a Store. The zero value works.
type Options struct {
	once.Options
}

// Store is a store in memory. It also holds the values that transactions write, in place of business rows.
type Store struct {
	options *once.Options

	mu     sync.Mutex
	closed bool
	rows   map[once.Key]row
	values map[string]string
	taken  map[once.Key]*Tx // keys written by a transaction in flight

	consumers map[string][]registered // by name; the first is where it was first registered
	positions map[place]store.Position
	moving    map[place]*Tx // positions written by a transaction in flight
	shelf     map[int64]shelved
	aside     map[identity]bool // what is on the shelf
	changing  map[int64]*Tx     // shelved messages written by a transaction in flight
	seq       int64             // the last that was given

	outbox outbox
}

var (
	_ once.TxStore[*Tx] = (*Store)(nil)
	_ once.Lister       = (*Store)(nil)

	_ store.Registry       = (*Store)(nil)
	_ store.Positions[*Tx] = (*Store)(nil)
	_ store.TxShelf[*Tx]   = (*Store)(nil)
	_ store.Outbox[*Tx]    = (*Store)(nil)
	_ store.Bell           = (*Store)(nil)
	_ store.Archivable     = (*Store)(nil)
	_ store.Reopener       = (*Store)(nil)
)

// New returns an empty store. A nil Options means the defaults.
func New(o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	return &Store{
		options:   o.Ready(),
		rows:      make(map[once.Key]row),
		values:    make(map[string]string),
		taken:     make(map[once.Key]*Tx),
		consumers: make(map[string][]registered),
		positions: make(map[place]store.Position),
		moving:    make(map[place]*Tx),
		shelf:     make(map[int64]shelved),
		aside:     make(map[identity]bool),
		changing:  make(map[int64]*Tx),
		outbox:    outbox{alive: make(map[[16]byte]time.Time), ears: make(map[*ear]bool)},
	}
}

// Close ends the use of the store. After it, every method returns [once.ErrClosed].
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.outbox.ring()
}

// Options returns the options that the store was made with, and what its users share.
func (s *Store) Options() *once.Options { return s.options }

// Claim takes a free key, or returns what stands in the way.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.do(ctx, func(now time.Time) error {
		rec = s.claim(nil, r, now)
		return nil
	})
	return rec, err
}

// Extend lets the lease of a running claim end after d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return s.do(ctx, func(now time.Time) error {
		was, err := s.row(nil, fence.Key)
		if err != nil {
			return err
		}
		is, err := was.extend(fence, d, now)
		if err == nil {
			s.put(nil, is)
		}
		return err
	})
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	return s.do(ctx, func(now time.Time) error {
		_, err := s.settle(nil, set, now)
		return err
	})
}

// Get returns the record of a key as it is now. What a transaction in flight has written is not seen.
func (s *Store) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	err = s.do(ctx, func(now time.Time) error {
		rec = s.rows[k].read(now)
		return nil
	})
	return rec, err
}

// Forget drops what is past its time, at most limit records.
func (s *Store) Forget(ctx context.Context, limit int) (changed int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	err = s.do(ctx, func(now time.Time) error {
		for _, r := range s.rows {
			if changed == limit {
				break
			}
			if r.isDue(now) {
				s.forget(r, now)
				changed++
			}
		}
		return nil
	})
	return changed, err
}

const defaultPage, largestPage, maxLooks = 100, 1000, 1000

// List returns records in the order of their digests. A page looks at 1,000 records at most: of those that are running,
// unknown or parked, if no others are asked for, or else of all.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	err = s.do(ctx, func(now time.Time) error {
		page = s.page(q, now)
		return nil
	})
	return page, err
}

func (s *Store) page(q once.RecordQuery, now time.Time) (page once.RecordPage) {
	unsettled := len(q.Status) > 0 && !slices.ContainsFunc(q.Status, func(s once.Status) bool { return !isUnsettled(s) })
	var behind []once.Key
	for k, r := range s.rows {
		if (unsettled && !isUnsettled(r.Status)) || (q.After != once.Key{} && order(q.After, k) >= 0) {
			continue
		}
		behind = append(behind, k)
	}
	slices.SortFunc(behind, order)
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	for i, k := range behind {
		if i == maxLooks || len(page.Records) == limit {
			page.Next = behind[i-1]
			break
		}
		if is := s.rows[k].read(now); is.Attempt > 0 && selects(q, is, now) {
			is.Outcome.Body = nil
			page.Records = append(page.Records, is)
		}
	}
	return page
}

func selects(q once.RecordQuery, rec once.Record, now time.Time) bool {
	return (q.Operation == "" || q.Operation == rec.Key.Operation) &&
		(q.Cause == [16]byte{} || q.Cause == rec.Cause) && (q.UUID == [16]byte{} || q.UUID == rec.Key.UUID()) &&
		(len(q.Scopes) == 0 || slices.Contains(q.Scopes, rec.Key.Scope)) &&
		(len(q.Status) == 0 || slices.Contains(q.Status, rec.Status)) &&
		(q.Unchanged <= 0 || now.Sub(rec.Updated) >= q.Unchanged)
}

// isUnsettled says that it is not known how the work of a record ended.
func isUnsettled(s once.Status) bool { return s >= once.Running && s <= once.Parked }

func order(a, b once.Key) int {
	x, y := a.UUID(), b.UUID()
	return bytes.Compare(x[:], y[:])
}

// do runs a step that nothing else interrupts. A context that has ended changes nothing.
func (s *Store) do(ctx context.Context, step func(now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return once.ErrClosed
	}
	return step(time.Now())
}

// row is the row of a key as tx sees it, which may be nil. A key that another transaction in flight has written
// is a conflict: what it will be is decided when that one ends.
func (s *Store) row(tx *Tx, k once.Key) (row, error) {
	holder := s.taken[k]
	switch {
	case holder == nil:
		return s.rows[k], nil
	case holder == tx:
		return tx.rows[k], nil
	default:
		return row{}, fmt.Errorf("%w: a transaction on %s %q is in flight: repeat the call",
			once.ErrConflict, k.Operation, k.ID)
	}
}

// put writes a row: at once, or when tx commits.
func (s *Store) put(tx *Tx, r row) {
	if tx == nil {
		s.rows[r.Key] = r
		return
	}
	tx.rows[r.Key] = r
	s.taken[r.Key] = tx
}

func (s *Store) claim(tx *Tx, r once.ClaimRequest, now time.Time) once.Record {
	was, err := s.row(tx, r.Key)
	if err != nil { // seen, and not waited for
		return once.Record{Key: r.Key, Status: once.Running}
	}
	is, ok := was.claim(r, now)
	if ok {
		s.put(tx, is)
	}
	return is.read(now)
}

// settle reports whether it changed the record, which it does not if the settlement was applied before.
func (s *Store) settle(tx *Tx, set once.Settlement, now time.Time) (changed bool, err error) {
	was, err := s.row(tx, set.Key)
	if err != nil {
		return false, err
	}
	is, changed, err := was.settle(set, now)
	if changed {
		s.put(tx, is)
	}
	return changed, err
}
