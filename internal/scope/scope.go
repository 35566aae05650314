// Package scope marks contexts with the unit of work that the code below them is, and with what it may not do.
package scope

import "context"

type key int

const (
	inTx key = iota
	noEffects
	work
)

// WithWork marks a context as that of a unit of work, by its once.Key; the zero Key: of none that is known.
func WithWork[K any](ctx context.Context, k K) context.Context {
	return context.WithValue(ctx, work, k)
}

// Work returns the once.Key of the innermost unit of work of ctx; the zero Key: there is none.
func Work[K any](ctx context.Context) (k K) {
	k, _ = ctx.Value(work).(K)
	return k
}

// InTx marks a context as being inside a transaction of a store.
func InTx(ctx context.Context) context.Context { return context.WithValue(ctx, inTx, true) }

// InsideTx reports whether ctx is.
func InsideTx(ctx context.Context) bool { return ctx.Value(inTx) != nil }

// NoEffects marks a context as one in which nothing outside the database may happen.
func NoEffects(ctx context.Context) context.Context { return context.WithValue(ctx, noEffects, true) }

// RefusesEffects reports whether ctx is.
func RefusesEffects(ctx context.Context) bool { return ctx.Value(noEffects) != nil }
