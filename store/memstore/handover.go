package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// HandOver moves messages from the outbox to the shelf.
func (s *Store) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) (handed []bool, err error) {

	if len(rows) != len(ms) {
		return nil, fmt.Errorf("%w: HandOver of %d messages with the rows of %d", once.ErrInvalid, len(ms), len(rows))
	}
	if err := checkEnding(then); err != nil {
		return nil, err
	}
	for _, m := range slices.Concat(rows...) {
		if err := checkShelved(m); err != nil {
			return nil, err
		}
	}
	handed = make([]bool, len(ms))
	err = s.do(ctx, func(now time.Time) error {
		tx := s.Begin()
		left := make(map[string]bool) // ordering keys of messages that are left alone
		for i, m := range ms {
			row, key := s.outbox.find(m), m.Message.OrderingKey
			if row == nil || !s.outbox.mayChange(relay, m.Lane) || left[key] {
				left[key] = key != ""
				continue
			}
			row.end(then, now)
			tx.shelve(rows[i], now)
			handed[i] = true
		}
		s.applyShelf(tx, now)
		s.outbox.sweep(ms)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return handed, nil
}
