// Package memstore is a store in memory: for tests, and as the reference to
// read before writing another store.
//
// It keeps the contracts of [once.TxStore] and of most capabilities in package
// store, within one process and for as long as the process lives. Its clock is
// the monotonic one: changes of the wall clock affect no lease and no
// retention, and testing/synctest can fake the time. It keeps everything until
// Forget runs, which looks at every record. Its compatibility promise is that
// of package once.
//
// The rules of a record are in row.go and retention.go. Transactions are in
// tx.go, the capabilities for consumers in consumer.go, position.go and
// shelf.go, and the outbox in outbox.go and lane.go. This file has the rest:
// one mutex and a map.
package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	once.Options
}

// Store is a store in memory. It also keeps values that transactions write, in
// place of business rows.
type Store struct {
	options *once.Options
	born    time.Time

	mu     sync.Mutex
	closed bool
	rows   map[[16]byte]row // by Key.UUID
	values map[string]string
	taken  map[[16]byte]*Tx // keys written by a transaction in flight

	consumers map[string][]registered // by name; the first is where it was first registered
	positions map[place]store.Position
	moving    map[place]*Tx // positions written by a transaction in flight
	shelf     map[int64]shelved
	aside     map[identity]bool // the messages on the shelf
	changing  map[int64]*Tx     // shelved messages written by a transaction in flight
	seq       int64             // the last that was assigned

	outbox outbox

	restored atomic.Int64 // how often the store was taken back to what it was
}

var (
	_ once.TxStore[*Tx] = (*Store)(nil)
	_ once.Lister       = (*Store)(nil)

	_ store.Registry       = (*Store)(nil)
	_ store.RegistryEditor = (*Store)(nil)
	_ store.Positions[*Tx] = (*Store)(nil)
	_ store.TxShelf[*Tx]   = (*Store)(nil)
	_ store.Outbox[*Tx]    = (*Store)(nil)
	_ store.HandOver       = (*Store)(nil)
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
		born:      time.Now(),
		rows:      make(map[[16]byte]row),
		values:    make(map[string]string),
		taken:     make(map[[16]byte]*Tx),
		consumers: make(map[string][]registered),
		positions: make(map[place]store.Position),
		moving:    make(map[place]*Tx),
		shelf:     make(map[int64]shelved),
		aside:     make(map[identity]bool),
		changing:  make(map[int64]*Tx),
		outbox:    outbox{alive: make(map[[16]byte]time.Time), ears: make(map[*ear]bool)},
	}
}

// Close closes the store. After it, all methods return [once.ErrClosed].
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.outbox.ring()
}

// Options returns the options of the store.
func (s *Store) Options() *once.Options { return s.options }

// Claim takes a key if it is free, and else returns the record that is in the
// way.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.do(ctx, func(now time.Time) error {
		rec = s.claim(nil, r, instantOf(now))
		return nil
	})
	return rec, err
}

// Extend sets the lease to end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return s.do(ctx, func(now time.Time) error {
		k := fence.Key.UUID()
		was, err := s.row(nil, k)
		if err != nil {
			return err
		}
		is, err := was.extend(fence, d, instantOf(now))
		if err == nil {
			s.put(nil, k, is)
		}
		return err
	})
}

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	return s.do(ctx, func(now time.Time) error {
		_, err := s.settle(nil, set, instantOf(now))
		return err
	})
}

// Get returns the record of a key as it is now, without the changes of a
// transaction in flight.
func (s *Store) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	err = s.do(ctx, func(now time.Time) error {
		rec = s.rows[k.UUID()].read(instantOf(now))
		return nil
	})
	return rec, err
}

// Forget drops outcomes and keys that are past their time, at most limit
// records.
func (s *Store) Forget(ctx context.Context, limit int) (changed int, err error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	err = s.do(ctx, func(now time.Time) error {
		for k, r := range s.rows {
			if changed == limit {
				break
			}
			if r.isDue(instantOf(now)) {
				s.forget(k, r, instantOf(now))
				changed++
			}
		}
		return nil
	})
	return changed, err
}

const defaultPage, largestPage, maxLooks = 100, 1000, 1000

// List returns records by the digest of their keys. A page looks at no more
// than 1,000 records: of those that are Running, Unknown or Parked if q asks
// for no others, and else of all.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	err = s.do(ctx, func(now time.Time) error {
		page = s.page(q, instantOf(now))
		return nil
	})
	return page, err
}

func (s *Store) page(q once.RecordQuery, now instant) (page once.RecordPage) {
	unsettled := len(q.Status) > 0 && !slices.ContainsFunc(q.Status, func(s once.Status) bool { return !isUnsettled(s) })
	after := q.After.UUID()
	var rest [][16]byte
	for k, r := range s.rows {
		if (unsettled && !isUnsettled(once.Status(r.status))) || (q.After != once.Key{} && order(after, k) >= 0) {
			continue
		}
		rest = append(rest, k)
	}
	slices.SortFunc(rest, order)
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	for i, k := range rest {
		if i == maxLooks || len(page.Records) == limit {
			last := s.rows[rest[i-1]]
			page.Next = last.key()
			break
		}
		if q.UUID != [16]byte{} && q.UUID != k {
			continue
		}
		if is := s.rows[k].read(now); is.Attempt > 0 && selects(q, is, now) {
			is.Outcome.Body = nil
			page.Records = append(page.Records, is)
		}
	}
	return page
}

// FindIDs returns keys whose ID contains part, in no order.
func (s *Store) FindIDs(ctx context.Context, part string, limit int) (found []once.Key, err error) {
	if (once.Key{Operation: "any", ID: part}).Validate() != nil {
		return nil, nil
	}
	limit = min(cmp.Or(max(limit, 0), defaultPage), largestPage)
	err = s.do(ctx, func(now time.Time) error {
		for _, r := range s.rows {
			if len(found) < limit && strings.Contains(r.key().ID, part) && r.read(instantOf(now)).Attempt > 0 {
				found = append(found, r.key())
			}
		}
		return nil
	})
	return found, err
}

// selects reports whether a query selects a record. It does not check UUID.
func selects(q once.RecordQuery, rec once.Record, now instant) bool {
	return (q.Operation == "" || q.Operation == rec.Key.Operation) &&
		(q.Cause == [16]byte{} || q.Cause == rec.Cause) &&
		(len(q.Scopes) == 0 || slices.Contains(q.Scopes, rec.Key.Scope)) &&
		(len(q.Status) == 0 || slices.Contains(q.Status, rec.Status)) &&
		(q.Unchanged <= 0 || now.sub(instantOf(rec.Updated)) >= q.Unchanged)
}

// isUnsettled reports whether the end of the work is not recorded.
func isUnsettled(s once.Status) bool { return s >= once.Running && s <= once.Parked }

func order(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// do runs a step with the mutex held. If the context has ended, it does
// nothing. The clock counts from when the store was made, whatever the wall
// clock does.
func (s *Store) do(ctx context.Context, step func(now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return once.ErrClosed
	}
	return step(s.born.Add(time.Since(s.born)))
}

// row returns the row of a key as tx sees it; tx may be nil. If another
// transaction in flight has written it, row returns a conflict, because that
// transaction may still be rolled back.
func (s *Store) row(tx *Tx, k [16]byte) (row, error) {
	holder := s.taken[k]
	switch {
	case holder == nil:
		return s.rows[k], nil
	case holder == tx:
		return tx.rows[k], nil
	default:
		is := holder.rows[k]
		return row{}, fmt.Errorf("%w: a transaction on %s %q is in flight: repeat the call",
			once.ErrConflict, is.part(operation), is.part(id))
	}
}

// put writes a row at once, or if tx is not nil, when tx commits.
func (s *Store) put(tx *Tx, k [16]byte, r row) {
	if tx == nil {
		s.rows[k] = r
		return
	}
	tx.rows[k] = r
	s.taken[k] = tx
}

func (s *Store) claim(tx *Tx, r once.ClaimRequest, now instant) once.Record {
	k := r.Key.UUID()
	was, err := s.row(tx, k)
	if err != nil { // a transaction in flight: Claim does not wait for it
		return once.Record{Key: r.Key, Status: once.Running}
	}
	is, ok := was.claim(r, now)
	if ok {
		s.put(tx, k, is)
	}
	return is.read(now)
}

// settle reports whether it changed the record. It does not if the settlement
// was applied before.
func (s *Store) settle(tx *Tx, set once.Settlement, now instant) (changed bool, err error) {
	k := set.Key.UUID()
	was, err := s.row(tx, k)
	if err != nil {
		return false, err
	}
	is, changed, err := was.settle(set, now)
	if changed {
		s.put(tx, k, is)
	}
	return changed, err
}
