package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// registered is a consumer at a source, as it is stored. A name has one for each
// of its sources, in the order of their registration.
type registered struct {
	Source string `json:"source"`
	Keys   string `json:"keys"`
	Seen   int64  `json:"seen"` // microseconds of the server's clock
}

func (r registered) at(now int64, consumer string) store.Consumer {
	return store.Consumer{Name: consumer, Source: r.Source, Keys: r.Keys, Seen: time.Duration(max(0, now-r.Seen)) * time.Microsecond}
}

// registerTries is how often Register meets another one of its name before it
// gives up.
const registerTries = 64

// Register records that a consumer is at work now, and returns what was known
// of its name.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	c.Keys = cmp.Or(c.Keys, c.Name)
	if c.Name == "" {
		return before, fmt.Errorf("%w: the Name is empty", once.ErrInvalid)
	}
	for what, text := range map[string]string{"Name": c.Name, "Keys": c.Keys, "Source": c.Source, "SharedWith": c.SharedWith} {
		if err := name.Check(what, text); err != nil {
			return before, fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
	}
	for range registerTries {
		now, stored, err := s.registry(ctx, c.Name)
		if err != nil {
			return before, err
		}
		of, err := readRegistered(c.Name, stored)
		if err != nil {
			return before, err
		}
		before, is := register(of, c, now)
		if is == nil {
			return before, nil
		}
		text, err := json.Marshal(is)
		if err != nil {
			return before, err
		}
		_, written, err := s.registry(ctx, c.Name, stored, text)
		if err != nil || written == string(text) {
			return before, err
		}
	}
	return before, fmt.Errorf("%w: others have registered %q meanwhile: repeat the call", once.ErrConflict, c.Name)
}

// register returns what was known of a name, and what to store of it, or nil if
// it belongs to another source.
func register(of []registered, c store.Consumer, now int64) (before store.Consumer, is []registered) {
	at := func(source string) int {
		return slices.IndexFunc(of, func(r registered) bool {
			_, ok := store.MatchSource(r.Source, source)
			return ok
		})
	}
	i := at(c.Source)
	switch {
	case i >= 0:
		before = of[i].at(now, c.Name)
		before.Source, _ = store.MatchSource(of[i].Source, c.Source)
		is = slices.Clone(of)
		is[i] = registered{before.Source, before.Keys, now}
		return before, is
	case len(of) == 0:
		return before, []registered{{c.Source, c.Keys, now}}
	case at(c.SharedWith) < 0:
		return of[0].at(now, c.Name), nil
	}
	before = of[0].at(now, c.Name)
	before.Source = c.Source
	return before, append(slices.Clone(of), registered{c.Source, before.Keys, now})
}

// Consumers returns all consumers by name, once for each source.
func (s *Store) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	reply, err := s.run(ctx, s.scripts.registry, s.registryKeys()).Slice()
	if err != nil {
		s.checkAgain(err)
		return nil, explain(err)
	}
	now, flat := int64(0), []any(nil)
	if len(reply) == 2 {
		text, _ := reply[0].(string)
		now, err = strconv.ParseInt(text, 10, 64)
		flat, _ = reply[1].([]any)
	}
	for i := 0; i+1 < len(flat) && err == nil; i += 2 {
		consumer, _ := flat[i].(string)
		stored, _ := flat[i+1].(string)
		var of []registered
		of, err = readRegistered(consumer, stored)
		for _, r := range of {
			all = append(all, r.at(now, consumer))
		}
	}
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, err
}

// registry runs the script of the registry for a name, and returns the server's
// time and what it answers.
func (s *Store) registry(ctx context.Context, args ...any) (now int64, answer string, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, "", err
	}
	reply, err := s.run(ctx, s.scripts.registry, s.registryKeys(), args...).StringSlice()
	if err != nil {
		s.checkAgain(err)
		return 0, "", explain(err)
	}
	now, err = strconv.ParseInt(reply[0], 10, 64)
	return now, reply[1], err
}

func (s *Store) registryKeys() []string { return []string{s.partition(0) + "consumers"} }

func readRegistered(consumer, stored string) (of []registered, err error) {
	if stored == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(stored), &of); err != nil {
		return nil, fmt.Errorf("%w: the consumer %q: %w", once.ErrCorrupt, consumer, err)
	}
	return of, nil
}
