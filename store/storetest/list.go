package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func listRules() []rule {
	return []rule{
		{"list/offered", "A store is a Lister, unless its harness sets NoList.", listOffered},
		{"list/selects",
			"List selects by exact operation and scopes, and by any of several current statuses.",
			listSelects},
		{"list/cause",
			"List selects by cause, and a key by its UUID, on all pages, with and without other conditions.",
			listCause},
		{"list/unchanged",
			"List selects records that were not changed for a time.",
			listUnchanged},
		{"list/records",
			"List returns what Get returns, without the bodies of outcomes. So does GetMany, if there is one, with them.",
			listRecords},
		{"list/ids",
			"FindIDs, if there is one, returns the keys of records whose ID contains a text, byte by byte, and no more than asked for.",
			findIDs},
		{"list/pages",
			"Pages that continue after Next, or after any record, are complete, have no repeats, and come to an end.",
			listPages},
	}
}

func (b *bench) lister() once.Lister {
	l, ok := once.As[once.Lister](b.store)
	if !ok {
		b.failf("%T is not a once.Lister: set NoList if that is so", b.store)
	}
	return l
}

func (b *bench) page(q once.RecordQuery) once.RecordPage {
	page, err := b.lister().List(b, q)
	b.must("List", err)
	return page
}

// open are the statuses that each store can list.
var open = []once.Status{once.Running, once.Unknown, once.Parked}

// isRefused reports whether a store that lists only open records refuses a
// query.
func (b *bench) isRefused(q once.RecordQuery) bool {
	return b.listsOpen && q.UUID == [16]byte{} &&
		slices.ContainsFunc(q.Status, func(s once.Status) bool { return !slices.Contains(open, s) })
}

// list returns all pages of a query. A store that lists only open records is
// asked for these.
func (b *bench) list(q once.RecordQuery) (recs []once.Record) {
	if b.listsOpen && len(q.Status) == 0 && q.UUID == [16]byte{} {
		q.Status = open
	}
	seen := make(map[once.Key]bool)
	for {
		page := b.page(q)
		recs = append(recs, page.Records...)
		if page.Next == (once.Key{}) {
			return recs
		}
		b.goesOn(seen, page.Next)
		q.After = page.Next
	}
}

// goesOn fails if pages repeat for ever.
func (b *bench) goesOn(seen map[once.Key]bool, next once.Key) {
	if seen[next] {
		b.failf("List returned Next %+q for the second time", next)
	}
	seen[next] = true
}

func listOffered(b *bench) { b.lister() }

func listSelects(b *bench) {
	fences := b.fencesByState("")
	other := b.key("running")
	other.Operation += "/step"
	b.own(other, "me", long)

	all := []string{"running", "lapsed", "unknown", "parked"}
	if !b.listsOpen {
		all = append(all, "released", "done", "expired")
	}
	for _, want := range []struct {
		ids    []string
		status []once.Status
	}{
		{all, nil},
		{[]string{"running"}, []once.Status{once.Running}},
		{[]string{"lapsed", "unknown"}, []once.Status{once.Unknown}},
		{[]string{"parked"}, []once.Status{once.Parked}},
		{[]string{"done"}, []once.Status{once.Done}},
		{[]string{"expired"}, []once.Status{once.Expired}},
		{[]string{"released"}, []once.Status{once.Absent}},
		{[]string{"lapsed", "unknown", "parked", "done"}, []once.Status{once.Parked, once.Unknown, once.Done}},
	} {
		b.wantIDs(want.ids, once.RecordQuery{Operation: other.Operation[:len(other.Operation)-len("/step")], Status: want.status})
	}
	b.wantIDs([]string{"running"}, once.RecordQuery{Operation: other.Operation})
	b.wantIDs(nil, once.RecordQuery{Operation: fences["done"].Key.Operation[:10]})
	b.vanish(b.doneFor("forgotten", short, 2*short))
	b.wantIDs(all, once.RecordQuery{Operation: fences["done"].Key.Operation})
	everything := once.RecordQuery{Limit: 1000}
	if b.listsOpen {
		_, err := b.lister().List(b, everything)
		b.wantErr("a query for everything", err, once.ErrInvalid)
		everything.Status = open
	}
	for range 20 { // pages: there may be many records of other cases
		page := b.page(everything)
		for _, rec := range page.Records {
			if rec.Key.Operation == "" {
				b.failf("a query for everything returned %s of %+q", show(rec), rec.Key)
			}
		}
		if everything.After = page.Next; page.Next == (once.Key{}) {
			break
		}
	}
	b.inScopes(fences["done"].Key.Operation)
	b.settle(done(fences["parked"]))
	b.wantIDs([]string{"done", "parked"}, once.RecordQuery{Operation: fences["done"].Key.Operation, Status: []once.Status{once.Done}})
}

// inScopes lists records that differ only in their scopes.
func (b *bench) inScopes(operation string) {
	for _, scope := range []string{"", "other", "other ", "Other"} {
		b.own(once.Key{Scope: scope, Operation: operation, ID: "in " + scope}, "me", long)
	}
	b.wantIDs([]string{"in other"}, once.RecordQuery{Operation: operation, Scopes: []string{"other"}})
	b.wantIDs([]string{"in "}, once.RecordQuery{Operation: operation, Scopes: []string{""}})
	b.wantIDs([]string{"in ", "in Other"}, once.RecordQuery{Operation: operation, Scopes: []string{"Other", "", "no such"},
		Status: []once.Status{once.Running, once.Unknown}})
	b.wantIDs(nil, once.RecordQuery{Operation: operation, Scopes: []string{"other"}, Status: []once.Status{once.Done}})
	many := []string{"other"}
	for i := range 1500 {
		many = append(many, fmt.Sprint("tenant ", i))
	}
	b.wantIDs([]string{"in other"}, once.RecordQuery{Operation: operation, Scopes: many})
	b.wantIDs([]string{"running", "in ", "in Other", "in other", "in other "}, once.RecordQuery{Operation: operation,
		Scopes: []string{}, Status: []once.Status{once.Running}})
}

func listCause(b *bench) {
	const n, limit = 25, 10
	op := b.key("").Operation
	cause, other := causeOf(b.run), causeOf(b.run+" other")
	var want []string
	for i := range n {
		r := b.request(b.key(fmt.Sprint(i)), "me", long)
		r.Cause = cause
		if i == 0 || !b.listsOpen {
			want = append(want, r.Key.ID)
		}
		if fence := fenceOf(b.claim(r)); i > 0 {
			b.settle(done(fence))
		}
	}
	b.own(b.key("not caused by it"), "me", long)
	r := b.request(once.Key{Operation: op + "/other", ID: "1"}, "me", long)
	r.Cause = other
	b.claim(r)
	b.wantIDs(want, once.RecordQuery{Operation: op, Cause: cause, Limit: limit})
	b.wantIDs([]string{"0"}, once.RecordQuery{Operation: op, Cause: cause, Status: []once.Status{once.Running, once.Unknown}})
	b.wantIDs(nil, once.RecordQuery{Operation: op, Cause: other})
	if found := b.list(once.RecordQuery{Cause: other}); len(found) != 1 || found[0].Key != r.Key || found[0].Cause != other {
		b.failf("the record of %+q has the cause %x, and a query for that returned %v", r.Key, other, found)
	}
	if found := b.list(once.RecordQuery{UUID: r.Key.UUID()}); len(found) != 1 || found[0].Key != r.Key {
		b.failf("a query for %+q by its UUID returned %v", r.Key, found)
	}
	b.wantIDs(nil, once.RecordQuery{Operation: op, UUID: r.Key.UUID()})
	b.wantIDs([]string{"3"}, once.RecordQuery{Operation: op, UUID: b.key("3").UUID(), Cause: cause})
	b.wantIDs(nil, once.RecordQuery{Operation: op, UUID: b.key("3").UUID(), Cause: other})
	b.wantIDs(nil, once.RecordQuery{Operation: op, UUID: once.Key{Operation: "never", ID: "seen"}.UUID()})
}

func listUnchanged(b *bench) {
	fence := b.own(b.key("old"), "me", long)
	b.until("a record that nobody changes is listed as such", func() bool {
		return len(b.list(once.RecordQuery{Operation: fence.Key.Operation, Unchanged: short})) == 1
	})
	b.own(b.key("new"), "me", long)
	b.wantIDs(nil, once.RecordQuery{Operation: fence.Key.Operation, Unchanged: long})
	b.wantIDs([]string{"new", "old"}, once.RecordQuery{Operation: fence.Key.Operation})
	b.must("Extend", b.store.Extend(b, fence, long))
	b.wantIDs(nil, once.RecordQuery{Operation: fence.Key.Operation, Unchanged: long, Status: []once.Status{once.Running}})
}

func (b *bench) wantIDs(want []string, q once.RecordQuery) {
	if b.isRefused(q) {
		_, err := b.lister().List(b, q)
		b.wantErr(fmt.Sprint("a query for records that are ", q.Status), err, once.ErrInvalid)
		return
	}
	var got []string
	for _, rec := range b.list(q) {
		if rec.Key.Operation != q.Operation {
			b.failf("a query for %q returned %+q", q.Operation, rec.Key)
		}
		got = append(got, rec.Key.ID)
	}
	want = slices.Clone(want)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.failf("a query for %q in %v returned %q, want %q", q.Operation, q.Status, got, want)
	}
}

func listRecords(b *bench) {
	fences := b.fencesByState("")
	for _, rec := range b.list(once.RecordQuery{Operation: fences["done"].Key.Operation}) {
		if len(rec.Outcome.Body) > 0 {
			b.failf("List returned the body of an outcome: %s", show(rec))
		}
		want := b.get(rec.Key)
		want.Outcome.Body, want.LeaseLeft = nil, rec.LeaseLeft // time has passed since
		b.unchanged("List", rec, want)
	}
	getMany(b, fences)
}

// getMany compares GetMany with Get, if the store has it: for more keys than fit
// into a statement, and for some that are not known or named twice.
func getMany(b *bench, fences map[string]once.Fence) {
	many, ok := once.As[store.ManyGetter](b.store)
	if !ok {
		return
	}
	var keys []once.Key
	for i := range 3 {
		for _, state := range slices.Sorted(maps.Keys(fences)) {
			keys = append(keys, fences[state].Key, b.key(fmt.Sprint("nobody ", i, state)))
		}
	}
	recs, err := many.GetMany(b, keys)
	b.must("GetMany", err)
	if len(recs) != len(keys) {
		b.failf("GetMany of %d keys returned %d records", len(keys), len(recs))
	}
	for i, rec := range recs {
		want := b.get(keys[i])
		want.LeaseLeft = rec.LeaseLeft // time has passed since
		b.unchanged("GetMany", rec, want)
	}
	if recs, err := many.GetMany(b, nil); len(recs) > 0 || err != nil {
		b.failf("GetMany of nothing: %v, %v", recs, err)
	}
}

// findIDs checks FindIDs, if the store has it. Other keys of the store do not matter:
// a mark is in no other ID.
func findIDs(b *bench) {
	finder, ok := once.As[store.IDFinder](b.store)
	if !ok {
		return
	}
	mark := "Né%_" + b.key("").Operation
	find := func(part string, limit int) []once.Key {
		found, err := finder.FindIDs(b, part, limit)
		b.must("FindIDs", err)
		return found
	}
	var want []once.Key
	for i, id := range []string{mark, "order-" + mark, mark + "/1", "a " + mark + " b"} {
		k := b.key(id)
		k.Scope = []string{"", "t"}[i%2]
		b.own(k, "me", long)
		want = append(want, k)
	}
	for _, other := range []string{strings.ToLower(mark), strings.ReplaceAll(mark, "é", "e"), strings.ReplaceAll(mark, "_", "x"), mark[:len(mark)-1]} {
		b.own(b.key(other), "me", long)
	}
	b.vanish(b.doneFor("forgotten "+mark, short, 2*short))
	got := find(mark, 0)
	for _, k := range got {
		if !slices.Contains(want, k) {
			b.failf("FindIDs of %+q returned %+q", mark, k)
		}
	}
	for _, k := range want {
		if n := count(got, k); n != 1 {
			b.failf("FindIDs of %+q returned %+q %d times, want 1", mark, k, n)
		}
	}
	if got := find(mark, 2); len(got) != 2 {
		b.failf("FindIDs with a limit of 2 returned %d keys", len(got))
	}
	for _, nothing := range []string{mark + mark, "", "\xff", "\x00", strings.Repeat("a", 256)} {
		if got := find(nothing, 0); len(got) > 0 {
			b.failf("FindIDs of %+q returned %+q", nothing, got)
		}
	}
}

func count(keys []once.Key, k once.Key) (n int) {
	for _, other := range keys {
		if other == k {
			n++
		}
	}
	return n
}

func listPages(b *bench) {
	const n, limit = 107, 20
	op := b.key("").Operation
	want := make(map[once.Key]bool)
	for i := range n {
		k := b.key(fmt.Sprint(i))
		k.Scope = []string{"", "a", "B", "é"}[i%4]
		b.own(k, "me", long)
		want[k] = true
	}
	for _, size := range []int{limit, 0, 1000} {
		got, seen := make(map[once.Key]bool), make(map[once.Key]bool)
		ended := once.Done
		if b.listsOpen {
			ended = once.Parked
		}
		q := once.RecordQuery{Operation: op, Status: []once.Status{once.Running, ended}, Limit: size}
		for n := 0; ; n++ {
			page := b.page(q)
			if most := cmp.Or(size, 100); len(page.Records) > most {
				b.failf("a page with a limit of %d has %d records", most, len(page.Records))
			}
			for _, rec := range page.Records {
				if got[rec.Key] || !want[rec.Key] {
					b.failf("page %d repeats %+q, or never had it to return", n, rec.Key)
				}
				got[rec.Key] = true
			}
			if page.Next == (once.Key{}) {
				break
			}
			b.goesOn(seen, page.Next)
			q.After = page.Next
			if last := len(page.Records) - 1; last >= 0 && size == limit { // a page can also continue from there
				q.After = page.Records[last].Key
			}
			if size == limit && len(got) < 3*limit && len(page.Records) > 0 { // records may change while they are paged through
				b.settle(ending(fenceOf(page.Records[0]), ended))
			}
		}
		if len(got) != n {
			b.failf("in pages of %d, %d records of %d were listed", size, len(got), n)
		}
	}
}
