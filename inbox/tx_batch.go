package inbox

import (
	"context"
	"errors"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/scope"
)

// txBatch handles several items in one transaction, each with its own claim.
type txBatch[T any] struct{ *txHandler[T] }

func (h *txBatch[T]) handle(ctx context.Context, items []*item) []result {
	first, results := h.firstOfEachKey(items)
	known := h.knownAtTheHead(ctx, first)
	merge(results, items, first, known)
	first = behindNone(first, known)
	if len(first) == 0 {
		return results
	}
	lock := h.lock.held()
	defer lock.release()
	now, instead := h.begin(ctx, lock, first)
	tried := h.divide(ctx, h, first[:now])
	switch {
	case instead != nil && instead.kind == again && !instead.alone:
		tried = repeated(*instead, first)
	case instead != nil:
		tried = []result{*instead}
	}
	merge(results, items, first, tried)
	return results
}

// firstOfEachKey returns the items that can share a transaction: the first one
// of each key. In results, items without a key are to be parked, and the others
// are tried again after those that are returned.
func (h *txBatch[T]) firstOfEachKey(items []*item) (first []*item, results []result) {
	results = repeated(result{kind: again}, items)
	first = make([]*item, 0, len(items))
	seen, waits := make(map[once.Key]bool, len(items)), make(map[string]bool)
	for i, it := range items {
		switch {
		case it.order != "" && waits[it.order]: // an item before it is about to be parked
		case it.keyErr != nil:
			results[i], waits[it.order] = result{kind: toPark, reason: it.keyErr.Error()}, true
		case !seen[it.key]:
			seen[it.key] = true
			first = append(first, it)
		default: // a copy, which later ones of its lane must not leave behind: they could not go to the shelf
			waits[it.order] = true
		}
	}
	return first, results
}

// knownAtTheHead returns the results of the first items that were handled before
// or have to wait.
func (h *txBatch[T]) knownAtTheHead(ctx context.Context, items []*item) (results []result) {
	for _, it := range items {
		if it.counting != countBefore {
			return results
		}
		known, err := h.known(ctx, it)
		if known == nil || err != nil {
			return results
		}
		results = append(results, *known)
	}
	return results
}

// behindNone returns the items after those whose results are known, without those
// whose ordering key has one before them that does not end here.
func behindNone(items []*item, known []result) (free []*item) {
	waits := make(map[string]bool) // ordering keys
	for i, r := range known {
		if items[i].order != "" && (r.holdsUp() || r.kind == blocked) {
			waits[items[i].order] = true
		}
	}
	if len(waits) == 0 {
		return items[len(known):]
	}
	return slices.DeleteFunc(slices.Clone(items[len(known):]), func(it *item) bool { return waits[it.order] })
}

// alone is the result of an item whose handler failed for it alone.
func (h *txBatch[T]) alone(ctx context.Context, it *item, failed *handlerError) result {
	if !failed.rejects() {
		return h.failed(ctx, it, failed.err)
	}
	if h.recordRejection(ctx, it) != nil { // the next try finds out why
		return result{kind: again, after: storePause}
	}
	return rejection(failed)
}

// takeoverTries is how often a batch takes over the keys of attempts whose
// outcome is unknown.
const takeoverTries = 10

// try handles items in one transaction with their claims. A handlerError is the
// handler's.
func (h *txBatch[T]) try(ctx context.Context, items []*item) ([]result, error) {
	b := &batchTx[T]{txBatch: h, items: items, requests: make([]once.ClaimRequest, len(items))}
	for i, it := range items {
		if !it.commitUnknown { // an owner that released its key cannot claim it again
			it.token = name.Token()
		}
		b.requests[i] = h.claimRequest(it)
		b.requests[i].Firm = it.commitUnknown
	}
	if err := h.repeat(ctx, b.run); err != nil {
		return nil, err
	}
	return b.results, nil
}

// batchTx is the transaction of a batch, which may run several times.
type batchTx[T any] struct {
	*txBatch[T]
	items    []*item
	requests []once.ClaimRequest
	runs     int
	own      map[int]result // of the items that the last run has claimed
	results  []result
}

func (b *batchTx[T]) run(ctx context.Context) error {
	b.own = nil
	recs, err := b.txStore.Transact(b.expectingBlocked(ctx, b.items...), b.requests, func(tx T, recs []once.Record) ([]once.Settlement, error) {
		return b.handleClaimed(scope.InTx(ctx), tx, recs)
	})
	if errors.Is(err, once.ErrOutcomeUnknown) && handlerErrorOf(err) == nil {
		for i, it := range b.items {
			b.requests[i].Firm, it.commitUnknown = true, true
		}
	}
	if err != nil { // which says nothing of an earlier commit that may still arrive
		return err
	}
	for _, it := range b.items {
		it.commitUnknown = false
	}
	b.runs++
	if takeover := b.collect(ctx, recs); takeover && b.runs < takeoverTries {
		return errAgain
	}
	return nil
}

// handleClaimed calls the handler for the items whose claims succeeded.
func (b *batchTx[T]) handleClaimed(ctx context.Context, tx T, recs []once.Record) (sets []once.Settlement, err error) {
	b.own = make(map[int]result, len(recs))
	sets = make([]once.Settlement, 0, len(recs))
	claimed := make([]*item, 0, len(recs))
	at := make([]int, 0, len(recs)) // their indexes
	waits := make(map[string]bool)  // ordering keys with an item that is not settled by this transaction
	for i, rec := range recs {
		it := b.items[i]
		if isOurs(rec, it.token) { // so an earlier commit is refused
			it.commitUnknown = false
		}
		switch {
		case isOurs(rec, it.token) && it.order != "" && waits[it.order]:
			sets = append(sets, b.release(it, rec))
			b.own[i] = result{kind: again}
		case isOurs(rec, it.token):
			claimed, at = append(claimed, it), append(at, i)
		case rec.Status != once.Done && rec.Status != once.Expired || !b.sameInput(it, rec):
			waits[it.order] = true
		}
	}
	held, err := b.blockedOrders(ctx, tx, claimed...)
	if err != nil {
		return nil, err
	}
	free := make([]*item, 0, len(claimed))
	for n, it := range claimed {
		rec := recs[at[n]]
		if held[it.order] {
			sets = append(sets, b.release(it, rec))
			b.own[at[n]] = result{kind: blocked}
			continue
		}
		free = append(free, it)
		sets = append(sets, b.done(it, once.Fence{Key: it.key, Owner: it.token, Attempt: rec.Attempt}, false))
		b.own[at[n]] = result{kind: handled}
	}
	if len(free) > 0 {
		if err := b.callWith(ctx, tx, free...); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// release gives the key of an item back.
func (b *batchTx[T]) release(it *item, rec once.Record) once.Settlement {
	fence := once.Fence{Key: it.key, Owner: it.token, Attempt: rec.Attempt}
	return once.Settlement{Fence: fence, Status: once.Absent, KeepKey: b.Policy.KeepKey}
}

// collect sets the results after a commit. It returns true if attempts of
// unknown outcome are in the way. They were transactions and left nothing, so
// the requests now take over their keys.
func (b *batchTx[T]) collect(ctx context.Context, recs []once.Record) (takeover bool) {
	b.results = make([]result, 0, len(recs))
	for i, rec := range recs {
		it := b.items[i]
		r, own := b.own[i]
		switch {
		case own && isOurs(rec, it.token):
		case rec.Status == once.Done && rec.Owner == it.token: // by a commit whose reply was lost
			r = result{kind: handled}
		case rec.Status == once.Unknown:
			b.requests[i].Attempt, takeover = rec.Attempt, true
		default:
			r = b.met(ctx, it, rec)
		}
		b.results = append(b.results, r)
	}
	return takeover
}
