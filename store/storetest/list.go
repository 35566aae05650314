package storetest

import (
	"fmt"
	"slices"

	"github.com/effectively-once/once"
)

func listRules() []rule {
	return []rule{
		{"list/offered", "A store is a Lister, unless its harness says that it is not.", listOffered},
		{"list/selects", "List selects by operation, exactly, and by any of several statuses as they are now.", listSelects},
		{"list/records", "List returns what Get returns, without the bodies of outcomes.", listRecords},
		{"list/pages", "Pages that continue behind the last record of the page before are complete and without repeats.", listPages},
	}
}

func (b *bench) lister() once.Lister {
	l, ok := b.store.(once.Lister)
	if !ok {
		b.failf("%T is not a once.Lister: set NoList if that is so", b.store)
	}
	return l
}

func (b *bench) list(q once.Query) []once.Record {
	recs, err := b.lister().List(b, q)
	b.must("List", err)
	return recs
}

func listOffered(b *bench) { b.lister() }

func listSelects(b *bench) {
	holds := b.standings("")
	other := b.key("running")
	other.Operation += "/step"
	b.own(other, "me", long)

	all := []string{"running", "lapsed", "unknown", "parked", "released", "done", "expired"}
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
		b.wantIDs(want.ids, once.Query{Operation: other.Operation[:len(other.Operation)-len("/step")], Status: want.status})
	}
	b.wantIDs([]string{"running"}, once.Query{Operation: other.Operation})
	b.wantIDs(nil, once.Query{Operation: holds["done"].Key.Operation[:10]})
	b.vanish(b.doneFor("forgotten", short, 2*short))
	b.wantIDs(all, once.Query{Operation: holds["done"].Key.Operation})
	for _, rec := range b.list(once.Query{Limit: 1000}) {
		if rec.Key.Operation == "" {
			b.failf("a query for everything returned %s of %+q", show(rec), rec.Key)
		}
	}
	b.settle(done(holds["parked"]))
	b.wantIDs([]string{"done", "parked"}, once.Query{Operation: holds["done"].Key.Operation, Status: []once.Status{once.Done}})
}

func (b *bench) wantIDs(want []string, q once.Query) {
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
	holds := b.standings("")
	for _, rec := range b.list(once.Query{Operation: holds["done"].Key.Operation}) {
		if len(rec.Outcome.Body) > 0 {
			b.failf("List returned the body of an outcome: %s", show(rec))
		}
		want := b.get(rec.Key)
		want.Outcome.Body, want.LeaseLeft = nil, rec.LeaseLeft // time has passed since
		b.unchanged("List", rec, want)
	}
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
		got := make(map[once.Key]bool)
		var after once.Key
		for page := 0; ; page++ {
			recs := b.list(once.Query{Operation: op, Status: []once.Status{once.Running, once.Done}, After: after, Limit: size})
			b.wantPage(len(recs), size, n-len(got))
			for _, rec := range recs {
				if got[rec.Key] || !want[rec.Key] {
					b.failf("page %d repeats %+q, or never had it to return", page, rec.Key)
				}
				got[rec.Key] = true
				after = rec.Key
			}
			if len(recs) == 0 {
				break
			}
			if size == limit && page == 1 { // what was listed may be changed while it is paged through
				b.settle(done(holdOf(recs[0])))
			}
		}
		if len(got) != n {
			b.failf("in pages of %d, %d records of %d were listed", size, len(got), n)
		}
	}
}

// wantPage checks that a page is full, or the last one.
func (b *bench) wantPage(got, limit, left int) {
	if limit == 0 {
		limit = 100
	}
	if got != min(limit, left) {
		b.failf("a page with a limit of %d has %d records, and %d were left", limit, got, left)
	}
}
