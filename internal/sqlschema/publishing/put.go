package publishing

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
)

// putShape is a statement that inserts so many messages.
type putShape struct {
	rows    int
	delayed bool
}

// putAtOnce are the numbers of messages that there are statements for: a statement for any number would be prepared
// anew each time. The largest keeps to the 2,100 parameters that SQL Server takes.
var putAtOnce = []int{128, 64, 32, 16, 8, 7, 6, 5, 4, 3, 2, 1}

const (
	putColumns     = "lane, id, topic, ordering_key, produced, cause, header, body"
	delayedColumns = ", state, due"

	// putArraysSQL keeps the order of the arrays.
	putArraysSQL = `INSERT INTO {outbox} (` + putColumns + delayedColumns + `)
SELECT u.lane, u.id, u.topic, u.ordering_key, u.produced, u.cause, u.header, u.body, u.state, {clock} + u.delay
FROM unnest(@tracks, @ids, @topics, @orderings, @times, @causes, @headers, @bodies, @states, @delays)
	AS u (lane, id, topic, ordering_key, produced, cause, header, body, state, delay)`
)

// putSQL numbers rows in the order of the list, which SQL Server promises for a SELECT with an order only.
func (st *statements) putSQL(rows int, delayed bool) string {
	columns := putColumns
	if delayed {
		columns += delayedColumns
	}
	values := make([]string, rows)
	for i := range values {
		row := fmt.Sprintf("@of%d, @message%[1]d, @topic%[1]d, @ordering%[1]d, @produced%[1]d, @cause%[1]d, @header%[1]d, "+
			"@body%[1]d", i)
		if delayed {
			row += fmt.Sprintf(", @state%d, {clock} + @delay%[1]d", i)
		}
		if st.dialect == sqlschema.SQLServer {
			row += fmt.Sprintf(", %d", i)
		}
		values[i] = "(" + row + ")"
	}
	list := strings.Join(values, ",\n\t")
	if st.dialect == sqlschema.SQLServer {
		return fmt.Sprintf("INSERT INTO {outbox} (%s)\nSELECT %[1]s FROM (VALUES %s) AS v (%[1]s, seq) ORDER BY v.seq",
			columns, list)
	}
	return fmt.Sprintf("INSERT INTO {outbox} (%s) VALUES %s", columns, list)
}

// row is a message as it is inserted.
type row struct {
	broker.Message

	lane             int
	header, produced string
	cause            string
	state            store.OutgoingState
	delay            any // microseconds, or nil
}

func (t *Tables) row(m store.Outgoing) (r row, err error) {
	if err := m.Message.Check(); err != nil {
		return r, sqlschema.Refusal(err.Error())
	}
	r.Message, r.lane = m.Message, store.Lane(&m.Message)
	r.header, err = consuming.EncodeHeader(r.Header)
	r.produced, r.cause = consuming.EncodeTime(r.Time), m.Cause
	if m.Delay > 0 {
		r.state, r.delay = store.Delayed, m.Delay.Microseconds()
	}
	return r, err
}

// rows are the messages as they are inserted, and whether any of them is delayed.
func (t *Tables) rows(ms []store.Outgoing) (all []row, anyDelayed bool, err error) {
	all = make([]row, len(ms))
	for i, m := range ms {
		if all[i], err = t.row(m); err != nil {
			return nil, false, err
		}
		anyDelayed = anyDelayed || all[i].state == store.Delayed
	}
	return all, anyDelayed, nil
}

// PutCalls are the statements of PutTx of store.Outbox: mostly one.
func (t *Tables) PutCalls(ms []store.Outgoing) (calls []Call, err error) {
	rows, anyDelayed, err := t.rows(ms)
	if err != nil {
		return nil, err
	}
	for len(rows) > 0 {
		n := 0
		for putAtOnce[n] > max(fitting(rows), 1) {
			n++
		}
		now := rows[:putAtOnce[n]]
		rows = rows[len(now):]
		calls = append(calls, t.put(now, anyDelayed))
	}
	return calls, nil
}

// putBytes is how much goes into one statement: MariaDB takes 16 MiB, unless it is told otherwise.
const putBytes = 8 << 20

// fitting is how many of the first rows fit into one statement.
func fitting(rows []row) (n int) {
	for size := 0; n < min(len(rows), putAtOnce[0]); n++ {
		if size += len(rows[n].Body); size > putBytes {
			break
		}
	}
	return n
}

// put takes the arguments in the order of putSQL.
func (t *Tables) put(rows []row, anyDelayed bool) Call {
	args := make([]any, 0, 10*len(rows))
	for _, r := range rows {
		args = append(args, int64(r.lane), r.ID, r.Topic, r.OrderingKey, r.produced, r.cause, r.header, bytesOf(r.Body))
		if anyDelayed {
			args = append(args, int64(r.state), r.delay)
		}
	}
	st := t.sql.once(putShape{len(rows), anyDelayed}, func() string { return t.sql.putSQL(len(rows), anyDelayed) })
	return Call{Text: st.Text, Args: args}
}

// bytesOf is b, or NULL: some drivers send a nil slice as an empty one.
func bytesOf(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// PutArrays is PutCalls in one statement, for clients of PostgreSQL that have arrays.
func (t *Tables) PutArrays(ms []store.Outgoing) (Call, error) {
	rows, _, err := t.rows(ms)
	if err != nil {
		return Call{}, err
	}
	n := len(rows)
	of, states, bodies, delays := make([]int16, n), make([]int16, n), make([][]byte, n), make([]*int64, n)
	ids, topics, orderings := make([]string, n), make([]string, n), make([]string, n)
	times, causes, headers := make([]string, n), make([]string, n), make([]string, n)
	for i, r := range rows {
		of[i], states[i] = int16(r.lane), int16(r.state)
		ids[i], topics[i], orderings[i], times[i], causes[i], headers[i] = r.ID, r.Topic, r.OrderingKey, r.produced, r.cause, r.header
		if len(r.Body) > 0 {
			bodies[i] = r.Body
		}
		if delay, ok := r.delay.(int64); ok {
			delays[i] = &delay
		}
	}
	return call(t.sql.putArrays, sqlschema.Params{"tracks": of, "ids": ids, "topics": topics, "orderings": orderings,
		"times": times, "causes": causes, "headers": headers, "bodies": bodies, "states": states, "delays": delays}), nil
}

// Put is PutTx of store.Outbox.
func (t *Tables) Put(ctx context.Context, q Querier, ms []store.Outgoing) error {
	calls, err := t.PutCalls(ms)
	if err == nil {
		_, err = run(ctx, q, calls)
	}
	return err
}
