package consuming

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// Shelf implements [store.TxShelf]. SQL stores embed it. Tx is the client's
// type of a transaction.
type Shelf[Tx any] struct {
	tables *Tables
	db     sqlschema.TxAccess[Tx]
}

// NewShelf returns the shelf of a store.
func NewShelf[Tx any](t *Tables, db sqlschema.TxAccess[Tx]) Shelf[Tx] { return Shelf[Tx]{t, db} }

// Shelve puts messages aside, in a transaction of its own.
func (s Shelf[Tx]) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		return s.tables.Shelve(ctx, q, ms)
	})
}

// ShelveTx is Shelve in a transaction of the caller's.
func (s Shelf[Tx]) ShelveTx(ctx context.Context, tx Tx, ms []store.Shelved) error {
	return s.db.InTx(ctx, tx, func(q sqlschema.Querier) error {
		return s.tables.Shelve(ctx, q, ms)
	})
}

// BlockedTx returns the ordering keys, of those given, that have messages on
// the shelf. In PostgreSQL, a transaction that is REPEATABLE READ or
// SERIALIZABLE sees only what was committed before its snapshot. In MySQL,
// BlockedTx waits for transactions that put messages with these keys aside, and
// then blocks other such transactions until this one ends.
func (s Shelf[Tx]) BlockedTx(ctx context.Context, tx Tx, consumer string, orderingKeys []string,
	parkedToo bool) (blocked []string, err error) {

	err = s.db.InTx(ctx, tx, func(q sqlschema.Querier) error {
		blocked, err = s.tables.Blocked(ctx, q, consumer, orderingKeys, parkedToo)
		return err
	})
	return blocked, err
}

// Shelved returns messages in the order in which they were put aside.
func (s Shelf[Tx]) Shelved(ctx context.Context, query store.ShelfQuery) (page []store.Shelved, err error) {
	err = s.db.Read(ctx, func(q sqlschema.Querier) error {
		page, err = s.tables.Shelved(ctx, q, query)
		return err
	})
	return page, err
}

// Change writes the state of a message if its Version has not changed since the
// message was read.
func (s Shelf[Tx]) Change(ctx context.Context, m store.Shelved) error {
	return s.db.Write(ctx, func(q sqlschema.Querier) error { return s.tables.Change(ctx, q, m) })
}

// ChangeMany is Change for each message, in one transaction.
func (s Shelf[Tx]) ChangeMany(ctx context.Context, ms []store.Shelved) (changed []bool, err error) {
	err = s.db.Transact(ctx, "", func(ctx context.Context, q sqlschema.Querier) error {
		changed, err = s.tables.ChangeMany(ctx, q, ms)
		return err
	})
	return changed, err
}

// ChangeTx is Change in a transaction of the caller's.
func (s Shelf[Tx]) ChangeTx(ctx context.Context, tx Tx, m store.Shelved) error {
	return s.db.InTx(ctx, tx, func(q sqlschema.Querier) error { return s.tables.Change(ctx, q, m) })
}

// ForgetShelved deletes handled and discarded messages that were last changed
// longer ago than keep, at most limit of them, in one statement.
func (s Shelf[Tx]) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (forgotten int, err error) {
	err = s.db.Write(ctx, func(q sqlschema.Querier) error {
		forgotten, err = s.tables.Forget(ctx, q, keep, limit)
		return err
	})
	return forgotten, err
}

const (
	shelfColumns = `version, state, due, attempts, created, updated, ended, id, consumer_id, lane, consumer, key_id,
	message_id, topic, ordering_key, produced, origin, reason, history, header, body`
	shelfValues = `1, @state, {now} + @due, @attempts, {now}, {now}, {now} + @ended, @row, @who, @lane, @name, @keys,
	@message, @topic, @ordering, @produced, @origin, @reason, @history, @header, @body`

	changeSQL = `{counted}{with} UPDATE {shelf} SET version = version + 1, state = @state, due = {now} + @due,
	attempts = @attempts, updated = {now}, ended = {now} + @ended, reason = @reason, history = @history WHERE seq = @seq AND version = @version`
	removeSQL = `{counted}DELETE FROM {shelf} WHERE seq = @seq AND version = @version`
)

// forgetSQL skips rows that another transaction is changing, where the dialect
// can.
var forgetSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} DELETE FROM {shelf} WHERE seq = ANY (ARRAY(SELECT d.seq FROM {shelf} AS d
	WHERE d.ended < {now} - @keep ORDER BY d.ended LIMIT @limit FOR UPDATE SKIP LOCKED))`,
	sqlschema.MySQL: `DELETE FROM {shelf} WHERE ended < {now} - @keep ORDER BY ended LIMIT @limit`,
	sqlschema.SQLite: `DELETE FROM {shelf} WHERE seq IN (SELECT d.seq FROM {shelf} AS d
	WHERE d.ended < {now} - @keep ORDER BY d.ended LIMIT @limit)`,
	sqlschema.SQLServer: `{counted}WITH picked AS (SELECT TOP (@limit) d.seq
	FROM {shelf} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.ended < {now} - @keep ORDER BY d.ended) DELETE FROM picked`,
}

// Shelve implements Shelve, inside a transaction.
func (t *Tables) Shelve(ctx context.Context, q sqlschema.Querier, ms []store.Shelved) error {
	statement, args, err := t.Shelving(ms)
	if err != nil {
		return err
	}
	for _, of := range args {
		if _, err := q.Exec(ctx, statement, of...); err != nil {
			return t.names.ExplainShelf(ctx, q, err)
		}
	}
	return nil
}

// Shelving returns the statement of Shelve, and its arguments for each message.
func (t *Tables) Shelving(ms []store.Shelved) (statement string, args [][]any, err error) {
	for _, m := range ms {
		if err := checkShelved(m); err != nil {
			return "", nil, err
		}
		p, err := t.shelfParams(m)
		if err != nil {
			return "", nil, err
		}
		args = append(args, t.sql.shelve.Args(p))
	}
	return t.sql.shelve.Text, args, nil
}

func (t *Tables) shelfParams(s store.Shelved) (sqlschema.Params, error) {
	m := s.Message
	header, err := sqlschema.EncodeHeader(m.Header)
	if err != nil {
		return nil, err
	}
	p := stateParams(s)
	p["row"], p["who"] = t.uuid("shelf", s.Consumer, m.ID), t.uuid("consumer", s.Consumer)
	p["name"], p["keys"], p["message"], p["topic"], p["ordering"] = s.Consumer, s.Key, m.ID, m.Topic, m.OrderingKey
	p["origin"], p["header"], p["produced"] = sqlschema.ValidText(s.Origin), header, sqlschema.EncodeTime(m.Time)
	if m.OrderingKey != "" {
		p["lane"] = t.lane(s.Consumer, m.OrderingKey)
	}
	if len(m.Body) > 0 { // else NULL, because some drivers send nil as empty
		p["body"] = m.Body
	}
	return p, nil
}

// lane is the digest of a consumer and an ordering key, whose messages are
// ordered.
func (t *Tables) lane(consumer, orderingKey string) any {
	return t.names.UUID(lane(consumer, orderingKey))
}

func lane(consumer, orderingKey string) [16]byte { return name.Digest("lane", consumer, orderingKey) }

func stateParams(s store.Shelved) sqlschema.Params {
	p := sqlschema.Params{"state": int64(s.State), "attempts": int64(s.Attempts),
		"reason": sqlschema.ValidText(s.Reason), "history": sqlschema.ValidText(s.History)}
	switch s.State {
	case store.Waiting:
		p["due"] = s.Due.Microseconds()
	case store.Handled, store.Discarded:
		p["ended"] = int64(0)
	}
	return p
}

// Blocked implements BlockedTx.
func (t *Tables) Blocked(ctx context.Context, q sqlschema.Querier, consumer string, keys []string,
	parkedToo bool) (blocked []string, err error) {

	keys = distinct(keys)
	for len(keys) > 0 {
		l := t.look(consumer, keys, parkedToo)
		if err := sqlschema.Each(ctx, q, l.Text, l.Args, func(rows sqlschema.Rows) error { return l.Read(rows) }); err != nil {
			return nil, err
		}
		blocked, keys = append(blocked, l.Blocked()...), keys[len(l.keys):]
	}
	return blocked, nil
}

// Look is the question of BlockedTx as one statement, for a store that sends it
// together with others.
type Look struct {
	Text string
	Args []any

	keys    []string
	columns int    // one for each key, and more; 0: a row for each key that is blocked
	blocked []bool // by key
}

// Look returns nil if there is no ordering key, or if one statement cannot ask
// about them all.
func (t *Tables) Look(consumer string, keys []string, parkedToo bool) *Look {
	if keys = distinct(keys); len(keys) == 0 {
		return nil
	}
	if l := t.look(consumer, keys, parkedToo); len(l.keys) == len(keys) {
		return l
	}
	return nil
}

// look asks about the first keys, as many as one statement can.
func (t *Tables) look(consumer string, keys []string, parkedToo bool) *Look {
	if t.names.Dialect() == sqlschema.PostgreSQL && len(keys) != 1 {
		return t.lookTogether(consumer, keys, parkedToo)
	}
	n := blockedAtOnce[0]
	for _, more := range blockedAtOnce {
		if n < len(keys) {
			n = more
		}
	}
	keys = keys[:min(n, len(keys))]
	p := sqlschema.Params{}
	for i := range n { // where there are fewer keys, the first one is repeated
		key := keys[0]
		if i < len(keys) {
			key = keys[i]
		}
		p[fmt.Sprint("lane", i)] = t.lane(consumer, key)
	}
	st := t.sql.blocked[n][parkedToo]
	return &Look{Text: st.Text, Args: st.Args(p), keys: keys, columns: n, blocked: make([]bool, len(keys))}
}

// lookTogether asks about any number of keys.
func (t *Tables) lookTogether(consumer string, keys []string, parkedToo bool) *Look {
	lanes := make([]string, len(keys))
	for i, key := range keys {
		lanes[i] = name.Format(lane(consumer, key))
	}
	last := store.Waiting
	if parkedToo {
		last = store.Parked
	}
	p := sqlschema.Params{"keys": "{" + strings.Join(lanes, ",") + "}", "state": int64(last)}
	return &Look{Text: t.sql.blockedTogether.Text, Args: t.sql.blockedTogether.Args(p), keys: keys, blocked: make([]bool, len(keys))}
}

// Read reads a row of the answer.
func (l *Look) Read(row interface{ Scan(dest ...any) error }) error {
	if l.columns == 0 {
		var nth int64
		err := row.Scan(&nth)
		if err == nil {
			l.blocked[nth-1] = true
		}
		return err
	}
	is, into := make([]int64, l.columns), make([]any, l.columns)
	for i := range into {
		into[i] = &is[i]
	}
	err := row.Scan(into...)
	for i := range l.blocked {
		l.blocked[i] = is[i] != 0
	}
	return err
}

// Blocked returns the ordering keys that are blocked, when all rows were read.
func (l *Look) Blocked() (blocked []string) {
	for i, key := range l.keys {
		if l.blocked[i] {
			blocked = append(blocked, key)
		}
	}
	return blocked
}

// distinct removes duplicates, and the empty key, which orders nothing.
func distinct(keys []string) (all []string) {
	seen := map[string]bool{"": true}
	for _, key := range keys {
		if !seen[key] {
			seen[key] = true
			all = append(all, key)
		}
	}
	return all
}

// Change implements Change. It returns a [sqlschema.Lost] if the message is
// gone or was changed.
func (t *Tables) Change(ctx context.Context, q sqlschema.Querier, m store.Shelved) error {
	changed, err := t.ChangeMany(ctx, q, []store.Shelved{m})
	if err == nil && !changed[0] {
		err = sqlschema.Lost(fmt.Sprintf("shelved message %d is gone, or was changed after version %d", m.Seq, m.Version))
	}
	return err
}

// ChangeMany implements ChangeMany, inside a transaction.
func (t *Tables) ChangeMany(ctx context.Context, q sqlschema.Querier, ms []store.Shelved) ([]bool, error) {
	for _, m := range ms {
		if err := checkState(m); err != nil {
			return nil, err
		}
	}
	changed := make([]bool, len(ms))
	for i, m := range ms {
		var err error
		if changed[i], err = t.change(ctx, q, m); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

func (t *Tables) change(ctx context.Context, q sqlschema.Querier, m store.Shelved) (bool, error) {
	how := t.sql.change
	if m.State == store.Handled && m.History == "" {
		how = t.sql.remove
	}
	p := stateParams(m)
	p["seq"], p["version"] = m.Seq, m.Version
	n, err := t.exec(ctx, q, how, p)
	return n == 1, err
}

// Forget implements ForgetShelved.
func (t *Tables) Forget(ctx context.Context, q sqlschema.Querier, keep time.Duration, limit int) (int, error) {
	if limit <= 0 {
		return 0, sqlschema.Refusal(fmt.Sprintf("ForgetShelved with a limit of %d: give at least 1", limit))
	}
	n, err := t.exec(ctx, q, t.sql.forget, sqlschema.Params{"keep": keep.Microseconds(), "limit": int64(limit)})
	return int(n), err
}

func checkShelved(s store.Shelved) error {
	m := s.Message
	if err := checkNames("Consumer", s.Consumer); err != nil {
		return err
	}
	if err := checkNames("ID", m.ID, "Key", s.Key, "OrderingKey", m.OrderingKey, "Topic", m.Topic); err != nil {
		return sqlschema.Refusal(fmt.Sprintf("message %.40q: %v", m.ID, err))
	}
	return checkState(s)
}

const longestText = 64 << 10

func checkState(s store.Shelved) error {
	if s.State < store.Waiting || s.State > store.Discarded {
		return sqlschema.Refusal(fmt.Sprintf("%d is no state of a message on the shelf", s.State))
	}
	for what, text := range map[string]string{"Reason": s.Reason, "History": s.History, "Origin": s.Origin} {
		if len(text) > longestText {
			return sqlschema.Refusal(fmt.Sprintf("the %s has %d bytes, the limit is %d: shorten it",
				what, len(text), longestText))
		}
	}
	return nil
}
