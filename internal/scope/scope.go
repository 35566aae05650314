// Package scope marks contexts with the unit of work that they belong to, and
// with what the work may not do.
package scope

import "context"

type key int

const (
	inTx key = iota
	noEffects
	work
)

// WithWork marks a context with the once.Key of a unit of work. The zero Key
// means that the unit is not known.
func WithWork[K any](ctx context.Context, k K) context.Context {
	return context.WithValue(ctx, work, k)
}

// IsWork reports whether k is the key of the value that WithWork sets, for
// contexts that set it by themselves.
func IsWork(k any) bool { return k == work }

// Work returns the once.Key of the innermost unit of work of ctx, or the zero
// Key.
func Work[K any](ctx context.Context) (k K) {
	k, _ = ctx.Value(work).(K)
	return k
}

// InTx marks a context as inside a transaction of a store.
func InTx(ctx context.Context) context.Context { return context.WithValue(ctx, inTx, true) }

// InsideTx reports whether ctx is inside a transaction of a store.
func InsideTx(ctx context.Context) bool { return ctx.Value(inTx) != nil }

// NoEffects marks a context in which nothing outside the database may happen.
func NoEffects(ctx context.Context) context.Context { return context.WithValue(ctx, noEffects, true) }

// RefusesEffects reports whether ctx is marked by NoEffects.
func RefusesEffects(ctx context.Context) bool { return ctx.Value(noEffects) != nil }
