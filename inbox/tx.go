package inbox

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/rerun"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// txWorker handles messages in transactions.
type txWorker[T any] struct {
	*consumerRun
	txStore   once.TxStore[T]
	shelves   store.TxShelf[T]   // nil: the store has none
	positions store.Positions[T] // nil: without Checkpoint
	call      func(context.Context, T, []*broker.Message) error
	op        *once.Operation[none]

	seeks  *seeks
	mu     sync.Mutex
	open   map[string]*place
	rivals map[string]rival
}

func (w *txWorker[T]) prepare() { w.op = w.operation() }

func (w *txWorker[T]) newSession(k *seeks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seeks, w.open, w.rivals = k, make(map[string]*place), make(map[string]rival)
}

func (w *txWorker[T]) handle(ctx context.Context, items []*item) []result {
	switch {
	case w.Checkpoint:
		return w.proceed(ctx, items)
	case w.single:
		return []result{w.alone(ctx, items[0])}
	}
	first, fates := w.sift(items)
	if len(first) == 0 {
		return fates
	}
	known := w.knownAtTheHead(ctx, first)
	spread(fates, items, first, known)
	first = first[len(known):]
	if len(first) == 0 {
		return fates
	}
	at := w.floor.spot()
	defer at.leave()
	now, end := w.cautious(ctx, at, first)
	tried := w.divide(ctx, first[:now], w.together, w.lonely)
	switch {
	case end != nil && end.kind == again:
		tried = all(first, *end)
	case end != nil:
		tried = []result{*end}
	}
	spread(fates, items, first, tried)
	return fates
}

// knownAtTheHead are the fates of the first items, as far as they may have come before, and are dealt with or wait.
func (w *txWorker[T]) knownAtTheHead(ctx context.Context, items []*item) (known []result) {
	for _, it := range items {
		if it.counted {
			return known
		}
		f, err := w.known(ctx, it)
		if f == nil || err != nil {
			return known
		}
		known = append(known, *f)
	}
	return known
}

// known is the result of an item that may have come before, if there is nothing to try; else nil.
func (w *txWorker[T]) known(ctx context.Context, it *item) (*result, error) {
	rec, err := w.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return nil, err
	case rec.Status == once.Done || rec.Status == once.Expired || rec.Status == once.Parked:
		f := w.met(ctx, it, rec)
		return &f, nil
	}
	waits, err := w.waits(ctx, it)
	if err != nil || !waits {
		return nil, err
	}
	return &result{kind: behind}, nil
}

// sift finds the items that can be handled together: those with a key, and the first of each key. The fates of others are
// theirs: what has no key is parked, and what has another's is taken again when that is done.
func (w *txWorker[T]) sift(items []*item) (first []*item, fates []result) {
	fates = all(items, result{kind: again})
	seen, waits := make(map[once.Key]bool), make(map[string]bool)
	for i, it := range items {
		switch {
		case it.order != "" && waits[it.order]: // behind one that is about to be parked
		case it.wrong != nil:
			fates[i], waits[it.order] = result{kind: hopeless, reason: it.wrong.Error()}, true
		case !seen[it.key]:
			seen[it.key] = true
			first = append(first, it)
		}
	}
	return first, fates
}

// alone handles an item that has a transaction for itself. If it may have been delivered before, its key is looked at first.
func (w *txWorker[T]) alone(ctx context.Context, it *item) result {
	if it.wrong != nil {
		return result{kind: hopeless, reason: it.wrong.Error()}
	}
	if !it.counted {
		f, err := w.known(ctx, it)
		switch {
		case err != nil:
			return w.refused(ctx, it, err)
		case f != nil:
			return *f
		}
	}
	at := w.floor.spot()
	defer at.leave()
	if _, end := w.cautious(ctx, at, []*item{it}); end != nil {
		return *end
	}
	return w.one(ctx, it)
}

// lonely is the result of an item of a batch whose handler has failed when it was alone.
func (w *txWorker[T]) lonely(ctx context.Context, it *item, err error) result {
	if errors.Is(err, once.ErrRejected) {
		return w.answered(err, w.record(ctx, it))
	}
	return w.failed(ctx, it, err)
}

// answered is the result of an item whose handler said no, when that was recorded.
func (w *txWorker[T]) answered(no, recorded error) result {
	switch {
	case recorded != nil: // the next try finds out why
		return result{kind: again, after: trouble}
	case errors.Is(no, errDuplicate):
		return result{kind: prevented}
	}
	return result{kind: handled}
}

func (w *txWorker[T]) one(ctx context.Context, it *item) result {
	var failed *failure
	var report once.Report
	work := workOn(w.op, it).Report(&report)
	_, err := once.DoTx(ctx, w.txStore, work, func(ctx context.Context, tx T) (none, error) {
		held, err := w.blocked(ctx, tx, []*item{it})
		if err != nil {
			return none{}, err
		}
		if held[it.order] {
			return none{}, errHeld
		}
		if failed = w.handler(ctx, tx, []*item{it}); failed != nil {
			return none{}, failed
		}
		return none{}, nil
	})
	return w.judge(ctx, it, err, failed, report)
}

// handler calls the handler of the user.
func (w *txWorker[T]) handler(ctx context.Context, tx T, items []*item) (failed *failure) {
	defer contain(&failed)
	for _, it := range items {
		it.ran = true
	}
	ctx = withCauses(w.context(ctx), items)
	return failureOf(w.call(ctx, tx, messages(items)))
}

// blocked returns which of the items' ordering keys have a message on the shelf that they have to wait for.
func (w *txWorker[T]) blocked(ctx context.Context, tx T, items []*item) (map[string]bool, error) {
	var orders []string
	seen := make(map[string]bool)
	for _, it := range items {
		if it.order != "" && !seen[it.order] {
			seen[it.order] = true
			orders = append(orders, it.order)
		}
	}
	if w.shelves == nil || len(orders) == 0 {
		return nil, nil
	}
	found, err := w.shelves.BlockedTx(ctx, tx, w.keys, orders, w.OnParked == HoldOrder)
	held := make(map[string]bool)
	for _, order := range found {
		held[order] = true
	}
	return held, err
}

const takeoverTries, commitTries = 10, 3

// together handles items in one transaction with their claims. A *failure is the handler's.
func (w *txWorker[T]) together(ctx context.Context, items []*item) ([]result, error) {
	rs := make([]once.ClaimRequest, len(items))
	for i, it := range items {
		if !it.unsure { // an owner that has given its key back is not served again
			it.token = name.Token()
		}
		it.unsure = false
		rs[i] = w.request(it)
	}
	runs := rerun.New(w.store.Options().Turn)
	defer runs.Done()
	for tries, commits := 1, 0; ; tries++ {
		t := &batch[T]{txWorker: w, items: items}
		recs, err := w.txStore.Transact(ctx, rs, func(tx T, recs []once.Record) ([]once.Settlement, error) {
			return t.run(scope.InTx(ctx), tx, recs)
		})
		switch {
		case err == nil:
			fates, takeover := t.fates(ctx, rs, recs)
			if !takeover || tries == takeoverTries {
				return fates, nil
			}
		case t.failed != nil && !errors.Is(err, once.ErrConflict):
			return nil, t.failed
		case errors.Is(err, once.ErrOutcomeUnknown):
			if commits++; commits == commitTries {
				for _, it := range items {
					it.unsure = true
				}
				return nil, err
			}
			ctx = context.WithoutCancel(ctx) // finding out does not depend on whether the run is over
		case !errors.Is(err, once.ErrConflict):
			return nil, err
		}
		if runs.Again(ctx, errors.Is(err, once.ErrConflict)) != nil {
			return nil, cmp.Or(ctx.Err(), err)
		}
	}
}

func (w *txWorker[T]) request(it *item) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: it.key, Owner: it.token}, Lease: w.Policy.Lease, Fingerprint: w.fingerprint(it), Cause: it.cause()}
}

// batch is one transaction of together.
type batch[T any] struct {
	*txWorker[T]
	items  []*item
	failed *failure
	mine   map[int]result // what became of the items whose claims were ours
}

func (t *batch[T]) run(ctx context.Context, tx T, recs []once.Record) (sets []once.Settlement, err error) {
	t.mine, t.failed = make(map[int]result), nil
	var fresh []*item
	var at []int
	waits := make(map[string]bool) // for one that cannot be dealt with here
	for i, rec := range recs {
		it := t.items[i]
		switch {
		case ours(rec, it.token) && it.order != "" && waits[it.order]:
			fence := once.Fence{Key: it.key, Owner: it.token, Attempt: rec.Attempt}
			sets = append(sets, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: t.Policy.KeepKey})
			t.mine[i] = result{kind: again}
		case ours(rec, it.token):
			fresh, at = append(fresh, it), append(at, i)
		case rec.Status != once.Done && rec.Status != once.Expired || !t.sameInput(it, rec):
			waits[it.order] = true
		}
	}
	held, err := t.blocked(ctx, tx, fresh)
	if err != nil {
		return nil, err
	}
	var free []*item
	for n, it := range fresh {
		fence := once.Fence{Key: it.key, Owner: it.token, Attempt: recs[at[n]].Attempt}
		if held[it.order] {
			sets = append(sets, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: t.Policy.KeepKey})
			t.mine[at[n]] = result{kind: behind}
			continue
		}
		free = append(free, it)
		sets = append(sets, t.done(it, fence, false))
		t.mine[at[n]] = result{kind: handled}
	}
	if len(free) > 0 {
		if t.failed = t.handler(ctx, tx, free); t.failed != nil {
			return nil, t.failed
		}
	}
	return sets, nil
}

// fates tells what became of each item. takeover means that attempts of unknown outcome stood in the way: they left nothing,
// and the requests now name them.
func (t *batch[T]) fates(ctx context.Context, rs []once.ClaimRequest, recs []once.Record) (fates []result, takeover bool) {
	for i, rec := range recs {
		it := t.items[i]
		f, own := t.mine[i]
		switch {
		case own && ours(rec, it.token):
		case rec.Status == once.Done && rec.Owner == it.token: // by a commit whose reply was lost
			f = result{kind: handled}
		case rec.Status == once.Unknown:
			rs[i].Attempt, takeover = rec.Attempt, true
		default:
			f = t.met(ctx, it, rec)
		}
		fates = append(fates, f)
	}
	return fates, takeover
}

func ours(rec once.Record, token [16]byte) bool {
	return (rec.Status == once.Running || rec.Status == once.Unknown) && rec.Owner == token
}

// done ends an attempt the way once.DoTx does.
func (w *txWorker[T]) done(it *item, fence once.Fence, rejected bool) once.Settlement {
	out, _ := w.op.Outcome(none{}) // JSON of nothing cannot fail
	out.Rejected = rejected
	out, _ = w.store.Options().Pack(fence.Key, w.fingerprint(it), out)
	return once.Settlement{Fence: fence, Status: once.Done, Outcome: out, KeepOutcome: w.Policy.KeepOutcome, KeepKey: w.Policy.KeepKey}
}

// record writes down that an item is dealt with, without its rows: it was answered with a no.
func (w *txWorker[T]) record(ctx context.Context, it *item) error {
	_, err := once.DoTx(ctx, w.txStore, workOn(w.op, it), func(context.Context, T) (none, error) {
		return none{}, once.ErrRejected
	})
	if errors.Is(err, once.ErrRejected) {
		return nil
	}
	return err
}

func (w *txWorker[T]) handleShelved(ctx context.Context, it *item, m store.Shelved) (became resultKind, left bool, err error) {
	var failed *failure
	var report once.Report
	work := workOn(w.op, it).Report(&report)
	_, err = once.DoTx(ctx, w.txStore, work, func(ctx context.Context, tx T) (none, error) {
		if err := w.shelves.ChangeTx(ctx, tx, m); err != nil {
			return none{}, err
		}
		if failed = w.handler(ctx, tx, []*item{it}); failed != nil {
			return none{}, failed
		}
		return none{}, nil
	})
	switch mine := failed != nil && errors.Is(err, failed); {
	case mine && !errors.Is(err, once.ErrRejected):
		return again, false, err
	case mine && errors.Is(err, errDuplicate):
		return prevented, true, nil
	case mine: // what it wrote is rolled back, and the change of the shelf with it
		return handled, true, nil
	case isKnown(report, err):
		return duplicate, true, nil
	}
	return handled, false, err
}
