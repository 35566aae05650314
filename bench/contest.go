package main

import (
	"context"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
)

// stage is a place where contests are held: a database, as it is set up for them.
type stage struct {
	name  string
	loads []load
	long  bool // not with -short
	large bool // only with -large
	open  func(context.Context, *bench) (*arena, error)
}

// load is what a contest puts on a stage.
type load struct {
	name    string
	workers int
	size    int // of a batch
}

// arena is an open stage.
type arena struct {
	contest func(load) contest
	close   func()
}

// contest is the same work in several variants. The first is the one that the others are compared with.
type contest struct {
	unit     string
	variants []variant
	before   func(context.Context) error // each round; nil: nothing
	latency  bool                        // it is about the latency of units: show how that compares, too
}

type variant struct {
	name string
	turn func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error)
}

// repeated is a variant that repeats a unit of work.
func repeated(name string, unit func(context.Context) error) variant {
	return variant{name, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		return turn.Run(ctx, workers, length, unit)
	}}
}

func workers(counts ...int) (loads []load) {
	for _, n := range counts {
		loads = append(loads, load{name: plural(n, "worker"), workers: n})
	}
	return loads
}
