package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// registered is a consumer, and when it was last at work.
type registered struct {
	store.Consumer
	seen time.Time
}

func (r registered) at(now time.Time) store.Consumer {
	c := r.Consumer
	c.Seen = now.Sub(r.seen)
	return c
}

// Register writes down that a consumer is at work now, and returns what was known of it before.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	keys := cmp.Or(c.Keys, c.Name)
	if err := checkNames("Name", c.Name, "Keys", keys, "Source", c.Source); err != nil {
		return before, err
	}
	err = s.do(ctx, func(now time.Time) error {
		was, known := s.consumers[c.Name]
		if known {
			before, keys = was.at(now), was.Keys
		}
		is := store.Consumer{Name: c.Name, Source: c.Source, Keys: keys}
		s.consumers[c.Name] = registered{Consumer: is, seen: now}
		return nil
	})
	return before, err
}

// Consumers returns all that are registered, in the order of their names.
func (s *Store) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	err = s.do(ctx, func(now time.Time) error {
		for _, r := range s.consumers {
			all = append(all, r.at(now))
		}
		return nil
	})
	slices.SortFunc(all, func(a, b store.Consumer) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// checkNames takes what each name is, and the name. The first may not be empty.
func checkNames(whatAndName ...string) error {
	if whatAndName[1] == "" {
		return fmt.Errorf("%w: the %s is empty", once.ErrInvalid, whatAndName[0])
	}
	for i := 0; i < len(whatAndName); i += 2 {
		if err := name.Check(whatAndName[i], whatAndName[i+1]); err != nil {
			return fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
	}
	return nil
}
