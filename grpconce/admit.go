package grpconce

import (
	"context"
	"errors"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/errtree"
)

// visit is a call that was let in.
type visit struct {
	report  once.Report
	claimed bool // or its transaction has begun
	err     error
	inTx    bool
	ctx     context.Context // of the client
	left    func(kept bool)
}

// admit refuses a new key for which there is no room.
func (g *guard) admit(ctx context.Context, key once.Key) (*visit, error) {
	v := &visit{inTx: g.again, ctx: ctx, left: func(bool) {}}
	if g.Admit == nil {
		return v, nil
	}
	left, wait := g.Admit(key)
	if wait <= 0 {
		v.left = left
		return v, nil
	}
	rec, err := g.store.Get(ctx, key)
	switch {
	case err != nil:
		_, err = g.reply(ctx, key, answer{}, err)
		return nil, err
	case rec.Attempt == 0:
		return nil, refuse(ReasonNoRoom, "there is no room for new keys of this caller; nothing was done: repeat the call later, with the same key", wait, nil)
	}
	return v, nil
}

// leave says whether the call may have left a record that was not there before. A client that leaves while its key is
// claimed may have left one although nothing ran.
func (v *visit) leave() {
	kept := v.claimed || v.ctx.Err() != nil && v.err != nil && !met(v.err)
	if v.inTx {
		kept = v.claimed && (v.err == nil || errors.Is(v.err, once.ErrRejected) || errors.Is(v.err, once.ErrOutcomeUnknown))
	}
	v.left(kept && !v.report.Replayed && v.report.Attempt <= 1)
}

// met reports whether err is about the record of another call.
func met(err error) bool {
	return errtree.HasAny(err, once.ErrInProgress, once.ErrMismatch, once.ErrExpired, once.ErrOutcomeUnavailable,
		once.ErrOutcomeUnknown, once.ErrParked, once.ErrLeaseLost, once.ErrCorrupt)
}
