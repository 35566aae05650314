package consoleserver

import (
	"context"
	"fmt"
	"sync"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/store"
)

// Lag is what a console asks for the lag of a source.
type Lag func(context.Context, console.LagQuestion) (broker.Lag, error)

// LagOf asks brokers. The secrets of ctx stay out of errors, which people see.
func LagOf(ctx context.Context, from *doctor.Sources) Lag {
	secrets, known := secret.From(ctx), &knownSources{from: from, by: make(map[string]Lag)}
	return func(ctx context.Context, q console.LagQuestion) (broker.Lag, error) {
		ask, err := known.of(q.Source)
		if err != nil {
			return broker.Lag{}, fmt.Errorf("%w: %w", console.ErrLagUnknown, err)
		}
		lag, err := ask(ctx, q)
		return lag, secrets.Error(err)
	}
}

// NoLag says why no broker can be asked.
func NoLag(why error) Lag {
	return func(context.Context, console.LagQuestion) (broker.Lag, error) {
		return broker.Lag{}, fmt.Errorf("%w: %w", console.ErrLagUnknown, why)
	}
}

// knownSources remember where each source is.
type knownSources struct {
	from *doctor.Sources

	mu sync.Mutex
	by map[string]Lag // the name of the source
}

func (k *knownSources) of(source string) (Lag, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name, _ := store.SplitSource(source)
	if ask := k.by[name]; ask != nil {
		return ask, nil
	}
	of, err := k.from.Of(source)
	if err != nil {
		return nil, err
	}
	k.by[name] = console.LagOf(of...)
	return k.by[name], nil
}
