package world

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store/memstore"
)

// charge makes the effect of a message that also has a row.
func (h *handler) charge(ctx context.Context, k once.Key, m *broker.Message) (answer string, err error) {
	err = h.attempt(m, func() error {
		if !h.failsLate(m) {
			if err := h.business(ctx, m); err != nil {
				return once.NotDone(err)
			}
		}
		answer, err = h.call(ctx, h.p, k, "", m.ID)
		return err
	})
	if err == nil {
		h.ledger.spare(m.ID, h.consumer) // the attempt goes on
	}
	return answer, err
}

// rowAfter handles a message with a row, after its effect.
func (h *handler) rowAfter(ctx context.Context, tx *memstore.Tx, m *broker.Message, answer string) error {
	if answer != answered {
		h.Broke(EffectOnce, m.ID, "%s writes its row with the answer %q", h.consumer, answer)
	}
	return h.attempt(m, func() error {
		if h.failsLate(m) {
			return h.row(ctx, tx, m)
		}
		return h.insert(ctx, tx, m)
	})
}

// answered is the answer of the downstream.
const answered = "ok"

// failsLate reports whether the business of a message is in its transaction, and not
// before its effect.
func (h *handler) failsLate(m *broker.Message) bool {
	d := h.Seed.Draw("has its business in the transaction", m.ID)
	return d.Chance(.5)
}
