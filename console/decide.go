package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// choice is what a person decides about a key.
type choice string

const (
	happened    choice = "happened"     // completes an unknown or parked key
	notHappened choice = "not-happened" // frees it
	runAgain    choice = "run-again"    // frees a key that is done
)

// deeds name what a choice does, as the command does in reasons.
var deeds = map[choice]string{happened: "completed", notHappened: "released", runAgain: "forgotten"}

// decision is what a person has put into the form of a key.
type decision struct {
	Choice      choice
	Reason      string
	Answer      string // empty: not known
	ContentType string
	Rejected    bool
	binary      bool // the Answer was not text
}

func decisionOf(form url.Values) decision {
	d := decision{Choice: choice(form.Get("choice")), Reason: strings.TrimSpace(name.Line(form.Get("reason"), maxForm)),
		Answer: strings.ReplaceAll(form.Get("answer"), "\r\n", "\n"), ContentType: strings.TrimSpace(form.Get("content-type")), Rejected: form.Get("rejected") == "yes"}
	if d.binary = !utf8.ValidString(d.Answer); d.binary {
		d.Answer = strings.ToValidUTF8(d.Answer, "\ufffd")
	}
	if d.isJSON() {
		d.Answer = strings.TrimSpace(d.Answer)
	}
	return d
}

func (d decision) isJSON() bool {
	media, _, _ := mime.ParseMediaType(d.ContentType)
	return media == "" && d.ContentType == "" || media == "application/json"
}

// check returns what is wrong with a decision, or "".
func (d decision) check() string {
	switch {
	case deeds[d.Choice] == "":
		return "Choose whether the work happened."
	case d.Reason == "":
		return "Say why, and how you know: the next person will ask."
	case len(d.Reason) > longestReason:
		return fmt.Sprintf("The reason has %d bytes, but only %d are stored. Shorten it.", len(d.Reason), longestReason)
	case d.Choice != happened && (strings.TrimSpace(d.Answer) != "" || d.Rejected):
		return "Work that did not happen has no answer. Take it out, or choose that it happened."
	case d.binary:
		return "The answer is not UTF-8. Use once keys complete with a file."
	case d.Answer != "" && d.isJSON() && !json.Valid([]byte(d.Answer)):
		return "The answer is not JSON, so duplicates could not read it. Correct it, or name its content type."
	case len(d.ContentType) > 200:
		return "The content type is too long."
	}
	return ""
}

func (d decision) outcome() once.Outcome {
	out := once.Outcome{Rejected: d.Rejected}
	if out.Omitted = d.Answer == ""; out.Omitted {
		return out
	}
	out.Body, out.ContentType = []byte(d.Answer), d.ContentType
	if out.ContentType == "" {
		out.ContentType = "application/json"
	}
	return out
}

// text is the reason as it is stored.
func (d decision) text(by string) string {
	return fmt.Sprintf("%s by %s: %s", deeds[d.Choice], by, d.Reason)
}

// confirmPage is what the page that confirms a decision shows.
type confirmPage struct {
	Ref       keyRef
	Rec       once.Record
	Unchanged time.Duration
	Version   string
	decision
	Action, Button, Then string
	Stored               string // the reason as it will be stored
	Shown                string // the answer
	Danger               bool
	Owner                string
}

// Deed is what the decision does.
func (d decision) Deed() string { return deeds[d.Choice] }

// decisionAbout reads a decision and the record that it is about. If something is wrong, or
// the record is not the one that the person saw, it says so, and ok is false.
func (v *view) decisionAbout(again bool) (s Store, r once.Record, d decision, ok bool) {
	d = decisionOf(v.r.PostForm)
	if again {
		d.Choice = runAgain
	} else if d.Choice == runAgain {
		d.Choice = "" // another role decides about this
	}
	s, r, ok = v.recordOf(refOf(v.r.PostForm))
	if !ok {
		return s, r, d, false
	}
	switch problem := d.check(); {
	case v.r.PostForm.Get("version") != versionOf(r):
		v.moved(s, r, d, attemptOf(v.r.PostForm.Get("version")))
		return s, r, d, false
	case problem != "":
		v.showKey(http.StatusUnprocessableEntity, s, r, nil, form{decision: d, Problem: problem})
		return s, r, d, false
	}
	return s, r, d, true
}

// moved says that a record is not the one that a person decided about, or that the
// person has changed it: a form was sent twice, or the reply to the first was lost.
func (v *view) moved(s Store, r once.Record, d decision, attempt int64) {
	if v.made(s, r, d, attempt) {
		v.notes = append(v.notes, note{Good: true, Text: "You have " + d.Deed() + " this key before, with this reason. Nothing else was changed."})
		v.showKey(http.StatusOK, s, r, nil, form{})
		return
	}
	v.notes = append(v.notes, note{Bad: true, Text: "Nothing was changed: this key has changed since you looked at it. Somebody else may have decided, or its work may have gone on. This is how it is now."})
	v.showKey(http.StatusConflict, s, r, nil, form{decision: d})
}

// made reports whether a record is as this person's decision about an attempt makes
// it. Its reason has their name.
func (v *view) made(s Store, r once.Record, d decision, attempt int64) bool {
	if r.Attempt != attempt || r.Reason != name.Reason(d.text(v.who.Name)) {
		return false
	}
	if d.Choice != happened {
		return r.Status == once.Absent
	}
	if r.Status != once.Done {
		return false
	}
	is, err := s.Store.Options().Sealing.Open(r)
	want := d.outcome()
	return err == nil && is.Omitted == want.Omitted && is.Rejected == want.Rejected && is.ContentType == want.ContentType && bytes.Equal(is.Body, want.Body)
}

func (v *view) confirm()       { v.ask(false) }
func (v *view) confirmReopen() { v.ask(true) }

// ask repeats a decision, and what exactly it will change.
func (v *view) ask(again bool) {
	s, r, d, ok := v.decisionAbout(again)
	if !ok {
		return
	}
	p := confirmPage{Ref: keyRef{s.Name, r.Key}, Rec: r, Unchanged: unchanged(r), Version: versionOf(r), decision: d, Stored: name.Reason(d.text(v.who.Name))}
	if r.Owner != [16]byte{} {
		p.Owner = fmt.Sprintf("%x", r.Owner)
	}
	p.Action = "/key/settle"
	switch d.Choice {
	case happened:
		p.Button, p.Then = "Complete this key", "It becomes done, and its work never runs again."
		out := d.outcome()
		if !out.Omitted {
			var cut bool
			_, p.Shown, cut = formatted(out.Body, out.ContentType)
			p.Then += fmt.Sprintf(" Duplicates get this answer: %s of %s.", legible.Bytes(int64(len(out.Body))), legible.Line(out.ContentType))
			if cut {
				p.Then += " Only its beginning is shown here."
			}
		} else {
			p.Then += " Its answer is not known: duplicates get once.ErrOutcomeUnavailable."
		}
		if d.Rejected {
			p.Then += " It is recorded as a rejection."
		}
	case notHappened:
		p.Button, p.Danger = "Release this key", true
		p.Then = "It becomes free, and the next call with this key runs the work. If a request of it is still on its way, the effect happens twice."
	case runAgain:
		p.Action, p.Button, p.Danger = "/key/reopen", "Let it run again", true
		p.Then = "It becomes free although its work is done, and its answer is deleted. The next call with this key runs the work again, and its effect can happen twice. Steps below it stay done."
	}
	v.render(http.StatusOK, "confirm", page{Title: p.Button, Nav: "find", Body: p})
}

func (v *view) settle() { v.decide(false) }
func (v *view) reopen() { v.decide(true) }

// decide carries out a decision. Of two people who decide the same at the same
// moment, the second is told, wherever they are.
func (v *view) decide(again bool) {
	s, r, d, ok := v.decisionAbout(again)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), askTime) // a browser that leaves does not end it half way
	defer cancel()
	_, err := guarded(ctx, v.Console, s.Name, func() (struct{}, error) { return struct{}{}, d.make(ctx, s.Store, r, v.who.Name) })
	about := deed{What: d.Deed(), Store: s.Name, Key: keyRef{s.Name, r.Key}, Reason: d.Reason}
	switch {
	case errors.Is(err, once.ErrLeaseLost):
		if _, now, ok := v.recordOf(about.Key); ok {
			v.moved(s, now, d, r.Attempt)
		}
		return
	case errors.Is(err, once.ErrInvalid), errors.Is(err, once.ErrOutcomeRefused), errors.Is(err, once.ErrOutcomeTooLarge), errors.Is(err, errors.ErrUnsupported):
		v.showKey(http.StatusUnprocessableEntity, s, r, nil, form{decision: d, Problem: "Nothing was changed. The store says: " + legible.Text(err.Error())})
		return
	case err != nil && !v.wasMade(s, r, d):
		about.What = "tried to have it " + d.Deed()
		v.record(about, "attempt", r.Attempt, "was", r.Status.String(), "error", err)
		v.fail(http.StatusServiceUnavailable, "It is not known whether this was recorded", "The store "+s.Name+" did not answer: "+legible.Text(err.Error())+
			". Reload this page and send the form again: if your decision was recorded, it says so, and changes nothing.")
		return
	}
	v.record(about, "attempt", r.Attempt, "was", r.Status.String())
	v.seeOther(v.keyLink(about.Key))
}

// make records a decision.
func (d decision) make(ctx context.Context, s once.Store, r once.Record, by string) error {
	switch d.Choice {
	case happened:
		return once.MarkDone(ctx, s, r, d.outcome(), d.text(by))
	case notHappened:
		return once.MarkNotDone(ctx, s, r, d.text(by))
	}
	return store.Reopen(ctx, s, r, d.text(by))
}

// wasMade reports whether a decision was made although its reply was lost. If it
// was not found, it can still be made later.
func (v *view) wasMade(s Store, r once.Record, d decision) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), askTime)
	defer cancel()
	now, err := guarded(ctx, v.Console, s.Name, func() (once.Record, error) { return s.Store.Get(ctx, r.Key) })
	now.Key = r.Key
	return err == nil && v.made(s, now, d, r.Attempt)
}

// options returns what may be done about a record, with what was typed so far.
func (v *view) options(r once.Record, f form) form {
	open, over := r.Status == once.Unknown || r.Status == once.Parked, r.Status == once.Done || r.Status == once.Expired
	switch {
	case !open && !over:
	case !v.o.Write:
		f.Why = "The console is read-only, so nothing can be decided here. Start it with Write, or use the command."
	case open && v.who.Role < Decide:
		f.Why = "To decide about this key, you need the role decide."
	case open:
		f.CanSettle = true
	case v.who.Role >= Administer:
		f.CanReopen = true
	}
	if over && !f.CanReopen {
		f.Why = "" // nothing needs to be done
	}
	if f.Problem != "" && !f.CanSettle && !f.CanReopen {
		v.notes = append(v.notes, note{Bad: true, Text: f.Problem})
	}
	return f
}

// news says what the person has just done about a key.
func (v *view) news(k keyRef, r once.Record) {
	all := v.trail.latest()
	for _, d := range all[:min(len(all), 20)] {
		if d.Key != k || d.By != v.who.Name || d.Reason == "" || v.now().Sub(d.At) > time.Minute {
			continue
		}
		text := "You have " + d.What + " this key. It is in the audit."
		if !strings.HasPrefix(d.What, "tried") && !strings.HasSuffix(r.Reason, d.Reason) {
			text += " The record has another reason by now: see below."
		}
		v.notes = append(v.notes, note{Good: true, Text: text})
		return
	}
}

// asking adds to the list of unknown keys how to ask about them.
func (v *view) asking(p *openPage, f filter) {
	can := false
	for name, of := range v.askers {
		can = can || len(of) > 0 && (f.Store == "" || f.Store == name)
	}
	if can && len(p.List.Rows) > 0 && v.who.Role >= Decide {
		pairs := f.pairs()
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] != "status" && pairs[i+1] != "" {
				p.Ask = append(p.Ask, part{pairs[i], pairs[i+1]})
			}
		}
		p.Ask = append(p.Ask, part{}) // there is a form, also without a filter
	}
	for _, q := range v.inquiries.latest() {
		of := v.inquiryPage(q)
		p.Asked = append(p.Asked, inquirySummary{q, of.URL, of.State, of.Done, of.Of})
	}
}

// openPage is what the list of unknown or parked keys shows.
type openPage struct {
	Status  string
	Filters filters
	List    listed
	Oldest  bool // the oldest is first
	More    string
	Empty   string
	Bad     bool
	Ask     []part           // the filter as a form has it, if the keys can be asked about
	Asked   []inquirySummary // the latest
}

// inquirySummary is an inquiry in a list.
type inquirySummary struct {
	*inquiry
	URL      string
	State    inquiryState
	Done, Of int
}

// searchable adds to rows what to search for at the other system.
func (v *view) searchable(rows []row) {
	ctx, cancel := context.WithTimeout(v.r.Context(), oneRead)
	defer cancel()
	causes := v.causes(ctx)
	for i := range rows {
		rows[i].Travels, rows[i].Cause = rows[i].Rec.Key.String(), causes(rows[i].Rec.Cause)
	}
}

func (v *view) unknown() { v.open("/unknown", once.Unknown) }
func (v *view) parked()  { v.open("/parked", once.Parked) }

// open lists keys that wait for a person.
func (v *view) open(path string, of once.Status) {
	q := v.r.URL.Query()
	f, problem := filterOf(q)
	f.Status = ""
	narrowed := f.narrows()
	at, ok := cursorOf(q.Get("after"), len(v.o.Stores))
	if !ok {
		problem = "The link to the next page is damaged. Begin at the first one."
	}
	p := openPage{Status: of.String(), Filters: v.filters(path, "", f), Bad: problem != ""}
	if p.Bad {
		v.notes = append(v.notes, note{Bad: true, Text: problem})
	} else {
		f.Status = of.String()
		p.List = v.list(at, f, nil)
		if p.Oldest = p.List.Next == "" && at == (cursor{}); p.Oldest {
			oldestFirst(p.List.Rows)
		}
		v.searchable(p.List.Rows)
	}
	if p.List.Next != "" {
		f.Status = ""
		p.More = v.link(path, append(f.pairs(), "after", p.List.Next)...)
	}
	if of == once.Unknown {
		v.asking(&p, f)
	}
	switch {
	case narrowed:
		p.Empty = "No " + p.Status + " key is like this. Take a filter away."
	case of == once.Unknown:
		p.Empty = "No key is unknown. Work whose holder crashes, or that fails without saying whether it happened, will be listed here."
	default:
		p.Empty = "No key is parked. Work that only a person can decide about will be listed here."
	}
	v.render(http.StatusOK, "open", page{Title: strings.ToUpper(p.Status[:1]) + p.Status[1:], Nav: path[1:], Body: p})
}
