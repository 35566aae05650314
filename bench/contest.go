package main

import (
	"context"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
)

// stage is a database set up for contests.
type stage struct {
	name  string
	loads []load
	long  bool // not with -short
	large bool // only with -large
	open  func(context.Context, *bench) (*arena, error)
}

// load is the load of a contest.
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

// contest runs the same work in several variants. The first one is the
// baseline.
type contest struct {
	unit     string
	variants []variant
	before   func(context.Context) error // before each round; nil: nothing
	latency  bool                        // report latencies as well
}

type variant struct {
	name string
	turn func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error)
}

// repeated returns a variant that repeats a unit of work.
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
