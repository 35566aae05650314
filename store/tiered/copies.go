package tiered

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lazyctx"
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
	if values := c.read(ctx, string(id[:])); len(values) == 1 {
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
	values, now := c.read(ctx, names...), time.Now()
	for i := range recs {
		ok := false
		if len(values) == len(ks) {
			recs[i], ok = c.codec.decode(ks[i], ids[i], values[i], now)
		}
		c.count(ok)
	}
	return recs
}

// read returns values from the cache, or nil if it fails.
func (c *copies) read(ctx context.Context, names ...string) [][]byte {
	begun, ok := c.guard.enter()
	if !ok {
		return nil
	}
	limited := lazyctx.Limit(ctx, time.Now().Add(c.waitOf(ctx)))
	defer limited.Stop()
	values, err := c.cache.Get(limited, names...)
	c.guard.note(ctx, begun, err)
	if err != nil {
		return nil
	}
	return values
}

// waitOf returns how long a call may look into the cache. Half of its time is for
// the store: a cache that hangs would otherwise take all of it, each time, and
// not be found out.
func (c *copies) waitOf(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(c.Wait, time.Until(end)/2)
	}
	return c.Wait
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
	entered, ok := c.guard.enter()
	if !ok {
		return
	}
	limited := lazyctx.Detach(ctx, time.Now().Add(c.Wait)) // the work is done even if its caller has left
	defer limited.Stop()
	c.guard.note(context.WithoutCancel(ctx), entered, c.cache.Add(limited, values, left))
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
		limited := lazyctx.Limit(ctx, time.Now().Add(barWait))
		err = c.cache.Set(limited, string(id[:]), barred, 2*c.MaxAge)
		limited.Stop()
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

	row          atomic.Int32 // failures, each begun after the one before, without a success between them
	last         atomic.Int64 // when the latest of them ended, as a time since born
	closed       atomic.Int64 // until when no call is made, as a time since born
	failed, left atomic.Int64
}

const (
	maxRow = 3
	rest   = time.Second
)

// enter reports whether to make a call, and when it began.
func (g *guard) enter() (begun int64, ok bool) {
	now := int64(time.Since(g.born))
	if g.row.Load() < maxRow {
		return now, true
	}
	until := g.closed.Load()
	if now >= until && g.closed.CompareAndSwap(until, now+int64(rest)) { // one call finds out
		return now, true
	}
	g.left.Add(1)
	return now, false
}

// note notes the result of a call. Calls that fail together count as one, because
// a cache that stalls for a moment fails all that wait for it.
func (g *guard) note(ctx context.Context, begun int64, err error) {
	switch {
	case err == nil:
		if g.row.Load() > 0 {
			g.row.Store(0)
		}
		return
	case ctx.Err() != nil: // the caller has left
		return
	}
	g.failed.Add(1)
	now, last := int64(time.Since(g.born)), g.last.Load()
	if begun < last || !g.last.CompareAndSwap(last, now) || g.row.Add(1) != maxRow {
		return
	}
	g.closed.Store(now + int64(rest))
	if g.logger != nil {
		g.logger.WarnContext(ctx, "once: the cache in front of the store fails, so the store answers", "error", err)
	}
}
