package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/console/counted"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

const (
	maxCounted = 100_000          // messages of one job: their versions are kept until it ends
	maxGlance  = 1000             // that are counted before a reason is asked for
	maxSamples = 20               // that a question shows
	countTime  = 30 * time.Second // for counting what a job is about

	slowest, fastest = 0.001, 1e6 // messages per second, as for the command
)

// verb is what a job does to messages.
type verb struct {
	Of     string // messages (on the shelf), outbox, or keys
	Do     string // as a URL has it
	Done   string // replayed
	Effect string // what becomes of the messages
	Paced  bool   // it may be done at a rate
	Danger bool   // it gives up messages
	States []string

	// run carries it out, or counts if dry is set.
	run func(ctx context.Context, p *plan, limit int, dry bool) (tally, error)
}

// tally counts what became of messages.
type tally struct {
	Matched, Changed, Unknown, Moved int

	Taken   int // skipped: a process is handling them
	Sending int // of those changed, how many a relay may have been sending
}

var verbs = []verb{
	{Of: "messages", Do: "replay", Done: "replayed", Paced: true, States: []string{"parked"},
		Effect: "Their consumers handle them again within seconds, under their own ids, in order, and with all attempts. Steps that are done are skipped.",
		run:    onShelf(inbox.Admin.Replay)},
	{Of: "messages", Do: "discard", Done: "discarded", Danger: true, States: []string{"parked"},
		Effect: "They are given up. Their keys become done, as rejected. Copies of them that arrive are duplicates, and later messages with their ordering keys proceed.",
		run:    onShelf(inbox.Admin.Discard)},
	{Of: "messages", Do: "discard", Done: "discarded", Danger: true, States: []string{"waiting"},
		Effect: "They are given up, and not tried again. Their keys become done, as rejected. Copies of them that arrive are duplicates, and later messages with " +
			"their ordering keys proceed. One that a process is handling is left as it is.",
		run: onShelf(inbox.Admin.DiscardWaiting)},
	{Of: "outbox", Do: "retry", Done: "retried", Paced: true, States: []string{"stuck"},
		Effect: "Relays publish them within seconds, under their own ids, and with all attempts.",
		run:    inOutbox(outbox.Admin.Replay)},
	{Of: "outbox", Do: "park", Done: "parked", States: []string{"pending", "delayed", "held"},
		Effect: "They become stuck: relays leave them until somebody retries or discards them. One that a relay is sending at that moment may still be published.",
		run:    inOutbox(outbox.Admin.Park)},
	{Of: "outbox", Do: "discard", Done: "discarded", Danger: true, States: []string{"stuck"},
		Effect: "They are never published. If the store has an archive, they move there, with your reason.",
		run:    inOutbox(outbox.Admin.Discard)},
	{Of: "outbox", Do: "discard", Done: "discarded", Danger: true, States: []string{"pending", "delayed", "held"},
		Effect: "They are given up. If the store has an archive, they move there, with your reason. One that a relay is sending " +
			"at that moment may still be published.",
		run: inOutbox(outbox.Admin.DiscardWaiting)},
}

// verbOf returns what is done to messages in a state, or in the first state that a
// verb of this name is for.
func verbOf(of, do, state string) (verb, bool) {
	at := slices.IndexFunc(verbs, func(b verb) bool {
		return b.Of == of && b.Do == do && (state == "" || slices.Contains(b.States, state))
	})
	if at < 0 {
		return verb{}, false
	}
	return verbs[at], true
}

func onShelf(do func(inbox.Admin, context.Context, store.ShelfQuery, inbox.Decision) (inbox.Tally, error)) func(context.Context, *plan, int, bool) (tally, error) {
	return func(ctx context.Context, p *plan, limit int, dry bool) (tally, error) {
		q := p.Sel.onShelf()
		q.Limit = limit
		t, err := do(inbox.Admin{Store: p.shelf}, ctx, q, inbox.Decision{By: p.By, Reason: p.Reason, DryRun: dry, NotDone: p.NotDone})
		return tally{Matched: t.Matched, Changed: t.Changed, Unknown: t.Unknown, Moved: t.Moved, Taken: t.Taken}, err
	}
}

func inOutbox(do func(outbox.Admin, context.Context, store.OutgoingQuery, outbox.Decision) (outbox.Tally, error)) func(context.Context, *plan, int, bool) (tally, error) {
	return func(ctx context.Context, p *plan, limit int, dry bool) (tally, error) {
		q := p.Sel.inOutbox()
		q.Limit = limit
		t, err := do(outbox.Admin{Store: p.outbox}, ctx, q, outbox.Decision{By: p.By, Reason: p.Reason, DryRun: dry})
		return tally{Matched: t.Matched, Changed: t.Changed, Sending: t.Sending}, err
	}
}

// plan is a change of many messages or keys that somebody is asked about, or has said
// yes to. Only those that were counted for it are changed.
type plan struct {
	Verb      verb
	Sel       selection
	By        string
	Reason    string
	Rate      float64 // messages per second; 0: all at once
	Limit     int     // 0: none
	NotDone   bool
	Assertion string // what somebody asserts about keys, or empty
	Tally     tally  // of the dry run
	Cut       bool   // there are more, which another job can change
	Samples   []sighting
	Open      int // messages whose outcome is unknown, whether they are changed or not
	At        time.Time

	id       string // random; only By may use it
	counted  bool
	messages *counted.Messages
	shelf    inbox.AdminStore // with messages only
	outbox   store.Relayable
	keys     *keyChange
}

// Things counts what it changes, in words.
func (p *plan) Things(n int) string {
	if p.Verb.Of == "keys" {
		return legible.Count(n, "key", "keys")
	}
	return legible.Count(n, "message", "messages")
}

// What says what it changes.
func (p *plan) What() string {
	switch p.Verb.Of {
	case "keys":
		return "keys by a report"
	case "messages":
		return p.Verb.States[0] + " messages"
	}
	return "messages of the outbox"
}

// sighting is one of the messages that a question is about.
type sighting struct {
	Consumer, Topic, ID string
	Unknown             bool // its outcome is
}

// Left is how many messages match and would not be changed.
func (p *plan) Left() int { return p.Tally.Matched - p.Tally.Changed }

// attach gives a plan its store. ok is false if the store cannot do it.
func (v *view) attach(p *plan) (s Store, ok bool) {
	p.messages = &counted.Messages{Alike: p.Sel.Alike}
	if p.Sel.Of == "messages" {
		s, shelf, ok := capable[inbox.AdminStore](v, p.Sel.Store)
		if ok {
			p.shelf = sampledShelf{p.messages.Shelf(shelf), p}
		}
		return s, ok
	}
	s, messages, ok := capable[store.Relayable](v, p.Sel.Store)
	if ok {
		p.outbox = sampledOutbox{p.messages.Outbox(messages), p}
	}
	return s, ok
}

// sampledShelf keeps the first messages that are counted, for the question.
type sampledShelf struct {
	inbox.AdminStore
	p *plan
}

func (s sampledShelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	page, err := s.AdminStore.Shelved(ctx, q)
	for _, m := range page {
		if !s.p.counted && strings.HasPrefix(m.Reason, store.UnknownOutcome) {
			s.p.Open++
		}
	}
	for _, m := range page[:s.p.wanted(len(page))] {
		s.p.Samples = append(s.p.Samples, sighting{m.Consumer, m.Message.Topic, m.Message.ID, strings.HasPrefix(m.Reason, store.UnknownOutcome)})
	}
	return page, err
}

// Decided returns the shelf as it is for [inbox.Admin]: what an earlier call has
// decided about is no sample.
func (s sampledShelf) Decided() store.Shelf {
	return s.AdminStore.(interface{ Decided() store.Shelf }).Decided()
}

// sampledOutbox keeps the first messages that are counted, for the question.
type sampledOutbox struct {
	store.Relayable
	p *plan
}

func (s sampledOutbox) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	page, err := s.Relayable.Outgoing(ctx, q)
	for _, m := range page[:s.p.wanted(len(page))] {
		s.p.Samples = append(s.p.Samples, sighting{"", m.Message.Topic, m.Message.ID, false})
	}
	return page, err
}

// tellFailure says in words which group of failures was counted.
func (p *plan) tellFailure() {
	if text, ok := p.messages.Failure(); ok {
		p.Sel.Failure = &text
	}
}

// wanted returns how many messages of a page are samples.
func (p *plan) wanted(page int) int {
	if p.counted {
		return 0
	}
	return min(page, maxSamples-len(p.Samples))
}

// planned reads from a URL what is to be done to which messages. If that cannot be,
// it says so and returns nil.
func (v *view) planned() *plan {
	q := v.r.URL.Query()
	b, ok := verbOf(q.Get("of"), q.Get("do"), q.Get("state"))
	p := &plan{Verb: b, Sel: selectionOf(b.Of, q), By: v.who.Name, At: v.now()}
	if ok && p.Sel.State == "" {
		p.Sel.State = b.States[0]
	}
	if !ok || !slices.Contains(b.States, p.Sel.State) || p.Sel.isDamaged() {
		v.fail(http.StatusBadRequest, "This cannot be done", "The link is damaged, or messages in this state cannot be changed this way. Begin at the list.")
		return nil
	}
	if b.Of == "messages" && b.Do == "discard" && p.Sel.Consumer == "" && p.Sel.ID == "" {
		v.fail(http.StatusBadRequest, "Discard messages of one consumer", "Filter the list by a consumer or by the id of a message first. Nothing was changed.")
		return nil
	}
	s, ok := v.attach(p)
	if !ok {
		v.fail(http.StatusNotFound, "This store cannot do that", "Choose a store from the list of messages.")
		return nil
	}
	p.Sel.Store = s.Name
	return p
}

// changePage asks for a reason.
type changePage struct {
	*plan
	More      bool // than were counted
	List      string
	Confirm   string
	Problem   string
	RateText  string
	LimitText string
}

// change shows what a change would be about, and asks why.
func (v *view) change() {
	p := v.planned()
	if p == nil {
		return
	}
	v.askWhy(p, http.StatusOK, "")
}

func (v *view) askWhy(p *plan, status int, problem string) {
	ctx, cancel := v.within()
	defer cancel()
	asked := *p
	asked.Reason, asked.NotDone = "counted only", false // a dry run needs a reason, and does not write it
	cut, end := false, v.readUntil()
	p.messages.Enough = func() bool { cut = v.now().After(end); return cut }
	var err error
	if p.Tally, err = guarded(ctx, v.Console, p.Sel.Store, func() (tally, error) { return p.Verb.run(ctx, &asked, maxGlance, true) }); err != nil {
		v.refused(p, err)
		return
	}
	p.tellFailure()
	page := page{Title: title(p.Verb), Nav: p.Sel.Of, Body: changePage{plan: p, More: cut || p.Tally.Matched == maxGlance, List: v.listLink(p.Sel),
		Confirm: v.link("/change", p.Sel.pairs("of", p.Verb.Of, "do", p.Verb.Do)...), Problem: problem,
		RateText: v.r.PostForm.Get("rate"), LimitText: v.r.PostForm.Get("limit")}}
	v.render(status, "change", page)
}

// refused says that counting did not work.
func (v *view) refused(p *plan, err error) {
	switch {
	case errors.Is(err, once.ErrInvalid):
		v.fail(http.StatusBadRequest, "This cannot be done", legible.Text(err.Error()))
	case errors.Is(err, context.DeadlineExceeded):
		v.fail(http.StatusServiceUnavailable, "Counting took too long", "Nothing was changed. Narrow the filter, or set a limit. The store says: "+legible.Text(err.Error()))
	default:
		s, _ := v.store(p.Sel.Store)
		v.silent(s, err)
	}
}

func title(b verb) string {
	text := strings.ToUpper(b.Do[:1]) + b.Do[1:]
	if b.Of == "messages" {
		return text + " " + b.States[0] + " messages"
	}
	return text + " messages of the outbox"
}

func (c *Console) listLink(s selection) string {
	if s.Of == "keys" {
		return c.link("/reconcile/settle", "number", strconv.Itoa(s.Comparison))
	}
	return c.link("/"+s.Of, s.pairs()...)
}

// settings reads the form of a change. It returns what is wrong with it.
func (p *plan) settings(form url.Values) string {
	p.Reason = strings.TrimSpace(form.Get("reason"))
	p.NotDone = p.Verb.Of == "messages" && p.Verb.Do == "replay" && form.Get("notdone") == "yes"
	switch {
	case p.Reason == "":
		return "Give a reason: why, and how you know."
	case len(p.Reason) > longestReason:
		return fmt.Sprintf("The reason has %d bytes, but only %d are stored: shorten it.", len(p.Reason), longestReason)
	}
	if p.Verb.Paced {
		var problem string
		if p.Rate, problem = rateOf(form.Get("rate")); problem != "" {
			return problem
		}
	}
	if text := strings.TrimSpace(form.Get("limit")); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			return "The limit is " + legible.Line(text) + ": use 1 or more, or leave it empty."
		}
		p.Limit = limit
	}
	return ""
}

// askAll counts what is to be changed, and asks whether that is meant.
func (v *view) askAll() {
	p := v.planned()
	if p == nil {
		return
	}
	if problem := p.settings(v.r.PostForm); problem != "" {
		v.askWhy(p, http.StatusBadRequest, problem)
		return
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), countTime)
	defer cancel()
	limit := maxCounted
	if p.Limit > 0 {
		limit = min(limit, p.Limit)
	}
	var err error
	if p.Tally, err = guarded(ctx, v.Console, p.Sel.Store, func() (tally, error) { return p.Verb.run(ctx, p, limit, true) }); err != nil {
		v.refused(p, err)
		return
	}
	p.counted = true
	p.tellFailure()
	p.Cut = p.Tally.Matched == maxCounted && p.Limit != maxCounted
	if p.Tally.Changed > 0 {
		v.jobs.ask(p)
	}
	v.render(http.StatusOK, "agree", page{Title: title(p.Verb), Nav: p.Sel.Of, Body: agreePage{plan: p, ID: p.id,
		List: v.listLink(p.Sel), Back: v.link("/change", p.Sel.pairs("of", p.Verb.Of, "do", p.Verb.Do)...), Most: maxCounted}})
}

// agreePage repeats what will be changed.
type agreePage struct {
	*plan
	ID         string
	List, Back string
	Most       int
}

// Took says how long it will take at the rate.
func (p *plan) Took() string {
	if p.Rate == 0 {
		return ""
	}
	seconds := float64(p.Tally.Changed) / p.Rate
	return legible.Span(time.Duration(min(seconds, 1e9) * float64(time.Second)))
}

// PerSecond formats the rate.
func (p *plan) PerSecond() string { return strconv.FormatFloat(p.Rate, 'f', -1, 64) }
