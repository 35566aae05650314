package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// Handler handles messages. Create it with [Tx], [Do] or [Batch].
type Handler struct {
	engine func(*Consumer) (*consumerRun, error)
}

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
	return Handler{func(c *Consumer) (*consumerRun, error) {
		return newTxWorker(c, s, c.Checkpoint, func(ctx context.Context, tx T, ms []*broker.Message) error {
			for _, m := range ms {
				if err := handle(For(ctx, m), tx, m); err != nil {
					return Failed(m, err)
				}
			}
			return nil
		})
	}}
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
	return Handler{func(c *Consumer) (*consumerRun, error) { return newTxWorker(c, s, true, handle) }}
}

// Do returns a Handler whose effects are outside the store's database. It runs
// each message like [once.Do] with the settings of op. Leave the Name of op
// empty, because the consumer names the keys. handle gets the key to pass on,
// and its value is stored as the outcome. If an outcome is unknown and cannot be
// looked up, the message is parked.
func Do[T any](s once.Store, op *once.Operation[T], handle func(context.Context, once.Key, *broker.Message) (T, error)) Handler {
	if handle == nil || op == nil {
		return Handler{}
	}
	return Handler{func(c *Consumer) (*consumerRun, error) { return newDoWorker(c, s, op, handle) }}
}

func newTxWorker[T any](c *Consumer, s once.TxStore[T], together bool,
	handle func(context.Context, T, []*broker.Message) error) (*consumerRun, error) {

	if s == nil {
		return nil, invalid("the store of consumer %q is nil", c.Name)
	}
	base, err := c.newShiftOf(s, together)
	if err != nil {
		return nil, err
	}
	w := &txWorker[T]{consumerRun: base, txStore: s, call: handle}
	base.transact = func(ctx context.Context, rs []once.ClaimRequest, body func([]once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
		return s.Transact(ctx, rs, func(_ T, recs []once.Record) ([]once.Settlement, error) { return body(recs) })
	}
	if shelves, ok := s.(store.TxShelf[T]); ok {
		w.shelves = sealedTxShelf[T]{shelves, sealedShelf{shelves, &s.Options().Sealing}}
	}
	if positions, ok := s.(store.Positions[T]); c.Checkpoint {
		if !ok || w.shelves == nil {
			return nil, invalid("Checkpoint of consumer %q needs a store that keeps positions and a shelf: %T does not", c.Name, s)
		}
		w.positions = positions
	}
	base.shape = w
	return base, nil
}

// causes are the keys of the messages that a handler is called for.
type causes map[*broker.Message]once.Key

type causesKey struct{}

// withCauses marks the context of a handler with the key of its message, or with the keys for [For].
func withCauses(ctx context.Context, items []*item) context.Context {
	if len(items) == 1 {
		return scope.WithWork(ctx, items[0].key)
	}
	keys := make(causes, len(items))
	for _, it := range items {
		keys[it.Message] = it.key
	}
	return scope.WithWork(context.WithValue(ctx, causesKey{}, keys), once.Key{})
}

// For returns the context for the work on one message of a [Batch]. A message
// that is put with this context has the key of m as its cause. Handlers of
// single messages already have such a context.
func For(ctx context.Context, m *broker.Message) context.Context {
	keys, _ := ctx.Value(causesKey{}).(causes)
	if k, known := keys[m]; known {
		return scope.WithWork(ctx, k)
	}
	return ctx
}

// none is the value of work that has none.
type none struct{}

// operation is what the keys of Tx and Batch handlers belong to. A transaction leaves nothing behind, so one whose end is
// not known can be run again.
func (s *consumerRun) operation() *once.Operation[none] {
	return &once.Operation[none]{Name: s.keys, Policy: s.Policy, OnUnknown: once.Resend, Speculative: s.Speculative}
}

// failure is an error of a handler, told from those of the store by its address.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// guarded calls a handler, and makes a failure of its error or its panic.
func guarded(call func() error) (failed *failure) {
	defer contain(&failed)
	return failureOf(call())
}

// contain is deferred around a handler and makes a failure of its panic: one
// message must not end the process of all.
func contain(failed **failure) {
	if p := recover(); p != nil {
		*failed = &failure{fmt.Errorf("inbox: the handler panicked: %v\n%s", p, debug.Stack())}
	}
}

// failureOf is called where a panic is contained: the Error method of a nil
// pointer in an error panics here, and not where nobody is prepared for it.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	_ = err.Error()
	return &failure{err}
}

// blamed is the item that a failure is about, or -1.
func blamed(f *failure, items []*item) int {
	var b *blame
	if !errors.As(f, &b) {
		return -1
	}
	return slices.IndexFunc(items, func(it *item) bool { return it.Message == b.message })
}
