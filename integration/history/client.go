package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/effectively-once/once"
)

// client calls a store at random.
type client struct {
	*recorder
	*process
	id      int
	chance  *rand.Rand
	keys    []once.Key
	patient bool // leases and retention are long
	count   int  // number of owners and outcomes so far
}

const callLimit = 20 * time.Second

// step makes one call. It returns an error that no call may return.
func (c *client) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	k := c.keys[c.chance.IntN(len(c.keys))]
	if c.place.collects && c.chance.IntN(3) == 0 { // there are several kinds of them
		return c.transact(ctx, k)
	}
	n := c.chance.IntN(100)
	if inTx := n >= 68 && n < 94; inTx && c.txs == nil {
		n -= 26
	}
	switch {
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
		if c.place.expire != nil {
			c.place.expire()
		}
		_, err := c.store.Forget(ctx, 1+c.chance.IntN(10))
		return ignoreFaults(err)
	default:
		return c.pause(ctx)
	}
}

// pause lets leases and retention end.
func (c *client) pause(ctx context.Context) error {
	return wait(ctx, time.Duration(c.chance.Int64N(int64(c.place.longest))))
}

// record records a call of this process.
func (c *client) record(k once.Key, does call, do func() (once.Record, error)) error {
	return c.recorder.record(k, c.mine(does), do)
}

// recordEntered records a transaction of this process.
func (c *client) recordEntered(k once.Key, does call, do func(enter func(once.Record)) (once.Record, error)) error {
	return c.recorder.recordEntered(k, c.mine(does), do)
}

// mine returns a call with what the model must know of this process.
func (c *client) mine(does call) call {
	does.client, does.inSteps = c.id, does.verb == claim && c.place.inSteps
	does.blur, does.compares = c.blur(), c.place.compares
	return does
}

func (c *client) claim(ctx context.Context, k once.Key) error { return c.claimAs(ctx, c.request(k)) }

func (c *client) claimAs(ctx context.Context, r once.ClaimRequest) error {
	return c.record(r.Key, call{verb: claim, how: "Claim", req: r}, func() (once.Record, error) {
		return c.store.Claim(ctx, r)
	})
}

func (c *client) extend(ctx context.Context, k once.Key) error {
	h, d := c.fence(k), c.short(time.Hour)
	return c.record(k, call{verb: extend, how: "Extend", fence: h, lease: d}, func() (once.Record, error) {
		return once.Record{}, c.store.Extend(ctx, h, d)
	})
}

func (c *client) settle(ctx context.Context, k once.Key) error {
	return c.settleAs(ctx, c.fence(k), c.ending())
}

func (c *client) settleAs(ctx context.Context, h once.Fence, ends ending) error {
	return c.record(h.Key, call{verb: settle, how: "Settle", fence: h, ends: ends}, func() (once.Record, error) {
		return once.Record{}, c.store.Settle(ctx, ends.settlement(h))
	})
}

func (c *client) get(ctx context.Context, k once.Key) error {
	return c.record(k, call{verb: get, how: "Get"}, func() (once.Record, error) {
		return c.store.Get(ctx, k)
	})
}

func (c *client) transact(ctx context.Context, k once.Key) error {
	r, ends, fails := c.request(k), c.maybeEnding(), c.chance.IntN(4) == 0
	if c.place.collects {
		c.hint(&r, ends)
	}
	does := call{verb: transact, how: "Transact", req: r, ends: ends, undone: fails}
	does.firm = c.claimsFirst || r.Firm
	return c.recordEntered(k, does, func(enter func(once.Record)) (once.Record, error) {
		recs, err := c.txs.Transact(ctx, []once.ClaimRequest{r}, func(_ tx, recs []once.Record) ([]once.Settlement, error) {
			enter(recs[0])
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
	does := call{verb: transact, how: "ClaimTx", req: r, ends: ends, undone: fails}
	return c.record(k, does, func() (rec once.Record, err error) {
		return rec, c.inTx(ctx, fails, func(in tx) error {
			if rec, err = only(c.txs.ClaimTx(ctx, in, []once.ClaimRequest{r})); err != nil {
				return err
			}
			if rec.Owner != r.Owner || rec.Status != once.Running && rec.Status != once.Unknown {
				return nil
			}
			return c.txs.SettleTx(ctx, in, settlements(ends, rec))
		})
	})
}

// settleTx makes a transaction of the caller that only settles. Its writes are
// not seen before its commit, so an error that rolls it back refuses nothing.
func (c *client) settleTx(ctx context.Context, k once.Key) error {
	h, ends, fails := c.fence(k), c.ending(), c.chance.IntN(3) == 0
	does := call{verb: settle, how: "SettleTx", fence: h, ends: ends, undone: fails}
	return c.record(k, does, func() (once.Record, error) {
		return once.Record{}, c.inTx(ctx, fails, func(in tx) error {
			return c.txs.SettleTx(ctx, in, []once.Settlement{ends.settlement(h)})
		})
	})
}

// inTx runs a transaction of the caller. A COMMIT that returns an error may have
// been applied, unless it met a conflict.
func (c *client) inTx(ctx context.Context, rollBack bool, do func(tx) error) error {
	in, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%w: begin: %w", once.ErrConflict, err) // SQLite is busy
	}
	if err := do(in); err != nil || rollBack {
		_ = in.rollback(context.WithoutCancel(ctx)) // it may have ended
		if ignoreFaults(err) == nil && err != nil {
			err = fmt.Errorf("%w: %v", errUndone, err)
		}
		return err
	}
	err = in.commit(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, once.ErrConflict) && !errors.Is(err, once.ErrOutcomeUnknown):
		return fmt.Errorf("%w: commit: %v", errUndone, err)
	default:
		return fmt.Errorf("%w: commit: %w", once.ErrOutcomeUnknown, err)
	}
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
