package console

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"github.com/effectively-once/once/internal/alike"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/store"
)

// selection says which messages of a store a list shows, and a bulk change is about.
// It is in URLs, so that a list can be pasted into a chat.
type selection struct {
	Of       string // messages (on the shelf) or outbox
	Store    string
	Consumer string // messages only
	Topic    string
	Order    string // the ordering key
	ID       string
	State    string

	// Alike is the ID of a group of failures. It is in URLs and logs in place of the
	// reason, which may be sealed in the store. Failure is what the reasons have in
	// common, once one of them was read.
	Alike   string
	Failure *string

	// Of keys: what it is in words, and the comparison that found them.
	About      string
	Comparison int
}

func selectionOf(of string, q url.Values) selection {
	s := selection{Of: of, Store: q.Get("store"), Topic: q.Get("topic"), Order: q.Get("order"), ID: q.Get("id"), State: q.Get("state"), Alike: q.Get("alike")}
	if of == "messages" {
		s.Consumer = q.Get("consumer")
	}
	return s
}

// pairs are the parameters of a link. Without a store it would mean another one
// once there are several.
func (s selection) pairs(more ...string) []string {
	return append([]string{"store", s.Store, "consumer", s.Consumer, "topic", s.Topic, "order", s.Order, "id", s.ID, "state", s.State, "alike", s.Alike}, more...)
}

// Narrow reports whether it leaves out messages of the state.
func (s selection) Narrow() bool {
	return s.Consumer != "" || s.Topic != "" || s.Order != "" || s.ID != "" || s.Alike != ""
}

// Parts are the names and values that it asks for, as people read them.
func (s selection) Parts() []part {
	parts := s.named()
	if s.Alike != "" {
		parts = append(parts, part{"failed alike", s.Failed()})
	}
	return parts
}

// Failed says in words which group of failures it asks for, or has its ID.
func (s selection) Failed() string {
	if s.Failure == nil {
		return s.Alike
	}
	return failureText(*s.Failure)
}

// learn remembers what a message of the group has said.
func (s *selection) learn(reason string) {
	if s.Alike != "" {
		text := alike.Text(reason)
		s.Failure = &text
	}
}

// failureText is what the reasons of a group have in common, for people.
func failureText(text string) string {
	if text == "" {
		return "no reason"
	}
	return legible.Line(text)
}

// named are the names and values that it asks for, without the group of failures.
func (s selection) named() (parts []part) {
	for _, p := range []part{{"consumer", s.Consumer}, {"topic", s.Topic}, {"ordering key", s.Order}, {"message", s.ID}} {
		if p.Value != "" {
			parts = append(parts, part{p.Name, legible.Line(p.Value)})
		}
	}
	return parts
}

type part struct{ Name, Value string }

// String says in words what it selects, for the log, which has no reasons.
func (s selection) String() string {
	if s.About != "" {
		return s.About
	}
	words := []string{"state " + s.State}
	for _, p := range s.named() {
		words = append(words, p.Name+" "+p.Value)
	}
	if s.Alike != "" {
		words = append(words, "failed alike "+s.Alike)
	}
	return strings.Join(words, ", ")
}

// Padded reports whether a value begins or ends with a space, which a copied id may
// have by mistake.
func (s selection) Padded() bool {
	for _, value := range []string{s.Consumer, s.Topic, s.Order, s.ID} {
		if value != strings.TrimSpace(value) {
			return true
		}
	}
	return false
}

// isDamaged reports whether it cannot come from a link of this console.
func (s selection) isDamaged() bool { return s.Alike != "" && !alike.IsID(s.Alike) }

func (s selection) ids() []string {
	if s.ID == "" {
		return nil
	}
	return []string{s.ID}
}

// onShelf is the selection as a query, in any state.
func (s selection) onShelf() store.ShelfQuery {
	return store.ShelfQuery{Consumer: s.Consumer, NoQueued: s.Consumer == "", IDs: s.ids(), Topic: s.Topic, OrderingKey: s.Order}
}

func (s selection) inOutbox() store.OutgoingQuery {
	return store.OutgoingQuery{State: outgoingStates[s.State], IDs: s.ids(), Topic: s.Topic, OrderingKey: s.Order}
}

var shelfStates = map[string]store.ShelfState{"parked": store.Parked, "waiting": store.Waiting, "handled": store.Handled, "discarded": store.Discarded}

var outgoingStates = map[string]store.OutgoingState{"pending": store.Pending, "delayed": store.Delayed, "held": store.Held,
	"stuck": store.Stuck, "published": store.Published}

// states are links to the same list in other states.
func (v *view) states(path string, s selection, of ...string) (all []anchor) {
	for _, state := range of {
		other := s
		other.State = state
		all = append(all, anchor{state, v.link(path, other.pairs()...), state == s.State})
	}
	return all
}

// chosen returns the messages that a list shows: their store, the selection, in a
// state unless the URL names another, and the place after which the page begins. If
// the URL is damaged, or the store has no such messages, it says so, and ok is false.
func chosen[Capability, State any](v *view, of, state string, states map[string]State, without absence) (s Store, has Capability, sel selection, after int64, ok bool) {
	q := v.r.URL.Query()
	sel = selectionOf(of, q)
	sel.State = cmp.Or(sel.State, state)
	after, ok = placeOf(q)
	if _, known := states[sel.State]; !known || !ok || sel.isDamaged() {
		v.damaged()
		return s, has, sel, 0, false
	}
	if s, has, ok = capable[Capability](v, sel.Store); !ok {
		without.Store = sel.Store
		v.lacks(of, "/"+of, without)
	}
	sel.Store = s.Name
	return s, has, sel, after, ok
}

// placeOf returns the place in a list after which a page begins.
func placeOf(q url.Values) (int64, bool) {
	text := q.Get("after")
	if text == "" {
		return 0, true
	}
	after, err := strconv.ParseInt(text, 10, 64)
	return after, err == nil && after >= 0
}
