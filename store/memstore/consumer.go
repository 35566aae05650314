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

// registered is a consumer at a source, and when it last registered there.
type registered struct {
	store.Consumer
	seen time.Time
}

func (r registered) at(now time.Time) store.Consumer {
	c := r.Consumer
	c.Seen = now.Sub(r.seen)
	return c
}

// Register records that a consumer is at work now, and returns what was known
// of its name.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	keys := cmp.Or(c.Keys, c.Name)
	if err := checkNames("Name", c.Name, "Keys", keys, "Source", c.Source, "SharedWith", c.SharedWith); err != nil {
		return before, err
	}
	err = s.do(ctx, func(now time.Time) error {
		of := s.consumers[c.Name]
		at := func(source string) int {
			return slices.IndexFunc(of, func(r registered) bool {
				_, ok := store.MatchSource(r.Source, source)
				return ok
			})
		}
		i := at(c.Source)
		switch {
		case i >= 0:
			before = of[i].at(now)
			before.Source, _ = store.MatchSource(before.Source, c.Source)
			c.Source = before.Source
		case len(of) > 0 && at(c.SharedWith) < 0:
			before = of[0].at(now)
			return nil
		case len(of) > 0:
			before = of[0].at(now)
			before.Source = c.Source
		}
		is := registered{store.Consumer{Name: c.Name, Source: c.Source, Keys: cmp.Or(before.Keys, keys)}, now}
		if i < 0 {
			s.consumers[c.Name] = append(of, is)
		} else {
			of[i] = is
		}
		return nil
	})
	return before, err
}

// Consumers returns all consumers by name, once for each source.
func (s *Store) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	err = s.do(ctx, func(now time.Time) error {
		for _, of := range s.consumers {
			for _, r := range of {
				all = append(all, r.at(now))
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, err
}

// checkNames checks names. Its arguments are pairs: the kind of a name, and the
// name. The first name must not be empty.
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
