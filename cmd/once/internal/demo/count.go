package demo

import (
	"context"
	"maps"
)

// count compares the effects of a side with what they should be. The acknowledgements are read first,
// because what is acknowledged must be there already.
func (s *side) count(ctx context.Context, orders []Order) (Side, error) {
	c, acked := s.broker.counts()
	books, err := s.shop.books(ctx)
	if err != nil {
		return c, err
	}
	for _, o := range orders {
		charges, book := len(s.provider.charged(o.ID)), books[o.Customer]
		c.Effects += charges
		c.DuplicateCharges += max(charges-1, 0)
		c.OverchargedCents += int64(max(charges-1, 0)) * o.Cents
		c.DuplicateBookings += max(int(book.balance/o.Cents)-1, 0)
		if acked[o.ID] && (charges == 0 || !book.has(o)) {
			c.Lost++
		}
	}
	c.Duplicated = c.DuplicateCharges + c.DuplicateBookings
	return c, nil
}

func (b *broker) counts() (c Side, acked map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Side{Deliveries: b.deliveries, Crashes: b.crashes}, maps.Clone(b.acked)
}

// book is what the database has of a customer.
type book struct {
	orders  int
	balance int64
}

// has reports whether the order is there with its amount, once or more often, and nothing besides.
func (b book) has(o Order) bool {
	return b.orders > 0 && b.balance >= o.Cents && b.balance%o.Cents == 0
}

func (s *Shop) books(ctx context.Context) (map[string]book, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT customer, balance,
		(SELECT count(*) FROM orders WHERE orders.customer = account.customer) FROM account`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	books := map[string]book{}
	for rows.Next() {
		var customer string
		var b book
		if err := rows.Scan(&customer, &b.balance, &b.orders); err != nil {
			return nil, err
		}
		books[customer] = b
	}
	return books, rows.Err()
}
