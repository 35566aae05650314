package publishing

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// putShape is what the text of an INSERT depends on.
type putShape struct {
	rows    int
	delayed bool
}

// putAtOnce are the numbers of messages for which there are statements. A
// statement for each number of messages would be prepared too often. The
// largest stays below the 2,100 parameters that SQL Server allows.
var putAtOnce = []int{128, 64, 32, 16, 8, 7, 6, 5, 4, 3, 2, 1}

const (
	putColumns     = "lane, id, topic, ordering_key, produced, cause, header, body"
	delayedColumns = ", state, due"

	// putArraysSQL inserts in the order of the arrays.
	putArraysSQL = `INSERT INTO {outbox} (` + putColumns + delayedColumns + `)
SELECT u.lane, u.id, u.topic, u.ordering_key, u.produced, u.cause, u.header, u.body, u.state, {clock} + u.delay
FROM unnest(@tracks, @ids, @topics, @orderings, @times, @causes, @headers, @bodies, @states, @delays)
	AS u (lane, id, topic, ordering_key, produced, cause, header, body, state, delay)`
)

// putSQL inserts rows in the order of the list. SQL Server promises that only
// for a SELECT with ORDER BY.
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

// row is a message as PutTx inserts it.
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
	r.header, err = sqlschema.EncodeHeader(r.Header)
	r.produced, r.cause = sqlschema.EncodeTime(r.Time), m.Cause
	if m.Delay > 0 {
		r.state, r.delay = store.Delayed, m.Delay.Microseconds()
	}
	return r, err
}

// rows returns the rows of messages, and whether any of them is delayed.
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

// PutCalls returns the statements of PutTx, usually one.
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

// putBytes bounds the bodies in one statement. By default, MariaDB accepts 16
// MiB.
const putBytes = 8 << 20

// fitting returns how many of the first rows fit into one statement.
func fitting(rows []row) (n int) {
	for size := 0; n < min(len(rows), putAtOnce[0]); n++ {
		if size += len(rows[n].Body); size > putBytes {
			break
		}
	}
	return n
}

// put returns the call that inserts rows. Its arguments are in the order of
// putSQL.
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

// bytesOf returns NULL for an empty slice, since some drivers send nil as
// empty.
func bytesOf(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// PutArrays is PutCalls in one statement, for PostgreSQL clients that have
// arrays.
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

// Put implements PutTx.
func (t *Tables) Put(ctx context.Context, q sqlschema.Querier, ms []store.Outgoing) error {
	calls, err := t.PutCalls(ms)
	if err != nil {
		return err
	}
	if _, err = run(ctx, q, calls); err != nil {
		return t.names.ExplainOutbox(ctx, q, err)
	}
	return nil
}
