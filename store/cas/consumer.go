package cas

import (
	"cmp"
	"context"
	"encoding/hex"
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
}

func (r registered) at(now Now) store.Consumer {
	return store.Consumer{Name: r.Name, Source: r.Source, Keys: r.Keys, Seen: max(0, now.AtLeastSince(r.Seen))}
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
		var all []registered
		if _, err := d.read(ctx, consumersDoc, &all); err != nil {
			return err
		}
		var changed bool
		if before, all, changed = register(all, at, keys, now); !changed {
			return nil
		}
		return d.write(consumersDoc, all)
	})
	return before, err
}

func register(all []registered, at store.Consumer, keys string, now Now) (before store.Consumer, is []registered, changed bool) {
	find := func(source string) int {
		return slices.IndexFunc(all, func(r registered) bool {
			_, ok := store.MatchSource(r.Source, source)
			return r.Name == at.Name && ok
		})
	}
	first := slices.IndexFunc(all, func(r registered) bool { return r.Name == at.Name })
	i := find(at.Source)
	switch {
	case i >= 0:
		before = all[i].at(now)
		before.Source, _ = store.MatchSource(before.Source, at.Source)
		at.Source = before.Source
	case first >= 0 && find(at.SharedWith) < 0:
		return all[first].at(now), all, false
	case first >= 0:
		before = all[first].at(now)
		before.Source = at.Source
	}
	row := registered{Name: at.Name, Source: at.Source, Keys: cmp.Or(before.Keys, keys), Seen: now.Changed()}
	if i >= 0 {
		all[i] = row
	} else {
		all = append(all, row)
	}
	return before, all, true
}

// Consumers returns all consumers by name, once for each source.
func (c *Shelving[Tx]) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	now, err := c.now(ctx)
	if err != nil {
		return nil, err
	}
	var rows []registered
	if err := c.load(ctx, consumersDoc, &rows); err != nil {
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
	doc, err := c.Docs.LoadDoc(ctx, DocName{Name: name})
	if err == nil {
		_, err = decodeDoc(name, doc, into)
	}
	return err
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
