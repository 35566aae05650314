package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/rerun"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// place is a partition that this session is at. One batch at a time works on it.
type place struct {
	at      store.Position
	standby bool // somebody else moves it: only what it has passed is dealt with here
	shelved bool // there may be messages of this consumer on the shelf
	batches int
	passed  int // items dealt with since it was opened
}

const (
	quickTries = 3           // in place, before a message of a log goes to the shelf
	quickWait  = time.Second // and what it may hold up its partition at a time
	farBehind  = 1000        // messages that it costs less to pass over than to receive
	lookAgain  = 64          // after so many batches, look whether the shelf is still in use
)

// proceed handles items of one partition, but for those that are to be read again.
func (w *txWorker[T]) proceed(ctx context.Context, items []*item) []result {
	var fresh []*item
	for _, it := range items {
		if !w.seeks.stale(it) {
			fresh = append(fresh, it)
		}
	}
	fates := all(items, result{kind: sought})
	if len(fresh) > 0 {
		spread(fates, items, fresh, w.inOrder(ctx, fresh))
	}
	return fates
}

// spread puts the fates of those items that were chosen, in their order, among the fates of all.
func spread(fates []result, items, chosen []*item, done []result) {
	for i, it := range items {
		if len(done) > 0 && it == chosen[0] {
			fates[i], chosen, done = done[0], chosen[1:], done[1:]
		}
	}
}

// inOrder handles items of one partition, in order, and moves its position.
func (w *txWorker[T]) inOrder(ctx context.Context, items []*item) []result {
	pl, err := w.place(ctx, items[0])
	switch {
	case errors.Is(err, errSought):
		return all(items, result{kind: sought})
	case errors.Is(err, ErrLogChanged):
		return all(items, result{kind: again})
	case err != nil:
		return all(items, w.refused(ctx, items[0], err))
	}
	fates, rest := all(items, result{kind: again}), []*item(nil)
	last, known := pl.at.Offset, pl.at.Log != ""
	for i, it := range items {
		switch at := it.Position.Offset; {
		case known && at == pl.at.Offset && pl.at.Digest != [16]byte{} && digest(it.Message) != pl.at.Digest:
			w.fatal(fmt.Errorf("%w: the message at %s is not the one that consumer %q has handled there: %s",
				ErrLogChanged, it.Origin, w.keys, wayOut))
			return all(items, result{kind: again})
		case (known || len(rest) > 0) && at <= last: // an ack was lost, and it is among those behind it
			fates[i] = result{kind: duplicate}
		default:
			rest, last = append(rest, it), at
		}
	}
	spread(fates, items, rest, w.goOn(ctx, pl, rest))
	return fates
}

// goOn handles items that are behind the position, in their order.
func (w *txWorker[T]) goOn(ctx context.Context, pl *place, items []*item) []result {
	if pl.standby || len(items) == 0 {
		return all(items, result{kind: again, after: trouble})
	}
	if pl.passed >= w.Window { // whoever had the partition before cannot have had these
		for _, it := range items {
			it.counted = it.counted || !it.deadly
		}
	}
	at := w.floor.spot()
	defer at.leave()
	now, end := w.cautious(ctx, at, items)
	switch {
	case end != nil && end.kind == again:
		return all(items, *end)
	case end != nil:
		fates := []result{w.setAside(ctx, pl, items[0], store.Parked, 0, end.reason)}
		return append(fates, all(items[1:], result{kind: again})...)
	}
	try := func(ctx context.Context, part []*item) ([]result, error) { return w.advance(ctx, pl, part) }
	alone := func(ctx context.Context, it *item, err error) result { return w.stumbled(ctx, pl, it, err) }
	fates := w.divide(ctx, items[:now], try, alone)
	for i, f := range fates {
		if f.kind == hopeless { // by the store, or the state of its key
			fates[i] = w.setAside(ctx, pl, items[i], store.Parked, 0, f.reason)
		}
		if f.kind != again {
			pl.passed++
		}
	}
	return append(fates, all(items[now:], result{kind: again})...)
}

const wayOut = "give the consumer a new name, or set its position with Admin.SetPosition when you know where it has to go on"

func all(items []*item, f result) []result {
	fates := make([]result, len(items))
	for i := range fates {
		fates[i] = f
	}
	return fates
}

var errSought = errors.New("inbox: the partition is read again from its position")

// place opens the position of a partition when the first of its messages comes.
func (w *txWorker[T]) place(ctx context.Context, first *item) (*place, error) {
	w.mu.Lock()
	pl := w.open[first.lane]
	w.mu.Unlock()
	if pl != nil {
		return pl, nil
	}
	if other, err := w.rival(ctx, first); err != nil || other != nil {
		return other, err
	}
	at, err := w.positions.OpenPosition(ctx, w.keys, first.Position.Partition)
	if err != nil {
		return nil, err
	}
	if at.Log != "" && at.Log != first.Position.Log {
		err := fmt.Errorf("%w: consumer %q has read %q up to %d in %s, and this is %q: %s", ErrLogChanged, w.keys, at.Log,
			at.Offset, at.Partition, first.Position.Log, wayOut)
		w.fatal(err)
		return nil, err
	}
	pl = &place{at: at, shelved: at.Shelved}
	w.mu.Lock()
	w.open[first.lane] = pl
	w.mu.Unlock()
	if behind := at.Offset - first.Position.Offset; at.Log != "" && (behind < -1 || behind > farBehind) {
		// The broker is far behind the database, or keeps no place at all. Or it is ahead: perhaps there is nothing
		// between, and perhaps the database was restored from a backup.
		if w.seeks.ask(first.lane, broker.Position{Log: at.Log, Partition: at.Partition, Offset: at.Offset}) {
			return nil, errSought
		}
	}
	return pl, nil
}

// forget lets the next message of a partition open its position anew.
func (w *txWorker[T]) forget(lane string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, lane)
}

// advance handles items in the transaction that moves the position behind them.
func (w *txWorker[T]) advance(ctx context.Context, pl *place, items []*item) ([]result, error) {
	var fates []result
	var failed *failure
	if pl.shelved || items[0].alone {
		if err := w.nameOnShelf(ctx, items...); err != nil {
			return nil, err
		}
	}
	err := w.move(ctx, pl, items, func(ctx context.Context, tx T) (err error) {
		fates, failed, err = w.step(ctx, pl, tx, items)
		if failed != nil {
			return failed
		}
		return err
	})
	switch {
	case failed != nil && errors.Is(err, failed) && errors.Is(failed, errAlone) && len(items) == 1:
		return w.advance(ctx, pl, items) // it knows now that it is
	case failed != nil && errors.Is(err, failed):
		return nil, failed
	case errors.Is(err, once.ErrLeaseLost):
		return all(items, w.overtaken(ctx, pl, items[0].lane)), nil
	case err != nil:
		return nil, err
	case fates == nil: // committed by a call whose reply was lost
		return all(items, result{kind: handled}), nil
	}
	return fates, nil
}

// overtaken is the result of items whose position somebody else has opened since. They stay in their place: what comes from
// behind them must not be handled before them, whoever goes on from where the position is now.
func (w *txWorker[T]) overtaken(ctx context.Context, pl *place, lane string) result {
	w.logger.WarnContext(ctx, "inbox: a partition has had another owner", "partition", pl.at.Partition, "epoch", pl.at.Epoch)
	w.forget(lane)
	w.mu.Lock()
	w.rivals[lane] = rival{since: time.Now()}
	w.mu.Unlock()
	return result{kind: again, after: trouble}
}

// rival is what was last seen of somebody who has a partition as well.
type rival struct {
	at    store.Position
	since time.Time // it has not moved
}

// standStill is how long a rival moves nothing although there is something to do, before its partition is taken over.
const standStill = 10 * time.Second

// rival returns the place of a partition that somebody else is at work on, which ends when the position stands still. Two
// who do not know of each other would else take it from each other with every batch.
func (w *txWorker[T]) rival(ctx context.Context, first *item) (*place, error) {
	w.mu.Lock()
	seen, ok := w.rivals[first.lane]
	w.mu.Unlock()
	if !ok {
		return nil, nil
	}
	rows, err := w.positions.Positions(ctx, w.keys)
	if err != nil {
		return nil, err
	}
	for _, at := range rows {
		if at.Partition != first.Position.Partition {
			continue
		}
		at.Shelved = false
		if at != seen.at {
			seen = rival{at, time.Now()}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(seen.since) > standStill {
		delete(w.rivals, first.lane)
		return nil, nil
	}
	w.rivals[first.lane] = seen
	if seen.at.Log != first.Position.Log { // its offsets say nothing about these
		return &place{standby: true}, nil
	}
	return &place{at: seen.at, standby: true}, nil
}

// step is what happens in the transaction.
func (w *txWorker[T]) step(ctx context.Context, pl *place, tx T, items []*item) ([]result, *failure, error) {
	fates := all(items, result{kind: handled})
	held := map[string]bool(nil)
	if pl.shelved {
		var err error
		if held, err = w.blocked(ctx, tx, items); err != nil {
			return nil, nil, err
		}
	}
	var aside []store.Shelved
	var free []*item
	var at []int
	for i, it := range items {
		switch {
		case held[it.order]:
			aside, fates[i] = append(aside, w.aside(it, store.Waiting, 0, errHeld.Error())), result{kind: shelved}
		case (it.wrong != nil || w.tooOld(it)) && w.keyed && (len(items) > 1 || !it.alone):
			it.alone = true
			return nil, &failure{Failed(it.Message, errAlone)}, nil
		case it.wrong != nil && w.keyed:
			aside, fates[i] = append(aside, w.aside(it, store.Parked, 0, it.wrong.Error())), result{kind: parked, reason: it.wrong.Error()}
		case w.keyed && w.tooOld(it):
			aside, fates[i] = append(aside, w.aside(it, store.Parked, 0, tooOldReason)), result{kind: parked, reason: tooOldReason}
		default:
			free, at = append(free, it), append(at, i)
		}
	}
	var sets []once.Settlement
	if w.keyed {
		var err error
		if free, sets, err = w.claimAll(ctx, tx, free, at, fates, &aside); err != nil {
			var f *failure
			if errors.As(err, &f) {
				return nil, f, nil
			}
			return nil, nil, err
		}
	}
	if len(aside) > 0 {
		pl.shelved = true // whatever becomes of the reply
		if err := w.shelves.ShelveTx(ctx, tx, aside); err != nil {
			return nil, nil, err
		}
	}
	if len(free) > 0 {
		if failed := w.handler(ctx, tx, free); failed != nil {
			return nil, failed, nil
		}
	}
	if len(sets) > 0 {
		if err := w.txStore.SettleTx(ctx, tx, sets); err != nil {
			return nil, nil, err
		}
	}
	return fates, nil, nil
}

// errAlone has a message that is to be parked dealt with alone, so that those behind it find it on the shelf.
var errAlone = errors.New("inbox: to be parked")

var errInFlight = errors.New("inbox: another transaction is at work on the key of a message")

// claimAll claims keys in a transaction, and returns the items whose keys were free, with how they will end.
func (w *txWorker[T]) claimAll(ctx context.Context, tx T, items []*item, at []int, fates []result, aside *[]store.Shelved) (
	free []*item, sets []once.Settlement, err error) {

	seen := make(map[once.Key]*item)
	var first []*item
	var rs []once.ClaimRequest
	for n, it := range items {
		if twin := seen[it.key]; twin != nil { // dealt with if and only if its twin is, in the same commit
			fates[at[n]] = w.met(ctx, it, once.Record{Status: once.Done, Fingerprint: w.fingerprint(twin)})
			continue
		}
		seen[it.key] = it
		first, rs = append(first, it), append(rs, w.request(it))
	}
	recs, err := w.claimOver(ctx, tx, rs)
	if err != nil {
		return nil, nil, err
	}
	met := make(map[*item]once.Record)
	for i, it := range first {
		if met[it] = recs[i]; ours(recs[i], it.token) {
			free = append(free, it)
			sets = append(sets, w.done(it, once.Fence{Key: it.key, Owner: it.token, Attempt: recs[i].Attempt}, false))
		}
	}
	for n, it := range items {
		if rec, ok := met[it]; ok && !ours(rec, it.token) {
			fates[at[n]] = w.met(ctx, it, rec)
		}
		switch f := fates[at[n]]; f.kind {
		case hopeless:
			if len(fates) > 1 || !it.alone {
				it.alone = true
				return nil, nil, &failure{Failed(it.Message, errAlone)}
			}
			*aside, fates[at[n]] = append(*aside, w.aside(it, store.Parked, 0, f.reason)), result{kind: parked, reason: f.reason}
		case again:
			return nil, nil, errInFlight
		}
	}
	return free, sets, nil
}

// claimOver claims, also from attempts whose outcome is not known: they were transactions, and left nothing.
func (w *txWorker[T]) claimOver(ctx context.Context, tx T, rs []once.ClaimRequest) ([]once.Record, error) {
	recs, err := w.txStore.ClaimTx(ctx, tx, rs)
	for i := range recs {
		if recs[i].Status == once.Unknown && recs[i].Owner != rs[i].Owner {
			rs[i].Attempt = recs[i].Attempt
			one, err := w.txStore.ClaimTx(ctx, tx, rs[i:i+1])
			if err != nil {
				return nil, err
			}
			recs[i] = one[0]
		}
	}
	return recs, err
}

// move runs body in transactions until one has moved the position behind the items, or it is clear that none will.
func (w *txWorker[T]) move(ctx context.Context, pl *place, items []*item, body func(context.Context, T) error) error {
	last := items[len(items)-1]
	from, to := pl.at, pl.at
	to.Log, to.Offset, to.Digest = last.Position.Log, last.Position.Offset, digest(last.Message)
	runs := rerun.New(w.store.Options().Turn)
	defer runs.Done()
	for commits := 0; ; {
		err := w.positions.TransactAt(ctx, from, to, func(tx T) error { return body(scope.InTx(ctx), tx) })
		switch {
		case err == nil:
			pl.at = to
			w.freshen(ctx, pl)
			return nil
		case errors.Is(err, once.ErrOutcomeUnknown):
			if commits++; commits == commitTries {
				w.forget(last.lane) // the next one finds out
				return err
			}
			ctx = context.WithoutCancel(ctx)
		case !errors.Is(err, once.ErrConflict):
			return err
		}
		if runs.Again(ctx, errors.Is(err, once.ErrConflict)) != nil {
			return err
		}
	}
}

// freshen looks now and then whether the shelf is still in use. Only this session puts messages of this partition there.
func (w *txWorker[T]) freshen(ctx context.Context, pl *place) {
	if pl.batches++; !pl.shelved || pl.batches%lookAgain != 0 {
		return
	}
	q := store.ShelfQuery{Consumer: w.keys, States: []store.ShelfState{store.Waiting, store.Parked}, Limit: 1, Bodiless: true}
	if found, err := w.shelf.Shelved(ctx, q); err == nil && len(found) == 0 {
		pl.shelved = false
	}
}

// stumbled is the result of an item of a log whose handler has failed when it was alone.
func (w *txWorker[T]) stumbled(ctx context.Context, pl *place, it *item, err error) result {
	if errors.Is(err, once.ErrRejected) {
		return w.answered(err, w.move(ctx, pl, []*item{it}, func(ctx context.Context, tx T) error { return w.recordTx(ctx, tx, it) }))
	}
	w.Stats.Failed.Add(1)
	if ctx.Err() != nil { // it was told to stop
		it.excuse()
		return result{kind: again, reason: err.Error()}
	}
	it.tries++
	if !it.prepaid {
		it.failed++
	}
	it.prepaid = false
	after, retry := once.MayRetry(err)
	wait := max(after, w.Retry.wait(it.failed))
	w.logger.WarnContext(ctx, "inbox: failed", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
		"attempt", it.failed, "error", err)
	switch {
	case !retry:
		return w.setAside(ctx, pl, it, store.Parked, 0, err.Error())
	case it.failed >= int64(w.Retry.Attempts):
		return w.setAside(ctx, pl, it, store.Parked, 0, fmt.Sprintf("failed %d times, at last with: %v", it.failed, err))
	case it.tries < quickTries && wait <= quickWait:
		return result{kind: again, after: wait, reason: err.Error()}
	}
	return w.setAside(ctx, pl, it, store.Waiting, wait, err.Error())
}

// setAside puts an item on the shelf in the commit that moves the position behind it.
func (w *txWorker[T]) setAside(ctx context.Context, pl *place, it *item, state store.ShelfState, due time.Duration, reason string) result {
	if err := w.nameOnShelf(ctx, it); err != nil {
		return w.troubled(ctx, it, err)
	}
	if it.waiting { // the message on the shelf has attempts left
		state = store.Waiting
	}
	m := w.aside(it, state, due, reason)
	pl.shelved = true // whatever becomes of the reply
	err := w.move(ctx, pl, []*item{it}, func(ctx context.Context, tx T) error {
		held, err := w.blocked(ctx, tx, []*item{it})
		if err != nil {
			return err
		}
		if held[it.order] && state == store.Waiting {
			m.Due, m.Reason = 0, errHeld.Error()
		}
		if state == store.Parked && it.wrong == nil {
			if err := w.settleTx(ctx, tx, it, func(fence once.Fence) once.Settlement {
				return once.Settlement{Fence: fence, Status: once.Parked, Reason: w.store.Options().Sealing.SealReason(it.key, m.Reason)}
			}); err != nil {
				return err
			}
		}
		return w.shelves.ShelveTx(ctx, tx, []store.Shelved{m})
	})
	if errors.Is(err, once.ErrLeaseLost) {
		return w.overtaken(ctx, pl, it.lane)
	}
	if err != nil {
		return w.troubled(ctx, it, err)
	}
	if state == store.Parked {
		w.logger.ErrorContext(ctx, "inbox: parked", "message", it.Message.ID, "origin", it.Origin, "cause", it.Message.Header[store.KeyHeader],
			"reason", m.Reason)
		return result{kind: parked, reason: m.Reason}
	}
	return result{kind: shelved, reason: m.Reason}
}

// recordTx settles the key of an item without its rows.
func (w *txWorker[T]) recordTx(ctx context.Context, tx T, it *item) error {
	return w.settleTx(ctx, tx, it, func(fence once.Fence) once.Settlement { return w.done(it, fence, true) })
}

// settleTx claims the key of an item, where it has one that is free, and settles it.
func (w *txWorker[T]) settleTx(ctx context.Context, tx T, it *item, how func(once.Fence) once.Settlement) error {
	if !w.keyed {
		return nil
	}
	r := w.request(it)
	r.Owner = name.Token()
	recs, err := w.claimOver(ctx, tx, []once.ClaimRequest{r})
	if err != nil || !ours(recs[0], r.Owner) {
		return err
	}
	return w.txStore.SettleTx(ctx, tx, []once.Settlement{how(once.Fence{Key: it.key, Owner: r.Owner, Attempt: recs[0].Attempt})})
}
