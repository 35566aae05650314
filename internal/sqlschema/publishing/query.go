package publishing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
)

// Query is store.OutgoingQuery.
type Query[S ~int] struct {
	State       S
	Lanes       []int
	OrderingKey string
	Topic       string
	IDs         []string
	After       int64
	Limit       int
	MostBytes   int
	Bodiless    bool
	Heads       bool
}

const defaultPage, largestPage = 100, 20_000

// Hot reports whether a query is what a relay asks all the time. In PostgreSQL, such a one needs a transaction that
// begins with [Tables.Settings], or the order of lanes is not sure.
func (q Query[S]) Hot() bool {
	return len(q.Lanes) > 0 && q.OrderingKey == "" && q.Topic == "" && len(q.IDs) == 0 && !q.Heads
}

// Plans is a statement without arguments, which begins a transaction in PostgreSQL that reads what is hot, or changes
// rows: the outbox is often empty when its statements are planned, and such a plan, which would read all of the table,
// is still used when there are a million rows. It also ends a transaction whose relay has vanished, before others wait
// for long. It is empty for other databases.
func (t *Tables[O, M, S]) Plans() string { return t.sql.plans }

// Settings is Plans for a transaction that ends rows, and does not wait for the disk: messages whose end is lost in a
// crash are published again.
func (t *Tables[O, M, S]) Settings() string { return t.sql.settings }

// Outgoing is that of store.Relayable.
func (t *Tables[O, M, S]) Outgoing(ctx context.Context, q Querier, query Query[S]) ([]O, error) {
	c, err := t.OutgoingCall(query)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, c.Text, c.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return t.ReadOutgoing(rows, query)
}

// ReadOutgoing reads the answer to an OutgoingCall.
func (t *Tables[O, M, S]) ReadOutgoing(rows Rows, query Query[S]) (page []O, err error) {
	defer func() { t.lastPage.Store(int64(len(page))) }() // the next one is often as long
	page = make([]O, 0, t.lastPage.Load())
	for rows.Next() {
		o, err := read[M](rows, query.State)
		if err != nil {
			return nil, err
		}
		page = append(page, O(o))
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return page, nil
}

func read[M message, S ~int](rows Rows, state S) (o Outgoing[M, S], err error) {
	var m consuming.Message
	var produced, header string
	var lane, delay, attempts, created, changed int64
	if err := rows.Scan(&lane, &o.Seq, &delay, &attempts, &o.Reason, &created, &changed, &m.ID, &m.Topic,
		&m.OrderingKey, &produced, &header, &m.Body); err != nil {
		return o, err
	}
	o.State, o.Lane, o.Attempts, o.Delay = state, int(lane), int(attempts), micros(delay)
	o.Created = time.UnixMicro(created)
	if changed != 0 {
		o.Changed = time.UnixMicro(changed)
	}
	m.Header, m.Time = headerOf(header, produced)
	o.Message = M(m)
	return o, nil
}

// headerOf reads what others may have written. What is damaged becomes a header that no message may have: so whoever
// checks the message before it is published refuses it and says why, and the rows beside it are not held up.
func headerOf(text, produced string) (map[string]string, time.Time) {
	header, err := consuming.DecodeHeader(text)
	if err != nil {
		return map[string]string{"the column header is not as it must be": text}, time.Time{}
	}
	at, err := consuming.DecodeTime(produced)
	if err != nil {
		return map[string]string{"the column produced is not in RFC 3339": produced}, time.Time{}
	}
	return header, at
}

// OutgoingCall is the statement of Outgoing.
func (t *Tables[O, M, S]) OutgoingCall(q Query[S]) (Call, error) {
	if err := errors.Join(checkState(q.State), checkLanes(q.Lanes)); err != nil {
		return Call{}, err
	}
	q.Lanes = distinct(q.Lanes)
	st, p := t.text(q), t.params(q)
	return call(st, p), nil
}

func (t *Tables[O, M, S]) text(q Query[S]) sqlschema.Statement {
	form := t.form(q)
	if form.ids > 0 {
		return t.sql.compile(form.text())
	}
	return t.sql.once(form, form.text)
}

// distinct leaves out what is named twice.
func distinct(of []int) (all []int) {
	var seen [lanes]bool
	for _, lane := range of {
		if !seen[lane] {
			seen[lane] = true
			all = append(all, lane)
		}
	}
	return all
}

func (t *Tables[O, M, S]) params(q Query[S]) sqlschema.Params {
	p := sqlschema.Params{"state": int64(q.State), "seq": q.After, "ordering": q.OrderingKey, "topic": q.Topic,
		"limit": int64(min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)), "most": int64(q.MostBytes)}
	for i, lane := range q.lanes() {
		p[fmt.Sprint("of", i)] = int64(lane)
	}
	for i, id := range q.IDs {
		p[fmt.Sprint("message", i)] = id
	}
	return p
}

// lanes are all if none are named.
func (q Query[S]) lanes() []int {
	if len(q.Lanes) > 0 {
		return q.Lanes
	}
	all := make([]int, lanes)
	for i := range all {
		all[i] = i
	}
	return all
}
