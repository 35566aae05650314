package cosmosstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// consumersID is the id of the item that has all consumers, and its partition key.
const consumersID = idPrefix + "consumers"

// consumers is the item. It is replaced as a whole, if nobody else has.
type consumers struct {
	ID  string       `json:"id"`
	TTL int64        `json:"ttl"`
	All []registered `json:"onceConsumers"`

	version string
}

// registered is a consumer at a source.
type registered struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	Keys   string `json:"keys"`
	Seen   string `json:"seen"` // when it last registered there
}

func (r registered) at(now cas.Now) (store.Consumer, error) {
	var d decoder
	c := store.Consumer{Name: r.Name, Source: r.Source, Keys: r.Keys}
	seen := d.time(r.Seen)
	c.Seen = max(0, time.Duration(now.Earliest-seen)*time.Microsecond)
	if d.err != nil {
		return c, fmt.Errorf("%w: the consumer %q: %w", once.ErrCorrupt, r.Name, d.err)
	}
	return c, nil
}

// Register records that a consumer is at work now, and returns what was known
// of its name.
func (s *Store) Register(ctx context.Context, c store.Consumer) (before store.Consumer, err error) {
	c.Keys = cmp.Or(c.Keys, c.Name)
	if c.Name == "" {
		return before, fmt.Errorf("%w: the Name is empty", once.ErrInvalid)
	}
	for what, is := range map[string]string{"Name": c.Name, "Keys": c.Keys, "Source": c.Source, "SharedWith": c.SharedWith} {
		if err := name.Check(what, is); err != nil {
			return before, fmt.Errorf("%w: %w", once.ErrInvalid, err)
		}
	}
	const tries = 16
	for range tries {
		now, err := s.engine.now(ctx)
		if err != nil {
			return before, err
		}
		known, err := s.engine.consumers(ctx)
		if err != nil {
			return before, err
		}
		before, changed, err := known.register(c, now)
		if err != nil || !changed {
			return before, err
		}
		if err = s.engine.putConsumers(ctx, known); !errors.Is(err, cas.ErrStale) {
			return before, err
		}
	}
	return before, fmt.Errorf("%w: others have registered %d times meanwhile", once.ErrConflict, tries)
}

// register is Register on what is known.
func (known *consumers) register(c store.Consumer, now cas.Now) (before store.Consumer, changed bool, err error) {
	at := func(source string) int {
		return slices.IndexFunc(known.All, func(r registered) bool {
			_, ok := store.MatchSource(r.Source, source)
			return r.Name == c.Name && ok
		})
	}
	i, first := at(c.Source), slices.IndexFunc(known.All, func(r registered) bool { return r.Name == c.Name })
	switch {
	case i >= 0:
		if before, err = known.All[i].at(now); err != nil {
			return before, false, err
		}
		before.Source, _ = store.MatchSource(before.Source, c.Source)
		c.Source = before.Source
	case first >= 0:
		if before, err = known.All[first].at(now); err != nil || at(c.SharedWith) < 0 {
			return before, false, err
		}
		before.Source = c.Source
	}
	is := registered{Name: c.Name, Source: c.Source, Keys: cmp.Or(before.Keys, c.Keys), Seen: text(now.Latest)}
	if i < 0 {
		known.All = append(known.All, is)
	} else {
		known.All[i] = is
	}
	return before, true, nil
}

// Consumers returns all consumers by name, once for each source.
func (s *Store) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	now, err := s.engine.now(ctx)
	if err != nil {
		return nil, err
	}
	known, err := s.engine.consumers(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range known.All {
		c, err := r.at(now)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, nil
}

// consumers reads the item, as the primary replica has it.
func (e *engine) consumers(ctx context.Context) (*consumers, error) {
	known := &consumers{ID: consumersID, TTL: -1}
	found, err := e.read(ctx, consumersID, consumersID)
	if err != nil || found.StatusCode == http.StatusNotFound {
		return known, err
	}
	if err := json.Unmarshal(found.ResourceBody, known); err != nil {
		return nil, fmt.Errorf("%w: the item %s: %w", once.ErrCorrupt, consumersID, err)
	}
	known.version = string(found.ETag)
	return known, nil
}

func (e *engine) putConsumers(ctx context.Context, known *consumers) error {
	item, err := json.Marshal(known)
	if err == nil {
		item, err = within(item, *e.property.Load(), consumersID)
	}
	if err != nil {
		return err
	}
	_, err = e.put(ctx, consumersID, consumersID, item, known.version)
	return err
}
