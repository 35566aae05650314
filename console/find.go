package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	onPage    = 50                      // records
	askTime   = 4 * time.Second         // for what a page asks of a store
	scanTime  = 1500 * time.Millisecond // for reading records one after the other
	maxTries  = 200                     // keys that a search for an id tries
	tryAtOnce = 8
)

// row is a record in a list.
type row struct {
	Ref       keyRef
	Rec       once.Record
	Unchanged time.Duration
}

// unchanged returns how long ago a record last changed, by the store's clock.
func unchanged(r once.Record) time.Duration { return max(r.Age-r.Updated.Sub(r.Created), 0) }

func (c *Console) rowOf(s Store, r once.Record) row {
	c.names.see(r.Key)
	r.Reason = s.Store.Options().Sealing.OpenReason(r)
	return row{keyRef{s.Name, r.Key}, r, unchanged(r)}
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
	return (f.newer == 0 || unchanged(r) < f.newer) && (f.Operation == "" || r.Key.Operation == f.Operation) &&
		(f.Scope == "" && !f.NoScope || r.Key.Scope == f.Scope) && (f.Status == "" || r.Status == statusOf[f.Status]) && unchanged(r) >= f.older
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
func (v *view) list(at cursor, f filter, keep func(once.Record) bool) (l listed) {
	end := v.readUntil()
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	for ; at.store < len(v.o.Stores); at = (cursor{store: at.store + 1}) {
		s := v.o.Stores[at.store]
		if f.Store != "" && f.Store != s.Name {
			continue
		}
		lister, ok := once.As[once.Lister](s.Store)
		if !ok {
			v.notes = append(v.notes, note{Text: "The store " + s.Name + " cannot list keys. Open a key by its operation and id."})
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
			for i, r := range page.Records {
				if l.Seen++; f.has(r) && (keep == nil || keep(r)) {
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
}

// trouble notes that a store did not answer.
func (v *view) trouble(s Store, err error) {
	v.log.WarnContext(v.r.Context(), "console: a store does not answer", "store", s.Name, "error", err)
	text := "The store " + s.Name + " does not answer, so this page is not complete: " + legible.Text(err.Error())
	if !slices.ContainsFunc(v.notes, func(n note) bool { return n.Text == text }) {
		v.notes = append(v.notes, note{Bad: true, Text: text})
	}
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
}

// findPage is what the page of a search shows.
type findPage struct {
	Q          string
	Searched   bool
	Exact      []row
	Tried      string // with what Exact was looked for; empty: there can be no other
	Messages   []message
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
	if len(p.Q) > 1000 {
		problem = "This is longer than any id. Paste the id alone."
	}
	if p.Bad = problem != ""; p.Bad {
		v.notes = append(v.notes, note{Bad: true, Text: problem})
	}
	more := append([]string{"q", p.Q}, f.pairs()...)
	switch {
	case problem != "":
	case p.Q != "":
		p.Searched = true
		if at == (cursor{}) {
			exact, byKey, tried := v.exact(p.Q, f)
			p.Exact, p.Messages = exact, v.messages(p.Q, f)
			if !byKey {
				p.Tried = tried
			}
			if byKey && len(exact) == 1 && len(p.Messages) == 0 {
				v.seeOther(v.keyLink(exact[0].Ref))
				return
			}
			p.Hints = hints(p.Q)
		}
		if p.Scanned = q.Get("scan") == "1" || len(p.Exact)+len(p.Messages) == 0; p.Scanned {
			p.List = v.list(at, f, func(r once.Record) bool {
				return strings.Contains(r.Key.ID, p.Q) && !slices.ContainsFunc(p.Exact, func(other row) bool { return other.Ref.Key == r.Key })
			})
		}
		p.Scan = v.link("/find", append(more, "scan", "1")...)
		if !p.List.Cut {
			more = append(more, "scan", "1")
		}
	case f.narrows() || q.Get("all") == "1":
		p.Searched = true
		p.List = v.list(at, f, nil)
		more = append(more, "all", "1")
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

// hints say what a text may be that finds nothing.
func hints(q string) (all []string) {
	hex := strings.ToLower(strings.ReplaceAll(q, "-", ""))
	if len(hex) == 32 && strings.Trim(hex, "0123456789abcdef") == "" && name.Parse(q) == [16]byte{} {
		all = append(all, "This looks like a trace id. Records have none: open the trace, and search here for its attribute once.key.")
	}
	if strings.ContainsAny(q, "{[<") {
		all = append(all, "This looks like a part of a message or an answer. Only ids are searched, not contents.")
	}
	return all
}

// exact returns the records that a text names: as a key that travels, as an
// operation and an id, or as an id of a known operation. All are found by index.
// byKey reports that the text names one key only, and tried says what it was tried
// with if it is an id.
func (v *view) exact(q string, f filter) (found []row, byKey bool, tried string) {
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	id := name.Parse(strings.ToLower(q))
	var tries []keyRef
	for _, s := range v.o.Stores {
		if f.Store != "" && f.Store != s.Name {
			continue
		}
		if id != [16]byte{} {
			if k, err := store.FindKey(ctx, s.Store, id); err != nil && !errors.Is(err, errors.ErrUnsupported) {
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
		operations, scopes := v.names.known()
		for _, name := range append(slices.Clone(v.o.Operations), f.Operation) {
			if name != "" && !slices.Contains(operations, name) {
				operations = append(operations, name)
			}
		}
		if f.Scope != "" && !slices.Contains(scopes, f.Scope) {
			scopes = append(scopes, f.Scope)
		}
		if len(scopes) == 0 {
			scopes = []string{""}
		}
		tried = fmt.Sprintf("It was looked for with the %s and %s that this console has seen", legible.Count(len(operations), "operation", "operations"),
			legible.Count(len(scopes), "scope", "scopes"))
		for _, scope := range scopes {
			for _, op := range operations {
				tries = append(tries, keyRef{s.Name, once.Key{Scope: scope, Operation: op, ID: q}})
			}
		}
	}
	if len(tries) > maxTries {
		tries = tries[:maxTries]
		tried += fmt.Sprintf(", but not with all pairs of them: only %d keys were tried", maxTries)
	}
	tried += ". A key of another operation or scope can have the same id."
	for _, r := range v.read(ctx, tries) {
		if f.has(r.Rec) {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b row) int { return b.Rec.Updated.Compare(a.Rec.Updated) })
	return found, byKey, tried
}

// read returns the records of those keys that have one, each once.
func (v *view) read(ctx context.Context, keys []keyRef) (found []row) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, tryAtOnce)
	seen := make(map[keyRef]bool)
	failed := make(map[string]bool)
	for _, k := range keys {
		s, ok := v.store(k.Store)
		if seen[k] || !ok || k.Validate() != nil {
			continue
		}
		seen[k] = true
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			mu.Lock()
			skip := failed[k.Store]
			mu.Unlock()
			if skip {
				return
			}
			r, err := guarded(ctx, v.Console, s.Name, func() (once.Record, error) { return s.Store.Get(ctx, k.Key) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && !failed[k.Store]:
				failed[k.Store] = true
				v.trouble(s, err)
			case err == nil && !r.Created.IsZero():
				r.Key = k.Key
				found = append(found, v.rowOf(s, r))
			}
		}()
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

// messages returns the messages with an id, on the shelf and in the outbox.
func (v *view) messages(id string, f filter) (found []message) {
	ctx, cancel := context.WithTimeout(v.r.Context(), askTime)
	defer cancel()
	for _, s := range v.o.Stores {
		if f.Store != "" && f.Store != s.Name || f.Status != "" || f.Operation != "" || f.Scope != "" || id == "" {
			continue
		}
		whole := true
		if shelf, ok := once.As[store.Shelf](s.Store); ok {
			ms, all, err := v.onShelf(ctx, s, shelf, []string{id}, onPage)
			if err != nil {
				v.trouble(s, err)
				continue
			}
			whole = all
			for _, m := range ms {
				found = append(found, shelvedMessage(s, m))
			}
		}
		if out, ok := once.As[store.Relayable](s.Store); ok {
			ms, all, err := v.inOutbox(ctx, s, out, store.OutgoingQuery{IDs: []string{id}, Limit: onPage})
			if err != nil {
				v.trouble(s, err)
			}
			whole = whole && all
			for _, m := range ms {
				found = append(found, outgoingMessage(s, m))
			}
		}
		if !whole {
			v.unread(s, "this id", v.link("/find", append([]string{"q", id, "scan", "1"}, f.pairs()...)...))
		}
	}
	return found
}

func shelvedMessage(s Store, m store.Shelved) message {
	to := message{Store: s.Name, Place: m.Consumer, ID: m.Message.ID, Topic: m.Message.Topic, State: m.State.String(), Reason: store.OpenShelved(&s.Store.Options().Sealing, m, true).Reason,
		Attempts: m.Attempts, Age: time.Since(m.Created)}
	if m.Key != "" {
		to.Key = keyRef{s.Name, once.Key{Operation: m.Consumer, ID: m.Key}}
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
