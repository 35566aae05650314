package inbox

import (
	"context"
	"log/slog"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/watch"
	"github.com/effectively-once/once/observe"
)

// Observer sees what a consumer does with each message: for spans, as package observe/otelobserve makes them. It is called by
// many goroutines, and each waits for it: it must not block, nor use the store. It decides nothing: if it panics, that is
// logged, and the message goes its way.
type Observer interface {
	// BeginHandling returns the context that the messages are handled with, of which only the values count, or nil for ctx
	// itself; and a function that is called once, with what has become of each message, in their order, before the broker
	// is told; or nil. A message that comes again, or is tried again, is handled again.
	BeginHandling(ctx context.Context, h Handling) (context.Context, func([]HandlingResult))
}

// Handling is an attempt to deal with messages, whether or not their handler is called.
type Handling struct {
	Consumer string            // its Name
	Source   string            // the Name of its Source
	Messages []*broker.Message // as the handler gets them: read only
	Together bool              // in one transaction, if there are several
	Shelved  bool              // it had been put aside, and its time has come
}

// HandlingResult is what has become of a message.
type HandlingResult struct {
	Outcome string // one word, of those that package observe lists
	Reason  string // why it is not dealt with: the error, as a text; empty if it is, or only waits
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
