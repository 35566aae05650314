package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	maxTraces = 50 // of each kind
	traceTime = 3 * time.Second
)

// event is an entry of the timeline.
type event struct {
	At      time.Time // zero: not known
	place   time.Time // in the order, which is At if that is known
	Ago     time.Duration
	Status  string // shown as a pill, if any
	Title   string
	Text    string
	Ref     keyRef   // the key that it is about, if another
	Message string   // the ID of the message that it is about, if any
	Link    string   // its page
	Lines   []string // what people did
	Outcome bool     // the answer is shown here
	Now     bool     // it is how things stand
}

// outcome is an answer, perhaps shown.
type outcome struct {
	Type     string
	Size     int
	Omitted  bool
	Rejected bool
	Problem  string // why it cannot be read
	Shown    bool
	Text     string
	Cut      bool
	body     []byte
}

// keyPage is what the page of a key shows.
type keyPage struct {
	Ref         keyRef
	Rec         once.Record
	Many        bool
	Travels     string
	Version     string
	Fingerprint string
	Owner       string
	Events      []event
	Outcome     *outcome
	Links       []Link
	Cut         bool
	Unread      []note // what the timeline may lack
	Others      []row  // keys with the same ID, besides those in the timeline
	Summary     string
	ShelvedAs   *message // it is the key of a parked message
	CanReveal   bool
	CanAsk      bool
	form
}

// form is what a person may do about a key, and what they have typed.
type form struct {
	CanSettle, CanReopen bool
	Why                  string // why nothing can be done here
	Problem              string // with what was typed
	decision
}

// versionOf identifies a record as it was shown. A decision is for this only.
func versionOf(r once.Record) string {
	return fmt.Sprintf("%v.%d.%x.%d", r.Status, r.Attempt, r.Owner, r.Updated.UnixNano())
}

// attemptOf returns the attempt of a version, or -1.
func attemptOf(version string) int64 {
	parts := strings.Split(version, ".")
	if len(parts) != 4 {
		return -1
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// refOf reads the key that a URL or a form names.
func refOf(q url.Values) keyRef {
	return keyRef{q.Get("store"), once.Key{Scope: q.Get("scope"), Operation: q.Get("operation"), ID: q.Get("id")}}
}

// recordOf reads a record for a page. If it cannot be shown, the page says why, and
// ok is false.
func (v *view) recordOf(k keyRef) (s Store, r once.Record, ok bool) {
	s, found := v.store(k.Store)
	if !found {
		v.fail(http.StatusNotFound, "There is no such store", "The link names a store that this console does not have: "+legible.Line(k.Store)+".")
		return s, r, false
	}
	if err := k.Validate(); err != nil {
		v.fail(http.StatusBadRequest, "This is not a key", "A key has an operation and an id: paste the whole link, or search for the id.")
		return s, r, false
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	r, err := guarded(ctx, v.Console, s.Name, func() (once.Record, error) { return s.Store.Get(ctx, k.Key) })
	if err != nil {
		v.log.WarnContext(v.r.Context(), "console: a store does not answer", "store", s.Name, "error", err)
		v.fail(http.StatusServiceUnavailable, "The store "+s.Name+" does not answer", "Nothing was changed. Load the page again when it is back. It says: "+legible.Text(err.Error()))
		return s, r, false
	}
	if r.Created.IsZero() {
		next := "The store " + s.Name + " has never seen " + legible.Line(k.Operation) + " " + legible.Line(k.ID) + ", or has forgotten it."
		if k.Scope == "" {
			next += " If it has a scope, search for the id."
		}
		v.fail(http.StatusNotFound, "This key is not known", next)
		return s, r, false
	}
	r.Key = k.Key
	v.names.see(r.Key)
	r.Reason = s.Store.Options().Sealing.OpenReason(r)
	return s, r, true
}

func (v *view) key() {
	k := refOf(v.r.URL.Query())
	s, r, ok := v.recordOf(k)
	if !ok {
		return
	}
	v.showKey(http.StatusOK, s, r, nil, form{})
}

// reveal shows a stored answer. That is a deed: answers may be private.
func (v *view) reveal() {
	k := refOf(v.r.PostForm)
	s, r, ok := v.recordOf(k)
	if !ok {
		return
	}
	k.Store = s.Name
	out := outcomeOf(s, r)
	if out == nil || out.Omitted || out.Problem != "" {
		v.showKey(http.StatusConflict, s, r, out, form{})
		return
	}
	v.record(deed{kind: looked, What: "looked at the answer", Store: s.Name, Key: k}, "attempt", r.Attempt)
	out.show()
	v.showKey(http.StatusOK, s, r, out, form{})
}

// outcomeOf opens the answer of a record, or returns nil if there is none.
func outcomeOf(s Store, r once.Record) *outcome {
	if r.Status != once.Done {
		return nil
	}
	opened, err := s.Store.Options().Sealing.Open(r)
	out := &outcome{Type: opened.ContentType, Size: len(opened.Body), Omitted: opened.Omitted, Rejected: opened.Rejected}
	if err != nil {
		out.Problem, out.Omitted, out.Rejected = legible.Text(err.Error()), r.Outcome.Omitted, r.Outcome.Rejected
		return out
	}
	out.body = opened.Body
	return out
}

// show formats the answer. What is not asked for is not worth the time.
func (o *outcome) show() {
	o.Shown = true
	_, o.Text, o.Cut = formatted(o.body, o.Type)
}

// showKey renders the page of a key.
func (v *view) showKey(status int, s Store, r once.Record, out *outcome, f form) {
	if out == nil {
		out = outcomeOf(s, r)
	}
	p := keyPage{Ref: keyRef{s.Name, r.Key}, Rec: r, Many: len(v.o.Stores) > 1, Travels: r.Key.String(), Version: versionOf(r), Outcome: out, form: v.options(r, f)}
	if len(r.Fingerprint) > 0 {
		p.Fingerprint = hex.EncodeToString(r.Fingerprint)
	}
	if r.Owner != [16]byte{} {
		p.Owner = hex.EncodeToString(r.Owner[:])
	}
	p.CanReveal = v.who.Role >= Decide
	p.CanAsk = r.Status == once.Unknown && p.CanReveal && v.askerOf(p.Ref) != nil
	for _, l := range v.o.Links {
		p.Links = append(p.Links, Link{l.Text, strings.NewReplacer("{key}", url.QueryEscape(p.Travels), "{scope}", url.QueryEscape(r.Key.Scope),
			"{operation}", url.QueryEscape(r.Key.Operation), "{id}", url.QueryEscape(r.Key.ID)).Replace(l.URL)})
	}
	v.news(p.Ref, r)
	v.timeline(&p, s, r)
	p.Others = v.others(p)
	p.Summary = summary(r, p.ShelvedAs)
	v.render(status, "key", page{Title: legible.Line(r.Key.Operation) + " " + legible.Line(r.Key.ID), Nav: "find", Body: p})
}

const beforeDeciding = "Look at the other system before you decide: two effects cost more than a late one."

// summary says in a sentence where the work stands.
func summary(r once.Record, shelved *message) string {
	switch r.Status {
	case once.Running:
		return "It is being worked on. If its holder crashes, this key becomes unknown when the lease ends."
	case once.Unknown:
		if r.Lapsed() {
			return "Its holder is gone: the lease lapsed, and whether the work happened is not known. " + beforeDeciding
		}
		return "Its attempt ended with an error that does not say whether the work happened. " + beforeDeciding
	case once.Parked:
		if shelved != nil {
			return "It waits for a person, together with its message, which is parked too. Replay or discard the message, and the key is settled with it. If its effect happened, complete the key first."
		}
		return "It waits for a person to decide. Look at the other system first. Nothing runs until then."
	case once.Done:
		return "It is done. Duplicates get the recorded answer, and nothing runs again."
	case once.Expired:
		return "It is done, and its answer is forgotten. Nothing runs again."
	}
	return "It is free: the next call with this key runs the work."
}

// Bounds of the other keys with the same ID on the page of a key.
const (
	othersTried = 96 // keys of a store
	othersFew   = 16 // of a store that reads one key at a time
	othersShown = 10
)

// others returns keys with the ID of the key of a page, because two of them can be two
// effects of one order. Only what the console has seen is tried: a page of a key has to
// be fast, and leads to the search.
func (v *view) others(p keyPage) (found []row) {
	ctx, cancel := context.WithTimeout(v.r.Context(), traceTime)
	defer cancel()
	shown := map[keyRef]bool{p.Ref: true}
	for _, e := range p.Events {
		shown[e.Ref] = true
	}
	var tries []keyRef
	for _, s := range v.o.Stores {
		most := othersFew
		if _, ok := once.As[store.ManyGetter](s.Store); ok {
			most = othersTried
		}
		for _, k := range v.names.beside(p.Ref.Key, most) {
			k.ID = p.Ref.ID
			if ref := (keyRef{s.Name, k}); !shown[ref] {
				tries = append(tries, ref)
			}
		}
	}
	found = v.read(ctx, tries)
	slices.SortFunc(found, func(a, b row) int {
		return cmp.Or(b.Rec.Updated.Compare(a.Rec.Updated), cmp.Compare(a.Ref.Operation, b.Ref.Operation), cmp.Compare(a.Ref.Scope, b.Ref.Scope), cmp.Compare(a.Ref.Store, b.Ref.Store))
	})
	return found[:min(len(found), othersShown)]
}

// timeline collects what the stores know about a unit of work, in order.
func (v *view) timeline(p *keyPage, home Store, r once.Record) {
	now := r.Created.Add(r.Age) // by the store's clock
	var all []event
	add := func(e event) {
		if !e.At.IsZero() {
			e.Ago, e.place = max(now.Sub(e.At), 0), e.At
		}
		all = append(all, e)
	}
	found := v.traces(p, home, r)
	if r.Cause != [16]byte{} {
		e := event{Title: "Caused by a message of", Text: "the key " + name.Format(r.Cause) + ", of which no store here has a record"}
		for _, of := range found {
			if of.traces.Cause != (once.Key{}) {
				e.Text, e.Ref = "", keyRef{of.store.Name, of.traces.Cause}
			}
		}
		all = append(all, e)
	}
	add(event{At: r.Created, Title: "Claimed for the first time"})
	if r.Attempt > 1 {
		all = append(all, event{place: r.Created, Title: fmt.Sprintf("%s came after that", legible.Count(r.Attempt-1, "attempt", "attempts")), Text: "A record keeps the number of earlier attempts, and no more of them. The trace or the log has what they did."})
	}
	var put []string
	for _, of := range found {
		p.Cut = p.Cut || of.traces.Cut
		for _, m := range of.traces.Put {
			put = append(put, m.Message.ID)
			e := event{At: m.Created, Status: m.State.String(), Title: "Put the message", Message: m.Message.ID, Text: "to " + legible.Line(m.Message.Topic)}
			if _, ok := once.As[store.Relayable](of.store.Store); ok {
				e.Link = v.outgoingLink(of.store, m)
			}
			if m.Attempts > 0 {
				e.Text += ", " + legible.Count(int64(m.Attempts), "failed attempt", "failed attempts")
			}
			if m.Reason != "" {
				e.Text += ": " + legible.Text(m.Reason)
			}
			add(e)
		}
		for _, led := range of.traces.LedTo {
			v.names.see(led.Key)
			e := event{At: led.Created, Status: led.Status.String(), Title: "Led to", Ref: keyRef{of.store.Name, led.Key}}
			if why := led.Why(); why != "" {
				e.Text = legible.Text(why)
			}
			add(e)
		}
	}
	for _, e := range v.shelved(p, home, r, put) {
		add(e)
	}
	for _, e := range v.steps(home, r) {
		add(e)
	}
	add(state(r, now))
	slices.SortStableFunc(all, func(a, b event) int {
		if c := a.place.Compare(b.place); c != 0 {
			return c
		}
		return boolean(a.Now) - boolean(b.Now)
	})
	p.Events = all
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// state is the event of how a record stands.
func state(r once.Record, now time.Time) event {
	e := event{At: r.Updated, Status: r.Status.String(), Now: true}
	switch r.Status {
	case once.Running:
		e.Title = fmt.Sprintf("Attempt %d is at work", r.Attempt)
		if r.LeaseLeft > 0 {
			e.Text = "The lease holds for another " + legible.Span(r.LeaseLeft) + "."
		}
	case once.Unknown:
		e.Title = fmt.Sprintf("Attempt %d has reported that its outcome is not known", r.Attempt)
		if r.LeaseLeft < 0 {
			e.At = now.Add(r.LeaseLeft)
		}
		if r.Lapsed() {
			e.Title = fmt.Sprintf("Attempt %d has not reported an outcome", r.Attempt)
			if r.LeaseLeft < 0 {
				e.Text = "The lease lapsed " + legible.Ago(-r.LeaseLeft) + "."
			}
		}
	case once.Parked:
		e.Title = "Parked until a person decides"
	case once.Done:
		e.Title, e.Outcome = "Done", true
		if r.Outcome.Rejected {
			e.Title = "Done: the request was rejected"
		}
		if r.OutcomeLeft > 0 {
			e.Text = "The answer is kept for another " + legible.Span(r.OutcomeLeft) + "."
		}
	case once.Expired:
		e.Title = "Done, and the answer is forgotten"
	default:
		e.Title = "Free again"
	}
	if r.Reason != "" {
		e.Lines = []string{legible.Text(r.Reason)}
	}
	return e
}

// wholeKey is the page of a key for which all messages are searched.
func (v *view) wholeKey(home Store, r once.Record) string {
	return v.keyLink(keyRef{home.Name, r.Key}) + "&scan=1"
}

// traced are the traces in one store.
type traced struct {
	store  Store
	traces store.Traces
}

// traces asks all stores at once, because another one may consume the messages.
func (v *view) traces(p *keyPage, home Store, r once.Record) []traced {
	ctx, cancel := context.WithTimeout(v.r.Context(), traceTime)
	defer cancel()
	all, wholes, errs := make([]traced, len(v.o.Stores)), make([]bool, len(v.o.Stores)), make([]error, len(v.o.Stores))
	var wg sync.WaitGroup
	for i, s := range v.o.Stores {
		wg.Add(1)
		go func() {
			defer wg.Done()
			all[i].store = s
			all[i].traces, wholes[i], errs[i] = v.tracesOf(ctx, s, r)
		}()
	}
	wg.Wait()
	for i, err := range errs {
		switch {
		case errors.Is(err, errors.ErrUnsupported):
		case errors.Is(err, context.DeadlineExceeded):
			v.notes = append(v.notes, note{Text: "The search for messages of this key in " + all[i].store.Name + " took too long, and was ended. There may be more than what is shown."})
		case err != nil:
			v.trouble(all[i].store, err)
		case !wholes[i]:
			p.Unread = append(p.Unread, unreadIn(all[i].store.Name, "those that this work put", v.wholeKey(home, r)))
		}
	}
	return all
}

// shelved are the events of messages that consumers set aside: that of the key
// itself, and those that its work put.
func (v *view) shelved(p *keyPage, home Store, r once.Record, put []string) (all []event) {
	ctx, cancel := context.WithTimeout(v.r.Context(), traceTime)
	defer cancel()
	for _, s := range v.o.Stores {
		shelf, ok := once.As[store.Shelf](s.Store)
		if !ok {
			continue
		}
		var found []store.Shelved
		if s.Name == home.Name && r.Key.Scope == "" {
			ms, err := guarded(ctx, v.Console, s.Name, func() ([]store.Shelved, error) {
				return shelf.Shelved(ctx, store.ShelfQuery{Consumer: r.Key.Operation, IDs: []string{r.Key.ID}, Limit: 10, Bodiless: true})
			})
			if err != nil {
				v.trouble(s, err)
				continue
			}
			for _, m := range ms {
				if m.State == store.Parked {
					as := shelvedMessage(s, m)
					p.ShelvedAs = &as
				}
			}
			found = ms
		}
		if len(put) > 0 {
			ms, whole, err := v.onShelf(ctx, s, shelf, put, maxTraces)
			if err == nil && !whole {
				p.Unread = append(p.Unread, unreadIn(s.Name, "those that consumers set aside", v.wholeKey(home, r)))
			}
			if err != nil {
				v.trouble(s, err)
				continue
			}
			found = append(found, ms...)
		}
		for _, m := range found {
			m = store.OpenShelved(&s.Store.Options().Sealing, m, true)
			e := event{At: m.Created, Status: m.State.String(), Title: "Set aside by the consumer " + legible.Line(m.Consumer) + ": message", Message: m.Message.ID, Link: v.shelvedLink(s, m),
				Text: legible.Count(int64(m.Attempts), "failed attempt", "failed attempts")}
			if m.Reason != "" {
				e.Text += ": " + legible.Text(m.Reason)
			}
			for _, line := range strings.Split(store.OpenHistory(&s.Store.Options().Sealing, m), "\n") {
				if line != "" {
					e.Lines = append(e.Lines, legible.Text(line))
				}
			}
			all = append(all, e)
		}
	}
	return all
}

// steps are the events of the steps of a key, and of the key that it is a step of.
// Their names are those that the console has seen: no store can list the steps of
// a key.
func (v *view) steps(home Store, r once.Record) (all []event) {
	ctx, cancel := context.WithTimeout(v.r.Context(), traceTime)
	defer cancel()
	var tries []keyRef
	operations, _ := v.names.known()
	for _, op := range operations {
		if strings.HasPrefix(op, r.Key.Operation+"/") {
			tries = append(tries, keyRef{home.Name, once.Key{Scope: r.Key.Scope, Operation: op, ID: r.Key.ID}})
		}
	}
	if at := strings.LastIndexByte(r.Key.Operation, '/'); at > 0 {
		tries = append(tries, keyRef{home.Name, once.Key{Scope: r.Key.Scope, Operation: r.Key.Operation[:at], ID: r.Key.ID}})
	}
	for _, step := range v.read(ctx, tries) {
		e := event{At: step.Rec.Updated, Status: step.Rec.Status.String(), Title: "Step", Ref: step.Ref}
		if len(step.Ref.Operation) < len(r.Key.Operation) {
			e.At, e.Title = step.Rec.Created, "It is a step of"
		}
		if step.Rec.Reason != "" {
			e.Text = legible.Text(step.Rec.Reason)
		}
		all = append(all, e)
	}
	return all
}
