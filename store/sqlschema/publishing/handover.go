package publishing

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// HandingOver implements [store.HandOver]. SQL stores embed it.
type HandingOver struct {
	tables *Tables
	db     sqlschema.Access
	shelve Shelve
}

// Shelve puts messages on the shelf, inside a transaction.
type Shelve func(ctx context.Context, q sqlschema.Querier, ms []store.Shelved) error

// NewHandingOver returns how a store moves messages from its outbox to its shelf.
func NewHandingOver(t *Tables, db sqlschema.Access, shelve Shelve) HandingOver {
	return HandingOver{t, db, shelve}
}

// errSome rolls back a transaction that has ended only some of its messages. How
// many says nothing about which.
var errSome = errors.New("once: some messages were changed meanwhile")

// HandOver moves messages from the outbox to the shelf. In PostgreSQL, the commit
// does not wait for the disk: all that is committed after it makes it durable, such
// as what a consumer does with the message.
func (h HandingOver) HandOver(ctx context.Context, relay [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) (handed []bool, err error) {

	handed = make([]bool, len(ms))
	err = h.transact(ctx, func(ctx context.Context, q sqlschema.Querier) error {
		return h.together(ctx, q, relay, ms, rows, then, handed)
	})
	if errors.Is(err, errSome) {
		err = h.transact(ctx, func(ctx context.Context, q sqlschema.Querier) error {
			return h.oneByOne(ctx, q, relay, ms, rows, then, handed)
		})
	}
	if err != nil {
		return nil, err
	}
	return handed, nil
}

func (h HandingOver) transact(ctx context.Context, do func(context.Context, sqlschema.Querier) error) error {
	return h.db.Transact(ctx, h.tables.sql.settings, do)
}

// together hands over all messages.
func (h HandingOver) together(ctx context.Context, q sqlschema.Querier, relay [16]byte, ms []store.Outgoing,
	rows [][]store.Shelved, then store.Ending, handed []bool) error {

	if len(rows) != len(ms) {
		return sqlschema.Refusal(fmt.Sprintf("HandOver of %d messages with the rows of %d", len(ms), len(rows)))
	}
	n, err := h.tables.Sent(ctx, q, relay, ms, then)
	switch {
	case err != nil:
		return err
	case n < len(ms):
		return errSome
	}
	for i := range handed {
		handed[i] = true
	}
	return h.shelve(ctx, q, slices.Concat(rows...))
}

// oneByOne hands over those messages that are still there, and that the relay may
// change.
func (h HandingOver) oneByOne(ctx context.Context, q sqlschema.Querier, relay [16]byte, ms []store.Outgoing,
	rows [][]store.Shelved, then store.Ending, handed []bool) error {

	left := make(map[string]bool) // ordering keys of messages that are left alone
	for i, m := range ms {
		key, n := m.Message.OrderingKey, 0
		if m.Hint = 0; !left[key] { // it may have got another place
			var err error
			if n, err = h.tables.Sent(ctx, q, relay, []store.Outgoing{m}, then); err != nil {
				return err
			}
		}
		if handed[i] = n == 1; !handed[i] {
			left[key] = key != ""
			continue
		}
		if err := h.shelve(ctx, q, rows[i]); err != nil {
			return err
		}
	}
	return nil
}
