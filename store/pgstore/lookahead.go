package pgstore

import (
	"context"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema/consuming"
	"github.com/jackc/pgx/v5"
)

// lookAhead is the look at the shelf that is sent together with the claims. Its
// answer counts only if nothing was claimed or read after it: who released or
// ended a key may have put an earlier message of its ordering key aside before.
// And the work may change the shelf by any statement.
type lookAhead struct {
	query    *store.BlockedQuery
	sent     *consuming.Look
	answered bool // and the answer counts
}

// newLookAhead returns nil if the caller of Transact has not asked for one.
func (s *Store) newLookAhead(ctx context.Context) *lookAhead {
	q := store.BlockedOf(ctx)
	if q == nil {
		return nil
	}
	look := s.consumers.Look(q.Consumer, q.OrderingKeys, q.ParkedToo)
	if look == nil {
		return nil
	}
	return &lookAhead{query: q, sent: look}
}

// queue queues the look after the claims that b has.
func (l *lookAhead) queue(b *pgx.Batch) {
	if l == nil {
		return
	}
	b.Queue(l.sent.Text, l.sent.Args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := l.sent.Read(rows); err != nil {
				return err
			}
		}
		l.answered = rows.Err() == nil
		return rows.Err()
	})
}

// discard is called before anything that is sent after the look.
func (l *lookAhead) discard() {
	if l != nil {
		l.answered = false
	}
}

// take returns the answer, once.
func (l *lookAhead) take(consumer string, orderingKeys []string, parkedToo bool) (blocked []string, known bool) {
	if l == nil || !l.answered || consumer != l.query.Consumer || parkedToo != l.query.ParkedToo {
		return nil, false
	}
	if len(orderingKeys) > len(l.query.OrderingKeys) {
		return nil, false
	}
	l.answered = false
	is := make(map[string]bool, len(l.query.OrderingKeys))
	for _, key := range l.query.OrderingKeys {
		is[key] = false
	}
	for _, key := range l.sent.Blocked() {
		is[key] = true
	}
	for _, key := range orderingKeys {
		switch was, asked := is[key]; {
		case !asked:
			return nil, false
		case was:
			blocked = append(blocked, key)
		}
	}
	return blocked, true
}

// BlockedTx returns the ordering keys, of those given, that have messages on the
// shelf. A transaction that is REPEATABLE READ or SERIALIZABLE sees only what
// was committed before its snapshot. If the context of Transact has the same
// question, see [store.WithBlocked], it was sent with the claims.
func (s *Store) BlockedTx(ctx context.Context, tx pgx.Tx, consumer string, orderingKeys []string,
	parkedToo bool) (blocked []string, err error) {

	if h := handleOf(tx); h != nil && !h.isClosed() {
		if blocked, known := h.look.take(consumer, orderingKeys, parkedToo); known {
			return blocked, nil
		}
	}
	return s.Shelf.BlockedTx(ctx, tx, consumer, orderingKeys, parkedToo)
}
