package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
)

// counts are the results of a count, by scope. Names of scopes may be long and
// many, so their digests are kept. Two digests of 64 bits are equal once in
// four thousand stores with a hundred million scopes, and whoever chooses names
// does not know the seed.
type counts map[uint64]seen

// seen is how many keys of a scope a count has seen.
type seen struct {
	old   uint32 // there when it began
	young uint32 // come since, of which it sees some only
}

func (s seen) all() int { return int(s.old) + int(s.young) }

var seed = maphash.MakeSeed()

func (c counts) of(scope string) seen { return c[maphash.String(seed, scope)] }

// counter is a Quota that counts.
type counter struct {
	*Quota
	lister once.Lister
	every  time.Duration
	pace   run // rests as a Janitor does

	begun time.Time
	query once.RecordQuery
	sees  counts
	keys  int64
}

const (
	countedPage     = 1000
	countedPageTime = time.Minute

	// What was there when the count began must not pass for younger. SQLite's clock has milliseconds, and the clock of a
	// server does not run quite like ours while a count takes minutes.
	clockError = 100 * time.Millisecond

	noLister = "the Store is no once.Lister: give the Quota one whose keys can be counted"
)

// newCounter checks the Quota. Nobody else counts until counting is unlocked.
func (q *Quota) newCounter() (*counter, error) {
	c := &counter{Quota: q, every: cmp.Or(q.Every, 5*time.Minute)}
	c.pace.Share = cmp.Or(q.Share, 0.05)
	lists := false
	c.lister, lists = once.As[once.Lister](q.Store)
	switch {
	case q.Store == nil:
		return nil, invalid("a Quota needs a Store")
	case !lists:
		return nil, invalid(noLister)
	case q.LimitOf == nil && q.Limit.Keys == 0:
		return nil, invalid("a Quota needs Limit.Keys or LimitOf: without them it counts for nothing")
	case c.every < 0 || c.every > longestEvery:
		return nil, invalid("Every must be positive, or 0, and no longer than a year")
	case !(c.pace.Share > 0 && c.pace.Share <= 1): // NaN is neither
		return nil, invalid("Share is a part of the time: above 0, up to 1, or 0 for the default")
	case !q.counting.TryLock():
		return nil, invalid("this Quota is being counted already: one Run is enough")
	}
	return c, nil
}

// count reads all records. Records that are older than the count were there
// when it began. Of the newer ones it sees only some, but those that came
// through this process are known here.
func (c *counter) count(ctx context.Context, page func(context.Context) (more bool, err error)) error {
	c.begin()
	for more := true; more; {
		var err error
		if more, err = page(ctx); err != nil {
			return err
		}
	}
	c.end()
	return nil
}

func (c *counter) begin() {
	c.query = once.RecordQuery{Operation: c.Operation, Limit: countedPage}
	c.sees, c.keys = make(counts, len(c.last)), 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = time.Now()
	c.next = c.begun.Add(c.took)
	for _, of := range c.accounts {
		of.since = of.open
	}
}

// page sees a page, and rests.
func (c *counter) page(ctx context.Context) (more bool, err error) {
	limited, cancel := context.WithTimeout(ctx, countedPageTime)
	defer cancel()
	asked := time.Now() // before the store looks at its clock: what was there when the count began is seen as older
	page, err := c.lister.List(limited, c.query)
	switch {
	case errors.Is(err, errors.ErrUnsupported): // by what the store wraps
		return true, fmt.Errorf("%w: %w", invalid(noLister), err)
	case err != nil:
		return true, err
	}
	for i := range page.Records {
		c.see(&page.Records[i], asked.Sub(c.begun))
	}
	c.query.After, more = page.Next, page.Next != (once.Key{})
	if more {
		err = backoff.Sleep(ctx, c.pace.rest(time.Since(asked)))
	}
	return more, err
}

func (c *counter) see(rec *once.Record, since time.Duration) {
	scope := maphash.String(seed, rec.Key.Scope)
	of := c.sees[scope]
	if rec.Age+clockError >= since {
		of.old++
	} else {
		of.young++
	}
	c.sees[scope] = of
	c.keys++
}

// untilItWorks repeats page until it succeeds.
func (c *counter) untilItWorks(ctx context.Context) (more bool, err error) {
	trouble := backoff.Backoff{First: min(time.Second, c.every), Limit: c.every}
	for {
		if more, err = c.page(ctx); err == nil || ctx.Err() != nil || errors.Is(err, errors.ErrUnsupported) {
			return more, err
		}
		c.logger().WarnContext(ctx, "janitor: the store failed, and its keys cannot be counted", logs.Spaced(""), "error", err)
		_ = backoff.Sleep(ctx, trouble.Next())
	}
}

// end makes this count the latest one.
func (c *counter) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.last, c.took = c.sees, now.Sub(c.begun)
	c.next = now.Add(c.every + c.took)
	for scope, of := range c.accounts {
		saw := c.last.of(scope)
		of.counted = int(saw.old) + max(int(saw.young)-of.since, 0) // the young ones may be those that came through here
		of.mine, of.told = of.since, false
		if of.mine == 0 && of.spent.Full(of.rate, now) {
			delete(c.accounts, scope)
		}
	}
	c.stats().Keys.Store(c.keys)
	c.stats().Scopes.Store(int64(len(c.last)))
	c.stats().Counts.Add(1)
}
