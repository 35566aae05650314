package console

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

var noShelf = absence{Heading: "Parked messages", What: "shelf for messages",
	Who: "Stores on PostgreSQL, MySQL, MariaDB, SQLite, Redis, DynamoDB, Cosmos DB and Azure Tables have one. Without it, consumers reject what fails for good to the dead letters of the broker: look there."}

// messagesPage is a list of messages.
type messagesPage struct {
	Sel     selection
	Path    string
	Stores  []anchor
	States  []anchor
	Rows    []messageRow
	Next    string // a URL; empty: this is the end
	Cut     bool   // the search was ended before the page was full
	First   string // of the first page, if this is a later one
	All     string // without the filter
	Acts    []anchor
	Hint    string // why there is no button
	Backlog *backlog

	Failures *failures // of what matches, by group; nil: nothing to choose from
	Without  string    // the group of failures that is chosen, a URL; empty: none is
}

// messageRow is a message in a list.
type messageRow struct {
	URL                        string
	Consumer, Topic, Order, ID string
	State                      string
	Attempts                   int
	Reason                     string
	Since                      time.Time // when it last changed, or was put
	Ago                        string
	Unknown                    bool // the outcome of its work is
	Cause                      keyRef
}

// pageOf completes a list with its links.
func (v *view) pageOf(p *messagesPage, last int64, more bool, after int64) {
	if more {
		pairs := p.Sel.pairs("after", strconv.FormatInt(last, 10))
		if p.Cut {
			pairs = append(pairs, "scan", "1") // whoever reads on has the time
		}
		p.Next = v.link(p.Path, pairs...)
	}
	if after > 0 {
		p.First = v.link(p.Path, p.Sel.pairs()...)
	}
	if p.Sel.Alike != "" {
		others := p.Sel
		others.Alike = ""
		p.Without = v.link(p.Path, others.pairs()...)
	}
	if p.Sel.Narrow() {
		p.All = v.link(p.Path, "store", p.Sel.Store, "state", p.Sel.State)
	}
	if len(p.Rows) == 0 {
		return
	}
	for _, b := range verbs {
		able := false
		for _, state := range b.States {
			able = able || state == p.Sel.State
		}
		switch {
		case b.Of != p.Sel.Of || !able:
		case v.who.Role < Decide || !v.o.Write:
		case b.Of == "messages" && b.Do == "discard" && p.Sel.Consumer == "" && p.Sel.ID == "":
			p.Hint = "To discard messages, filter by their consumer first."
		default:
			text := strings.ToUpper(b.Do[:1]) + b.Do[1:] + " all of them"
			if p.Sel.Narrow() {
				text = strings.ToUpper(b.Do[:1]) + b.Do[1:] + " all that match"
			}
			p.Acts = append(p.Acts, anchor{Text: text + "…", URL: v.link("/change", p.Sel.pairs("of", b.Of, "do", b.Do)...), Current: b.Danger})
		}
	}
}

// damaged says that a link is not one of this console.
func (v *view) damaged() {
	v.fail(http.StatusBadRequest, "The link is damaged", "Choose the page from the navigation, and filter again.")
}

func (v *view) shelf() {
	s, shelf, sel, after, ok := chosen[inbox.AdminStore](v, "messages", "parked", shelfStates, noShelf)
	if !ok {
		return
	}
	query := sel.onShelf()
	query.States, query.After, query.Bodiless = []store.ShelfState{shelfStates[sel.State]}, after, true
	ctx, cancel := v.within()
	defer cancel()
	failures := surveyOf(sel, after)
	list, err := v.shelfList(ctx, s, shelf, query, sel.Alike, failures)
	if err != nil {
		v.silent(s, err)
		return
	}
	p := messagesPage{Sel: sel, Path: "/messages", Stores: tabs[inbox.AdminStore](v, s.Name, "/messages", "state", sel.State),
		States: v.states("/messages", sel, "parked", "waiting", "handled", "discarded")}
	for _, m := range list.found {
		p.Rows = append(p.Rows, messageRow{URL: v.shelvedLink(s, m), Consumer: m.Consumer, Topic: m.Message.Topic, Order: m.Message.OrderingKey, ID: m.Message.ID,
			State: m.State.String(), Attempts: m.Attempts, Reason: legible.Text(m.Reason), Since: m.Updated, Ago: v.ago(m.Updated),
			Unknown: strings.HasPrefix(m.Reason, store.UnknownOutcome)})
	}
	p.Cut = list.cut
	if len(list.found) > 0 {
		p.Sel.learn(list.found[0].Reason)
	}
	p.Failures = v.failuresOf(&p, failures)
	v.pageOf(&p, list.last, list.more, after)
	v.render(http.StatusOK, "shelf", page{Title: "Parked messages", Nav: "messages", Body: p})
}

func (c *Console) shelvedLink(s Store, m store.Shelved) string {
	return c.link("/messages/message", "store", s.Name, "consumer", m.Consumer, "id", m.Message.ID)
}

// messagePage is a message with all that is known of it.
type messagePage struct {
	Path                       string
	Sel                        selection // of this message only
	Consumer, Topic, Order, ID string
	State                      string
	Attempts                   int
	Reason                     string
	Alike                      string // the list of messages that failed alike, a URL, or empty
	Unknown                    bool
	Origin                     string
	Lane, Relay                string
	Put, Changed               time.Time
	PutAgo, ChangedAgo         string
	Due                        string
	History                    []string
	Key, Cause                 keyRef
	CauseText                  string // if only its digest is known
	Size                       int
	Type                       string
	HeaderNames                []string
	Sealed                     string // why it cannot be opened
	MayShow, Shown             bool
	Payload                    payload
	Ask                        string // the URL of the form that shows the payload
	Acts                       []anchor
	Hint                       string
	List                       string
	Others                     []anchor // with the same id
	KeyUnread                  string
}

// shelvedMessage returns the message that a request names, or says that there is
// none.
func (v *view) shelvedMessage() (s Store, shelf inbox.AdminStore, m store.Shelved, ok bool) {
	q := v.r.URL.Query()
	s, shelf, ok = capable[inbox.AdminStore](v, q.Get("store"))
	if !ok || q.Get("consumer") == "" || q.Get("id") == "" {
		v.damaged()
		return s, shelf, m, false
	}
	ctx, cancel := v.within()
	defer cancel()
	found, err := guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
		return inbox.Admin{Store: shelf}.List(ctx, store.ShelfQuery{Consumer: q.Get("consumer"), IDs: []string{q.Get("id")}, Limit: 1})
	})
	if err != nil {
		v.silent(s, err)
		return s, shelf, m, false
	}
	if len(found) == 0 {
		v.fail(http.StatusNotFound, "This message is not on the shelf", "It was handled or discarded, and forgotten since, or the link is damaged. Search for its id.")
		return s, shelf, m, false
	}
	return s, shelf, found[0], true
}

func (v *view) shelfMessage() {
	s, shelf, m, ok := v.shelvedMessage()
	if !ok {
		return
	}
	show := v.r.Method == http.MethodPost
	p := messagePage{Path: "/messages", Consumer: m.Consumer, Topic: m.Message.Topic, Order: m.Message.OrderingKey, ID: m.Message.ID, State: m.State.String(),
		Attempts: m.Attempts, Reason: legible.Text(m.Reason), Unknown: strings.HasPrefix(m.Reason, store.UnknownOutcome), Origin: m.Origin,
		Put: m.Created, PutAgo: v.ago(m.Created), Changed: m.Updated, ChangedAgo: v.ago(m.Updated), Size: len(m.Message.Body), Type: m.Message.Header[contentType], HeaderNames: headerNames(&m.Message),
		MayShow: v.who.Role >= Decide, Ask: v.shelvedLink(s, m), List: v.link("/messages", "store", s.Name, "consumer", m.Consumer, "state", m.State.String())}
	p.Sel = selection{Of: "messages", Store: s.Name, Consumer: m.Consumer, ID: m.Message.ID, State: m.State.String()}
	p.Alike = v.alikeLink("/messages", p.Sel, m.Reason)
	if m.State == store.Waiting {
		p.Due = "now, or after earlier messages with its ordering key"
		if m.Due > 0 {
			p.Due = "in " + legible.Span(m.Due)
		}
	}
	if m.History != "" {
		p.History = strings.Split(m.History, "\n")
	}
	if m.Unopened != nil {
		p.Sealed = legible.Text(m.Unopened.Error())
	}
	if m.Key != "" {
		p.Key = keyRef{s.Name, m.Unit()}
	}
	ctx, cancel := v.within()
	defer cancel()
	p.Cause, p.CauseText, p.KeyUnread = v.causeOf(ctx, s, shelf, m)
	p.Acts = v.actsOn(p.Sel)
	v.showMessage(s, p, show, func() payload { return payloadOf(&m.Message) })
}

// causeOf returns the key whose work put a message on the shelf, or the form in which
// it travels if no store here has its record.
func (v *view) causeOf(ctx context.Context, s Store, shelf inbox.AdminStore, m store.Shelved) (cause keyRef, text, trouble string) {
	digest := name.Parse(m.Message.Header[store.KeyHeader])
	if digest == [16]byte{} && m.Key != "" {
		rec, err := guarded(ctx, v.Console, s.Name, func() (once.Record, error) { return shelf.Get(ctx, once.Key{Operation: m.Consumer, ID: m.Key}) })
		if err != nil {
			return cause, "", legible.Text(err.Error())
		}
		digest = rec.Cause
	}
	if digest == [16]byte{} {
		return cause, "", ""
	}
	for _, other := range v.o.Stores { // the message may come from another store
		k, err := guarded(ctx, v.Console, other.Name, func() (once.Key, error) { return store.FindKey(ctx, other.Store, digest) })
		if k != (once.Key{}) {
			return keyRef{other.Name, k}, "", ""
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			trouble = "the store " + other.Name + " was not searched: " + legible.Text(err.Error())
		}
	}
	return cause, name.Format(digest), trouble
}

// actsOn are what can be done to one message.
func (v *view) actsOn(s selection) (acts []anchor) {
	if v.who.Role < Decide || !v.o.Write {
		return nil
	}
	for _, b := range verbs {
		for _, state := range b.States {
			if b.Of == s.Of && state == s.State {
				acts = append(acts, anchor{Text: strings.ToUpper(b.Do[:1]) + b.Do[1:] + "…", URL: v.link("/change", s.pairs("of", b.Of, "do", b.Do)...), Current: b.Danger})
			}
		}
	}
	return acts
}

// showMessage renders a message, with its payload if that was asked for. Headers may
// be as secret as the body, and both may have been sealed.
func (v *view) showMessage(s Store, p messagePage, show bool, content func() payload) {
	if show && p.Sealed == "" {
		p.Payload, p.Shown = content(), true
		v.record(deed{kind: looked, What: "looked at the payload of message " + legible.Line(p.ID), Store: s.Name}, "message", p.ID, "consumer", p.Consumer, "topic", p.Topic)
	}
	nav := strings.TrimPrefix(p.Path, "/")
	v.render(http.StatusOK, "message", page{Title: "Message " + legible.Line(p.ID), Nav: nav, Body: p})
}
