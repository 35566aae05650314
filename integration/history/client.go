package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
)

// client calls a store at random.
type client struct {
	*recorder
	id      int
	chance  *rand.Rand
	store   once.TxStore[engine.Tx]
	begin   func(context.Context) (engine.Tx, error)
	keys    []once.Key
	sqlite  bool
	patient bool // leases and retention are long
	count   int  // number of owners and outcomes so far
}

const callLimit = 20 * time.Second

// step makes one call. It returns an error that no call may return.
func (c *client) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	k := c.keys[c.chance.IntN(len(c.keys))]
	switch n := c.chance.IntN(100); {
	case n < 26:
		return c.claim(ctx, k)
	case n < 36:
		return c.extend(ctx, k)
	case n < 56:
		return c.settle(ctx, k)
	case n < 68:
		return c.get(ctx, k)
	case n < 82:
		return c.transact(ctx, k)
	case n < 90:
		return c.claimTx(ctx, k)
	case n < 94:
		return c.settleTx(ctx, k)
	case n < 97:
		_, err := c.store.Forget(ctx, 1+c.chance.IntN(10))
		return ignoreFaults(err)
	default:
		return c.pause(ctx)
	}
}

// pause lets leases and retention end.
func (c *client) pause(ctx context.Context) error {
	timer := time.NewTimer(time.Duration(c.chance.IntN(15)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) claim(ctx context.Context, k once.Key) error { return c.claimAs(ctx, c.request(k)) }

func (c *client) claimAs(ctx context.Context, r once.ClaimRequest) error {
	return c.record(r.Key, call{verb: claim, how: "Claim", client: c.id, req: r, inSteps: c.sqlite}, func() (once.Record, error) {
		return c.store.Claim(ctx, r)
	})
}

func (c *client) extend(ctx context.Context, k once.Key) error {
	h, d := c.fence(k), c.short(time.Hour)
	return c.record(k, call{verb: extend, how: "Extend", client: c.id, fence: h, lease: d}, func() (once.Record, error) {
		return once.Record{}, c.store.Extend(ctx, h, d)
	})
}

func (c *client) settle(ctx context.Context, k once.Key) error {
	return c.settleAs(ctx, c.fence(k), c.ending())
}

func (c *client) settleAs(ctx context.Context, h once.Fence, ends ending) error {
	return c.record(h.Key, call{verb: settle, how: "Settle", client: c.id, fence: h, ends: ends}, func() (once.Record, error) {
		return once.Record{}, c.store.Settle(ctx, ends.settlement(h))
	})
}

func (c *client) get(ctx context.Context, k once.Key) error {
	return c.record(k, call{verb: get, how: "Get", client: c.id}, func() (once.Record, error) {
		return c.store.Get(ctx, k)
	})
}

func (c *client) transact(ctx context.Context, k once.Key) error {
	r, ends, fails := c.request(k), c.maybeEnding(), c.chance.IntN(4) == 0
	does := call{verb: transact, how: "Transact", client: c.id, req: r, ends: ends, undone: fails}
	return c.record(k, does, func() (once.Record, error) {
		recs, err := c.store.Transact(ctx, []once.ClaimRequest{r}, func(_ engine.Tx, recs []once.Record) ([]once.Settlement, error) {
			if fails {
				return nil, errUndone
			}
			return settlements(ends, recs[0]), nil
		})
		return only(recs, err)
	})
}

// claimTx makes a transaction of the caller that claims, settles its claim, and
// commits or rolls back.
func (c *client) claimTx(ctx context.Context, k once.Key) error {
	r, ends, fails := c.request(k), c.maybeEnding(), c.chance.IntN(3) == 0
	does := call{verb: transact, how: "ClaimTx", client: c.id, req: r, ends: ends, undone: fails}
	return c.record(k, does, func() (rec once.Record, err error) {
		return rec, c.inTx(ctx, fails, func(tx engine.Tx) error {
			if rec, err = only(c.store.ClaimTx(ctx, tx, []once.ClaimRequest{r})); err != nil {
				return err
			}
			if rec.Owner != r.Owner || rec.Status != once.Running && rec.Status != once.Unknown {
				return nil
			}
			return c.store.SettleTx(ctx, tx, settlements(ends, rec))
		})
	})
}

// settleTx makes a transaction of the caller that only settles. Its writes are
// not seen before its commit, so an error that rolls it back refuses nothing.
func (c *client) settleTx(ctx context.Context, k once.Key) error {
	h, ends, fails := c.fence(k), c.ending(), c.chance.IntN(3) == 0
	does := call{verb: settle, how: "SettleTx", client: c.id, fence: h, ends: ends, undone: fails}
	return c.record(k, does, func() (once.Record, error) {
		return once.Record{}, c.inTx(ctx, fails, func(tx engine.Tx) error {
			return c.store.SettleTx(ctx, tx, []once.Settlement{ends.settlement(h)})
		})
	})
}

// inTx runs a transaction of the caller. A COMMIT that returns an error may
// have been applied.
func (c *client) inTx(ctx context.Context, rollBack bool, do func(engine.Tx) error) error {
	tx, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%w: begin: %w", once.ErrConflict, err) // SQLite is busy
	}
	if err := do(tx); err != nil || rollBack {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // it may have ended
		if ignoreFaults(err) == nil && err != nil {
			err = fmt.Errorf("%w: %v", errUndone, err)
		}
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: commit: %w", once.ErrOutcomeUnknown, err)
	}
	return nil
}

func only(recs []once.Record, err error) (once.Record, error) {
	if err == nil && len(recs) != 1 {
		err = fmt.Errorf("one request was answered with %d records", len(recs))
	}
	if err != nil {
		return once.Record{}, err
	}
	return recs[0], nil
}

func settlements(ends ending, rec once.Record) []once.Settlement {
	if ends.none() {
		return nil
	}
	return []once.Settlement{ends.settlement(once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt})}
}
