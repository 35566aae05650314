package demo

import (
	"context"

	"github.com/effectively-once/once/cmd/once/internal/trial"
	"github.com/effectively-once/once/store"
)

// count compares the effects of a side with the expected ones. It reads the
// acknowledgements first, because whatever is acknowledged must exist in the
// end.
func (s *side) count(ctx context.Context) (Side, map[string]*Tally, error) {
	s.counting.Lock()
	defer s.counting.Unlock()
	c, tallies, err := s.countKept(ctx)
	if err != nil {
		return c, nil, err
	}
	c.add(s.past)
	for phase, t := range s.pastTallies {
		if tallies[phase] == nil {
			tallies[phase] = new(Tally)
		}
		tallies[phase].add(*t)
	}
	return c, tallies, nil
}

// countKept counts the orders that were not forgotten.
func (s *side) countKept(ctx context.Context) (Side, map[string]*Tally, error) {
	s.mu.Lock()
	c := Side{Orders: len(s.placed), Crashes: s.crashes, Outages: s.outages, Deliveries: s.delivered, news: s.news}
	orders := append([]placed(nil), s.placed...)
	answered := make(map[string]bool, len(s.acked))
	for id := range s.acked {
		answered[id] = true
	}
	s.mu.Unlock()
	c.Answered = len(answered)

	rows, err := trial.Counts(ctx, s.db, `SELECT id, count(*) FROM orders GROUP BY id`)
	if err != nil {
		return c, nil, err
	}
	points, err := trial.Counts(ctx, s.db, `SELECT customer, points FROM account`)
	if err != nil {
		return c, nil, err
	}
	charges, letters := s.provider.made()
	parked, err := s.parked(ctx)
	if err != nil {
		return c, nil, err
	}
	tallies := map[string]*Tally{}
	for _, o := range orders {
		t := tallies[o.phase]
		if t == nil {
			t = new(Tally)
			tallies[o.phase] = t
		}
		found := effects{rows: rows[o.ID], charges: charges[o.ID], points: points[o.Customer], letters: letters[o.ID],
			parked: parked[o.ID], cents: o.Cents, answered: answered[o.ID]}
		found.add(&c, t)
	}
	c.Duplicated = c.DuplicateOrders + c.DuplicateCharges + c.DuplicatePoints + c.DuplicateLetters
	return c, tallies, nil
}

// effects are the effects of an order.
type effects struct {
	rows, charges, points, letters int
	parked                         bool // its letter waits for a person
	cents                          int64
	answered                       bool // the order was confirmed to the customer
}

func (e effects) add(c *Side, t *Tally) {
	t.Orders++
	credited := e.points / int(e.cents)
	orders, charges, points, letters := max(e.rows-1, 0), max(e.charges-1, 0), max(credited-1, 0), max(e.letters-1, 0)
	c.Effects += e.charges
	c.DuplicateOrders += orders
	c.DuplicateCharges += charges
	c.DuplicatePoints += points
	c.DuplicateLetters += letters
	c.OverchargedCents += int64(charges) * e.cents
	if orders+charges+points+letters > 0 {
		t.Doubled++
	}
	if e.parked {
		c.Parked++
		t.Parked++
	}
	if !e.answered {
		return
	}
	if e.rows == 0 || e.charges == 0 || credited == 0 || e.points%int(e.cents) != 0 || e.letters == 0 && !e.parked {
		c.Lost++
		t.Lost++
	}
}

// parked returns the orders whose letters wait for a person.
func (s *side) parked(ctx context.Context) (map[string]bool, error) {
	orders := map[string]bool{}
	for after := int64(0); ; {
		page, err := s.store.Shelved(ctx, store.ShelfQuery{Consumer: "letters", States: []store.ShelfState{store.Parked}, After: after})
		if err != nil || len(page) == 0 {
			return orders, err
		}
		for _, m := range page {
			if o, err := read(&m.Message); err == nil {
				orders[o.ID] = true
			}
			after = m.Seq
		}
	}
}
