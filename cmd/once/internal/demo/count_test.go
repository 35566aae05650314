package demo

import (
	"database/sql"
	"testing"
)

func TestCount(t *testing.T) {
	for name, test := range map[string]struct {
		found effects
		side  Side
		tally Tally
	}{
		"as it should be":                 {effects{rows: 1, charges: 1, points: 250, letters: 1, answered: true}, Side{Effects: 1}, Tally{}},
		"not answered, and nothing there": {effects{}, Side{}, Tally{}},
		"two of all, and three charges": {effects{rows: 2, charges: 3, points: 500, letters: 2, answered: true},
			Side{Effects: 3, DuplicateOrders: 1, DuplicateCharges: 2, DuplicatePoints: 1, DuplicateLetters: 1, OverchargedCents: 500}, Tally{Doubled: 1}},
		"no row":             {effects{charges: 1, points: 250, letters: 1, answered: true}, Side{Effects: 1, Lost: 1}, Tally{Lost: 1}},
		"no charge":          {effects{rows: 1, points: 250, letters: 1, answered: true}, Side{Lost: 1}, Tally{Lost: 1}},
		"no points":          {effects{rows: 1, charges: 1, letters: 1, answered: true}, Side{Effects: 1, Lost: 1}, Tally{Lost: 1}},
		"other points":       {effects{rows: 1, charges: 1, points: 251, letters: 1, answered: true}, Side{Effects: 1, Lost: 1}, Tally{Lost: 1}},
		"no letter":          {effects{rows: 1, charges: 1, points: 250, answered: true}, Side{Effects: 1, Lost: 1}, Tally{Lost: 1}},
		"a letter is parked": {effects{rows: 1, charges: 1, points: 250, parked: true, answered: true}, Side{Effects: 1, Parked: 1}, Tally{Parked: 1}},
	} {
		test.found.cents = 250
		test.tally.Orders = 1
		var side Side
		var tally Tally
		if test.found.add(&side, &tally); side != test.side || tally != test.tally {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", name, side, tally, test.side, test.tally)
		}
	}
}

// What is counted is what is there: rows, points, charges, letters.
func TestCountLooksAtTheEffects(t *testing.T) {
	s, err := newSide(t.Context(), With, t.TempDir(), Options{Seed: 1, Orders: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	o := Order{ID: "order-1", Customer: "customer-1", Cents: 250, Window: raced}
	s.placed = []placed{{o, everything}, {Order{ID: "order-2", Customer: "customer-2", Cents: 10}, everything}}
	s.acked["order-1"], s.acked["order-2"] = true, true
	shop := &Shop{db: s.db, provider: s.provider.url, ask: calmly}
	for range 2 {
		if err := shop.transact(t.Context(), func(tx *sql.Tx) error { return shop.insert(t.Context(), tx, o) }); err != nil {
			t.Fatal(err)
		}
		if err := shop.transact(t.Context(), func(tx *sql.Tx) error { return shop.credit(t.Context(), tx, o) }); err != nil {
			t.Fatal(err)
		}
		if _, err := shop.charge(t.Context(), "", o); err != nil {
			t.Fatal(err)
		}
		if err := shop.letter(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	got, tallies, err := s.count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Side{Orders: 2, Answered: 2, Effects: 2, Duplicated: 4, Lost: 1, DuplicateOrders: 1, DuplicateCharges: 1, DuplicatePoints: 1,
		DuplicateLetters: 1, OverchargedCents: 250}
	if got != want || *tallies[everything] != (Tally{Orders: 2, Doubled: 1, Lost: 1}) {
		t.Errorf("got %+v and %+v, want %+v", got, tallies[everything], want)
	}
}
