package tiered

import (
	"context"
	"time"

	"github.com/effectively-once/once"
)

// TxStore is a [once.TxStore] with a cache in front.
type TxStore[Tx any] struct {
	*Store
	inner once.TxStore[Tx]
}

// NewTx is [New] for a transactional store.
func NewTx[Tx any](s once.TxStore[Tx], c Cache, o *Options) *TxStore[Tx] {
	return &TxStore[Tx]{New(s, c, o), s}
}

// Transact claims those keys that the cache does not know to be done, and commits
// their work. If it knows all of them, there is no transaction.
func (s *TxStore[Tx]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	a := s.look(ctx, rs)
	if a.complete() {
		return a.recs, nil
	}
	begun := time.Now()
	var sets []once.Settlement
	recs, err := s.inner.Transact(ctx, a.open, func(tx Tx, recs []once.Record) (_ []once.Settlement, err error) {
		sets, err = body(tx, a.with(recs))
		return sets, err
	})
	if err != nil || len(recs) != len(a.open) {
		return recs, err
	}
	s.cache(ctx, begun, a.open, recs, sets)
	return a.with(recs), nil
}

// cache caches what a transaction that began at a time has met, and what it has
// committed.
func (s *TxStore[Tx]) cache(ctx context.Context, begun time.Time, rs []once.ClaimRequest, recs []once.Record, sets []once.Settlement) {
	won := make(map[once.Fence]once.Record)
	for i, rec := range recs {
		if rec.HeldBy(rs[i].Owner) {
			won[fenceOf(rec)] = rec
		} else {
			s.copies.learn(ctx, begun, rec)
		}
	}
	var done []once.Record
	var shortest time.Duration
	for _, set := range sets {
		if rec, ok := won[set.Fence]; ok && set.Status == once.Done {
			if len(done) == 0 || keep(set) < shortest {
				shortest = keep(set)
			}
			done = append(done, ended(rec, set))
		}
	}
	s.copies.put(ctx, begun, shortest, done...)
}

// ClaimTx claims those keys that the cache does not know to be done, in the
// caller's transaction. What it meets is not cached, because that transaction may
// have written it.
func (s *TxStore[Tx]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	a := s.look(ctx, rs)
	if a.complete() {
		return a.recs, nil
	}
	recs, err := s.inner.ClaimTx(ctx, tx, a.open)
	if err != nil || len(recs) != len(a.open) {
		return recs, err
	}
	return a.with(recs), nil
}

// SettleTx is Settle for each settlement, in the caller's transaction.
func (s *TxStore[Tx]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	return s.inner.SettleTx(ctx, tx, sets)
}

// answers are the records of some requests, as far as the cache has them.
type answers struct {
	recs  []once.Record       // in the order of the requests; zero: not in the cache
	open  []once.ClaimRequest // those whose records are not in the cache
	place []int               // of an open request among all of them
}

func (s *TxStore[Tx]) look(ctx context.Context, rs []once.ClaimRequest) answers {
	if len(rs) == 0 {
		return answers{}
	}
	keys := make([]once.Key, len(rs))
	for i, r := range rs {
		keys[i] = r.Key
	}
	a := answers{recs: s.copies.getAll(ctx, keys)}
	for i, rec := range a.recs {
		if rec.Status != once.Done {
			a.open, a.place = append(a.open, rs[i]), append(a.place, i)
		}
	}
	return a
}

// complete reports whether the cache has the record of each request.
func (a *answers) complete() bool { return len(a.recs) > 0 && len(a.open) == 0 }

// with returns the records of all requests, given those of the open ones.
func (a *answers) with(recs []once.Record) []once.Record {
	if len(a.open) == len(a.recs) {
		return recs
	}
	all := append([]once.Record(nil), a.recs...)
	for i, rec := range recs {
		all[a.place[i]] = rec
	}
	return all
}
