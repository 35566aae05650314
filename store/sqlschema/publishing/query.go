package publishing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// ErrHeavy is returned for a light query that found a large body. Repeat the
// query without light.
var ErrHeavy = errors.New("a body is too large for a light query")

// Place receives the place of a row in PostgreSQL, as a driver scans it.
type Place interface{ Hint() uint64 }

// UsePlaces makes hot queries read the places of rows, which become the Hint of
// messages. With it, the statements of SentCalls find rows faster, unless they
// have moved.
func (t *Tables) UsePlaces(make func() Place) { t.newPlace = make }

func (t *Tables) placed(q store.OutgoingQuery) bool { return t.newPlace != nil && Hot(q) }

// Light reports whether to make a query light, at half the cost. A light query
// returns [ErrHeavy] if it finds a body so large that Limit of them might
// exceed MaxBytes. That is rare, because Light considers the last page.
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

// Hot reports whether a query is one that relays repeat all the time. In
// PostgreSQL, it needs a transaction that begins with [Tables.Plans] or
// [Tables.Settings]. Otherwise it may read the whole table.
func Hot(q store.OutgoingQuery) bool {
	return len(q.Lanes) > 0 && q.OrderingKey == "" && q.Topic == "" && q.Cause == "" && len(q.IDs) == 0 && !q.Heads
}

// Plans is the first statement of a transaction in PostgreSQL that runs a hot
// query or changes rows. It has no arguments. Statements are often planned
// while the outbox is empty. Such a plan reads the whole table, and is still
// used when there are a million rows. Plans also sets a timeout that soon ends
// a transaction whose relay has disappeared. It is empty for other databases.
func (t *Tables) Plans() string { return t.sql.plans }

// Settings is Plans for a transaction that ends messages. Its commit does not
// wait for the disk. Messages whose end is lost in a crash are published again.
func (t *Tables) Settings() string { return t.sql.settings }

// Outgoing implements Outgoing.
func (t *Tables) Outgoing(ctx context.Context, q sqlschema.Querier, query store.OutgoingQuery) ([]store.Outgoing, error) {
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

// ReadOutgoing reads the result of an OutgoingCall.
func (t *Tables) ReadOutgoing(rows sqlschema.Rows, query store.OutgoingQuery, light bool) (page []store.Outgoing, err error) {
	defer func() { t.lastPage.Store(int64(len(page))) }() // the next one is often as long
	page = make([]store.Outgoing, 0, t.lastPage.Load())
	var place Place
	if t.placed(query) {
		place = t.newPlace()
	}
	r, largest := newReader(query.State, place), 0
	for rows.Next() {
		if err := r.scan(rows); err != nil {
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
	place Place // nil if it is not read
	into  []any

	lane, seq, wait, attempts, created, changed int64
	reason, id, topic, ordering                 string
	produced, header, cause                     string
	body                                        []byte

	unread []string // columns of the row that have values of another type
}

func newReader(state store.OutgoingState, place Place) *reader {
	r := &reader{state: state, place: place}
	r.into = []any{&r.lane, &r.seq, &r.wait, &r.attempts, &r.reason, &r.created, &r.changed, &r.id, &r.topic, &r.ordering,
		&r.produced, &r.cause, &r.header, &r.body, sqlschema.Hex(&r.body)} // in the order of names
	if place != nil {
		r.into = append(r.into, place)
	}
	return r
}

func (r *reader) scan(rows sqlschema.Rows) (err error) {
	r.unread, err = sqlschema.Scan(rows, names, r.into...)
	return err
}

// message returns the message of a row that other programs may have written. If
// it cannot be read, the relay makes it Stuck, and it does not hold up the others.
func (r *reader) message() (o store.Outgoing) {
	m := broker.Message{ID: r.id, Topic: r.topic, OrderingKey: r.ordering, Body: r.body}
	o = store.Outgoing{Delay: micros(r.wait), Lane: int(r.lane), Seq: r.seq, State: r.state,
		Attempts: int(r.attempts), Reason: r.reason, Created: time.UnixMicro(r.created), Cause: r.cause}
	var errHeader, errTime error
	m.Header, errHeader = sqlschema.DecodeHeader(r.header)
	m.Time, errTime = sqlschema.DecodeTime(r.produced)
	o.Message = m
	if errHeader != nil || errTime != nil || r.unread != nil {
		o.Unopened = sqlschema.Damaged(fmt.Sprintf("message %d in the outbox", r.seq), r.unread, errHeader, errTime)
	}
	if r.changed != 0 {
		o.Changed = time.UnixMicro(r.changed)
	}
	if r.place != nil {
		o.Hint = r.place.Hint()
	}
	r.body = nil
	return o
}

// OutgoingCall returns the statement of Outgoing.
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

// distinct removes duplicates.
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

// lanesOf returns the lanes of a query, or all if it names none.
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
