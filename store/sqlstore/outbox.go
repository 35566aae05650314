package sqlstore

import (
	"context"
	"database/sql"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// PutTx writes messages at once, inside a transaction that the caller began and
// ends. Relays that use this Store hear of them after the commit of
// [Store.Transact] or [Store.TransactAt]. They hear of messages in other
// transactions before the commit, which the Store cannot see.
func (s *Store) PutTx(ctx context.Context, tx *sql.Tx, ms []store.Outgoing) error {
	if err := s.readyTx(ctx, tx); err != nil || len(ms) == 0 {
		return err
	}
	var q sqlschema.Querier = sqltx.Querier{DB: tx} // each number of messages has a text of its own
	if len(ms) == 1 {
		q = querier{tx, s.prepared}
	}
	if err := s.outbox.Put(ctx, q, ms); err != nil {
		return s.explain(err)
	}
	s.bell.put(tx)
	return nil
}

// HearOutbox begins to listen for messages that are put through this Store.
func (s *Store) HearOutbox(context.Context) (store.Ear, error) {
	if s.invalid != nil {
		return nil, s.invalid
	}
	return s.bell.hear(), nil
}

// Sent ends messages that were published. In PostgreSQL, the commit does not
// wait for the disk.
func (s *Store) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if s.dialect == sqlschema.MySQL && then != store.Archive {
		return s.sentInSteps(ctx, relay, ms, then)
	}
	return s.Outbox.Sent(ctx, relay, ms, then)
}

// sentInSteps is Sent without a transaction, for MySQL. If a relay disappears
// in a transaction, MySQL keeps the rows locked for long, and the next relay
// would wait for them.
func (s *Store) sentInSteps(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	then store.Ending) (changed int, err error) {

	if err := s.ready(ctx, s.pool); err != nil {
		return 0, err
	}
	calls, err := s.outbox.SentCalls(relay, ms, then)
	if err != nil {
		return 0, s.explain(err)
	}
	conn, err := s.pool.Conn(ctx)
	if err != nil {
		return 0, s.explain(err)
	}
	defer conn.Close()
	q := sqltx.Querier{DB: conn}
	for _, call := range calls {
		// This holds for the next statement only. At other levels, that would
		// wait for the transactions of producers.
		if _, err := q.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return changed, s.explain(err)
		}
		n, err := q.Exec(ctx, call.Text, call.Args...)
		if changed += int(n); err != nil {
			sqltx.Discard(conn) // if the statement was not sent, the next transaction would have its level
			return changed, s.explain(err)
		}
	}
	return changed, nil
}
