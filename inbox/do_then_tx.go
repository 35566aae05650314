package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// DoThenTx returns a Handler for messages that need both an effect outside the
// database and rows in it, such as a charge and the order that it pays.
//
//	charge := &once.Operation[Charge]{Name: "charge", Lookup: findCharge}
//	inbox.DoThenTx(store, charge,
//		func(ctx context.Context, key once.Key, m *broker.Message) (Charge, error) {
//			return psp.Charge(ctx, key.String(), amountOf(m))
//		},
//		func(ctx context.Context, tx pgx.Tx, m *broker.Message, c Charge) error {
//			_, err := tx.Exec(ctx, "UPDATE orders SET charge = $1 WHERE id = $2", c.ID, m.ID)
//			return err
//		})
//
// The effect is a step of the message, with a key of its own: for the consumer
// "billing", its operation is "billing/charge". It runs as in [once.Do] with the
// settings of op, whose Name is required. Its value is passed to rows, which runs
// as in [Tx], in the transaction that also holds the message's key. If the
// process dies between the two, or rows fails, the message is handled again: the
// step then has its answer, or Lookup finds it, and rows is called with that.
//
// Errors of effect mean what they do in a [Do] handler, and errors of rows what
// they do in a [Tx] handler. After [once.ErrRejected] by effect, the message is
// handled without rows. If a row has to say that a charge was declined, return a
// value that says so instead. If the outcome of the effect is unknown and it is
// parked, so is the message: decide about the key of the step, and then replay
// the message.
//
// The step and its value are kept for the KeepKey of op's Policy, or of the
// consumer's if op has none; KeepOutcome does not apply. If an older message is
// handled, for example after a replay, and its step is forgotten, Lookup is asked
// first. Without a Lookup, the step and the message are parked.
//
// Checkpoint, BatchSize and Rebuild do not apply. Reconcile the step with
// reconcile.Of(op).
func DoThenTx[V, Tx any](s once.TxStore[Tx], op *once.Operation[V], effect func(context.Context, once.Key, *broker.Message) (V, error),
	rows func(context.Context, Tx, *broker.Message, V) error) Handler {

	if effect == nil || rows == nil || op == nil {
		return Handler{}
	}
	return Handler{func(c *Consumer) (runner, error) {
		switch {
		case c.Checkpoint:
			return nil, invalid("consumer %q: a position cannot commit together with an effect outside the database: leave Checkpoint out", c.Name)
		case c.Rebuild != "":
			return nil, invalid("consumer %q: a rebuild refuses outside effects", c.Name)
		case op.Name == "":
			return nil, invalid("consumer %q: the operation of its effect needs a Name, for the key of the step", c.Name)
		case (once.Key{Operation: c.operationOf(c.Name), ID: "1"}).Step(op.Name).Validate() != nil:
			return nil, invalid("consumer %q: the operation %q cannot be a step of it: give it a short name without a slash", c.Name, op.Name)
		case op.Lookup == nil && op.OnUnknown == 0:
			return nil, invalid("consumer %q: after a crash it is unknown whether the effect of a message happened: give the operation %q "+
				"a Lookup that asks, or choose OnUnknown: Park or Resend", c.Name, op.Name)
		}
		h, err := newTxHandler(c, s, oneByOne, func(ctx context.Context, tx Tx, ms []*broker.Message) error {
			value, _ := ctx.Value(stepValue{}).(V)
			return rows(ctx, tx, ms[0], value)
		})
		if err != nil {
			return nil, err
		}
		step := *op
		step.Policy = stepPolicy(op.Policy, h.Policy)
		h.before = func(ctx context.Context, it *item) (context.Context, error) {
			work := step.Under(it.key).CausedBy(it.Message.Header[store.KeyHeader])
			if it.input != nil {
				work = work.Input(it.input)
			}
			if err := h.doubt(ctx, it, work.Key(), step.Policy.KeepKey, step.Lookup != nil); err != nil {
				return ctx, err
			}
			ran := false
			value, err := once.Do(h.handlerContext(ctx), s, work, func(ctx context.Context, key once.Key) (value V, err error) {
				defer h.recoverHandler(ctx, &err)
				ran, it.ran = true, true
				value, err = effect(ctx, key, it.Message)
				return value, asHandlerError(err)
			})
			return context.WithValue(ctx, stepValue{}, value), h.asUnanswered(ctx, work.Key(), ran, err)
		}
		return newConsumerRun(h.env, &txSingle[Tx]{h}), nil
	}}
}

// stepValue is the key of a step's value in the context of the rows.
type stepValue struct{}

// stepPolicy returns the policy of a step. Its outcome is kept for as long as its
// key, because rows may be written much later, after a replay.
func stepPolicy(own, ofConsumer once.Policy) once.Policy {
	if own == (once.Policy{}) {
		own = ofConsumer
	}
	own.KeepKey = cmp.Or(own.KeepKey, max(defaultKeepKey, own.KeepOutcome))
	own.KeepOutcome = max(own.KeepOutcome, own.KeepKey)
	return own
}

// forgottenStep is the reason of a step that doubt has made unknown or parked.
const forgottenStep = "the message is older than this key is remembered, and what is forgotten may have happened. " +
	"Decide about this key, and then replay the message"

// doubt keeps an effect from being made again because its key was forgotten: the
// rows of a message may be written when its step is no longer known. The step of an
// old message that has no record is made unknown, so that Lookup is asked about it,
// or parked if there is none. A person's decision leaves a record, which is
// believed.
func (h *txHandler[T]) doubt(ctx context.Context, it *item, key once.Key, keep time.Duration, asks bool) error {
	onShelf := !it.shelvedAt.IsZero() && time.Since(it.shelvedAt) > keep/10*9 // it may have been tried some time before that
	if !onShelf && !h.isOlder(it, keep) {
		return nil
	}
	rec, err := h.store.Get(ctx, key)
	if err != nil || rec.Status != once.Absent || rec.Attempt > 0 {
		return err
	}
	set := once.Settlement{Status: once.Parked, Reason: h.store.Options().Sealing.SealReason(key, forgottenStep)}
	if asks {
		set.Status = once.Unknown
	}
	claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: name.Token()}, Lease: noteLease, Cause: it.cause()}
	if it.input != nil {
		sum := checksum.Fingerprint(h.store.Options().Secret, key.UUID(), it.input)
		claim.Fingerprint = sum[:]
	}
	_, err = h.transact(ctx, []once.ClaimRequest{claim}, func(recs []once.Record) ([]once.Settlement, error) {
		set.Fence = once.Fence{Key: key, Owner: claim.Owner, Attempt: recs[0].Attempt}
		return []once.Settlement{set}, nil
	})
	if errors.Is(err, once.ErrOutcomeUnknown) { // of this commit, and not of the step: the next try finds out
		return fmt.Errorf("inbox: a forgotten step could not be noted: %v", err)
	}
	return err
}

// step takes the step of an item, if its handler has one. It returns the context
// for the rows, or the result of an item for which there will be none.
func (h *txHandler[T]) step(ctx context.Context, it *item) (context.Context, *result) {
	if h.before == nil {
		return ctx, nil
	}
	if it.beganLate() {
		return ctx, &result{kind: again}
	}
	rec, err := h.store.Get(ctx, it.key)
	switch {
	case err != nil:
		r := h.refused(ctx, it, err)
		return ctx, &r
	case rec.Status == once.Done || rec.Status == once.Expired || rec.Status == once.Parked:
		r := h.met(ctx, it, rec) // its step may be forgotten before it is
		return ctx, &r
	}
	switch waits, err := h.isBlocked(ctx, it); {
	case err != nil:
		r := h.troubled(ctx, it, err)
		return ctx, &r
	case waits:
		return ctx, &result{kind: blocked}
	}
	inStep, err := h.before(ctx, it)
	if err != nil {
		r := h.afterStep(ctx, it, err)
		return ctx, &r
	}
	return inStep, nil
}

// afterStep is the result of an item whose step returned an error. A rejection is
// recorded: the message is handled.
func (h *txHandler[T]) afterStep(ctx context.Context, it *item, err error) result {
	if after, waits := h.waitForAnswer(ctx, it, err); waits {
		return result{kind: failing, after: after, reason: err.Error()}
	}
	failed := handlerErrorOf(err)
	switch {
	case isStepRejection(err, failed):
		if h.recordRejection(ctx, it) != nil { // the next try finds out why
			return result{kind: again, after: storePause}
		}
		return rejection(err)
	case errors.Is(err, once.ErrMismatch):
		return h.mismatch(it)
	case errors.Is(err, once.ErrParked), errors.Is(err, once.ErrExpired), errors.Is(err, once.ErrOutcomeUnavailable):
		return result{kind: toPark, reason: err.Error()}
	case failed != nil || errors.Is(err, once.ErrOutcomeUnknown):
		return h.failed(ctx, it, err)
	}
	return h.refused(ctx, it, err)
}

func isStepRejection(err error, failed *handlerError) bool {
	return errors.Is(err, once.ErrRejected) && (failed == nil || failed.rejects()) && !errors.Is(err, once.ErrOutcomeUnknown)
}

// stepShelved is step for a message from the shelf. If done is true, there will be
// no rows.
func (h *txHandler[T]) stepShelved(ctx context.Context, it *item) (inStep context.Context, r shelvedResult, done bool, err error) {
	if h.before == nil {
		return ctx, r, false, nil
	}
	rec, err := h.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return ctx, r, true, err
	case rec.Status == once.Done || rec.Status == once.Expired:
		return ctx, shelvedResult{kind: duplicate}, true, nil
	}
	inStep, err = h.before(ctx, it)
	if err == nil {
		return inStep, r, false, nil
	}
	if isStepRejection(err, handlerErrorOf(err)) {
		return ctx, shelvedResult{kind: rejection(err).kind}, true, h.recordRejection(ctx, it)
	}
	if errors.Is(err, once.ErrOutcomeUnknown) && handlerErrorOf(err) == nil && !isUnanswered(err) { // as in afterStep: the step was taken
		err = &handlerError{err}
	}
	return ctx, r, true, err
}
