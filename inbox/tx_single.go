package inbox

import (
	"context"

	"github.com/effectively-once/once"
)

// txSingle handles each item in a transaction of its own.
type txSingle[T any] struct{ *txHandler[T] }

func (h *txSingle[T]) handle(ctx context.Context, items []*item) []result {
	it := items[0]
	if it.keyErr != nil {
		return []result{{kind: toPark, reason: it.keyErr.Error()}}
	}
	if it.counting == countBefore {
		known, err := h.known(ctx, it)
		switch {
		case err != nil:
			return []result{h.refused(ctx, it, err)}
		case known != nil:
			return []result{*known}
		}
	}
	lock := h.lock.held()
	defer lock.release()
	if _, instead := h.begin(ctx, lock, items); instead != nil {
		return []result{*instead}
	}
	return []result{h.try(ctx, it)}
}

// try makes one attempt.
func (h *txSingle[T]) try(ctx context.Context, it *item) result {
	ctx, instead := h.step(ctx, it)
	if instead != nil {
		return *instead
	}
	var report once.Report
	_, err := once.DoTx(h.expectingBlocked(ctx, it), h.txStore, workOn(h.op, it).Report(&report), func(ctx context.Context, tx T) (none, error) {
		blocked, err := h.blockedOrders(ctx, tx, it)
		if err != nil {
			return none{}, err
		}
		if blocked[it.order] {
			return none{}, errBlocked
		}
		return none{}, h.callWith(ctx, tx, it)
	})
	return h.judge(ctx, it, err, report)
}
