package inbox

import (
	"context"
	"log/slog"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
)

// Observer observes what a consumer does with each message, for spans. Package
// observe/otelobserve implements it for OpenTelemetry. It is called
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

// watched is what an Observer gets to see of items. A nil one is not observed.
type watched struct {
	became []HandlingResult
	ended  func([]HandlingResult)
}

// watch begins to observe items. What nobody tells of is tried again.
func (s *consumerRun) watch(ctx context.Context, items []*item, shelved bool) (context.Context, *watched) {
	if s.logger.Enabled(ctx, slog.LevelDebug) {
		for _, it := range items {
			s.logger.DebugContext(ctx, "inbox: event", "event", observe.MessageReceived, "message", it.Message.ID, "topic", it.Message.Topic,
				"origin", it.Origin, "shelved", shelved)
		}
	}
	if s.Observer == nil {
		return ctx, nil
	}
	w := &watched{became: make([]HandlingResult, len(items))}
	for i := range items {
		w.became[i].Outcome = observe.Retried
	}
	h := Handling{Consumer: s.Name, Source: s.Source.Name(), Messages: messages(items), Together: !s.single && !shelved, Shelved: shelved}
	ctx, w.ended = watch.Begin(ctx, s.logger, func(ctx context.Context) (context.Context, func([]HandlingResult)) {
		return s.Observer.BeginHandling(ctx, h)
	})
	return ctx, w
}

// tell says what has become of an item.
func (w *watched) tell(i int, f result) {
	if w != nil {
		w.became[i] = f.seen()
	}
}

// end ends it, once.
func (w *watched) end() {
	if w == nil || w.ended == nil {
		return
	}
	ended := w.ended
	w.ended = nil
	ended(w.became)
}

// seen is a result as Observers are told.
func (f result) seen() HandlingResult {
	e := HandlingResult{Outcome: observe.Retried, Reason: f.reason}
	switch f.kind {
	case handled:
		e.Outcome = observe.Handled
	case prevented:
		e.Outcome = observe.Prevented
	case duplicate:
		e.Outcome = observe.Duplicate
	case shelved:
		e.Outcome = observe.Shelved
	case parked:
		e.Outcome = observe.Parked
	}
	if f.reason == errHeld.Error() { // it is another one that stands in its way
		e.Reason = ""
	}
	return e
}
