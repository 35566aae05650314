package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// handle handles items that are after the position, in order.
func (p *partition[T]) handle(ctx context.Context, items []*item) []result {
	if p.phase == standby || len(items) == 0 {
		return afterOwner(items)
	}
	if p.passed >= p.Window { // no earlier owner of the partition can have received these
		for _, it := range items {
			if it.counting == countBefore && !it.abandoned {
				it.counting = countAfter
			}
		}
	}
	lock := p.lock.held()
	defer lock.release()
	now, instead := p.begin(ctx, lock, items)
	switch {
	case instead != nil && instead.kind == again:
		return repeated(*instead, items)
	case instead != nil:
		results := []result{p.setAside(ctx, items[0], store.Parked, 0, instead.reason)}
		return append(results, repeated(result{kind: again}, items[1:])...)
	}
	results := p.divide(ctx, p, items[:now])
	for i, r := range results {
		if r.kind == toPark { // because of the store, or of the state of its key
			results[i] = p.setAside(ctx, items[i], store.Parked, 0, r.reason)
		}
		if r.kind != again {
			p.passed++
		}
	}
	return append(results, repeated(result{kind: again}, items[now:])...)
}

// try handles items in the transaction that moves the position past them.
func (p *partition[T]) try(ctx context.Context, items []*item) ([]result, error) {
	if p.shelfInUse || items[0].parkAlone {
		if err := p.nameOnShelf(ctx, items...); err != nil {
			return nil, err
		}
	}
	s := &step[T]{partition: p, items: items}
	err := p.move(ctx, items, s.run)
	switch {
	case errors.Is(err, errParkAlone) && len(items) == 1:
		return p.try(ctx, items) // now it is marked
	case p.phase == lost:
		return afterOwner(items), nil
	case err != nil:
		return nil, err
	case s.results == nil: // an earlier transaction, whose reply was lost, was committed
		return repeated(result{kind: handled}, items), nil
	}
	return s.results, nil
}

// A message of a log is retried in its place a few times, if that does not hold
// up its partition for long. Then it goes to the shelf.
const (
	retriesInPlace   = 3
	retryInPlaceWait = time.Second
)

// alone is the result of an item whose handler failed for it alone.
func (p *partition[T]) alone(ctx context.Context, it *item, failed *handlerError) result {
	err := failed.err
	if failed.rejects() {
		recorded := p.move(ctx, []*item{it}, func(ctx context.Context, tx T) error { return p.recordRejection(ctx, tx, it) })
		if recorded != nil { // the next try finds out why
			return result{kind: again, after: storePause}
		}
		return rejection(err)
	}
	p.Stats.Failed.Add(1)
	if ctx.Err() != nil { // the handler was told to stop
		it.excuse()
		return result{kind: again, reason: err.Error()}
	}
	it.tries++
	after, retry := once.MayRetry(err)
	if !retry {
		p.logFailed(ctx, it, err)
		return p.setAside(ctx, it, store.Parked, 0, err.Error())
	}
	instead := p.unblamed(ctx, it, err)
	if instead == nil {
		if !it.keepCount() {
			it.attempts = it.attempts.plus(attemptCount{1, 1})
		}
		p.logFailed(ctx, it, err)
		if it.attempts.begun >= int64(p.Retry.Attempts) {
			if instead = p.notParked(ctx, it, err); instead == nil {
				return p.setAside(ctx, it, store.Parked, 0, it.attempts.usedUp(err))
			}
		}
	}
	wait := max(after, p.Retry.wait(it.attempts.begun))
	if instead != nil {
		wait = max(after, instead.after)
	}
	switch {
	case it.tries < retriesInPlace && wait <= retryInPlaceWait:
		return result{kind: again, after: wait, reason: err.Error()}
	}
	return p.setAside(ctx, it, store.Waiting, wait, err.Error())
}
