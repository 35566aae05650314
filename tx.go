package once

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/rerun"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/observe"
)

// DoTx guards rows in the store's database. The key, the outcome and everything
// that run writes through tx are committed together. An error rolls all of it
// back. ErrRejected rolls back the rows as well, but the value returned with it
// is recorded as the answer.
//
// DoTx calls run only after it has claimed the key, unless the operation is
// Speculative. After a deadlock, a serialization failure or a lost commit, it
// calls run again in a new transaction, until ctx ends or, if ctx has no
// deadline, for a minute. Calls of one process that met a conflict take turns
// of up to two seconds, because transactions that deadlocked once are likely to
// deadlock again when they run concurrently.
//
// Therefore run must return the errors of its statements, must not modify
// variables outside itself, and must have no effect outside the database.
// Statements sent through a pool instead of tx are not part of the transaction.
// Call [Do] before DoTx for outside work; inside run it returns [ErrInTx].
func DoTx[T, Tx any](ctx context.Context, s TxStore[Tx], w Work[T], run func(context.Context, Tx) (T, error)) (value T, err error) {
	ctx, seen := beginObservation(ctx, s, "DoTx", w.key)
	defer seen.end(&err)
	if scope.InsideTx(ctx) {
		return value, &failure{kind: ErrInTx, key: w.key, hint: "DoTx would begin a second transaction: use InTx with the one there is"}
	}
	c, err := newCall(ctx, s, w, seen, run != nil, false)
	if err != nil {
		return value, err
	}
	var no error // a rejection, as the work put it
	t := &transaction[Tx]{call: c, store: s, caller: ctx, speculative: w.op.Speculative && !c.redelivered}
	c.expected.Outcome = w.op.expected(c)
	t.work = func(ctx context.Context, tx Tx) (Outcome, error) {
		value, no = run(ctx, tx)
		return outcomeInTx(w, c, value, no)
	}
	rec, mine, err := c.answer(ctx, t.try)
	w.tell(seen, rec, mine, err)
	c.met(ctx, rec, mine, err)
	if err == nil && mine {
		c.event(ctx, eventOf(Done, rec.Outcome), rec.Attempt, nil)
	} else if t.err != nil {
		c.event(ctx, observe.Released, rec.Attempt, err)
	}
	switch {
	case err != nil && t.err == nil:
		return *new(T), hideNotDone(err) // what run returned, if it ran, counts for nothing
	case err != nil:
		seen.fail(err)
		return value, hideNotDone(err)
	case !mine:
		return replay(w, &c.opts.Sealing, rec)
	default:
		return value, no
	}
}

// outcomeInTx is the outcome of work in a transaction, which can be rolled back if there is none.
func outcomeInTx[T any](w Work[T], c *call, value T, no error) (Outcome, error) {
	if no != nil && (!errors.Is(no, ErrRejected) || errors.Is(no, errNotDone)) {
		return Outcome{}, no
	}
	out, err := w.op.Outcome(value)
	if err != nil {
		return Outcome{}, &failure{kind: errPermanent, key: w.key, hint: "the value cannot be encoded, so nothing was done", cause: err}
	}
	out.Rejected = no != nil
	packed, ok := c.pack(out)
	if !ok {
		return Outcome{}, &failure{kind: ErrOutcomeTooLarge, key: w.key,
			hint: fmt.Sprintf("%d bytes, MaxOutcome is %d: return less, for example an id", len(out.Body), c.opts.MaxOutcome)}
	}
	return packed, nil
}

// transaction is one DoTx on its way.
type transaction[Tx any] struct {
	*call
	store  TxStore[Tx]
	caller context.Context
	work   func(context.Context, Tx) (Outcome, error)

	out         Outcome // what the work is recorded as
	recording   bool    // the work is done with a rejection: record that, do not work again
	speculative bool    // the next transaction may enter the work before its claim is won
	ran         bool    // in the transaction tried last, the claim was ours
	err         error   // and this is how the work failed
	lost        error   // after this error of a commit it is not known whether it took place
}

// try runs transactions until one of them settles the matter. They share their token: if a commit took place although its
// reply was lost, the next one meets a record that is done, and ours.
func (t *transaction[Tx]) try(ctx context.Context, take int64) (Record, bool, error) {
	runs := rerun.New(t.opts.Turn)
	defer runs.Done()
	for tries, commits := 1, 0; ; tries++ {
		rec, err := t.transact(ctx, take)
		switch {
		case err == nil && rec.Status == Done && rec.Owner == t.token:
			return rec, true, nil
		case err == nil && (t.lost == nil || rec.Status != Running):
			return rec, false, nil
		case err == nil: // our own commit may be the one in flight
		case errors.Is(t.err, errRollBack):
			t.recording = true
			continue
		case t.err != nil && !errors.Is(err, ErrConflict):
			return rec, false, err
		case t.err == nil && errors.Is(err, ErrOutcomeUnknown):
			t.lost = err
			if commits++; commits == commitTries {
				return rec, false, t.unless(err)
			}
			// Finding out, and ending what was begun, does not depend on the caller's patience.
			limited, cancel := context.WithTimeout(context.WithoutCancel(t.caller), findOutTime)
			defer cancel()
			ctx = limited
		case isFinal(err), t.lost == nil && t.giveUp(err, tries):
			return rec, false, t.unless(err)
		}
		if runs.Again(ctx, errors.Is(err, ErrConflict)) != nil {
			return rec, false, t.unless(errors.Join(err, ctx.Err()))
		}
	}
}

// giveUp bounds the repeats. A transaction that failed after the work is repeated only if the database asks for it, and
// then for as long as the caller has time.
func (t *transaction[Tx]) giveUp(err error, tries int) bool {
	return !errors.Is(err, ErrConflict) && (t.ran || tries >= claimTries)
}

// unless returns err, unless a commit before it may have taken place: then that is what the caller must know.
func (t *transaction[Tx]) unless(err error) error {
	if t.lost == nil {
		return err
	}
	return &failure{kind: ErrOutcomeUnknown, key: t.key, hint: "whether the commit took place could not be found out", cause: err}
}

// transact runs one transaction. If it committed, the record is Done and ours.
func (t *transaction[Tx]) transact(ctx context.Context, take int64) (Record, error) {
	t.ran, t.err = false, nil
	r := t.request(take)
	r.Speculative, t.speculative = t.speculative && take == 0, false
	var failed *errtree.Tagged // what comes back if the last run failed, and its claim was ours
	recs, err := t.store.Transact(ctx, []ClaimRequest{r}, func(tx Tx, recs []Record) ([]Settlement, error) {
		t.ran, t.lost = true, nil // a claim of ours means that no commit before it took place
		switch {
		case t.recording:
		case r.Speculative:
			t.err = contain(func() error { return t.do(recs[0], tx) })
		default:
			t.err = t.do(recs[0], tx)
		}
		if failed = errtree.Tag(t.err); failed != nil {
			return nil, failed
		}
		return []Settlement{t.done(recs[0].fence(), t.out)}, nil
	})
	if t.err != nil && err == error(failed) {
		err = t.err
	} else if t.err != nil && !errors.Is(err, failed) { // the speculative run of a claim that was lost, or not made
		t.err, t.ran = nil, t.ran && !r.Speculative
	}
	if end, abrupt := t.err.(*abruptEnd); abrupt && !errors.Is(err, ErrConflict) {
		t.opts.Logger.ErrorContext(ctx, "once: the work panicked, or ended its goroutine", "key", t.key, "stack", string(end.stack))
		end.resume()
	}
	if err != nil || len(recs) != 1 {
		return Record{Key: t.key}, err
	}
	rec := recs[0]
	if t.ran && t.owns(rec) {
		rec.Status, rec.Outcome = Done, t.out
	}
	return rec, nil
}

func (t *transaction[Tx]) do(rec Record, tx Tx) (err error) {
	if err := t.caller.Err(); err != nil {
		return &failure{kind: err, key: t.key, hint: "nothing was done"}
	}
	if t.out, err = t.work(scope.InTx(t.enter(t.caller, rec)), tx); err == nil && t.out.Rejected {
		return errRollBack
	}
	return err
}

// InTx is [DoTx] in a transaction that the caller begins and ends. Commit if
// InTx returns nil, and roll back if it returns an error. If the caller commits
// despite an error, the claim is released, so the key does not get stuck. After
// [ErrRejected] the caller may commit, which keeps both the answer and the rows
// that run wrote, or roll back, which keeps neither.
//
// InTx does not wait for duplicates in flight, beyond what the database does by
// itself, and does not resolve unknown outcomes.
func InTx[T, Tx any](ctx context.Context, s TxStore[Tx], tx Tx, w Work[T], run func(context.Context) (T, error)) (value T, err error) {
	ctx, seen := beginObservation(ctx, s, "InTx", w.key)
	defer seen.end(&err)
	c, err := newCall(ctx, s, w, seen, run != nil, false)
	if err != nil {
		return value, err
	}
	recs, err := s.ClaimTx(ctx, tx, []ClaimRequest{c.request(0)})
	if err != nil {
		return value, err
	}
	rec, mine, wrong := recs[0], c.owns(recs[0]), c.checkInput(recs[0])
	if mine {
		rec.Status = Running // also if it had lapsed: how it ends is not known yet
	}
	w.tell(seen, rec, mine, wrong)
	c.met(ctx, rec, mine, wrong)
	switch {
	case mine:
	case wrong != nil:
		return value, wrong
	case rec.Status == Done:
		return replay(w, &c.opts.Sealing, rec)
	default:
		return value, c.standing(rec)
	}
	settled := false
	settle := func(set Settlement) error {
		settled = true
		if err := s.SettleTx(context.WithoutCancel(ctx), tx, []Settlement{set}); err != nil {
			return fmt.Errorf("once: the claim could not be settled, so roll the transaction back: %w", err)
		}
		return nil
	}
	defer func() {
		if !settled { // it failed, or it panicked, which goes on
			seen.fail(err)
			c.event(ctx, observe.Released, rec.Attempt, err)
			err = hideNotDone(errors.Join(err, settle(c.settlement(rec.fence(), Absent, "the work failed"))))
		}
	}()
	value, no := run(scope.InTx(c.enter(ctx, rec)))
	out, err := outcomeInTx(w, c, value, no)
	if err != nil {
		return value, err
	}
	if err := settle(c.done(rec.fence(), out)); err != nil {
		return value, err
	}
	rec.Status, rec.Outcome = Done, out
	w.tell(seen, rec, true, nil)
	c.event(ctx, eventOf(Done, out), rec.Attempt, nil)
	return value, no
}
