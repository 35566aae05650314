package cas

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

const decidedDoc = "decided"

// decision is that a person makes messages Held or Stuck.
type decision struct{ At Instant }

// decisionTime is how long a decision is looked for. It is longer than the
// DecisionTime by what a move may take.
const decisionTime = store.DecisionTime + time.Minute

// noteDecision says that messages are about to be moved. It is written before
// they are, so whoever reads the document after a move finds it.
func (p *Publishing[Tx]) noteDecision(ctx context.Context) error {
	return alone(ctx, p.Queue, func(tx Tx) error {
		d, now, err := docsIn(ctx, p.Transactions, p.Queue, tx, p.MaxDoc)
		if err != nil {
			return err
		}
		var last decision
		if _, err := d.read(ctx, decidedDoc, &last); err != nil && !errors.Is(err, once.ErrCorrupt) {
			return err
		}
		return d.writeUntil(decidedDoc, decision{max(now.Changed(), last.At)}, now.In(2*decisionTime))
	})
}

// DecidedOutgoing returns the messages that became Held or Stuck lately, if people
// have decided anything lately. Otherwise it reads one document.
func (p *Publishing[Tx]) DecidedOutgoing(ctx context.Context, onlyStuck bool) (ms []store.Outgoing, err error) {
	doc, err := p.Queue.LoadDoc(ctx, DocName{Name: decidedDoc})
	if err != nil {
		return nil, err
	}
	now, err := p.Transactions.now(ctx)
	if err != nil {
		return nil, err
	}
	var last decision
	if _, err := decodeDoc(decidedDoc, doc, &last); errors.Is(err, once.ErrCorrupt) {
		last.At = now.Changed() // it may have been lately
	} else if err != nil {
		return nil, err
	}
	if now.AtLeastSince(last.At) > decisionTime {
		return nil, nil
	}
	// Held is read twice: a person may replay a message in between, so that it was
	// neither Held before nor Stuck after.
	for _, state := range []store.OutgoingState{store.Held, store.Stuck, store.Held} {
		if onlyStuck && state == store.Held {
			continue
		}
		q := store.OutgoingQuery{State: state, Bodiless: true, Limit: largestChunk}
		for {
			page, err := p.Outgoing(ctx, q)
			if err != nil {
				return nil, err
			}
			for _, m := range page {
				if now.AtLeastSince(Instant(m.Changed.UnixMicro())) <= decisionTime {
					ms = append(ms, m)
				}
			}
			if len(page) < q.Limit {
				break
			}
			q.After = page[len(page)-1].Seq
		}
	}
	return ms, nil
}
