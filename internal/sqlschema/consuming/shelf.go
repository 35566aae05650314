package consuming

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

const (
	shelfColumns = `version, state, due, attempts, created, updated, ended, id, consumer_id, lane, consumer, key_id,
	message_id, topic, ordering_key, produced, origin, reason, history, header, body`
	shelfValues = `1, @state, {now} + @due, @attempts, {now}, {now}, {now} + @ended, @row, @who, @lane, @name, @keys,
	@message, @topic, @ordering, @produced, @origin, @reason, @history, @header, @body`

	changeSQL = `{counted}{with} UPDATE {shelf} SET version = version + 1, state = @state, due = {now} + @due,
	attempts = @attempts, updated = {now}, ended = {now} + @ended, reason = @reason, history = @history WHERE seq = @seq AND version = @version`
	removeSQL = `{counted}DELETE FROM {shelf} WHERE seq = @seq AND version = @version`
)

// forgetSQL takes no row that another transaction is about to change, where that can be said.
var forgetSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} DELETE FROM {shelf} WHERE seq = ANY (ARRAY(SELECT d.seq FROM {shelf} AS d
	WHERE d.ended < {now} - @keep ORDER BY d.ended LIMIT @limit FOR UPDATE SKIP LOCKED))`,
	sqlschema.MySQL: `DELETE FROM {shelf} WHERE ended < {now} - @keep ORDER BY ended LIMIT @limit`,
	sqlschema.SQLite: `DELETE FROM {shelf} WHERE seq IN (SELECT d.seq FROM {shelf} AS d
	WHERE d.ended < {now} - @keep ORDER BY d.ended LIMIT @limit)`,
	sqlschema.SQLServer: `{counted}WITH picked AS (SELECT TOP (@limit) d.seq
	FROM {shelf} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.ended < {now} - @keep ORDER BY d.ended) DELETE FROM picked`,
}

// Shelve is that of store.Shelf. It needs a transaction.
func (t *Tables) Shelve(ctx context.Context, q Querier, ms []store.Shelved) error {
	for _, m := range ms {
		if err := checkShelved(m); err != nil {
			return err
		}
	}
	for _, m := range ms {
		p, err := t.shelfParams(m)
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, q, t.sql.shelve, p); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tables) shelfParams(s store.Shelved) (sqlschema.Params, error) {
	m := s.Message
	header, err := EncodeHeader(m.Header)
	if err != nil {
		return nil, err
	}
	p := stateParams(s)
	p["row"], p["who"] = t.uuid("shelf", s.Consumer, m.ID), t.uuid("consumer", s.Consumer)
	p["name"], p["keys"], p["message"], p["topic"], p["ordering"] = s.Consumer, s.Key, m.ID, m.Topic, m.OrderingKey
	p["origin"], p["header"], p["produced"] = Clean(s.Origin), header, EncodeTime(m.Time)
	if m.OrderingKey != "" {
		p["lane"] = t.lane(s.Consumer, m.OrderingKey)
	}
	if len(m.Body) > 0 { // some drivers send a nil slice as an empty one
		p["body"] = m.Body
	}
	return p, nil
}

// lane is what orders: a consumer and an ordering key.
func (t *Tables) lane(consumer, orderingKey string) any {
	return t.names.UUID(lane(consumer, orderingKey))
}

func lane(consumer, orderingKey string) [16]byte { return name.Digest("lane", consumer, orderingKey) }

func stateParams(s store.Shelved) sqlschema.Params {
	p := sqlschema.Params{"state": int64(s.State), "attempts": int64(s.Attempts),
		"reason": Clean(s.Reason), "history": Clean(s.History)}
	switch s.State {
	case store.Waiting:
		p["due"] = s.Due.Microseconds()
	case store.Handled, store.Discarded:
		p["ended"] = int64(0)
	}
	return p
}

// Blocked is BlockedTx of store.TxShelf.
func (t *Tables) Blocked(ctx context.Context, q Querier, consumer string, keys []string,
	parkedToo bool) (blocked []string, err error) {

	keys = distinct(keys)
	if t.names.Dialect() == sqlschema.PostgreSQL {
		return t.blockedTogether(ctx, q, consumer, keys, parkedToo)
	}
	for len(keys) > 0 {
		n := blockedAtOnce[0]
		for _, more := range blockedAtOnce {
			if n < len(keys) {
				n = more
			}
		}
		now := keys[:min(n, len(keys))]
		keys = keys[len(now):]
		found, err := t.blockedOf(ctx, q, t.sql.blocked[n][parkedToo], n, consumer, now)
		if err != nil {
			return nil, err
		}
		blocked = append(blocked, found...)
	}
	return blocked, nil
}

// blockedTogether asks for any number of keys at once.
func (t *Tables) blockedTogether(ctx context.Context, q Querier, consumer string, keys []string,
	parkedToo bool) (blocked []string, err error) {

	if len(keys) == 0 {
		return nil, nil
	}
	lanes := make([]string, len(keys))
	for i, key := range keys {
		lanes[i] = name.Format(lane(consumer, key))
	}
	last := store.Waiting
	if parkedToo {
		last = store.Parked
	}
	p := sqlschema.Params{"keys": "{" + strings.Join(lanes, ",") + "}", "state": int64(last)}
	err = t.each(ctx, q, t.sql.blockedTogether, p, func(rows Rows) error {
		var nth int64
		err := rows.Scan(&nth)
		if err == nil {
			blocked = append(blocked, keys[nth-1])
		}
		return err
	})
	return blocked, err
}

// blockedOf asks for n keys, of which those that are not there are the first again.
func (t *Tables) blockedOf(ctx context.Context, q Querier, st sqlschema.Statement, n int,
	consumer string, keys []string) (blocked []string, err error) {

	p, into, is := sqlschema.Params{}, make([]any, n), make([]int64, n)
	for i := range n {
		key := keys[0]
		if i < len(keys) {
			key = keys[i]
		}
		p[fmt.Sprint("lane", i)], into[i] = t.lane(consumer, key), &is[i]
	}
	err = t.each(ctx, q, st, p, func(rows Rows) error { return rows.Scan(into...) })
	for i, key := range keys {
		if is[i] != 0 {
			blocked = append(blocked, key)
		}
	}
	return blocked, err
}

// distinct leaves out what is named twice, and the empty key, which orders nothing.
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

// Change is that of store.Shelf. A [Lost]: the message is gone, or was changed.
func (t *Tables) Change(ctx context.Context, q Querier, m store.Shelved) error {
	if err := checkState(m); err != nil {
		return err
	}
	how := t.sql.change
	if m.State == store.Handled && m.History == "" {
		how = t.sql.remove
	}
	p := stateParams(m)
	p["seq"], p["version"] = m.Seq, m.Version
	changed, err := t.exec(ctx, q, how, p)
	if err == nil && changed != 1 {
		err = Lost(fmt.Sprintf("shelved message %d is gone, or was changed after version %d", m.Seq, m.Version))
	}
	return err
}

// Forget is ForgetShelved of store.Shelf.
func (t *Tables) Forget(ctx context.Context, q Querier, keep time.Duration, limit int) (int, error) {
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
		return sqlschema.Refusal(fmt.Sprintf("a message on the shelf has no state %d", s.State))
	}
	for what, text := range map[string]string{"Reason": s.Reason, "History": s.History, "Origin": s.Origin} {
		if len(text) > longestText {
			return sqlschema.Refusal(fmt.Sprintf("the %s has %d bytes, the limit is %d: shorten it",
				what, len(text), longestText))
		}
	}
	return nil
}
