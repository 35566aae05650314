package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// partition is a partition of a log and its position. It handles one batch at a
// time.
type partition[T any] struct {
	*txHandler[T]
	offsets    store.Positions[T]
	lane       string
	at         store.Position
	phase      partitionPhase
	overtaken  time.Time // when phase became overtaken
	shelfInUse bool      // there may be messages of this consumer on the shelf
	batches    int       // transactions since it was opened
	passed     int       // items settled since it was opened
}

type partitionPhase int

const (
	owned         partitionPhase = iota // this process moves the position
	standby                             // another process does: only items before the position are settled here
	lost                                // another process has opened the position since
	unknownOffset                       // a commit may have moved the position: opening it again shows where it is
)

const shelfCheckEvery = 64 // batches between two checks of whether the shelf is in use

// move runs body in a transaction that moves the position past items. Afterwards
// the partition may have another phase.
func (p *partition[T]) move(ctx context.Context, items []*item, body func(context.Context, T) error) error {
	last := items[len(items)-1]
	from, to := p.at, p.at
	to.Log, to.Offset, to.Digest = last.Position.Log, last.Position.Offset, digest(last.Message)
	err := p.repeat(ctx, func(ctx context.Context) error {
		return p.offsets.TransactAt(ctx, from, to, func(tx T) error { return body(scope.InTx(ctx), tx) })
	})
	switch {
	case err == nil:
		p.at = to
		p.checkShelf(ctx)
	case errors.Is(err, once.ErrOutcomeUnknown) && handlerErrorOf(err) == nil:
		p.phase = unknownOffset
	case errors.Is(err, once.ErrLeaseLost) && handlerErrorOf(err) == nil:
		p.phase, p.overtaken = lost, time.Now()
		p.logger.WarnContext(ctx, "inbox: a partition has had another owner", "partition", p.at.Partition, "epoch", p.at.Epoch)
	}
	return err
}

// checkShelf checks now and then whether the shelf is still in use. While this
// session has the partition, no other puts messages of it there.
func (p *partition[T]) checkShelf(ctx context.Context) {
	if p.batches++; !p.shelfInUse || p.batches%shelfCheckEvery != 0 {
		return
	}
	q := store.ShelfQuery{Consumer: p.keys, States: []store.ShelfState{store.Waiting, store.Parked}, Limit: 1, Bodiless: true}
	if found, err := p.shelf.Shelved(ctx, q); err == nil && len(found) == 0 {
		p.shelfInUse = false
	}
}

// afterOwner is the result of items whose partition another process has. They
// stay in their lane: later items must not be handled before them, whichever
// process continues.
func afterOwner(items []*item) []result {
	return repeated(result{kind: again, after: storePause}, items)
}

// claimOver claims keys, including those of attempts whose outcome is unknown.
// These were transactions and left nothing.
func (p *partition[T]) claimOver(ctx context.Context, tx T, rs []once.ClaimRequest) ([]once.Record, error) {
	recs, err := p.txStore.ClaimTx(ctx, tx, rs)
	for i := range recs {
		if recs[i].Status == once.Unknown && recs[i].Owner != rs[i].Owner {
			rs[i].Attempt = recs[i].Attempt
			one, err := p.txStore.ClaimTx(ctx, tx, rs[i:i+1])
			if err != nil {
				return nil, err
			}
			recs[i] = one[0]
		}
	}
	return recs, err
}

// recordRejection settles the key of an item whose rows were rolled back.
func (p *partition[T]) recordRejection(ctx context.Context, tx T, it *item) error {
	return p.settleKey(ctx, tx, it, p.done(it, once.Fence{Key: it.key}, true))
}

// settleKey claims the key of an item, if it has a key and that is free, and
// settles it under this claim.
func (p *partition[T]) settleKey(ctx context.Context, tx T, it *item, set once.Settlement) error {
	if !p.keyed {
		return nil
	}
	r := p.freshClaimRequest(it)
	recs, err := p.claimOver(ctx, tx, []once.ClaimRequest{r})
	if err != nil || !isOurs(recs[0], r.Owner) {
		return err
	}
	set.Fence = once.Fence{Key: it.key, Owner: r.Owner, Attempt: recs[0].Attempt}
	return p.txStore.SettleTx(ctx, tx, []once.Settlement{set})
}
