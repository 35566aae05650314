package inbox

import (
	"context"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Tx returns a Handler that handles each message in a transaction of the store.
// The transaction also holds the message's key or the consumer's position.
// handle may be called again after a conflict, so it must have no effect
// outside the database; see [once.DoTx] for the other rules. With
// Consumer.Checkpoint, handle is called for several messages in one
// transaction.
func Tx[T any](s once.TxStore[T], handle func(context.Context, T, *broker.Message) error) Handler {
	if handle == nil {
		return Handler{}
	}
	return newTx(s, oneByOne, func(ctx context.Context, tx T, ms []*broker.Message) error {
		for _, m := range ms {
			if err := handle(For(ctx, m), tx, m); err != nil {
				return Failed(m, err)
			}
		}
		return nil
	})
}

// Batch returns a Handler that handles several messages in one transaction. It
// passes the messages whose keys are free, or that are past the position, in
// the order of arrival. Each message keeps its own claim and result. If the
// batch fails, handle is called again with fewer messages, until the one that
// fails is alone; see [Failed].
func Batch[T any](s once.TxStore[T], handle func(context.Context, T, []*broker.Message) error) Handler {
	if handle == nil {
		return Handler{}
	}
	return newTx(s, inBatches, handle)
}

// Do returns a Handler whose effects are outside the store's database. It runs
// each message like [once.Do] with the settings of op. The Name of op is the
// consumer's, as reconcile.Of needs it, or empty. handle gets the key to pass
// on, and its value is stored as the outcome. If an outcome is unknown and cannot
// be looked up, the message is parked.
//
// handle does one thing. If it also writes rows, and the process dies between the
// two, Lookup finds the effect, the message is handled, and the rows are missing:
// use [DoThenTx].
func Do[T any](s once.Store, op *once.Operation[T], handle func(context.Context, once.Key, *broker.Message) (T, error)) Handler {
	if handle == nil || op == nil {
		return Handler{}
	}
	return Handler{func(c *Consumer) (runner, error) {
		h, err := newEffects(c, s, op, handle)
		if err != nil {
			return nil, err
		}
		return newConsumerRun(h.env, h), nil
	}}
}

// newTx returns a Handler that works in transactions. Its mode is without, or
// inOrder with a Checkpoint.
func newTx[T any](s once.TxStore[T], without mode, call func(context.Context, T, []*broker.Message) error) Handler {
	return Handler{func(c *Consumer) (runner, error) {
		m := without
		if c.Checkpoint {
			m = inOrder
		}
		h, err := newTxHandler(c, s, m, call)
		if err != nil {
			return nil, err
		}
		var p processor
		switch m {
		case oneByOne:
			p = &txSingle[T]{h}
		case inBatches:
			p = &txBatch[T]{h}
		default:
			if p, err = newPositions(h); err != nil {
				return nil, err
			}
		}
		return newConsumerRun(h.env, p), nil
	}}
}
