// Package tiered puts a cache, such as Redis, in front of a store. Duplicates of
// work that is done get their answers from the cache, and cost the database
// nothing.
//
//	store := tiered.NewTx(pgstore.New(pool, nil), redisstore.NewCache(client, "billing:"), nil)
//
// # What is cached
//
// Only records that are Done are cached, because Done is final. A record is put
// into the cache after its settlement or its transaction has succeeded, and when
// a claim has met it. What is not in the cache is asked of the store. The cache
// decides no claim: only the store does, so whatever the cache does, no work runs
// twice because of it.
//
// An entry is kept no longer than the outcome is, and no longer than
// Options.MaxAge. Its bytes carry that time, so a cache that keeps it longer is
// not believed. They are authenticated together with the key: an entry that was
// damaged, that belongs to another key, or that was sealed under another secret
// is ignored.
//
// Claim, Transact and ClaimTx look into the cache, and so does [once.Replayer],
// for work that is probably a duplicate. Get and List always ask the store.
//
// # What the cache can do
//
// A cache that is down, slow or wiped costs time. A call waits for it for
// Options.Wait at most. After three failures in a row it is not asked for a
// second.
//
// A cache that is stale gives an answer that was true once. This matters only
// after a Reopen: see there.
//
// A cache that lies can take answers away, but not make one, if once.Options has
// a Secret. Without one, entries have a checksum that reveals damage and not
// forgery. Whoever can write to the cache can then make work appear done that was
// never run, so give the store a Secret, or trust the cache as you trust the
// database.
//
// # Reopen
//
// A Reopen through this package first writes a mark into the cache that keeps the
// old answer out, then frees the key, and then writes the mark again. If the
// cache cannot be told, Reopen fails. After it has returned nil, no call that
// begins gets the old answer, unless the cache loses the mark or reads come from
// a replica.
//
// A process that frees the key without this package, such as the command, does
// not tell the cache. Calls may then get the old answer until it is MaxAge old.
// The same holds after a database has been restored from a backup: empty the
// cache then.
//
// # Compatibility
//
// As package once. An entry of another version of this package is ignored.
package tiered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Cache keeps values for a while. All processes that use a store share one cache,
// and no two stores share one: their keys would be mixed up. A cache may lose
// values at any time. Methods may be called concurrently, and return soon after
// their context has ended.
type Cache interface {
	// Get returns the values of keys, in their order; nil for a key that has none.
	Get(ctx context.Context, keys ...string) ([][]byte, error)

	// Add keeps each value for a duration, unless its key has a value already. That
	// is decided atomically for each key.
	Add(ctx context.Context, values map[string][]byte, keep time.Duration) error

	// Set keeps a value for a duration, in place of any other.
	Set(ctx context.Context, key string, value []byte, keep time.Duration) error
}

// Options configures a Store. The zero value is valid. All processes that share a
// cache have the same MaxAge.
type Options struct {
	// MaxAge is how long an answer is given without asking the store. Default: 10
	// minutes.
	MaxAge time.Duration

	// Wait is how long a call waits for the cache before it goes on without it. A
	// call looks into the cache for no longer than half of the time that its caller
	// has left. Default: 50 milliseconds.
	Wait time.Duration

	// MaxSize is the size in bytes above which a record is not cached. Default: 64
	// KiB.
	MaxSize int
}

// Store is a [once.Store] with a cache in front. [once.As] finds the capabilities
// of the store that it wraps.
type Store struct {
	inner  once.Store
	copies *copies
	held   *claims
}

var (
	_ once.Store    = (*Store)(nil)
	_ once.Replayer = (*Store)(nil)
)

// New returns a store with a cache in front. A nil Options means the defaults. A
// nil Cache caches nothing.
func New(s once.Store, c Cache, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	is := Options{MaxAge: o.MaxAge, Wait: o.Wait, MaxSize: o.MaxSize}
	is.MaxAge = min(cmp.Or(max(is.MaxAge, 0), 10*time.Minute), math.MaxInt64/2) // marks are kept for twice as long
	is.Wait = cmp.Or(max(is.Wait, 0), 50*time.Millisecond)
	is.MaxSize = cmp.Or(max(is.MaxSize, 0), 64<<10)
	return &Store{inner: s, copies: newCopies(s, c, is), held: newClaims()}
}

// Unwrap returns the store.
func (s *Store) Unwrap() once.Store { return s.inner }

// As finds the [store.Reopener] of the store.
func (s *Store) As(target any) bool {
	r, is := target.(*store.Reopener)
	if !is {
		return false
	}
	inner, ok := once.As[store.Reopener](s.inner)
	if ok {
		*r = &reopener{inner, s.copies}
	}
	return ok
}

// Options returns those of the store.
func (s *Store) Options() *once.Options { return s.inner.Options() }

// Stats returns what the cache has done for this process.
func (s *Store) Stats() Stats { return s.copies.stats() }

// Claim returns the record in the cache, if the key is done, and otherwise claims
// the key.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if rec, ok := s.Replay(ctx, r.Key); ok {
		return rec, nil
	}
	begun := time.Now()
	rec, err := s.inner.Claim(ctx, r)
	switch {
	case err != nil:
	case rec.HeldBy(r.Owner):
		s.held.put(claim{rec: rec})
	default:
		s.copies.learn(ctx, begun, rec)
	}
	return rec, err
}

// Replay returns the record in the cache, if the key is done.
func (s *Store) Replay(ctx context.Context, k once.Key) (once.Record, bool) {
	return s.copies.get(ctx, k)
}

// Extend sets the lease to end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return s.inner.Extend(ctx, fence, d)
}

// Settle ends an attempt. If the attempt was claimed here and is done now, its
// record is cached.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	c, known := s.held.take(set.Fence)
	if c.settling.IsZero() {
		c.settling = time.Now()
	}
	err := s.inner.Settle(ctx, set)
	switch {
	case !known || errors.Is(err, once.ErrLeaseLost):
	case err != nil: // it may have been applied, and is repeated
		s.held.put(c)
	case set.Status == once.Done:
		s.copies.put(ctx, c.settling, keep(set), ended(c.rec, set))
	}
	return err
}

// Get returns the record of a key as it is in the store.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) { return s.inner.Get(ctx, k) }

// Forget drops outcomes and keys that are past their time.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	return s.inner.Forget(ctx, limit)
}

// keep returns how long an outcome is kept.
func keep(set once.Settlement) time.Duration { return min(set.KeepOutcome, set.KeepKey) }

// ended returns the record of a claim after its settlement.
func ended(rec once.Record, set once.Settlement) once.Record {
	rec.Status, rec.Outcome, rec.Reason = set.Status, set.Outcome, set.Reason
	return rec
}

// reopener is the Reopener of a store, which tells the cache.
type reopener struct {
	inner  store.Reopener
	copies *copies
}

// Reopen frees the key of a Done or Expired record.
func (r *reopener) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	if err := r.copies.bar(ctx, fence.Key); err != nil {
		return fmt.Errorf("tiered: nothing was changed, because the cache could not be told: %w", err)
	}
	if err := r.inner.Reopen(ctx, fence, keepKey, reason); err != nil {
		return err
	}
	if err := r.copies.bar(ctx, fence.Key); err != nil {
		return fmt.Errorf("tiered: the key is free, but the cache could not be told, and may give the old answer for %v: repeat the call: %w",
			r.copies.MaxAge, err)
	}
	return nil
}
