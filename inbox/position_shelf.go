package inbox

import (
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// setAside puts an item on the shelf in the commit that moves the position past
// it.
func (p *partition[T]) setAside(ctx context.Context, it *item, state store.ShelfState, due time.Duration, reason string) result {
	if err := p.nameOnShelf(ctx, it); err != nil {
		return p.troubled(ctx, it, err)
	}
	if it.onShelf == waitingOnShelf { // the message there has attempts left
		state = store.Waiting
	}
	a := &setAsideTx[T]{partition: p, item: it, shelved: p.shelvedFrom(it, state, due, reason)}
	p.shelfInUse = true // even if the reply is lost
	err := p.move(ctx, []*item{it}, a.write)
	switch {
	case p.phase == lost:
		return afterOwner([]*item{it})[0]
	case err != nil:
		return p.troubled(ctx, it, err)
	}
	if state == store.Parked {
		p.logParked(ctx, a.shelved, it.Message.ID)
		return result{kind: parked, reason: a.shelved.Reason}
	}
	return result{kind: shelved, reason: a.shelved.Reason}
}

// setAsideTx is the transaction of setAside.
type setAsideTx[T any] struct {
	*partition[T]
	item    *item
	shelved store.Shelved
}

func (a *setAsideTx[T]) write(ctx context.Context, tx T) error {
	held, err := a.blockedOrders(ctx, tx, a.item)
	if err != nil {
		return err
	}
	if held[a.item.order] && a.shelved.State == store.Waiting {
		a.shelved.Due, a.shelved.Reason = 0, errBlocked.Error()
	}
	if a.shelved.State == store.Parked && a.item.keyErr == nil {
		if err := a.parkKeyIn(ctx, tx, a.item, &a.shelved); err != nil {
			return err
		}
	}
	return a.txShelf.ShelveTx(ctx, tx, []store.Shelved{a.shelved})
}

// parkKeyIn is parkKey in a transaction, which has the key from its first claim on.
// That claim expects no attempts before. If there were some, it shows how many, and
// the next one is that of parkOwner.
func (p *partition[T]) parkKeyIn(ctx context.Context, tx T, it *item, m *store.Shelved) error {
	if !p.keyed {
		return nil
	}
	r, attempts := p.claimRequest(it), int64(0)
	for range 3 {
		r.Owner = parkOwner(m, attempts)
		recs, err := p.claimOver(ctx, tx, []once.ClaimRequest{r})
		if err != nil {
			return err
		}
		rec := recs[0]
		set := once.Settlement{Fence: once.Fence{Key: it.key, Owner: rec.Owner, Attempt: rec.Attempt}}
		switch ours := isOurs(rec, r.Owner); {
		case ours && isParking(rec, m):
			set.Status, set.Reason = once.Parked, p.store.Options().Sealing.SealReason(it.key, m.Reason)
			return p.txStore.SettleTx(ctx, tx, []once.Settlement{set})
		case ours:
			set.Status, set.KeepKey = once.Absent, p.Policy.KeepKey
			if err := p.txStore.SettleTx(ctx, tx, []once.Settlement{set}); err != nil {
				return err
			}
		case rec.Status != once.Absent: // it is done, parked, or another transaction has it
			return nil
		}
		attempts = rec.Attempt
	}
	return errKeyInFlight
}
