package inbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/contain"
)

// containedSession is a session of a source whose panics are errors of the calls
// that settle deliveries, and of Close. A panic of Receive or Seek ends the
// session: see connect.
type containedSession struct {
	broker.Session
	logger *slog.Logger
}

func (s containedSession) call(ctx context.Context, f func() error) error {
	return contain.Logged(ctx, s.logger, "the Source", f)
}

func (s containedSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.call(ctx, func() error { return s.Session.Ack(ctx, ds) })
}

func (s containedSession) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	return s.call(ctx, func() error { return s.Session.Return(ctx, ds, after) })
}

func (s containedSession) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.call(ctx, func() error { return s.Session.Reject(ctx, ds, reason) })
}

func (s containedSession) Close(ctx context.Context) error {
	return s.call(ctx, func() error { return s.Session.Close(ctx) })
}

// callNaming calls the functions of the user that name a message, and returns a
// handlerError. They are called for every message, so they have no goroutine of
// their own until one of them has ended that of the session.
func (e *env) callNaming(call func() error) error {
	if e.exits.Load() {
		return asHandlerError(contain.Logged(context.Background(), e.logger, "Key, Input or OrderBy", call))
	}
	returned := false
	defer func() {
		if !returned {
			e.exits.Store(true)
		}
	}()
	err := callHandler(call)
	returned = true
	return err
}
