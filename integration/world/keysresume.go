package world

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/reconcile"
)

// reconciler asks about what nobody calls any more, or finishes it.
func (k *keys[Tx]) reconciler(ctx context.Context, p *sim.Process) error {
	l := &life[Tx]{k, p, k.shop.open(p)}
	r := &reconcile.Reconciler{Store: l.store, Every: k.Every, AskTime: time.Minute, Logger: quiet}
	for _, kind := range k.downstreams() {
		op := reconcile.Of(k.operation(p, kind))
		if k.Resumes {
			op.Resume = l.resume
		}
		if k.Pace > 0 {
			op.AtOnce, op.PerSecond = 1, k.Pace
		}
		r.Operations = append(r.Operations, op)
	}
	return r.Run(ctx)
}

// resume calls a key that a reconciler has found. It does not know the input.
func (l *life[Tx]) resume(ctx context.Context, k once.Key) error {
	if is := l.shop.record(k); is.Attempt == 0 {
		l.Broke(EffectOnce, sim.KeyText(k), "is forgotten, and is resumed: it would be done anew, and nobody has called it")
	}
	kind := k.Operation
	if step := strings.IndexByte(kind, '/'); step >= 0 {
		kind = kind[:step]
	}
	a, err := l.call(ctx, kind, k.ID, "")
	if l.p.IsDead() || ctx.Err() != nil {
		return err
	}
	if err == nil || errors.Is(err, once.ErrRejected) && !errors.Is(err, once.ErrOutcomeUnavailable) {
		l.book.answered(kind, kind+"/"+k.ID, a, err)
		l.judgeRecorded(once.Key{Operation: kind, ID: k.ID}, a)
	}
	return err
}

// givesUp has a caller in trouble give up: for a while, or for ever, and then all
// callers of its key do.
func (l *life[Tx]) givesUp(ctx context.Context, kind, key string) bool {
	d, has := l.Trait("abandoned "+key, l.Abandoned)
	switch {
	case !has || kind == inTx:
		return false
	case d.Chance(.5):
		l.book.abandon(key)
		return true
	case l.Number(l.p.Name, "gives up", key) > 1:
		return false
	}
	const longer = nobodyCalls + time.Minute
	return sim.Sleep(ctx, d.Between(longer, longer+2*time.Minute)) != nil
}

func (b *book) abandon(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(key).given = true
}

func (b *book) leaves(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(key).left = true
}

func (b *book) isAbandoned(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(key).given
}

// asks has a tool of a person ask about a record that was listed a while ago. It may
// ask with the first operation that it knows, whose downstream has another one.
func (k *keys[Tx]) asks(ctx context.Context, p *sim.Process, s once.Store, r once.Record) {
	if workOf(r.Key) != recalls {
		return
	}
	d := k.DrawNth(p.Name, "asks", sim.KeyText(r.Key))
	kind := []string{asks, recalls}[d.Number(2)]
	_, err := k.operation(p, kind).Ask(ctx, s, r)
	k.Tell(sim.Line{Who: p.Name, What: "asks", About: sim.KeyText(r.Key), Note: kind + ": " + sim.Outcome(err)})
}
