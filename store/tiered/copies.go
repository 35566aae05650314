package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
)

// Stats counts what the cache has done for one process.
type Stats struct {
	Hits   int64 // answers from the cache
	Misses int64 // keys that it did not have, or whose entries were not valid
	Failed int64 // calls of the cache that failed or took too long
	Left   int64 // calls that were not made, because others had failed
}

// copies are the records in the cache.
type copies struct {
	Options
	cache Cache
	codec codec
	guard guard

	hits, misses atomic.Int64
}

func newCopies(s once.Store, c Cache, o Options) *copies {
	var secret []byte
	var logger *slog.Logger
	if s != nil && s.Options() != nil {
		secret, logger = s.Options().Secret, s.Options().Logger
	}
	return &copies{Options: o, cache: c, codec: newCodec(secret), guard: guard{logger: logger, born: time.Now()}}
}

func (c *copies) stats() Stats {
	return Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Failed: c.guard.failed.Load(), Left: c.guard.left.Load()}
}

// get returns the record of a key that is done, if the cache has it.
func (c *copies) get(ctx context.Context, k once.Key) (rec once.Record, ok bool) {
	if c.cache == nil || ctx.Err() != nil {
		return rec, false
	}
	id := k.UUID()
	values, err := guarded(ctx, &c.guard, c.Wait, func(ctx context.Context) ([][]byte, error) { return c.cache.Get(ctx, string(id[:])) })
	if err == nil && len(values) == 1 {
		rec, ok = c.codec.decode(k, id, values[0], time.Now())
	}
	c.count(ok)
	return rec, ok
}

// getAll returns the records of keys that are done, as far as the cache has them.
// The others are zero.
func (c *copies) getAll(ctx context.Context, ks []once.Key) []once.Record {
	recs := make([]once.Record, len(ks))
	if len(ks) == 1 {
		recs[0], _ = c.get(ctx, ks[0])
		return recs
	}
	if c.cache == nil || ctx.Err() != nil {
		return recs
	}
	ids, names := make([][16]byte, len(ks)), make([]string, len(ks))
	for i, k := range ks {
		ids[i] = k.UUID()
		names[i] = string(ids[i][:])
	}
	values, err := guarded(ctx, &c.guard, c.Wait, func(ctx context.Context) ([][]byte, error) { return c.cache.Get(ctx, names...) })
	now := time.Now()
	for i := range recs {
		ok := false
		if err == nil && len(values) == len(ks) {
			recs[i], ok = c.codec.decode(ks[i], ids[i], values[i], now)
		}
		c.count(ok)
	}
	return recs
}

func (c *copies) count(hit bool) {
	if hit {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
}

// learn caches a record that the store returned, if it is done and the store says
// for how long. The call of the store began at a time.
func (c *copies) learn(ctx context.Context, begun time.Time, rec once.Record) {
	if rec.Status == once.Done && rec.OutcomeLeft > 0 {
		c.put(ctx, begun, rec.OutcomeLeft, rec)
	}
}

// put caches records that are done. Their outcomes are kept for a time after
// begun, or longer. That counts by the wall clock, too, because the other one
// may stop while the machine sleeps.
func (c *copies) put(ctx context.Context, begun time.Time, keep time.Duration, recs ...once.Record) {
	keep = min(keep, c.MaxAge)
	until := begun.Round(0).Add(keep)
	left := min(keep-time.Since(begun), time.Until(until))
	if c.cache == nil || left < time.Millisecond {
		return
	}
	values := make(map[string][]byte, len(recs))
	for _, rec := range recs {
		if size(rec) <= c.MaxSize {
			id := rec.Key.UUID()
			values[string(id[:])] = c.codec.encode(id, rec, until)
		}
	}
	if len(values) == 0 {
		return
	}
	// The work is done even if its caller has left.
	_, _ = guarded(context.WithoutCancel(ctx), &c.guard, c.Wait, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.cache.Add(ctx, values, left)
	})
}

const (
	barWait  = time.Second
	barTries = 5
)

// bar removes the entry of a key, and keeps others out until those of records
// that were read before have passed their time. It tries harder than others.
func (c *copies) bar(ctx context.Context, k once.Key) (err error) {
	if c.cache == nil {
		return nil
	}
	id := k.UUID()
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 200 * time.Millisecond}
	for range barTries {
		_, err = limited(ctx, barWait, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, c.cache.Set(ctx, string(id[:]), barred, 2*c.MaxAge)
		})
		if err == nil || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
	return err
}

// guard keeps calls from a cache that does not answer.
type guard struct {
	logger *slog.Logger
	born   time.Time

	row          atomic.Int32 // failures without a success between them
	closed       atomic.Int64 // until when no call is made, as a time since born
	open         atomic.Int32 // calls that have not returned
	failed, left atomic.Int64
}

const (
	maxRow  = 3
	rest    = time.Second
	maxOpen = 1024 // calls, of a cache that ignores its context
)

var errLeftAlone = errors.New("tiered: the cache is left alone, because it did not answer")

// guarded makes a call of the cache, unless others have failed.
func guarded[T any](ctx context.Context, g *guard, wait time.Duration, call func(context.Context) (T, error)) (result T, err error) {
	if !g.enter() {
		g.left.Add(1)
		return result, errLeftAlone
	}
	result, err = limited(ctx, wait, func(ctx context.Context) (T, error) {
		defer g.open.Add(-1)
		return call(ctx)
	})
	switch {
	case err == nil:
		g.row.Store(0)
	case ctx.Err() == nil: // else the caller has left
		g.fail(err)
	}
	return result, err
}

func (g *guard) enter() bool {
	if g.open.Add(1) > maxOpen {
		g.open.Add(-1)
		return false
	}
	if g.row.Load() < maxRow {
		return true
	}
	now, until := int64(time.Since(g.born)), g.closed.Load()
	if now < until || !g.closed.CompareAndSwap(until, now+int64(rest)) { // one call finds out
		g.open.Add(-1)
		return false
	}
	return true
}

func (g *guard) fail(err error) {
	g.failed.Add(1)
	if g.row.Add(1) != maxRow {
		return
	}
	g.closed.Store(int64(time.Since(g.born) + rest))
	if g.logger != nil {
		g.logger.Warn("once: the cache in front of the store fails, so the store answers", "error", err)
	}
}

// limited returns the result of a call, or an error after some time, even if the
// call ignores its context.
func limited[T any](ctx context.Context, wait time.Duration, call func(context.Context) (T, error)) (none T, err error) {
	type outcome struct {
		result T
		err    error
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("tiered: the cache panicked: %v", p)
			}
			ended <- o
		}()
		o.result, o.err = call(ctx)
	}()
	select {
	case o := <-ended:
		return o.result, o.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
