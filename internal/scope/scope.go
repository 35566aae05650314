// Package scope marks contexts with what the code below them may not do.
package scope

import "context"

type key int

const (
	inTx key = iota
	noEffects
)

// InTx marks a context as being inside a transaction of a store.
func InTx(ctx context.Context) context.Context { return context.WithValue(ctx, inTx, true) }

// InsideTx reports whether ctx is.
func InsideTx(ctx context.Context) bool { return ctx.Value(inTx) != nil }

// NoEffects marks a context as one in which nothing outside the database may happen.
func NoEffects(ctx context.Context) context.Context { return context.WithValue(ctx, noEffects, true) }

// RefusesEffects reports whether ctx is.
func RefusesEffects(ctx context.Context) bool { return ctx.Value(noEffects) != nil }
