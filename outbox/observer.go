package outbox

import (
	"context"

	"github.com/effectively-once/once/broker"
)

// Observer observes each call of a relay's Publisher, for spans. The relay
// waits for it, so it must not block or use the store. If it panics, the panic
// is logged and the messages are published as usual.
type Observer interface {
	// BeginPublishing is called before each call of the Publisher. It returns the
	// context for that call, of which only the values are used, or nil to keep
	// ctx. It also returns a function, or nil, that is called once after the
	// Publisher returns: with nil if all messages got through, else with an error,
	// or nil, for each message. Messages that do not get through are retried.
	BeginPublishing(ctx context.Context, p Publishing) (context.Context, func([]error))
}

// Publishing is one call of a Publisher.
type Publishing struct {
	Messages []*broker.Message // as they are published, with the headers that they were put with; read only
}
