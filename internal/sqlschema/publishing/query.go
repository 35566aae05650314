package publishing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
)

// ErrHeavy is that a light query has found a large body, and is to be asked again without Light.
var ErrHeavy = errors.New("a body is too large for a light query")

// Place is where a driver scans the place of a row in PostgreSQL.
type Place interface{ Hint() uint64 }

// UsePlaces has hot queries read where rows are, which is the Hint of messages: then SentCalls find them sooner, unless
// they have moved.
func (t *Tables) UsePlaces(make func() Place) { t.newPlace = make }

func (t *Tables) placed(q store.OutgoingQuery) bool { return t.newPlace != nil && Hot(q) }

// Light reports whether a query is better asked lightly. It costs half, and leaves out bodies that are so large that Limit
// of them could be more than MaxBytes: then its answer is [ErrHeavy]. That is seldom, because the last page tells.
func (t *Tables) Light(q store.OutgoingQuery) bool {
	return t.sql.dialect == sqlschema.PostgreSQL && Hot(q) && q.State != store.Delayed && !q.Bodiless && q.MaxBytes > 0 &&
		!t.heavy.Load()
}

// small is the largest body of a light query.
func small(q store.OutgoingQuery) int { return q.MaxBytes / limitOf(q) }

const defaultPage, largestPage = 100, 20_000

func limitOf(q store.OutgoingQuery) int {
	return min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
}

// Hot reports whether a query is what a relay asks all the time. In PostgreSQL, such a one needs a transaction that
// begins with [Tables.Plans] or [Tables.Settings], or it may read all of the table.
func Hot(q store.OutgoingQuery) bool {
	return len(q.Lanes) > 0 && q.OrderingKey == "" && q.Topic == "" && q.Cause == "" && len(q.IDs) == 0 && !q.Heads
}

// Plans is a statement without arguments, which begins a transaction in PostgreSQL that reads what is hot, or changes
// rows: the outbox is often empty when its statements are planned, and such a plan, which would read all of the table,
// is still used when there are a million rows. It also ends a transaction whose relay has vanished, before others wait
// for long. It is empty for other databases.
func (t *Tables) Plans() string { return t.sql.plans }

// Settings is Plans for a transaction that ends rows, and does not wait for the disk: messages whose end is lost in a
// crash are published again.
func (t *Tables) Settings() string { return t.sql.settings }

// Outgoing is that of store.Relayable.
func (t *Tables) Outgoing(ctx context.Context, q Querier, query store.OutgoingQuery) ([]store.Outgoing, error) {
	c, err := t.OutgoingCall(query, false)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, c.Text, c.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return t.ReadOutgoing(rows, query, false)
}

// ReadOutgoing reads the answer to an OutgoingCall.
func (t *Tables) ReadOutgoing(rows Rows, query store.OutgoingQuery, light bool) (page []store.Outgoing, err error) {
	defer func() { t.lastPage.Store(int64(len(page))) }() // the next one is often as long
	page = make([]store.Outgoing, 0, t.lastPage.Load())
	var place Place
	if t.placed(query) {
		place = t.newPlace()
	}
	r, largest := newReader(query.State, place), 0
	for rows.Next() {
		if err := rows.Scan(r.into...); err != nil {
			return nil, err
		}
		if light && r.wait > 0 {
			t.heavy.Store(true)
			return nil, ErrHeavy
		}
		page = append(page, r.message())
		largest = max(largest, len(r.body))
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if Hot(query) && query.MaxBytes > 0 && len(page) > 0 && !query.Bodiless {
		t.heavy.Store(largest > small(query))
	}
	return page, nil
}

// reader reads rows, one after another.
type reader struct {
	state store.OutgoingState
	place Place // nil: it is not read
	into  []any

	lane, seq, wait, attempts, created, changed int64
	reason, id, topic, ordering                 string
	produced, header, cause                     string
	body                                        []byte
}

func newReader(state store.OutgoingState, place Place) *reader {
	r := &reader{state: state, place: place}
	r.into = []any{&r.lane, &r.seq, &r.wait, &r.attempts, &r.reason, &r.created, &r.changed, &r.id, &r.topic, &r.ordering,
		&r.produced, &r.cause, &r.header, &r.body}
	if place != nil {
		r.into = append(r.into, place)
	}
	return r
}

func (r *reader) message() (o store.Outgoing) {
	m := broker.Message{ID: r.id, Topic: r.topic, OrderingKey: r.ordering, Body: r.body}
	m.Header, m.Time = headerOf(r.header, r.produced)
	o = store.Outgoing{Message: m, Delay: micros(r.wait), Lane: int(r.lane), Seq: r.seq, State: r.state,
		Attempts: int(r.attempts), Reason: r.reason, Created: time.UnixMicro(r.created), Cause: r.cause}
	if r.changed != 0 {
		o.Changed = time.UnixMicro(r.changed)
	}
	if r.place != nil {
		o.Hint = r.place.Hint()
	}
	r.body = nil
	return o
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
func (t *Tables) OutgoingCall(q store.OutgoingQuery, light bool) (Call, error) {
	if err := errors.Join(checkState(q.State), checkLanes(q.Lanes)); err != nil {
		return Call{}, err
	}
	q.Lanes = distinct(q.Lanes)
	st, p := t.text(q, light), t.params(q)
	return call(st, p), nil
}

func (t *Tables) text(q store.OutgoingQuery, light bool) sqlschema.Statement {
	form := t.form(q, light)
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

func (t *Tables) params(q store.OutgoingQuery) sqlschema.Params {
	p := sqlschema.Params{"state": int64(q.State), "seq": q.After, "ordering": q.OrderingKey, "topic": q.Topic, "cause": q.Cause,
		"limit": int64(limitOf(q)), "most": int64(q.MaxBytes), "small": int64(small(q))}
	for i, lane := range lanesOf(q) {
		p[fmt.Sprint("of", i)] = int64(lane)
	}
	for i, id := range q.IDs {
		p[fmt.Sprint("message", i)] = id
	}
	return p
}

// lanes are all if none are named.
func lanesOf(q store.OutgoingQuery) []int {
	if len(q.Lanes) > 0 {
		return q.Lanes
	}
	all := make([]int, lanes)
	for i := range all {
		all[i] = i
	}
	return all
}
