package publishing

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// wakeSQL skips rows that another transaction is changing, where the dialect
// can.
var wakeSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} UPDATE {outbox} SET state = @to, changed = {now}, due = {now} + @delay
WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM {outbox} AS o
	WHERE o.state = 1 AND o.due <= {now}{leased} ORDER BY o.due LIMIT @limit FOR UPDATE SKIP LOCKED))`,
	sqlschema.MySQL: `UPDATE {outbox} AS o SET state = @to, changed = {now}, due = {now} + @delay
WHERE state = 1 AND due <= {now}{leased} ORDER BY due LIMIT @limit`,
	sqlschema.SQLite: `UPDATE {outbox} SET state = @to, changed = {now}, due = {now} + @delay
WHERE seq IN (SELECT o.seq FROM {outbox} AS o
	WHERE o.state = 1 AND o.due <= {now}{leased} ORDER BY o.due LIMIT @limit)`,
	sqlschema.SQLServer: `{counted}WITH picked AS (SELECT TOP (@limit) d.state, d.changed, d.due
	FROM {outbox} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK)
	WHERE d.state = 1 AND d.due <= {now}{leased} ORDER BY d.due)
UPDATE picked SET state = @to, changed = {now}, due = {now} + @delay`,
}

// forgetSQL skips such rows too.
var forgetSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} DELETE FROM {outbox} WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM {outbox} AS o
	WHERE o.state = 4 AND o.due < {now} - @keep ORDER BY o.due LIMIT @limit FOR UPDATE SKIP LOCKED))`,
	sqlschema.MySQL: `DELETE FROM {outbox} WHERE state = 4 AND due < {now} - @keep ORDER BY due LIMIT @limit`,
	sqlschema.SQLite: `DELETE FROM {outbox} WHERE seq IN (SELECT o.seq FROM {outbox} AS o
	WHERE o.state = 4 AND o.due < {now} - @keep ORDER BY o.due LIMIT @limit)`,
	sqlschema.SQLServer: `{counted}WITH picked AS (SELECT TOP (@limit) d.seq
	FROM {outbox} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK)
	WHERE d.state = 4 AND d.due < {now} - @keep ORDER BY d.due)
DELETE FROM picked`,
}

// forgetArchivedSQL reads along the primary key of the archive, (created, seq).
// A row was archived at changed, which is never before created.
var forgetArchivedSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} DELETE FROM {archive} WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM {archive} AS o
	WHERE o.created < {now} - @keep AND COALESCE(o.changed, o.created) < {now} - @keep
	ORDER BY o.created, o.seq LIMIT @limit FOR UPDATE SKIP LOCKED))`,
	sqlschema.MySQL: `DELETE FROM {archive} WHERE created < {now} - @keep AND COALESCE(changed, created) < {now} - @keep
ORDER BY created, seq LIMIT @limit`,
	sqlschema.SQLite: `DELETE FROM {archive} WHERE (created, seq) IN (SELECT o.created, o.seq FROM {archive} AS o
	WHERE o.created < {now} - @keep AND COALESCE(o.changed, o.created) < {now} - @keep ORDER BY o.created, o.seq LIMIT @limit)`,
	sqlschema.SQLServer: `{counted}WITH picked AS (SELECT TOP (@limit) d.seq
	FROM {archive} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK)
	WHERE d.created < {now} - @keep AND COALESCE(d.changed, d.created) < {now} - @keep ORDER BY d.created, d.seq)
DELETE FROM picked`,
}

// nextSQL passes over a due that is no time, for which relays need not wake.
var nextSQL = `{with} SELECT {top}` + sqlschema.Until("o.due") + ` FROM {outbox} AS o{hint}
WHERE o.state = 1 AND o.due <= {farthest}{leased} ORDER BY o.due{limit}`

// longestWait bounds how long a relay waits until it asks again.
const longestWait = time.Hour

// Wake implements WakeDelayed, inside a transaction. Now and then it makes rows
// stuck that no relay would find: see stickStrays.
func (t *Tables) Wake(ctx context.Context, q sqlschema.Querier, relay [16]byte, to store.OutgoingState,
	limit int) (int, time.Duration, error) {

	if err := checkState(to); err != nil {
		return 0, 0, err
	}
	if to == store.Delayed {
		return 0, 0, sqlschema.Refusal("the new state of a delayed message must not be Delayed")
	}
	if limit <= 0 {
		return 0, 0, sqlschema.Refusal(fmt.Sprintf("WakeDelayed with a limit of %d: give at least 1", limit))
	}
	if err := t.stickStrays(ctx, q, relay); err != nil {
		return 0, 0, err
	}
	p := sqlschema.Params{"who": t.names.UUID(relay), "to": int64(to), "limit": int64(limit)}
	if to == store.Published {
		p["delay"] = int64(0)
	}
	woken, err := exec(ctx, q, t.sql.wake.of(relay), p)
	if err != nil || woken == limit {
		return woken, 0, err
	}
	p["limit"] = int64(1)
	next := longestWait
	err = each(ctx, q, call(t.sql.next.of(relay), p), func(rows sqlschema.Rows) error {
		var left int64
		err := rows.Scan(&left)
		next = min(next, micros(left))
		return err
	})
	return woken, next, err
}

// Forget implements ForgetOutgoing, in one statement.
func (t *Tables) Forget(ctx context.Context, q sqlschema.Querier, keep time.Duration, limit int) (int, error) {
	if limit <= 0 {
		return 0, sqlschema.Refusal(fmt.Sprintf("ForgetOutgoing with a limit of %d: give at least 1", limit))
	}
	return exec(ctx, q, t.sql.forget, sqlschema.Params{"keep": keep.Microseconds(), "limit": int64(limit)})
}

// ForgetArchived implements ForgetArchived, in one statement.
func (t *Tables) ForgetArchived(ctx context.Context, q sqlschema.Querier, keep time.Duration, limit int) (int, error) {
	if limit <= 0 {
		return 0, sqlschema.Refusal(fmt.Sprintf("ForgetArchived with a limit of %d: give at least 1", limit))
	}
	return exec(ctx, q, t.sql.forgetArchived, sqlschema.Params{"keep": keep.Microseconds(), "limit": int64(limit)})
}
