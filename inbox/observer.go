package inbox

import (
	"context"

	"github.com/effectively-once/once/broker"
)

// Observer observes what a consumer does with each message, for spans. Package
// otelonce implements it for OpenTelemetry. It is called
// concurrently and must not block or use the store. If it panics, the panic is
// logged and the message is handled as usual.
type Observer interface {
	// BeginHandling is called before messages are handled, including each
	// redelivery and retry. It returns the context to handle them with, of which
	// only the values are used, or nil to keep ctx. It also returns a function, or
	// nil, that is called once with the result of each message, in order, before
	// the broker is told.
	BeginHandling(ctx context.Context, h Handling) (context.Context, func([]HandlingResult))
}

// Handling is an attempt to handle messages, whether or not the handler is
// called.
type Handling struct {
	Consumer string            // the consumer's Name
	Source   string            // the Name of its Source
	Messages []*broker.Message // as the handler receives them; read only
	Together bool              // several messages share one transaction
	Shelved  bool              // a retry from the shelf
}

// HandlingResult describes what happened to a message.
type HandlingResult struct {
	Outcome string // one of the results that package observe lists
	Reason  string // text of the error; empty if the message was handled or waits
}
