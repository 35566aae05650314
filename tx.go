package once

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/effectively-once/once/internal/contain"
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
	ctx, seen := observeCall(ctx, s, "DoTx", w.key)
	defer seen.end(&err)
	if scope.InsideTx(ctx) {
		return value, &failure{kind: ErrInTx, key: w.key, hint: "DoTx would begin a second transaction: use InTx with the one there is"}
	}
	t := &txWork[T, Tx]{store: s, caller: ctx, op: w.op, work: run}
	if err := begin(ctx, &t.call, s, w, seen, run != nil); err != nil {
		return value, err
	}
	if w.op.Speculative && !t.readFirst {
		t.phase = phaseSpeculate
	}
	foresee(&t.call, w.op)
	rec, mine, err := t.answer(ctx, t)
	w.tell(seen, rec, mine, err)
	t.tellMet(ctx, rec, mine, err)
	switch {
	case err == nil && mine:
		t.event(ctx, eventOf(Done, rec.Outcome), rec.Attempt, nil)
		return t.value, t.rejection
	case err == nil:
		return replay(w.op, &t.opts.Sealing, rec, t.id)
	case t.end == workFailed:
		t.event(ctx, observe.Released, rec.Attempt, err)
		seen.fail(err)
		return t.value, hideNotDone(err)
	default: // the value, if the work ran, was rolled back
		return value, hideNotDone(err)
	}
}

// foresee tells the store the outcome that the work will have, if its type has
// only one value.
func foresee[T any](c *call, op *Operation[T]) {
	if op.Codec != nil || reflect.TypeFor[T]().Size() > 0 {
		return
	}
	plain, err := op.Outcome(*new(T))
	if err != nil {
		return
	}
	ready, ok := c.pack(plain)
	if c.expected.Outcome = ready; ok {
		c.foreseen = &packed{plain: plain, ready: ready, fingerprint: c.fingerprint}
	}
}

// outcomeInTx returns the outcome of work in a transaction, or an error for
// which the transaction is rolled back.
func outcomeInTx[T any](c *call, op *Operation[T], value T, failed error) (Outcome, error) {
	if failed != nil && (!errors.Is(failed, ErrRejected) || errors.Is(failed, errNotDone)) {
		return Outcome{}, failed
	}
	out, err := op.Outcome(value)
	if err != nil {
		return Outcome{}, &failure{kind: errUncoded, key: c.key, cause: err}
	}
	out.Rejected = failed != nil
	packed, ok := c.pack(out)
	if !ok {
		return Outcome{}, &failure{kind: ErrOutcomeTooLarge, key: c.key,
			hint: fmt.Sprintf("%d bytes, MaxOutcome is %d: return less, for example an id", len(out.Body), c.opts.MaxOutcome)}
	}
	return packed, nil
}

// txWork is the work of one DoTx. Its transactions share a token: if a commit
// took place although its reply was lost, the next transaction meets a record
// that is Done and has that token.
type txWork[T, Tx any] struct {
	call
	store  TxStore[Tx]
	caller context.Context
	op     *Operation[T]
	work   func(context.Context, Tx) (T, error)

	phase txPhase
	lost  error // of a commit of which it is not known whether it took place
	end   txEnd // of the latest transaction

	value     T       // what the work returned
	rejection error   // the ErrRejected that the work returned
	out       Outcome // of the work
}

// txPhase is what the next transaction does.
type txPhase int

const (
	phaseWork      txPhase = iota // claim the key, and then do the work
	phaseSpeculate                // let the store enter the work before the claim is won
	phaseRecord                   // record the rejection, after the transaction of the work was rolled back
)

// txEnd is how a transaction ended.
type txEnd int

const (
	answered     txEnd = iota // it committed, or its claim was lost: the record says which
	notEntered                // the store failed before the work
	workFailed                // the work failed, and everything was rolled back
	workRejected              // the work returned a rejection, and everything was rolled back
	commitFailed              // the store failed after the work, and nothing was committed
	commitLost                // COMMIT was sent, and it is not known whether it took place
)

// attempt runs transactions until one of them decides the attempt.
func (t *txWork[T, Tx]) attempt(ctx context.Context, take int64) (rec Record, mine bool, err error) {
	runs := rerun.New(t.opts.Turn)
	defer runs.Done()
	for tries := 1; ; tries++ {
		rec, t.end, err = t.transact(ctx, take)
		conflict := errors.Is(err, ErrConflict)
		switch t.end {
		case answered:
			mine = rec.Status == Done && rec.Owner == t.token
			if mine || t.lost == nil || rec.Status != Running {
				return rec, mine, nil
			}
			// Our own commit may be the transaction in flight.
		case workRejected:
			t.phase = phaseRecord
			continue
		case workFailed:
			if !conflict || isFinal(err) {
				return rec, false, err
			}
		case commitLost:
			t.lost = err
			if !runs.Lost() {
				return rec, false, t.unlessLost(err)
			}
			// Find out, and end what was begun, even if the caller leaves.
			limited, cancel := context.WithTimeout(context.WithoutCancel(t.caller), findOutTime)
			defer cancel()
			ctx = limited
		case notEntered:
			if isFinal(err) || t.lost == nil && !conflict && tries >= claimTries {
				return rec, false, t.unlessLost(err)
			}
		case commitFailed:
			if isFinal(err) || !conflict {
				return rec, false, err
			}
		}
		if runs.Again(ctx, conflict) != nil {
			return rec, false, t.unlessLost(errors.Join(err, ctx.Err()))
		}
	}
}

// unlessLost returns err, unless an earlier commit may have taken place: then
// the caller must learn that.
func (t *txWork[T, Tx]) unlessLost(err error) error {
	if t.lost == nil {
		return err
	}
	return &failure{kind: ErrOutcomeUnknown, key: t.key, hint: "whether the commit took place could not be found out", cause: err}
}

// transact runs one transaction. If it committed, the record is Done and has the
// token of this call.
func (t *txWork[T, Tx]) transact(ctx context.Context, take int64) (Record, txEnd, error) {
	request := t.request(take, time.Now())
	request.Firm = t.lost != nil // it may still arrive
	if t.phase == phaseSpeculate {
		request.Speculative, t.phase = take == 0, phaseWork
	}
	r := &txRun[T, Tx]{txWork: t, speculative: request.Speculative}
	recs, err := t.store.Transact(ctx, []ClaimRequest{request}, r.body)
	err = r.judge(err)
	if ended, ok := r.failed.(*contain.Error); ok && !errors.Is(err, ErrConflict) {
		t.opts.Logger.ErrorContext(ctx, "once: the work panicked, or ended its goroutine", "key", t.key, "stack", string(ended.Stack))
		ended.Resume()
	}
	if err != nil || len(recs) != 1 {
		return Record{Key: t.key}, r.endOf(err), err
	}
	rec := recs[0]
	if r.entered && rec.HeldBy(t.token) {
		rec.Status, rec.Outcome = Done, t.out
	}
	return rec, answered, nil
}

// txRun is one transaction.
type txRun[T, Tx any] struct {
	*txWork[T, Tx]
	speculative bool
	entered     bool  // under a claim that was won
	failed      error // of the work
}

// workFailure is the error of work on its way through the store.
type workFailure struct{ error }

func (w *workFailure) Unwrap() error { return w.error }

// body is what the store calls when the claim is won or, if the transaction is
// speculative, may be won.
func (r *txRun[T, Tx]) body(tx Tx, recs []Record) ([]Settlement, error) {
	r.entered, r.failed = true, nil
	r.lost = nil // the claim is won, so no commit before it took place
	switch {
	case r.phase == phaseRecord:
	case r.speculative:
		r.failed = contain.Call("the work", func() error { return r.do(tx, recs[0]) })
	default:
		r.failed = r.do(tx, recs[0])
	}
	if r.failed != nil {
		return nil, &workFailure{r.failed}
	}
	return []Settlement{r.done(recs[0].fence(), r.out)}, nil
}

// do calls the work. A rejection is errRollBack.
func (r *txRun[T, Tx]) do(tx Tx, rec Record) (err error) {
	var none T
	r.value, r.rejection = none, nil // of an earlier run, which was rolled back
	if err := r.caller.Err(); err != nil {
		return &failure{kind: err, key: r.key, hint: "nothing was done"}
	}
	r.value, r.rejection = r.work(scope.InTx(r.enter(r.caller, rec)), tx)
	r.rejection = errtree.Tame(r.rejection)
	if r.out, err = outcomeInTx(&r.call, r.op, r.value, r.rejection); err == nil && r.out.Rejected {
		return errRollBack
	}
	return err
}

// judge returns the error of the transaction, given the error of Transact: if the
// work failed, its error as it returned it. An error of the work that Transact
// does not return is ignored, because the claim of a speculative run was lost.
func (r *txRun[T, Tx]) judge(err error) error {
	if r.failed == nil {
		return err
	}
	if own, unwrapped := err.(*workFailure); unwrapped {
		return own.error
	}
	var own *workFailure
	if !errors.As(err, &own) {
		r.failed, r.entered = nil, r.entered && !r.speculative
	}
	return err
}

// endOf returns how the transaction ended, given its error.
func (r *txRun[T, Tx]) endOf(err error) txEnd {
	switch {
	case err == nil:
		return answered
	case errors.Is(r.failed, errRollBack):
		return workRejected
	case r.failed != nil:
		return workFailed
	case errors.Is(err, ErrOutcomeUnknown):
		return commitLost
	case r.entered:
		return commitFailed
	}
	return notEntered
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
	ctx, seen := observeCall(ctx, s, "InTx", w.key)
	defer seen.end(&err)
	c := new(call)
	if err := begin(ctx, c, s, w, seen, run != nil); err != nil {
		return value, err
	}
	recs, err := s.ClaimTx(ctx, tx, []ClaimRequest{c.request(0, time.Now())})
	if err != nil {
		return value, err
	}
	rec, mine, mismatch := recs[0], recs[0].HeldBy(c.token), c.checkInput(recs[0])
	if mine {
		rec.Status = Running // even if the claim had lapsed: how it ends is not known yet
	}
	w.tell(seen, rec, mine, mismatch)
	c.tellMet(ctx, rec, mine, mismatch)
	switch {
	case mine:
	case mismatch != nil:
		return value, mismatch
	case rec.Status == Done:
		return replay(w.op, &c.opts.Sealing, rec, c.id)
	default:
		return value, c.refusal(rec)
	}
	claim := &claimInTx[Tx]{call: c, store: s, tx: tx, rec: rec}
	returned := false
	defer func() {
		if !returned { // the panic goes on
			_ = claim.release(ctx, nil)
		}
	}()
	value, rejection := run(scope.InTx(c.enter(ctx, rec)))
	rejection = errtree.Tame(rejection)
	out, err := outcomeInTx(c, w.op, value, rejection)
	returned = true
	if err != nil {
		return value, claim.release(ctx, err)
	}
	if err := claim.settle(ctx, c.done(rec.fence(), out)); err != nil {
		return value, err
	}
	rec.Status, rec.Outcome = Done, out
	w.tell(seen, rec, true, nil)
	c.event(ctx, eventOf(Done, out), rec.Attempt, nil)
	return value, rejection
}

// claimInTx is a claim of InTx in the transaction of the caller.
type claimInTx[Tx any] struct {
	*call
	store TxStore[Tx]
	tx    Tx
	rec   Record
}

func (c *claimInTx[Tx]) settle(ctx context.Context, set Settlement) error {
	if err := c.store.SettleTx(context.WithoutCancel(ctx), c.tx, []Settlement{set}); err != nil {
		return fmt.Errorf("once: the claim could not be settled, so roll the transaction back: %w", err)
	}
	return nil
}

// release frees the key after the work failed with err or, if err is nil,
// panicked. It returns the error of the call.
func (c *claimInTx[Tx]) release(ctx context.Context, err error) error {
	c.seen.fail(err)
	c.event(ctx, observe.Released, c.rec.Attempt, err)
	return hideNotDone(errors.Join(err, c.settle(ctx, c.settlement(c.rec.fence(), Absent, "the work failed"))))
}
