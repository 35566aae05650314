package fakecosmos

import (
	"cmp"
	"slices"
	"strings"
)

// index finds items by the text that a property has in one of their versions. It
// spares queries most items, and may return some that no longer have the text.
type index struct {
	path    []string
	entries []entry // by text, hash and name
}

type entry struct {
	text string
	item *item
}

func compareEntries(a, b entry) int {
	return cmp.Or(strings.Compare(a.text, b.text), comparePlace(a.item, place{b.item.hash, b.item.name}))
}

// add adds what an item has in a version.
func (x *index) add(it *item, v version) {
	value, _ := lookUp(v.body, x.path)
	text, ok := value.(string)
	if !ok {
		return
	}
	e := entry{text, it}
	if i, found := slices.BinarySearchFunc(x.entries, e, compareEntries); !found {
		x.entries = slices.Insert(x.entries, i, e)
	}
}

// drop removes an item.
func (x *index) drop(it *item) {
	for _, v := range it.versions {
		value, _ := lookUp(v.body, x.path)
		text, _ := value.(string)
		if i, found := slices.BinarySearchFunc(x.entries, entry{text, it}, compareEntries); found {
			x.entries = slices.Delete(x.entries, i, i+1)
		}
	}
}

// limits are the texts that a condition allows a property to have, with a few more.
type limits struct {
	path      []string
	low, high string // high may be "": no limit
}

// between returns items by hash and name, among them all that have the property
// within its limits.
func (p *partition) between(l limits) (items []*item) {
	name := strings.Join(l.path, ".")
	x := p.indexes[name]
	if x == nil {
		x = &index{path: l.path}
		for _, it := range p.order {
			for _, v := range it.versions {
				x.add(it, v)
			}
		}
		p.indexes[name] = x
	}
	first, _ := slices.BinarySearchFunc(x.entries, l.low, func(e entry, text string) int { return strings.Compare(e.text, text) })
	for _, e := range x.entries[first:] {
		if l.high != "" && e.text > l.high {
			break
		}
		items = append(items, e.item)
	}
	slices.SortFunc(items, func(a, b *item) int { return comparePlace(a, place{b.hash, b.name}) })
	return slices.Compact(items)
}
