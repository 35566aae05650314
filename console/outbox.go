package console

import (
	"context"
	"encoding/hex"
	"net/http"
	"strconv"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

var noOutbox = absence{Heading: "Outbox", What: "outbox",
	Who: "Stores on PostgreSQL, MySQL, MariaDB, SQLite, Redis, DynamoDB, Cosmos DB and Azure Tables have one. Programs that publish without it cannot commit a message together with their work."}

// depthUpTo bounds what counting the outbox costs.
const depthUpTo = countUpTo

// backlog is what waits in an outbox, and who publishes it.
type backlog struct {
	Depth   []depthRow
	Relays  int
	Lanes   []laneRow
	Unknown string      // why relays and lanes are not known
	Last    *messageRow // that failed last; nil: none has
}

type depthRow struct {
	State, Count, Oldest, URL string
}

// laneRow is a relay with its lanes.
type laneRow struct {
	Relay, Lanes, Left string
	Bad                bool
}

type leaser interface {
	OutboxLeases(context.Context) (store.Leases, error)
}

// leasesOf returns who publishes the messages of a store.
func leasesOf(ctx context.Context, s Store) (l store.Leases, known bool, err error) {
	if s.Leases != nil {
		l, err = s.Leases(ctx)
		return l, true, err
	}
	if of, ok := once.As[leaser](s.Store); ok {
		l, err = of.OutboxLeases(ctx)
		return l, true, err
	}
	return l, false, nil
}

func (v *view) backlogOf(ctx context.Context, s Store, messages store.Relayable) (*backlog, error) {
	depth, err := messages.OutboxDepth(ctx, depthUpTo)
	if err != nil {
		return nil, err
	}
	var b backlog
	for _, d := range depth {
		count := plus(d.Count, false)
		if d.Estimated {
			count = "about " + count
		}
		b.Depth = append(b.Depth, depthRow{d.State.String(), count, legible.Ago(d.Oldest), v.link("/outbox", "store", s.Name, "state", d.State.String())})
	}
	if m, found, err := (outbox.Admin{Store: messages}).LastFailure(ctx); err != nil {
		return nil, err
	} else if found {
		b.Last = &messageRow{URL: v.outgoingLink(s, m), Topic: m.Message.Topic, ID: m.Message.ID, State: m.State.String(), Attempts: m.Attempts,
			Reason: legible.Text(m.Reason), Since: m.Changed, Ago: v.ago(m.Changed)}
	}
	leases, known, err := leasesOf(ctx, s)
	switch {
	case err != nil:
		return nil, err
	case !known:
		b.Unknown = "This store does not say who publishes. Set Leases of the console's Store, or use once outbox status."
		return &b, nil
	}
	b.Relays = leases.Relays
	at := make(map[string]int)
	for i, lane := range leases.Lanes {
		row := laneRow{Relay: "nobody", Bad: true}
		if lane.Relay != [16]byte{} {
			row = laneRow{Relay: hex.EncodeToString(lane.Relay[:4]), Left: "for " + legible.Span(lane.Left)}
			if lane.Left <= 0 {
				row.Left, row.Bad = "lapsed", true
			}
		}
		of := row.Relay + row.Left
		if _, ok := at[of]; !ok {
			at[of] = len(b.Lanes)
			b.Lanes = append(b.Lanes, row)
		}
		lanes := &b.Lanes[at[of]].Lanes
		*lanes += " " + strconv.Itoa(i)
	}
	return &b, nil
}

func (v *view) outbox() {
	s, messages, sel, after, ok := chosen[store.Relayable](v, "outbox", "stuck", outgoingStates, noOutbox)
	if !ok {
		return
	}
	query := sel.inOutbox()
	query.After, query.Bodiless = after, true
	ctx, cancel := v.within()
	defer cancel()
	failures := surveyOf(sel, after)
	list, err := v.outboxList(ctx, s, messages, query, sel.Alike, failures)
	if err != nil {
		v.silent(s, err)
		return
	}
	p := messagesPage{Sel: sel, Path: "/outbox", Stores: tabs[store.Relayable](v, s.Name, "/outbox", "state", sel.State),
		States: v.states("/outbox", sel, "stuck", "held", "pending", "delayed", "published")}
	if after == 0 && !sel.Narrow() { // it counts all messages, whatever the list is about
		if p.Backlog, err = guarded(ctx, v.Console, s.Name, func() (*backlog, error) { return v.backlogOf(ctx, s, messages) }); err != nil {
			v.silent(s, err)
			return
		}
	}
	for _, m := range list.found {
		row := messageRow{URL: v.outgoingLink(s, m), Topic: m.Message.Topic, Order: m.Message.OrderingKey, ID: m.Message.ID,
			State: m.State.String(), Attempts: m.Attempts, Reason: legible.Text(m.Reason), Since: m.Created, Ago: v.ago(m.Created)}
		if k, ok := store.ParseCause(m.Cause); ok {
			row.Cause = keyRef{s.Name, k}
		}
		p.Rows = append(p.Rows, row)
	}
	p.Cut = list.cut
	if len(list.found) > 0 {
		p.Sel.learn(list.found[0].Reason)
	}
	p.Failures = v.failuresOf(&p, failures)
	v.pageOf(&p, list.last, list.more, after)
	v.render(http.StatusOK, "outbox", page{Title: "Outbox", Nav: "outbox", Body: p})
}

func (c *Console) outgoingLink(s Store, m store.Outgoing) string {
	return c.link("/outbox/message", "store", s.Name, "id", m.Message.ID, "seq", strconv.FormatInt(m.Seq, 10))
}

// outboxMessage shows a message of the outbox. Its state may have changed since the
// link was made, and several messages may have one id.
func (v *view) outboxMessage() {
	q := v.r.URL.Query()
	s, messages, ok := capable[store.Relayable](v, q.Get("store"))
	id, seq := q.Get("id"), int64(0)
	if text := q.Get("seq"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		ok = ok && err == nil
		seq = n
	}
	if !ok || id == "" {
		v.damaged()
		return
	}
	ctx, cancel := v.within()
	defer cancel()
	found, whole, err := v.inOutbox(ctx, s, messages, store.OutgoingQuery{IDs: []string{id}, Limit: messagesOnPage})
	if seq == 0 && len(found) > 0 {
		seq = found[0].Seq
	}
	var m *store.Outgoing
	if err == nil && seq != 0 {
		m, err = v.outgoingAt(ctx, s, messages, id, seq)
	}
	if err != nil {
		v.silent(s, err)
		return
	}
	if !whole {
		v.notes = append(v.notes, unreadIn(s.Name, "others with this id", v.link("/outbox/message", "store", s.Name, "id", id, "seq", strconv.FormatInt(seq, 10), "scan", "1")))
	}
	if m == nil && !whole {
		v.fail(http.StatusNotFound, "This message was not found", "The outbox has many messages, which were not all searched. It may also have been published or discarded.")
		return
	}
	if m == nil {
		v.fail(http.StatusNotFound, "This message is not in the outbox", "It was published, or discarded, and is gone from the outbox since, or the link is damaged. Search for its id.")
		return
	}
	p := messagePage{Path: "/outbox", Topic: m.Message.Topic, Order: m.Message.OrderingKey, ID: m.Message.ID, State: m.State.String(),
		Attempts: m.Attempts, Reason: legible.Text(m.Reason), Lane: strconv.Itoa(m.Lane), Put: m.Created, PutAgo: v.ago(m.Created), Size: len(m.Message.Body), Type: m.Message.Header[contentType],
		HeaderNames: headerNames(&m.Message), MayShow: v.who.Role >= Decide, Ask: v.outgoingLink(s, *m), List: v.link("/outbox", "store", s.Name, "state", m.State.String())}
	if !m.Changed.IsZero() {
		p.Changed, p.ChangedAgo = m.Changed, v.ago(m.Changed)
	}
	if m.State == store.Delayed {
		p.Due = "in " + legible.Span(m.Delay)
	}
	p.Sel = selection{Of: "outbox", Store: s.Name, ID: id, State: m.State.String()}
	p.Alike = v.alikeLink("/outbox", p.Sel, m.Reason)
	if k, ok := store.ParseCause(m.Cause); ok {
		p.Cause = keyRef{s.Name, k}
	} else if m.Cause != "" {
		p.CauseText = legible.Text(m.Cause)
	}
	if m.Unopened != nil {
		p.Sealed = legible.Text(m.Unopened.Error())
	}
	for _, other := range found {
		if other.Seq != m.Seq {
			p.Others = append(p.Others, anchor{Text: other.State.String() + ", put " + v.ago(other.Created), URL: v.outgoingLink(s, other)})
		}
	}
	p.Acts = v.actsOn(p.Sel)
	v.showMessage(s, p, v.r.Method == http.MethodPost, func() payload { return payloadOf(&m.Message) })
}
