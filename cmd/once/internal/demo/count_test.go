package demo

import "testing"

func TestCount(t *testing.T) {
	plan := newSchedule(Options{Seed: 1, Orders: 9})
	s, err := newSide(t.Context(), With, t.TempDir(), plan)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for i, done := range []struct {
		charges, bookings int
		unbooked          bool // the row is there, its amount is not
		odd               bool // a cent more than the amount
		acked             bool
	}{
		{charges: 1, bookings: 1, acked: true},
		{}, // not acknowledged, so not lost
		{charges: 3, bookings: 1, acked: true},
		{charges: 1, bookings: 3, acked: true},
		{acked: true},
		{charges: 1, acked: true},
		{bookings: 1, acked: true},
		{charges: 1, unbooked: true, acked: true},
		{charges: 1, bookings: 1, odd: true, acked: true},
	} {
		o := plan.orders[i]
		for range done.charges {
			s.provider.charge("", o)
		}
		for range done.bookings {
			bookOnce(t, s.shop, o)
		}
		if done.unbooked {
			bookOnce(t, s.shop, Order{ID: o.ID, Customer: o.Customer})
		}
		if done.odd {
			bookOnce(t, s.shop, Order{ID: o.ID, Customer: o.Customer, Cents: 1})
		}
		s.broker.acked[o.ID] = done.acked
	}

	got, err := s.count(t.Context(), plan.orders)
	if err != nil {
		t.Fatal(err)
	}
	want := Side{Effects: 8, Duplicated: 4, DuplicateCharges: 2, DuplicateBookings: 2, Lost: 5,
		OverchargedCents: 2 * plan.orders[2].Cents}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func bookOnce(t *testing.T, s *Shop, o Order) {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := s.book(t.Context(), tx, o, Receipt{}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}
