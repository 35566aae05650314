package cas

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Shelving has the methods by which a store is a store.Registry and a
// store.Shelf, on an engine that keeps documents.
//
// A consumer has one document that lists its messages on the shelf, so there is
// room for as many as fit into it, and whoever sets a message aside at the same
// time as another begins again.
type Shelving[Tx any] struct {
	*Transactions[Tx]

	// Docs is the Engine of the Transactions.
	Docs DocEngine[Tx]

	// MaxDoc is how many bytes a document may have. It is more than 200 KiB.
	MaxDoc int
}

// Consuming is Shelving by which a store is also a store.TxShelf and
// store.Positions, on an engine that writes documents in the transactions of the
// work.
type Consuming[Tx any] struct{ Shelving[Tx] }

// registered is a consumer at a source, and when it last registered there.
type registered struct {
	Name, Source, Keys string
	Seen               Instant

	// stored is what is written again in place of a row that cannot be read.
	stored json.RawMessage
	damage error
}

func (r registered) at(now Now) store.Consumer {
	c := store.Consumer{Name: r.Name, Source: r.Source, Keys: r.Keys}
	if r.damage != nil {
		c.Damaged = store.DamagedConsumer(r.Name, r.damage)
	} else {
		c.Seen = max(0, now.AtLeastSince(r.Seen))
	}
	return c
}

// MarshalJSON writes a row as it was, if it could not be read.
func (r registered) MarshalJSON() ([]byte, error) {
	if r.damage != nil {
		return r.stored, nil
	}
	return json.Marshal(struct {
		Name, Source, Keys string
		Seen               Instant
	}{r.Name, r.Source, r.Keys, r.Seen})
}

// UnmarshalJSON reads what it can of a row. It returns no error, because that would
// end the list.
func (r *registered) UnmarshalJSON(text []byte) error {
	var fields map[string]json.RawMessage
	if r.damage = json.Unmarshal(text, &fields); r.damage == nil && fields == nil {
		r.damage = errors.New("it is null")
	}
	for _, field := range []struct {
		name string
		into any
	}{{"Name", &r.Name}, {"Source", &r.Source}, {"Keys", &r.Keys}, {"Seen", &r.Seen}} {
		value, ok := fields[field.name]
		err := json.Unmarshal(value, field.into)
		switch {
		case r.damage != nil: // of the fields before, or of all
		case !ok || string(value) == "null":
			r.damage = fmt.Errorf("it has no %s", field.name)
		case err != nil:
			r.damage = fmt.Errorf("its %s: %w", field.name, err)
		}
	}
	switch {
	case r.damage != nil:
	case r.Name == "" || r.Keys == "":
		r.damage = errors.New("its Name or its Keys is empty")
	case r.Seen <= 0 || r.Seen > lastTime:
		r.damage = fmt.Errorf("its Seen is no time: %d", r.Seen)
	}
	if r.damage != nil {
		r.stored = bytes.Clone(text)
	}
	return nil
}

// registry is the document of all consumers. It is written when there is one, so an
// empty one is damaged.
type registry []registered

// UnmarshalJSON reads the rows of a registry.
func (r *registry) UnmarshalJSON(text []byte) error {
	err := json.Unmarshal(text, (*[]registered)(r))
	if err == nil && len(*r) == 0 {
		err = errors.New("it is empty")
	}
	return err
}

// explained is the error of the document of all consumers, or nil.
func explained(err error) error {
	if !errors.Is(err, once.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("the consumers are registered in one document, which is damaged: %w. Restore it. If that is impossible, stop all that publishes "+
		"through this store, let all consumers run, and delete the document: each of those registers again within a minute, with the keys that it "+
		"has. One that does not run, and was renamed, would handle everything again", err)
}

// consumersDoc has all consumers: by name, and by when their source was first
// registered.
const consumersDoc = "consumers"

// Register records that a consumer is at work now, and returns what was known
// of its name.
func (c *Shelving[Tx]) Register(ctx context.Context, at store.Consumer) (before store.Consumer, err error) {
	keys := cmp.Or(at.Keys, at.Name)
	if err := checkNames("Name", at.Name, "Keys", keys, "Source", at.Source, "SharedWith", at.SharedWith); err != nil {
		return before, err
	}
	err = c.alone(ctx, func(tx Tx) error {
		d, now, err := c.in(ctx, tx)
		if err != nil {
			return err
		}
		var all registry
		if _, err := d.read(ctx, consumersDoc, &all); err != nil {
			return explained(err)
		}
		var changed bool
		if before, all, changed, err = register(all, at, keys, now); err != nil || !changed {
			return err
		}
		return d.write(consumersDoc, all)
	})
	return before, err
}

func register(all registry, at store.Consumer, keys string, now Now) (before store.Consumer, is registry, changed bool, err error) {
	of := func(r registered) bool { return r.Name == at.Name && r.at(now).IsLegible() }
	find := func(source string) int {
		return slices.IndexFunc(all, func(r registered) bool {
			_, ok := store.MatchSource(r.Source, source)
			return of(r) && ok
		})
	}
	first, i := slices.IndexFunc(all, of), find(at.Source)
	for _, r := range all {
		if c := r.at(now); i < 0 && !c.IsLegible() && (c.Name == "" || c.Name == at.Name) {
			return before, all, false, fmt.Errorf("the consumer %q was not registered, because this row may be its own: %w", at.Name, c.Damaged)
		}
	}
	switch {
	case i >= 0:
		before = all[i].at(now)
		before.Source, _ = store.MatchSource(before.Source, at.Source)
		at.Source = before.Source
	case first >= 0 && find(at.SharedWith) < 0:
		before = all[first].at(now)
		before.Damaged = nil
		return before, all, false, nil
	case first >= 0:
		before = all[first].at(now)
		before.Source = at.Source
	}
	before.Damaged = nil // what is legible is right, and the time is written anew
	row := registered{Name: at.Name, Source: at.Source, Keys: cmp.Or(before.Keys, keys), Seen: now.Changed()}
	if i >= 0 {
		all[i] = row
	} else {
		all = append(all, row)
	}
	return before, all, true, nil
}

// Consumers returns all consumers by name, once for each source.
func (c *Shelving[Tx]) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	now, err := c.now(ctx)
	if err != nil {
		return nil, err
	}
	var rows registry
	if err := explained(c.load(ctx, consumersDoc, &rows)); errors.Is(err, once.ErrCorrupt) {
		return []store.Consumer{{Damaged: err}}, nil
	} else if err != nil {
		return nil, err
	}
	for _, row := range rows {
		all = append(all, row.at(now))
	}
	slices.SortFunc(all, func(a, b store.Consumer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	return all, nil
}

// load decodes a document that is stored, if there is one.
func (c *Shelving[Tx]) load(ctx context.Context, name string, into any) error {
	_, err := c.loadDoc(ctx, name, into)
	return err
}

// loadDoc is load. It also reports whether there is such a document.
func (c *Shelving[Tx]) loadDoc(ctx context.Context, name string, into any) (bool, error) {
	doc, err := c.Docs.LoadDoc(ctx, DocName{Name: name})
	if err != nil {
		return false, err
	}
	return decodeDoc(name, doc, into)
}

// docOf returns the name of a document. Names of consumers and partitions are
// arbitrary, so they are written as digits.
func docOf(kind string, names ...string) string {
	for _, n := range names {
		kind += "/" + hex.EncodeToString([]byte(n))
	}
	return kind
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
