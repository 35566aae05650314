package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Completion waits so long for a store, and uses what it has read until a little
// before.
const (
	completionTime = 2 * time.Second
	readingTime    = completionTime - 300*time.Millisecond
)

// largestLook is how many pages of records completion reads: enough to see the
// operations that a store has, and little work for each press of a key.
const largestLook, lookPage = 10, 1000

// finder finds names that a store has. It keeps what it has found if an error ends it.
type finder func(ctx context.Context, s once.Store, found map[string]bool)

// stores find the names that a tag complete asks for.
var stores = map[string]finder{
	"operation":      operationNames,
	"consumer":       consumerNames(func(c store.Consumer) string { return c.Name }),
	"shelf":          consumerNames(func(c store.Consumer) string { return c.Keys }),
	"shelved-topic":  shelvedTopics,
	"outgoing-topic": outgoingTopics,
}

// stored returns names that a store has. It returns what it has in time, and says
// nothing of what goes wrong: the line that a person types is no place for it.
func stored(ctx context.Context, find finder, open func(context.Context) (*session, error)) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	names := make(chan []string, 1)
	go func() { // a store may ignore ctx
		s, err := open(ctx)
		if err != nil {
			names <- nil
			return
		}
		defer s.Close()
		reading, cancel := context.WithTimeout(ctx, readingTime)
		defer cancel()
		found := make(map[string]bool)
		find(reading, s.Store, found)
		maps.DeleteFunc(found, func(name string, _ bool) bool {
			// Whoever reads a line must see what is in it, and a shell take it as a value.
			return name == "" || strings.HasPrefix(name, "-") || show.Line(name) != name
		})
		names <- slices.Collect(maps.Keys(found))
	}()
	select {
	case all := <-names:
		return all
	case <-ctx.Done():
		return nil
	}
}

// operationNames finds those of consumers, of keys that may need a person, and of some
// others.
func operationNames(ctx context.Context, s once.Store, found map[string]bool) {
	consumerNames(func(c store.Consumer) string { return c.Keys })(ctx, s, found)
	lister, ok := once.As[once.Lister](s)
	if !ok {
		return
	}
	for _, status := range [][]once.Status{{once.Unknown, once.Parked, once.Running}, nil} {
		q := once.RecordQuery{Status: status, Limit: lookPage}
		for range largestLook {
			page, err := lister.List(ctx, q)
			for _, r := range page.Records {
				found[r.Key.Operation] = true
			}
			if q.After = page.Next; err != nil || q.After == (once.Key{}) {
				break
			}
		}
	}
}

// consumerNames finds a name of each consumer.
func consumerNames(name func(store.Consumer) string) finder {
	return func(ctx context.Context, s once.Store, found map[string]bool) {
		if registry, ok := once.As[store.Registry](s); ok {
			all, _ := registry.Consumers(ctx)
			for _, c := range all {
				found[name(c)] = true
			}
		}
	}
}

func shelvedTopics(ctx context.Context, s once.Store, found map[string]bool) {
	if shelf, ok := once.As[inbox.AdminStore](s); ok {
		for _, state := range shelfStates {
			all, _ := inbox.Admin{Store: shelf}.List(ctx, store.ShelfQuery{States: []store.ShelfState{state}, NoQueued: true,
				Bodiless: true, Limit: lookPage})
			for _, m := range all {
				found[m.Message.Topic] = true
			}
		}
	}
}

func outgoingTopics(ctx context.Context, s once.Store, found map[string]bool) {
	if messages, ok := once.As[store.Relayable](s); ok {
		for _, state := range outgoingStates {
			all, _ := outbox.Admin{Store: messages}.List(ctx, store.OutgoingQuery{State: state, Bodiless: true, Limit: lookPage})
			for _, m := range all {
				found[m.Message.Topic] = true
			}
		}
	}
}
