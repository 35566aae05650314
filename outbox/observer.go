package outbox

import (
	"context"
	"slices"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/watch"
)

// Observer sees each call of a relay's Publisher: for spans, as package observe/otelobserve makes them. The relay waits for
// it: it must not block, nor use the store. It decides nothing: if it panics, that is logged, and the messages go their way.
type Observer interface {
	// BeginPublishing returns the context that the Publisher is called with, of which only the values count, or nil for ctx
	// itself; and a function that is called once, when the Publisher has returned, with what it returned: nil if all of
	// the messages got through, else an error for each, or nil; or nil. What does not get through is tried again.
	BeginPublishing(ctx context.Context, p Publishing) (context.Context, func([]error))
}

// Publishing is a call of a Publisher.
type Publishing struct {
	Messages []*broker.Message // as they are published, with the headers that they were put with: read only
}

// watch begins to observe a call of the Publisher, and returns what ends that: nil, if there is no Observer.
func (r *run) watch(ctx context.Context, ms []*broker.Message) (context.Context, func([]error)) {
	if r.Observer == nil {
		return ctx, nil
	}
	ctx, ended := watch.Begin(ctx, r.Logger, func(ctx context.Context) (context.Context, func([]error)) {
		return r.Observer.BeginPublishing(ctx, Publishing{Messages: slices.Clone(ms)})
	})
	return ctx, func(errs []error) { ended(slices.Clone(errs)) }
}
