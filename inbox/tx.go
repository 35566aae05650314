package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// txHandler is what all processors that work in transactions share.
type txHandler[T any] struct {
	*env
	txStore once.TxStore[T]
	txShelf store.TxShelf[T] // nil: the store has none
	call    func(context.Context, T, []*broker.Message) error
	op      *once.Operation[none]

	// before takes the step of an item outside the database, and returns the
	// context that has its value; nil: there is none.
	before func(context.Context, *item) (context.Context, error)
}

// none is the outcome of work that has no value.
type none struct{}

// newTxHandler prepares an environment for transactions.
func newTxHandler[T any](c *Consumer, s once.TxStore[T], m mode, call func(context.Context, T, []*broker.Message) error) (*txHandler[T], error) {
	if s == nil {
		return nil, invalid("the store of consumer %q is nil", c.Name)
	}
	e, err := newEnv(c, s, m)
	if err != nil {
		return nil, err
	}
	e.transact = func(ctx context.Context, rs []once.ClaimRequest, body func([]once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
		return s.Transact(ctx, rs, func(_ T, recs []once.Record) ([]once.Settlement, error) { return body(recs) })
	}
	h := &txHandler[T]{env: e, txStore: s, call: call}
	if shelf, ok := once.As[store.TxShelf[T]](s); ok {
		h.txShelf = sealedTxShelf[T]{shelf, sealedShelf{shelf, &s.Options().Sealing}}
	}
	return h, nil
}

// prepare sets the operation of the keys. A transaction leaves nothing behind,
// so one whose outcome is unknown can be repeated.
func (h *txHandler[T]) prepare() {
	h.op = &once.Operation[none]{Name: h.keys, Policy: h.Policy, OnUnknown: once.Resend, Speculative: h.Speculative}
}

func (h *txHandler[T]) newSession(*rereads) {}

// callWith calls the user's handler in a transaction.
func (h *txHandler[T]) callWith(ctx context.Context, tx T, items ...*item) (err error) {
	defer h.recoverHandler(ctx, &err)
	for _, it := range items {
		if it.beganLate() {
			return errBeganLate
		}
	}
	for _, it := range items {
		it.ran = true
	}
	if store.BlockedOf(ctx) != nil { // which is for this transaction only
		ctx = store.WithBlocked(ctx, nil)
	}
	return asHandlerError(h.call(withCauses(h.handlerContext(ctx), items), tx, messages(items)))
}

// known returns the result of an item that was handled before or has to wait,
// or nil. It is called for items that may have been delivered before.
func (h *txHandler[T]) known(ctx context.Context, it *item) (*result, error) {
	rec, err := h.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return nil, err
	case rec.Status == once.Done || rec.Status == once.Expired || rec.Status == once.Parked:
		r := h.met(ctx, it, rec)
		return &r, nil
	}
	waits, err := h.mustWait(ctx, it)
	if err != nil || !waits {
		return nil, err
	}
	return &result{kind: blocked}, nil
}

// blockedQuery returns what blockedOrders will ask about items.
func (h *txHandler[T]) blockedQuery(items ...*item) *store.BlockedQuery {
	q := &store.BlockedQuery{Consumer: h.keys, ParkedToo: h.OnParked == HoldOrder}
	seen := make(map[string]bool)
	for _, it := range items {
		if it.order != "" && !seen[it.order] {
			seen[it.order] = true
			q.OrderingKeys = append(q.OrderingKeys, it.order)
		}
	}
	return q
}

// expectingBlocked returns a context for a transaction that begins with
// blockedOrders.
func (h *txHandler[T]) expectingBlocked(ctx context.Context, items ...*item) context.Context {
	q := h.blockedQuery(items...)
	if h.txShelf == nil || len(q.OrderingKeys) == 0 {
		return ctx
	}
	return store.WithBlocked(ctx, q)
}

// blockedOrders returns the ordering keys of items that have an earlier message
// on the shelf.
func (h *txHandler[T]) blockedOrders(ctx context.Context, tx T, items ...*item) (map[string]bool, error) {
	q := h.blockedQuery(items...)
	if h.txShelf == nil || len(q.OrderingKeys) == 0 {
		return nil, nil
	}
	found, err := h.txShelf.BlockedTx(ctx, tx, q.Consumer, q.OrderingKeys, q.ParkedToo)
	blocked := make(map[string]bool)
	for _, order := range found {
		blocked[order] = true
	}
	return blocked, err
}

// done returns the settlement that once.DoTx would make.
func (h *txHandler[T]) done(it *item, fence once.Fence, rejected bool) once.Settlement {
	out, _ := h.op.Outcome(none{}) // an empty struct can be encoded
	out.Rejected = rejected
	options := h.store.Options()
	var input []byte // its fingerprint, which only seals cover
	if options.Sealing.Seals(once.SealOutcomes) {
		input = h.fingerprint(it)
	}
	out, _ = options.Pack(fence.Key, input, out)
	return once.Settlement{Fence: fence, Status: once.Done, Outcome: out, KeepOutcome: h.Policy.KeepOutcome, KeepKey: h.Policy.KeepKey}
}

var errTakenOver = fmt.Errorf("%w: another process tries the message", once.ErrLeaseLost)

// handleShelved changes the shelf in the transaction of the handler.
func (h *txHandler[T]) handleShelved(ctx context.Context, it *item, m store.Shelved) (shelvedResult, error) {
	ctx, stepped, done, err := h.stepShelved(ctx, it)
	if done {
		return stepped, err
	}
	var report once.Report
	work := workOn(h.op, it).Report(&report)
	_, err = once.DoTx(ctx, h.txStore, work, func(ctx context.Context, tx T) (none, error) {
		if it.hold.writesFirst() { // the row is then locked, or compared when the transaction commits
			m.Version = it.hold.end(ctx)
			if err := h.txShelf.ChangeTx(ctx, tx, m); err != nil {
				return none{}, err
			}
			return none{}, h.callWith(ctx, tx, it)
		}
		it.hold.start(ctx) // again, if the transaction is repeated
		if it.hold.isLost() {
			return none{}, errTakenOver
		}
		if err := h.callWith(ctx, tx, it); err != nil {
			return none{}, err
		}
		m.Version = it.hold.end(ctx) // renewals have raised it
		err := h.txShelf.ChangeTx(ctx, tx, m)
		if err != nil {
			it.hold.refused(ctx, err)
		}
		return none{}, err
	})
	switch failed := handlerErrorOf(err); {
	case failed != nil && !failed.rejects():
		return shelvedResult{}, err
	case failed != nil: // the change of the shelf was rolled back with the rows
		return shelvedResult{kind: rejection(err).kind}, nil
	case isReplay(report, err):
		return shelvedResult{kind: duplicate}, nil
	}
	return shelvedResult{handled, shelfWritten}, err
}

// recordRejection settles the key of an item whose rows were rolled back.
func (h *txHandler[T]) recordRejection(ctx context.Context, it *item) error {
	_, err := once.DoTx(ctx, h.txStore, workOn(h.op, it), func(context.Context, T) (none, error) {
		return none{}, once.ErrRejected
	})
	if errors.Is(err, once.ErrRejected) {
		return nil
	}
	return err
}

// causes has the keys of the messages that a handler is called for.
type causes map[*broker.Message]once.Key

type causesKey struct{}

// withCauses puts the key of the handler's message into its context, or the keys
// of several messages for [For].
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
// single messages already have this context.
func For(ctx context.Context, m *broker.Message) context.Context {
	keys, _ := ctx.Value(causesKey{}).(causes)
	if k, known := keys[m]; known {
		return scope.WithWork(ctx, k)
	}
	return ctx
}
