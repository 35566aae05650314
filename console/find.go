package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	onPage      = 50                      // records
	askTime     = 4 * time.Second         // for what a page asks of a store
	scanTime    = 1500 * time.Millisecond // for reading records one after the other
	sweepTime   = 10 * time.Second        // for a store to find ids itself
	sweepAtOnce = 2                       // stores that do, for all who look: each reads all of its table
	maxSwept    = 1000                    // ids that it is asked for: more than fit on a page, for the filter takes some away
	maxTries    = 1000                    // keys that a search for an id tries
	fewTries    = 200                     // those of a store that reads one key at a time
	tryMany     = 16                      // keys that are read at once where that can be: all may have large outcomes
	tryAtOnce   = 8
	maxKeptText = 4000          // bytes of keys in the link with which a search goes on
	maxRead     = math.MaxInt32 // records or messages, of all its pages
)

// row is a record in a list.
type row struct {
	Ref       keyRef
	Rec       once.Record
	Unchanged time.Duration

	// Of keys that wait for an answer: what to search for at the other system.
	Travels string // the key as it travels
	Cause   keyRef // that has put the message which the key is of; zero: none, or not known
}

// unchanged returns how long ago a record last changed, by the store's clock.
func unchanged(r once.Record) time.Duration { return max(r.Age-r.Updated.Sub(r.Created), 0) }

func (c *Console) rowOf(s Store, r once.Record) row {
	c.names.see(r.Key)
	r.Reason = s.Store.Options().Sealing.OpenReason(r)
	return row{Ref: keyRef{s.Name, r.Key}, Rec: r, Unchanged: unchanged(r)}
}

// filter is what a list is narrowed by, as in the URL.
type filter struct {
	Store, Operation, Scope, Status, Older, Newer string
	NoScope                                       bool // the empty scope
	older, newer                                  time.Duration
}

type option struct{ Value, Text string }

var (
	statuses = []option{{"", "any"}, {"unknown", "unknown"}, {"parked", "parked"}, {"running", "running"}, {"done", "done"}, {"expired", "expired"}, {"absent", "absent (free again)"}}
	ages     = []option{{"", "any"}, {"5m", "5 minutes"}, {"1h", "1 hour"}, {"24h", "1 day"}, {"168h", "1 week"}, {"720h", "30 days"}}
)

var statusOf = map[string]once.Status{"absent": once.Absent, "running": once.Running, "unknown": once.Unknown,
	"parked": once.Parked, "done": once.Done, "expired": once.Expired}

// Statuses are the choices of the form.
func (filter) Statuses() []option { return statuses }

// Ages are the choices of the form.
func (filter) Ages() []option { return ages }

// narrows reports whether the filter leaves out anything.
func (f filter) narrows() bool { return f != filter{} }

func filterOf(q url.Values) (f filter, problem string) {
	f = filter{Store: q.Get("store"), Operation: q.Get("operation"), Scope: q.Get("scope"), Status: q.Get("status"), Older: q.Get("older"), Newer: q.Get("newer"),
		NoScope: q.Get("noscope") == "1" && q.Get("scope") == ""}
	if _, ok := statusOf[f.Status]; f.Status != "" && !ok {
		return f, "There is no status " + legible.Line(f.Status) + "."
	}
	for text, d := range map[*string]*time.Duration{&f.Older: &f.older, &f.Newer: &f.newer} {
		if *text == "" {
			continue
		}
		var err error
		if *d, err = time.ParseDuration(*text); err != nil || *d <= 0 {
			return f, "An age is " + legible.Line(*text) + ": write it like 90s, 15m or 48h."
		}
	}
	if f.newer > 0 && f.newer <= f.older {
		return f, "Nothing is older than " + f.Older + " and newer than " + f.Newer + "."
	}
	return f, ""
}

// pairs returns the parameters of the filter for a link.
func (f filter) pairs() []string {
	noscope := ""
	if f.NoScope {
		noscope = "1"
	}
	return []string{"store", f.Store, "operation", f.Operation, "scope", f.Scope, "noscope", noscope, "status", f.Status, "older", f.Older, "newer", f.Newer}
}

func (f filter) selection() once.RecordQuery {
	q := once.RecordQuery{Operation: f.Operation, Unchanged: f.older}
	if f.Status != "" {
		q.Status = []once.Status{statusOf[f.Status]}
	}
	if f.Scope != "" || f.NoScope {
		q.Scopes = []string{f.Scope}
	}
	return q
}

func (f filter) has(r once.Record) bool {
	return f.mayHave(r.Key) && (f.newer == 0 || unchanged(r) < f.newer) && (f.Status == "" || r.Status == statusOf[f.Status]) && unchanged(r) >= f.older
}

// mayHave reports whether it has a record of the key, if it has the rest of the record.
func (f filter) mayHave(k once.Key) bool {
	return (f.Operation == "" || k.Operation == f.Operation) && (f.Scope == "" && !f.NoScope || k.Scope == f.Scope)
}

// cursor is where a list goes on.
type cursor struct {
	store int
	after once.Key
}

func (c cursor) String() string {
	text, _ := json.Marshal([]any{c.store, c.after.Scope, c.after.Operation, c.after.ID}) // strings can be encoded
	return base64.RawURLEncoding.EncodeToString(text)
}

func cursorOf(text string, stores int) (c cursor, ok bool) {
	if text == "" {
		return c, true
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(raw, &[]any{&c.store, &c.after.Scope, &c.after.Operation, &c.after.ID}) != nil {
		return c, false
	}
	return c, c.store >= 0 && c.store < stores
}

// listed is a part of a list.
type listed struct {
	Rows []row
	Next string // the cursor; empty: this is the end
	Seen int    // records that were read
	Cut  bool   // the time was over before the page was full
}

// list reads on from a cursor until the page is full or the time is over. It goes
// from store to store, and reports those that fail.
func (v *view) list(at cursor, f filter, keep func(Store, once.Record) bool) (l listed) {
	end := v.readUntil()
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	for ; at.store < len(v.o.Stores); at = (cursor{store: at.store + 1}) {
		s := v.o.Stores[at.store]
		if f.Store != "" && f.Store != s.Name || slices.Contains(v.swept, s.Name) {
			continue
		}
		lister, ok := once.As[once.Lister](s.Store)
		if !ok {
			v.notes = append(v.notes, note{Text: "The store " + s.Name + " cannot list keys. Open a key by its operation and id."})
			v.misses(s)
			continue
		}
		q := f.selection()
		for q.After = at.after; ; {
			q.Limit = 1000
			if keep == nil && f.newer == 0 {
				q.Limit = onPage - len(l.Rows)
			}
			page, err := guarded(ctx, v.Console, s.Name, func() (once.RecordPage, error) { return lister.List(ctx, q) })
			if errors.Is(err, once.ErrInvalid) && len(q.Status) == 0 {
				q.Status = []once.Status{once.Unknown, once.Parked, once.Running}
				v.openOnly(s)
				continue
			}
			if errors.Is(err, once.ErrInvalid) {
				v.openOnly(s)
				break
			}
			if err != nil {
				v.trouble(s, err)
				break
			}
			v.unread(s, page.Damaged)
			for i, r := range page.Records {
				if l.Seen++; f.has(r) && (keep == nil || keep(s, r)) {
					l.Rows = append(l.Rows, v.rowOf(s, r))
				}
				if len(l.Rows) == onPage && (i < len(page.Records)-1 || page.Next != once.Key{}) {
					l.Next = cursor{at.store, r.Key}.String()
					return l
				}
			}
			if page.Next == (once.Key{}) {
				break
			}
			if q.After = page.Next; len(l.Rows) >= onPage || v.now().After(end) {
				l.Next, l.Cut = cursor{at.store, q.After}.String(), len(l.Rows) < onPage
				return l
			}
		}
		if len(l.Rows) >= onPage && at.store+1 < len(v.o.Stores) && f.Store == "" {
			l.Next = cursor{store: at.store + 1}.String()
			return l
		}
	}
	return l
}

// openOnly notes that a store has no list of all its keys.
func (v *view) openOnly(s Store) {
	v.notes = append(v.notes, note{Text: "The store " + s.Name + " lists only keys that are unknown, parked or running. Find others by their whole id."})
	v.misses(s)
}

// trouble notes that a store did not answer.
func (v *view) trouble(s Store, err error) {
	v.log.WarnContext(v.r.Context(), "console: a store does not answer", "store", s.Name, "error", err)
	v.misses(s)
	text := "The store " + s.Name + " does not answer, so this page is not complete: " + legible.Text(err.Error())
	if !slices.ContainsFunc(v.notes, func(n note) bool { return n.Text == text }) {
		v.notes = append(v.notes, note{Bad: true, Text: text})
	}
}

// unread notes that a list of a store leaves out records that cannot be read.
func (v *view) unread(s Store, damaged []error) {
	for _, err := range damaged {
		text := unreadBegins + s.Name + " cannot be read, and is not listed: " + legible.Text(err.Error())
		n := 0
		for _, other := range v.notes {
			if other.Text == text {
				return
			}
			if strings.HasPrefix(other.Text, unreadBegins) {
				n++
			}
		}
		if n == maxUnread {
			return
		}
		v.notes = append(v.notes, note{Bad: true, Text: text})
	}
}

// maxUnread is how many records a page names that cannot be read.
const maxUnread, unreadBegins = 5, "A record of the store "

// misses remembers that a page does not have all that it would have of a store.
func (v *view) misses(s Store) {
	if !slices.Contains(v.missed, s.Name) {
		v.missed = append(v.missed, s.Name)
	}
}

// missedBefore notes which stores the pages of a search before this one have not
// searched completely. They are in the link, because a page that goes on by itself is
// gone before anybody has read its notes.
func (v *view) missedBefore(text string) (ok bool) {
	for of := range strings.FieldsSeq(text) {
		s, known := v.store(of)
		if !known || len(text) > maxKeptText {
			return false
		}
		v.misses(s)
		v.notes = append(v.notes, note{Bad: true, Text: "Before this page, not all of the store " + s.Name + " was searched: it did not answer, or has no list of all."})
	}
	return true
}

// message is a message that a search has found.
type message struct {
	Store, Place string // where it is: the shelf of a consumer, or the outbox
	ID, Topic    string
	State        string
	Reason       string
	Attempts     int
	Age          time.Duration
	Key          keyRef // of the consumer's work for it, or of the work that put it
	Put          bool   // Key has put it
	URL          string // of its page
	Cause        keyRef // whose work put it, for a message on a shelf
	CauseText    string // if only its digest is known
	cause        [16]byte
}

// findPage is what the page of a search shows.
type findPage struct {
	Q          string
	Searched   bool
	Exact      []row
	Partial    bool   // Exact may not be all, and a search of everything is offered
	Kept       []row  // what the search has found before
	Read       int    // records, with those of the pages before
	Later      bool   // pages before have found what this one does not show
	Missed     bool   // not all was searched, in this page or those before
	Swept      bool   // stores have found ids themselves
	Again      string // the URL that begins the search again
	OnItself   bool   // the search goes on by itself
	Stop       string // the URL that ends it
	Tried      string // with what Exact was looked for; empty: there can be no other
	Untried    bool   // not even with all that the console has seen
	Unread     string // the stores whose messages were not all searched, if the page says so beside Tried
	Messages   []message
	Trace      *traceSearch // nil: not searched for
	AsTrace    string       // the URL that searches for it
	TraceOnly  bool         // ids are not searched
	List       listed
	Scanned    bool   // List was searched for
	More, Scan string // URLs
	Filters    filters
	Bad        bool // the question cannot be answered
	Hints      []string
}

// filters is the form of a filter.
type filters struct {
	Action, Q          string
	F                  filter
	Fixed              bool // the page decides the status
	Operations, Scopes []string
	Many               bool // several stores
	Stores             []Store
}

func (v *view) filters(path, q string, f filter) filters {
	operations, scopes := v.names.known()
	if len(scopes) > maxChoices {
		scopes = scopes[:maxChoices]
	}
	return filters{Action: v.inside(path), Q: q, F: f, Fixed: path != "/find", Operations: plain(operations), Scopes: plain(scopes), Many: len(v.o.Stores) > 1, Stores: v.o.Stores}
}

func (v *view) find() {
	q := v.r.URL.Query()
	f, problem := filterOf(q)
	at, ok := cursorOf(q.Get("after"), len(v.o.Stores))
	if !ok {
		problem = "The link to the next page is damaged. Begin at the first one."
	}
	p := findPage{Q: strings.TrimSpace(q.Get("q"))}
	from, ok := traceCursorOf(q.Get("trace"), len(v.o.Stores))
	if !ok {
		problem = "The link to the rest of the search is damaged. Search again."
	}
	if len(p.Q) > 1000 {
		problem = "This is longer than any id. Paste the id alone."
	}
	traceID, _ := traceOf(p.Q)
	if p.Bad = problem != ""; p.Bad {
		v.notes = append(v.notes, note{Bad: true, Text: problem})
	}
	more := append([]string{"q", p.Q}, f.pairs()...)
	switch {
	case problem != "":
	case traceID != "" && q.Get("trace") != "":
		p.Searched, p.TraceOnly = true, true
		p.Trace = v.trace(traceID, from, f, v.readUntil(), []string{"q", p.Q, "store", f.Store})
	case p.Q != "":
		if more, ok = v.search(&p, at, f, more); !ok {
			return
		}
	case f.narrows() || q.Get("all") == "1":
		if !v.missedBefore(q.Get("missed")) {
			v.damaged()
			return
		}
		p.Searched = true
		p.List = v.list(at, f, nil)
		p.Missed = len(v.missed) > 0
		more = append(more, "all", "1", "missed", strings.Join(v.missed, " "))
	}
	if p.List.Cut {
		more = append(more, "scan", "1") // whoever reads on has the time
	}
	if p.List.Next != "" {
		p.More = v.link("/find", append(more, "after", p.List.Next)...)
	}
	p.Filters = v.filters("/find", p.Q, f)
	title := "Find"
	if p.Q != "" {
		title = "Find " + legible.Line(p.Q)
	}
	v.render(200, "find", page{Title: title, Nav: "find", Find: p.Q, Body: p})
}

// search searches for a text that a person has entered, from a cursor on. more are the
// parameters of a link that goes on. It is not ok if the page has been answered.
func (v *view) search(p *findPage, at cursor, f filter, more []string) (_ []string, ok bool) {
	q := v.r.URL.Query()
	before, read, ok := keptOf(q)
	if !ok || !v.missedBefore(q.Get("missed")) || !v.sweptBefore(q.Get("swept")) {
		v.damaged()
		return nil, false
	}
	p.Searched = true
	p.Scan = v.link("/find", append(slices.Clone(more), "scan", "1")...)
	p.Again = p.Scan
	if at == (cursor{}) {
		exact, byKey, tried, untried := v.exact(p.Q, f)
		messages, unread := v.messages(p.Q, f)
		p.Exact, p.Messages = exact, messages
		if !byKey {
			p.Tried, p.Untried = tried, untried
		}
		if p.Partial = len(exact) > 0 && p.Tried != "" && !v.all(); p.Partial {
			p.Unread = strings.Join(unread, ", ")
		} else {
			for _, of := range unread {
				v.notes = append(v.notes, unreadIn(of, "this id", v.link("/find", append([]string{"q", p.Q, "scan", "1"}, f.pairs()...)...)))
			}
		}
		if byKey && len(exact) == 1 && len(p.Messages) == 0 {
			v.seeOther(v.keyLink(exact[0].Ref))
			return nil, false
		}
		p.Hints = hints(p.Q)
		if id, isParent := traceOf(p.Q); id != "" {
			v.findTrace(p, id, isParent, f)
		}
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	p.Kept = v.read(ctx, before)
	slices.SortStableFunc(p.Kept, func(a, b row) int { return slices.Index(before, a.Ref) - slices.Index(before, b.Ref) })
	if p.Scanned = v.all() || !p.Found() && !p.TraceOnly; p.Scanned {
		shown := refsOf(p.Exact, p.Kept)
		var found []row
		if v.all() {
			if q.Get("sweep") != "1" {
				found = v.sweep(p.Q, f, shown)
			}
			more = append(more, "sweep", "1", "swept", strings.Join(v.swept, " "))
		}
		p.List = v.list(at, f, func(s Store, r once.Record) bool {
			return strings.Contains(r.Key.ID, p.Q) && !slices.Contains(shown, keyRef{s.Name, r.Key})
		})
		p.List.Rows, p.Swept = append(found, p.List.Rows...), len(v.swept) > 0
	}
	p.Read, p.Later, p.Missed = min(read+p.List.Seen, maxRead), q.Get("found") == "1", len(v.missed) > 0
	return v.searchOn(p, before, append(more, "read", strconv.Itoa(p.Read), "missed", strings.Join(v.missed, " "))), true
}

// sweep returns the records whose ID contains a text, the latest first, without those
// that are shown, from stores that find them themselves. It remembers these stores.
// One that is slow, that fails or that finds more than fits on a page is read key by
// key instead.
func (v *view) sweep(part string, f filter, shown []keyRef) (found []row) {
	ctx, cancel := context.WithTimeout(v.r.Context(), sweepTime)
	defer cancel()
	all := make([][]keyRef, len(v.o.Stores)) // nil: it did not find them
	var asked sync.WaitGroup
	for i, s := range v.o.Stores {
		finder, ok := once.As[store.IDFinder](s.Store)
		if !ok || f.Store != "" && f.Store != s.Name {
			continue
		}
		asked.Add(1)
		go func() {
			defer asked.Done()
			select {
			case v.sweeps <- struct{}{}:
				defer func() { <-v.sweeps }()
			case <-ctx.Done():
				return
			}
			keys, err := guarded(ctx, v.Console, s.Name, func() ([]once.Key, error) { return finder.FindIDs(ctx, part, maxSwept) })
			if err != nil || len(keys) == maxSwept {
				return
			}
			some := []keyRef{}
			for _, k := range keys {
				if ref := (keyRef{s.Name, k}); f.mayHave(k) && !slices.Contains(shown, ref) {
					some = append(some, ref)
				}
			}
			if len(some) <= onPage {
				all[i] = some
			}
		}()
	}
	asked.Wait()
	reading, end := context.WithTimeout(v.r.Context(), askTime)
	defer end()
	for i, s := range v.o.Stores {
		if all[i] == nil {
			continue
		}
		rows := v.read(reading, all[i])
		if slices.Contains(v.missed, s.Name) {
			continue // it has failed, now or before
		}
		v.swept = append(v.swept, s.Name)
		for _, r := range rows {
			if f.has(r.Rec) {
				found = append(found, r)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b row) int { return b.Rec.Updated.Compare(a.Rec.Updated) })
	return found
}

// sweptBefore notes which stores a page of this search before has swept.
func (v *view) sweptBefore(text string) (ok bool) {
	for of := range strings.FieldsSeq(text) {
		s, known := v.store(of)
		if !known || len(text) > maxKeptText {
			return false
		}
		v.swept = append(v.swept, s.Name)
	}
	return true
}

// searchOn returns the parameters with which a search goes on. They have the keys that
// it has found, as long as these fit, so that its last page shows them.
func (v *view) searchOn(p *findPage, before []keyRef, more []string) []string {
	later := p.Later || len(p.Messages) > 0
	shown := len(p.Exact) + len(p.Kept) + len(p.List.Rows)
	goesOn := p.List.Cut && shown < onPage
	fits := false
	if goesOn {
		all := refsOf(p.Exact, p.Kept, p.List.Rows)
		if p.Missed { // what cannot be read now is not forgotten
			all = append(slices.Concat(refsOf(p.Exact), before), refsOf(p.List.Rows)...)
		}
		var text string
		if text, fits = keep(all); fits {
			more = append(more, "kept", text)
		}
	}
	if later || goesOn && !fits || !goesOn && shown > 0 {
		more = append(more, "found", "1")
	}
	if goesOn {
		p.OnItself = fits && v.all() && len(p.Messages) == 0 && p.AsTrace == "" && v.r.URL.Query().Get("stop") != "1"
		p.Stop = v.link("/find", append(slices.Clone(more), "scan", "1", "stop", "1", "after", p.List.Next)...)
	}
	if !p.List.Cut {
		more = append(more, "scan", "1")
	}
	return more
}

// findTrace searches for a trace at once if a text is nothing else, and else offers to.
func (v *view) findTrace(p *findPage, id string, isParent bool, f filter) {
	start := v.link("/find", "q", p.Q, "store", f.Store, "trace", traceCursor{}.String())
	switch {
	case p.Found() || v.all():
		p.AsTrace = start
	case f.Status != "" || f.Operation != "" || f.Scope != "" || f.NoScope || f.Older != "" || f.Newer != "":
		p.Hints = append(p.Hints, "This looks like a trace id. With a filter, messages are not searched for it.")
		p.AsTrace = start
	default:
		p.Trace = v.trace(id, traceCursor{}, f, v.now().Add(glanceTime), []string{"q", p.Q, "store", f.Store})
		p.TraceOnly = isParent
	}
}

// Found reports whether a search has found more than keys whose id is longer.
func (p findPage) Found() bool {
	return len(p.Exact)+len(p.Messages) > 0 || p.Trace != nil && len(p.Trace.Messages) > 0
}

func refsOf(several ...[]row) (all []keyRef) {
	for _, rows := range several {
		for _, r := range rows {
			all = append(all, r.Ref)
		}
	}
	return all
}

// keep returns a parameter that has keys that were found, for the page on which the
// search goes on. fits is false if they are too many for a link.
func keep(keys []keyRef) (text string, fits bool) {
	if len(keys) == 0 {
		return "", true
	}
	var all [][4]string
	for _, k := range keys {
		all = append(all, [4]string{k.Store, k.Scope, k.Operation, k.ID})
	}
	encoded, _ := json.Marshal(all) // strings can be encoded
	text = base64.RawURLEncoding.EncodeToString(encoded)
	return text, len(text) <= maxKeptText && len(all) <= onPage
}

// keptOf returns what keep has written, and how many records were read before.
func keptOf(q url.Values) (kept []keyRef, read int, ok bool) {
	if text := q.Get("read"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxRead {
			return nil, 0, false
		}
		read = n
	}
	raw, err := base64.RawURLEncoding.DecodeString(q.Get("kept"))
	var all [][4]string
	if err != nil || len(raw) > 0 && json.Unmarshal(raw, &all) != nil || len(all) > onPage {
		return nil, 0, false
	}
	for _, k := range all {
		kept = append(kept, keyRef{k[0], once.Key{Scope: k[1], Operation: k[2], ID: k[3]}})
	}
	return kept, read, true
}

// hints say what a text may be that finds nothing.
func hints(q string) (all []string) {
	if strings.ContainsAny(q, "{[<") {
		all = append(all, "This looks like a part of a message or an answer. Only ids are searched, not contents.")
	}
	return all
}

// exact returns the records that a text names: as a key that travels, as an
// operation and an id, or as an id of a known operation. All are found by index.
// byKey reports that the text names one key only, and tried says what it was tried
// with if it is an id. untried reports that this is not all that the console has seen.
func (v *view) exact(q string, f filter) (found []row, byKey bool, tried string, untried bool) {
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	id := name.Parse(strings.ToLower(q))
	if trace, _ := traceOf(q); id == [16]byte{} {
		id = keyOfTrace(trace)
	}
	var tries []keyRef
	for _, s := range v.o.Stores {
		if f.Store != "" && f.Store != s.Name {
			continue
		}
		if id != [16]byte{} {
			if k, err := guarded(ctx, v.Console, s.Name, func() (once.Key, error) { return store.FindKey(ctx, s.Store, id) }); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				v.trouble(s, err)
			} else if k != (once.Key{}) {
				tries = append(tries, keyRef{s.Name, k})
				byKey = true
			}
		}
		if op, rest, ok := strings.Cut(q, " "); ok {
			tries = append(tries, keyRef{s.Name, once.Key{Operation: op, ID: strings.TrimSpace(rest)}})
			if at := strings.LastIndex(rest, " of "); at > 0 {
				tries = append(tries, keyRef{s.Name, once.Key{Operation: op, ID: strings.TrimSpace(rest[:at]), Scope: strings.TrimSpace(rest[at+4:])}})
			}
		}
		likely, operations, scopes := v.names.tries(f, v.o.Operations)
		tried = fmt.Sprintf("It was looked for with the %s and %s that this console has seen", legible.Count(operations, "operation", "operations"),
			legible.Count(scopes, "scope", "scopes"))
		most := fewTries
		if _, ok := once.As[store.ManyGetter](s.Store); ok {
			most = maxTries
		}
		if len(likely) > most {
			likely, untried = likely[:most], true
			tried += fmt.Sprintf(", but not with all pairs of them: only %d keys were tried", most)
		}
		for _, k := range likely {
			k.ID = q
			tries = append(tries, keyRef{s.Name, k})
		}
	}
	switch {
	case f.Operation == "" || f.Scope == "" && !f.NoScope:
		tried += ". A key of another operation or scope can have the same id."
	default: // there can be no other
		tried = ""
	}
	for _, r := range v.read(ctx, tries) {
		if f.has(r.Rec) {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b row) int { return b.Rec.Updated.Compare(a.Rec.Updated) })
	return found, byKey, tried, untried
}

// read returns the records of those keys that have one, each once.
func (v *view) read(ctx context.Context, keys []keyRef) (found []row) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, tryAtOnce)
	seen := make(map[keyRef]bool)
	of := make(map[string][]once.Key)
	for _, k := range keys {
		if s, ok := v.store(k.Store); ok && !seen[k] && k.Validate() == nil {
			seen[k], of[s.Name] = true, append(of[s.Name], k.Key)
		}
	}
	failed := make(map[string]bool)
	for _, s := range v.o.Stores {
		many, ok := once.As[store.ManyGetter](s.Store)
		size := tryMany
		if !ok {
			size = 1
		}
		for some := range slices.Chunk(of[s.Name], size) {
			slots <- struct{}{}
			wg.Add(1)
			go func() {
				defer func() { <-slots; wg.Done() }()
				mu.Lock()
				skip := failed[s.Name]
				mu.Unlock()
				if skip {
					return
				}
				recs, err := guarded(ctx, v.Console, s.Name, func() ([]once.Record, error) {
					if ok {
						return many.GetMany(ctx, some)
					}
					r, err := s.Store.Get(ctx, some[0])
					return []once.Record{r}, err
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil && !failed[s.Name]:
					failed[s.Name] = true
					v.trouble(s, err)
				case err == nil:
					for i, r := range recs {
						if !r.Created.IsZero() {
							r.Key = some[i]
							found = append(found, v.rowOf(s, r))
						}
					}
				}
			}()
		}
	}
	wg.Wait()
	return found
}

// store returns a store by its name. The empty name is that of the only store.
func (c *Console) store(of string) (Store, bool) {
	for _, s := range c.o.Stores {
		if s.Name == of || of == "" && len(c.o.Stores) == 1 {
			return s, true
		}
	}
	return Store{}, false
}

// messages returns the messages with an id, on the shelf and in the outbox, and the
// stores that may have others. The stores are asked at once, so that one that does not
// answer takes its own time only.
func (v *view) messages(id string, f filter) (found []message, unread []string) {
	if f.Status != "" || f.Operation != "" || f.Scope != "" || id == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	type reply struct {
		found []message
		whole bool
		errs  []error
	}
	replies := make([]reply, len(v.o.Stores))
	var all sync.WaitGroup
	for i, s := range v.o.Stores {
		replies[i].whole = true
		if f.Store != "" && f.Store != s.Name {
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			r := &replies[i]
			r.found, r.whole, r.errs = v.messagesIn(ctx, s, id)
		}()
	}
	all.Wait()
	for i, s := range v.o.Stores {
		found = append(found, replies[i].found...)
		for _, err := range replies[i].errs {
			v.trouble(s, err)
		}
		if !replies[i].whole {
			v.misses(s)
			unread = append(unread, s.Name)
		}
	}
	return found, unread
}

// messagesIn returns the messages of one store with an id. whole is false if there may
// be others.
func (v *view) messagesIn(ctx context.Context, s Store, id string) (found []message, whole bool, errs []error) {
	whole = true
	if shelf, ok := once.As[store.Shelf](s.Store); ok {
		ms, all, err := v.onShelf(ctx, s, shelf, []string{id}, onPage)
		if err != nil {
			return nil, true, []error{err}
		}
		whole = all
		for _, m := range ms {
			as := shelvedMessage(s, m)
			as.URL = v.shelvedLink(s, m)
			found = append(found, as)
		}
	}
	if out, ok := once.As[store.Relayable](s.Store); ok {
		ms, all, err := v.inOutbox(ctx, s, out, store.OutgoingQuery{IDs: []string{id}, Limit: onPage})
		if err != nil {
			errs = append(errs, err)
		}
		whole = whole && all
		for _, m := range ms {
			as := outgoingMessage(s, m)
			as.URL = v.outgoingLink(s, m)
			found = append(found, as)
		}
	}
	return found, whole, errs
}

func shelvedMessage(s Store, m store.Shelved) message {
	to := message{Store: s.Name, Place: m.Consumer, ID: m.Message.ID, Topic: m.Message.Topic, State: m.State.String(), Reason: store.OpenShelved(&s.Store.Options().Sealing, m, true).Reason,
		Attempts: m.Attempts, Age: time.Since(m.Created)}
	if m.Key != "" {
		to.Key = keyRef{s.Name, m.Unit()}
	}
	return to
}

func outgoingMessage(s Store, m store.Outgoing) message {
	to := message{Store: s.Name, ID: m.Message.ID, Topic: m.Message.Topic, State: m.State.String(), Reason: m.Reason, Attempts: m.Attempts, Age: time.Since(m.Created), Put: true}
	if k, ok := store.ParseCause(m.Cause); ok {
		to.Key = keyRef{s.Name, k}
	}
	return to
}

// oldestFirst orders records by their last change.
func oldestFirst(rows []row) {
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(b.Unchanged, a.Unchanged) })
}
