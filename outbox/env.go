package outbox

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/store"
)

const (
	firstBackoff = 100 * time.Millisecond
	backoffLimit = 10 * time.Second // while the broker or the database fails
)

// env is what the parts of one Run share.
type env struct {
	Relay    // the settings with their defaults
	id       atomic.Pointer[[16]byte]
	logged   bool          // the store has messages from a log
	handOver HandingOver   // publishes and ends messages in one commit; nil: they are published, and then ended
	notified chan struct{} // has an element when messages may have been put
	hearsAll atomic.Bool   // it is notified of messages put by any process
	through  atomic.Int64  // messages that got through; Stats may be shared between relays
	calling  atomic.Int64  // when the current call of the publisher began, in nanoseconds; 0: there is none
}

// me returns the owner of this relay's leases. It changes when its presence ends
// or begins.
func (e *env) me() [16]byte { return *e.id.Load() }

// logEach logs an event of messages.
func logEach(ctx context.Context, logger *slog.Logger, event string, ms []store.Outgoing) {
	if !logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for i := range ms {
		logger.DebugContext(ctx, "outbox: event", "event", event, "message", ms[i].Message.ID, "topic", ms[i].Message.Topic)
	}
}

// limit returns the context of one call, so that neither the broker nor the
// database can hang the relay.
func (e *env) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.PublishTime)
}

// persist calls do until it succeeds, or working ends. It logs each failure as
// problem.
func (e *env) persist(working context.Context, problem string, do func(context.Context) error) {
	wait := backoffOf(firstBackoff, e.PublishTime)
	for {
		ctx, cancel := e.limit(working)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		e.Logger.WarnContext(working, problem, logs.Spaced(""), "error", err)
		if sleep(working, wait.Next()) != nil {
			return
		}
	}
}

// read reads messages from the table.
func (e *env) read(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	ctx, cancel := e.limit(ctx)
	defer cancel()
	return e.Store.Outgoing(ctx, q)
}

// move changes the state of messages in the table.
func (e *env) move(ctx context.Context, ms []store.Outgoing, to store.OutgoingState) (changed int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	ctx, cancel := e.limit(ctx)
	defer cancel()
	return e.Store.MoveOutgoing(ctx, e.me(), ms, to)
}

// heldBy returns the states of messages for which later ones of their ordering key
// wait.
func (e *env) heldBy() []store.OutgoingState {
	if e.OnStuck == Pass {
		return []store.OutgoingState{store.Pending, store.Held}
	}
	return []store.OutgoingState{store.Pending, store.Held, store.Stuck}
}

// heldReason is the Reason of a message that waits for an earlier one.
const heldReason = "an earlier message with the same ordering key waits"

// stuck counts and logs a message that waits for a person.
func (e *env) stuck(ctx context.Context, m *store.Outgoing) {
	e.Stats.Stuck.Add(1)
	e.Logger.ErrorContext(ctx, "outbox: a message is stuck", "id", m.Message.ID, "topic", m.Message.Topic,
		"cause", causeOf(m), "attempts", m.Attempts, "reason", m.Reason)
}

// observe begins to observe a call of the Publisher. It returns a function for
// its end, or nil if there is no Observer.
func (e *env) observe(ctx context.Context, ms []*broker.Message) (context.Context, func([]error)) {
	if e.Observer == nil {
		return ctx, nil
	}
	ctx, ended := watch.Begin(ctx, e.Logger, func(ctx context.Context) (context.Context, func([]error)) {
		return e.Observer.BeginPublishing(ctx, Publishing{Messages: slices.Clone(ms)})
	})
	return ctx, func(errs []error) { ended(slices.Clone(errs)) }
}

// signal puts an element into a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func backoffOf(first, limit time.Duration) *backoff.Backoff {
	return &backoff.Backoff{First: first, Limit: limit}
}

func sleep(ctx context.Context, d time.Duration) error { return backoff.Sleep(ctx, d) }
