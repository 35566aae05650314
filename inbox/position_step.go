package inbox

import (
	"context"
	"errors"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

var (
	// errParkAlone makes an item that is to be parked go into a transaction of
	// its own, so that later items of its ordering key find it on the shelf.
	errParkAlone = errors.New("inbox: to be parked alone")

	errKeyInFlight = errors.New("inbox: another transaction has the key of a message")
)

// step is the transaction that handles items and moves a position past them. It
// may run several times.
type step[T any] struct {
	*partition[T]
	items   []*item
	results []result
	aside   []store.Shelved // what goes to the shelf
	free    []*item         // what the handler gets
	sets    []once.Settlement
}

func (s *step[T]) run(ctx context.Context, tx T) error {
	s.results, s.aside, s.free, s.sets = repeated(result{kind: handled}, s.items), nil, nil, nil
	err := s.handleIn(ctx, tx)
	if err != nil {
		s.results = nil
	}
	return err
}

func (s *step[T]) handleIn(ctx context.Context, tx T) error {
	if err := s.sort(ctx, tx); err != nil {
		return err
	}
	if len(s.aside) > 0 {
		s.shelfInUse = true // even if the reply is lost
		if err := s.txShelf.ShelveTx(ctx, tx, s.aside); err != nil {
			return err
		}
	}
	if len(s.free) > 0 {
		if err := s.callWith(ctx, tx, s.free...); err != nil {
			return err
		}
	}
	if len(s.sets) > 0 {
		return s.txStore.SettleTx(ctx, tx, s.sets)
	}
	return nil
}

// sort divides the items into those that go to the shelf and those that the
// handler gets.
func (s *step[T]) sort(ctx context.Context, tx T) error {
	var held map[string]bool
	if s.shelfInUse {
		var err error
		if held, err = s.blockedOrders(ctx, tx, s.items...); err != nil {
			return err
		}
	}
	var at []int // the indexes of free
	for i, it := range s.items {
		reason := ""
		switch {
		case held[it.order]:
			s.putAside(i, store.Waiting, errBlocked.Error())
			continue
		case it.keyErr != nil && s.keyed:
			reason = it.keyErr.Error()
		case s.keyed && s.tooOld(it):
			reason = tooOldReason
		default:
			s.free, at = append(s.free, it), append(at, i)
			continue
		}
		if err := s.parkItem(i, reason); err != nil {
			return err
		}
	}
	if !s.keyed {
		return nil
	}
	return s.claimFree(ctx, tx, at)
}

// putAside has an item shelved in this transaction.
func (s *step[T]) putAside(i int, state store.ShelfState, reason string) {
	s.aside = append(s.aside, s.shelvedFrom(s.items[i], state, 0, reason))
	s.results[i] = result{kind: shelved}
	if state == store.Parked {
		s.results[i] = result{kind: parked, reason: reason}
	}
}

// parkItem has an item parked in this transaction if it is alone in it.
func (s *step[T]) parkItem(i int, reason string) error {
	it := s.items[i]
	if len(s.items) > 1 || !it.parkAlone {
		it.parkAlone = true
		return &handlerError{Failed(it.Message, errParkAlone)}
	}
	s.putAside(i, store.Parked, reason)
	return nil
}

// claimFree claims the keys of the free items, and keeps those that it gets. at
// has their indexes.
func (s *step[T]) claimFree(ctx context.Context, tx T, at []int) error {
	items := s.free
	s.free = nil
	seen := make(map[once.Key]*item)
	var first []*item
	var rs []once.ClaimRequest
	for n, it := range items {
		if twin := seen[it.key]; twin != nil { // it is settled if its twin is, in the same commit
			s.results[at[n]] = s.met(ctx, it, once.Record{Status: once.Done, Fingerprint: s.fingerprint(twin)})
			continue
		}
		seen[it.key] = it
		first, rs = append(first, it), append(rs, s.claimRequest(it))
	}
	recs, err := s.claimOver(ctx, tx, rs)
	if err != nil {
		return err
	}
	met := make(map[*item]once.Record)
	for i, it := range first {
		if met[it] = recs[i]; isOurs(recs[i], it.token) {
			s.free = append(s.free, it)
			s.sets = append(s.sets, s.done(it, once.Fence{Key: it.key, Owner: it.token, Attempt: recs[i].Attempt}, false))
		}
	}
	for n, it := range items {
		if rec, ok := met[it]; ok && !isOurs(rec, it.token) {
			s.results[at[n]] = s.met(ctx, it, rec)
		}
		switch r := s.results[at[n]]; r.kind {
		case toPark:
			if err := s.parkItem(at[n], r.reason); err != nil {
				return err
			}
		case again:
			return errKeyInFlight
		}
	}
	return nil
}
