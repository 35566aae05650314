package inbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// env is what the parts of one Run share: the settings with their defaults, the
// store, and what is known of the consumer's past.
type env struct {
	*Consumer
	mode   mode
	keyed  bool // each message has a key; false with a Checkpoint and no Key
	store  once.Store
	shelf  store.Shelf // nil: the store has none
	logger *slog.Logger
	lock   *attemptLock

	outages *outages

	// transact runs a transaction that claims and settles keys; nil if mode is
	// outside.
	transact func(context.Context, []once.ClaimRequest, func([]once.Record) ([]once.Settlement, error)) ([]once.Record, error)

	keys  string      // the operation of the keys
	fatal func(error) // ends the run with an error
	begun time.Time   // the start of the run
	since time.Time   // a message made later was not handled before this run; zero: that is not known
}

// newEnv returns the environment of a run whose settings are valid.
func newEnv(c *Consumer, st once.Store, m mode) (*env, error) {
	if st == nil || st.Options() == nil {
		return nil, invalid("the store of consumer %q is nil, or has no Options", c.Name)
	}
	if err := st.Options().Sealing.Validate(); err != nil {
		return nil, err
	}
	c.setMode(m)
	e := &env{Consumer: c, mode: m, keyed: m != inOrder || c.Key != nil, store: st,
		logger: st.Options().Logger.With("consumer", c.Name), lock: newAttemptLock(), keys: c.operationOf(c.Name), begun: time.Now()}
	e.outages = newOutages(c, e.logger)
	if c.Key == nil {
		c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
	}
	if shelf, ok := once.As[store.Shelf](st); ok {
		e.shelf = sealedShelf{shelf, &st.Options().Sealing}
	}
	return e, nil
}

// names is what the functions of the user say about a message.
type names struct {
	order string
	input []byte
	id    string
	err   error // why it has no key
}

// namesOf calls Key, Input and OrderBy for messages. One that panics, or ends its
// goroutine, has said nothing about its message. They are called for every
// message, so all of a page share the goroutine that they are called in.
func (e *env) namesOf(ds []broker.Delivery) []names {
	all, next := make([]names, len(ds)), 0
	for next < len(ds) {
		err := contain.Logged(context.Background(), e.logger, "Key, Input or OrderBy", func() error {
			for ; next < len(ds); next++ {
				n, m := &all[next], ds[next].Message
				n.order, n.input = e.OrderBy(m), e.Input(m)
				n.id, n.err = e.Key(m)
				n.err = errtree.Tame(n.err)
			}
			return nil
		})
		if err != nil {
			all[next].err = err
			next++
		}
	}
	return all
}

// newItem gives a delivery its key, its lane, and what its attempts are counted
// by.
func (e *env) newItem(d broker.Delivery, n names) *item {
	it := &item{Delivery: d, counting: countBefore, token: name.Token()}
	if !d.Redelivered || d.Message.Attempt == 1 {
		it.counting = countAfter
	}
	it.key = once.Key{Operation: e.keys, ID: n.id}
	it.order, it.input = n.order, n.input
	err := n.err
	if err == nil {
		err = it.key.Validate()
	}
	if name.Check("", it.order) != nil { // the shelf takes only text
		it.order = "digest-" + name.Format(name.Digest(it.order))
	}
	if it.keyErr = err; err != nil {
		unique := name.Token()
		if d.Position != nil { // the same at each delivery
			unique = it.place()
		}
		it.shelfID = "no-id-" + name.Format(unique)
	}
	it.lane, it.countKey = it.order, it.key
	it.countKey.Operation += countSuffix
	if e.mode == inOrder && d.Position != nil {
		it.lane = laneOf(d.Position)
		it.countKey.ID = name.Format(it.place())
	} else if err != nil {
		it.countKey.ID = name.Format(digest(d.Message))
	}
	return it
}

func (e *env) fingerprint(it *item) []byte {
	if it.input == nil {
		return nil
	}
	sum := checksum.Fingerprint(e.store.Options().Secret, it.key.UUID(), it.input)
	return sum[:]
}

// tooOld reports whether the key of a message may be forgotten although the
// message was handled: before this run, or in it, if it has lasted longer than
// keys are kept.
func (e *env) tooOld(it *item) bool { return e.isOlder(it, e.Policy.KeepKey) }

// isOlder is tooOld for a key that is kept for another time.
func (e *env) isOlder(it *item, keep time.Duration) bool {
	made := it.Message.Time
	return !made.IsZero() && time.Since(made) > keep && (e.since.IsZero() || made.Before(e.since) || time.Since(e.begun) > keep)
}

const tooOldReason = "older than keys are remembered: it may have been handled before. Replay it if it was not"

// handlerContext returns the context of a call of the handler.
func (e *env) handlerContext(ctx context.Context) context.Context {
	if e.Rebuild != "" {
		return scope.NoEffects(ctx)
	}
	return ctx
}

// observation collects what an Observer is told about items. The nil
// observation collects nothing.
type observation struct {
	results []HandlingResult
	ended   func([]HandlingResult)
}

// observe begins to observe items. An item without a result is retried.
func (e *env) observe(ctx context.Context, items []*item, fromShelf bool) (context.Context, *observation) {
	if e.logger.Enabled(ctx, slog.LevelDebug) {
		for _, it := range items {
			e.logger.DebugContext(ctx, "inbox: event", "event", observe.MessageReceived, "message", it.Message.ID, "topic", it.Message.Topic,
				"origin", it.Origin, "shelved", fromShelf)
		}
	}
	if e.Observer == nil {
		return ctx, nil
	}
	o := &observation{results: make([]HandlingResult, len(items))}
	for i := range items {
		o.results[i].Outcome = observe.Retried
	}
	h := Handling{Consumer: e.Name, Source: e.Source.Name(), Messages: messages(items), Together: e.mode.together() && !fromShelf,
		Shelved: fromShelf}
	ctx, o.ended = watch.Begin(ctx, e.logger, func(ctx context.Context) (context.Context, func([]HandlingResult)) {
		return e.Observer.BeginHandling(ctx, h)
	})
	return ctx, o
}

// set notes the result of an item.
func (o *observation) set(i int, r result) {
	if o != nil {
		o.results[i] = r.observed()
	}
}

// end tells the Observer the results, once.
func (o *observation) end() {
	if o == nil || o.ended == nil {
		return
	}
	ended := o.ended
	o.ended = nil
	ended(o.results)
}

// recoverHandler is deferred around a handler, and turns its panic into an
// error: one message must not end the process.
func (e *env) recoverHandler(ctx context.Context, err *error) {
	if p := recover(); p != nil {
		*err = &handlerError{contain.Recovered(ctx, e.logger, "the handler", p)}
	}
}
