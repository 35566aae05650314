package console

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// claim takes a key, for a message that the work of cause has put.
func claim(t *testing.T, s once.Store, k once.Key, cause once.Key, lease time.Duration) once.Record {
	t.Helper()
	r := once.ClaimRequest{Fence: once.Fence{Key: k, Owner: k.UUID()}, Lease: lease, Fingerprint: []byte{1, 2, 3}}
	if cause != (once.Key{}) {
		r.Cause = cause.UUID()
	}
	rec, err := s.Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// settle ends a claim.
func settle(t *testing.T, s once.Store, r once.Record, status once.Status, reason, answer, kind string) {
	t.Helper()
	set := once.Settlement{Fence: once.Fence{Key: r.Key, Owner: r.Owner, Attempt: r.Attempt}, Status: status, Reason: reason, KeepOutcome: time.Hour, KeepKey: time.Hour}
	if status == once.Done {
		set.Outcome, _ = s.Options().Pack(r.Key, r.Fingerprint, once.Outcome{Body: []byte(answer), ContentType: kind})
	}
	if err := s.Settle(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

// unknown makes a record whose holder is gone.
func unknown(t *testing.T, s once.Store, k once.Key) {
	t.Helper()
	settle(t, s, claim(t, s, k, once.Key{}, time.Minute), once.Unknown, "the connection broke", "", "")
}

const script = `<script>alert(1)</script>`

// history makes an order, its message, and what two consumers in another store did.
func history(t *testing.T) (shop, stock *memstore.Store, order once.Key) {
	t.Helper()
	shop, stock = memstore.New(nil), memstore.New(nil)
	box := outbox.New(shop, nil)
	op := &once.Operation[string]{Name: "order"}
	order = op.For("order-4711").In("tenant-7").Key()
	if _, err := once.DoTx(t.Context(), shop, op.For("order-4711").In("tenant-7"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		return "secret" + script, box.Put(ctx, tx, &broker.Message{ID: "m-1", Topic: "orders", Body: []byte("x")})
	}); err != nil {
		t.Fatal(err)
	}
	settle(t, shop, claim(t, shop, order.Step("charge"), once.Key{}, time.Minute), once.Done, "", `{"a":1}`, "application/json")
	settle(t, stock, claim(t, stock, once.Key{Operation: "billing", ID: "m-1"}, order, time.Minute), once.Done, "", "", "")
	settle(t, stock, claim(t, stock, once.Key{Operation: "mailing", ID: "m-1"}, order, time.Minute), once.Parked, "smtp: 451 "+script, "", "")
	if err := stock.Shelve(t.Context(), []store.Shelved{{Consumer: "mailing", Key: "m-1", Message: broker.Message{ID: "m-1", Topic: "orders", Body: []byte("x")},
		State: store.Parked, Attempts: 5, Reason: "smtp: 451 " + script, History: "replayed by ann: fixed"}}); err != nil {
		t.Fatal(err)
	}
	return shop, stock, order
}

func TestAKeyIsFoundByWhateverAPersonHas(t *testing.T) {
	shop, stock, order := history(t)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: shop}, {Name: "stock", Store: stock}}})
	c.Close() // nothing else learns names
	b := as(t, c, lookToken)
	for q, want := range map[string]string{
		order.String():                     "of tenant-7 done It is done.",
		strings.ToUpper(order.String()):    "of tenant-7 done It is done.",
		"order order-4711 of tenant-7":     "A key with exactly this id",
		"order-4711":                       "Keys whose id contains this",
		" 4711 ":                           "Keys whose id contains this",
		"m-1":                              "Messages with this id",
		"nothing":                          "keys were read",
		"0af7651916cd43dd8448eb211c80319c": "This looks like a trace id",
		`{"amount":1}`:                     "Only ids are searched",
		strings.Repeat("x", 1001):          "longer than any id",
	} {
		c.names.operations, c.names.scopes, c.names.pairs = nil, nil, nil
		b.get("/find?q=" + url.QueryEscape(q)).is(http.StatusOK).shows(want)
		b.get("/find").fill("/find", "q", q).is(http.StatusOK)
		if q == "order-4711" { // its operations have been seen
			b.shows("2 keys with exactly this id")
		}
	}
}

func TestTheTimelineTellsTheWholeStory(t *testing.T) {
	shop, stock, order := history(t)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: shop}, {Name: "stock", Store: stock}}, Operations: []string{"order/charge"},
		Links: []Link{{"Trace", "https://traces.example/?q={key}&id={id}"}}})
	b := as(t, c, decideToken)
	b.get(c.keyLink(keyRef{"shop", order})).is(http.StatusOK).hides("secret", script)
	b.shows("Claimed for the first time", "Put the message m-1 pending to orders", "Done", "Led to billing m-1 done", "Led to mailing m-1 parked smtp: 451",
		"Set aside by the consumer mailing", "5 failed attempts", "replayed by ann: fixed", "Step order/charge order-4711 of tenant-7", order.String())
	if !strings.Contains(b.text, `href="https://traces.example/?q=`+order.String()+`&amp;id=order-4711"`) {
		t.Error("there is no link to the trace")
	}
	b.fill("/key/outcome").is(http.StatusOK).shows("secret").hides(script)
	if got := c.trail.latest()[0]; got.By != "dee" || got.What != "looked at the answer" || got.Key.Key != order {
		t.Errorf("the audit has %+v", got)
	}
	b.follow("mailing m-1").is(http.StatusOK).shows("Caused by a message of order order-4711 of tenant-7", "the key is settled with it").follow("order order-4711").is(http.StatusOK)
	b.follow("order/charge").shows("It is a step of order order-4711 of tenant-7")
	b.get(c.keyLink(keyRef{"shop", order})).follow("m-1").is(http.StatusOK).shows("Outbox Message m-1 pending", "Caused by order order-4711")
	b.get(c.keyLink(keyRef{"stock", once.Key{Operation: "mailing", ID: "m-1"}})).follow("m-1").is(http.StatusOK).shows("Parked messages Message m-1 parked")

	as(t, c, lookToken).get(c.keyLink(keyRef{"shop", order})).shows("you need the role decide").hides("secret")
}

func TestKeysThatCannotBeShown(t *testing.T) {
	c := open(t, Options{})
	b := as(t, c, lookToken)
	b.get("/key?store=no&operation=a&id=b").is(http.StatusNotFound).shows("There is no such store")
	b.get("/key?operation=a").is(http.StatusBadRequest).shows("This is not a key")
	b.get("/key?operation=a&id=b").is(http.StatusNotFound).shows("search for the id")
}

// Whatever somebody made an id, an operation or a reason of, a page shows it as
// text, and other ids look different.
func TestHostileTextIsShownAsText(t *testing.T) {
	s := memstore.New(nil)
	hostile := []string{script, `"><img src=x onerror=alert(1)>`, "javascript:alert(1)", "p\u0430y", "pay", "a\u202egnp.exe", "a\u200b", "a", "{{.}}", "'; --", "%3Cscript%3E", "</table>", "../../etc", "a?b=c&d#e"}
	for _, text := range hostile {
		unknown(t, s, once.Key{Scope: text, Operation: text, ID: text})
	}
	k := once.Key{Operation: "answer", ID: "1"}
	settle(t, s, claim(t, s, k, once.Key{}, time.Minute), once.Done, script+"\u202e\x1b", "<b>\u202e\x00"+script, `text/html"`+script)
	c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}, Write: true})
	b := as(t, c, adminToken)
	check := func() {
		t.Helper()
		b.is(http.StatusOK).hides(script, "<img src=x")
		if shown := b.page.content(); strings.ContainsAny(shown, "\u202e\u200b\x1b\x00") {
			t.Errorf("%s shows %q", b.at, shown)
		}
	}
	b.get("/find?all=1")
	check()
	var links []string
	for _, a := range b.page.all("a") {
		if a.attr["class"] == "row" {
			links = append(links, a.attr["href"])
			if !strings.HasPrefix(a.attr["href"], "/key?") {
				t.Errorf("a row leads to %q", a.attr["href"])
			}
		}
	}
	if len(links) != len(hostile)+1 {
		t.Errorf("there are %d links", len(links))
	}
	for _, to := range links {
		b.get(to)
		check()
	}
	shown := make(map[string]bool)
	for _, text := range hostile {
		b.get("/find?q=" + url.QueryEscape(text))
		check()
		shown[b.page.all("h1")[0].content()] = true
	}
	if len(shown) != len(hostile) {
		t.Errorf("%d ids are shown as %d", len(hostile), len(shown))
	}
	b.get(c.keyLink(keyRef{"s", k})).fill("/key/outcome")
	check()
}

func TestListsHavePages(t *testing.T) {
	one, two := memstore.New(nil), memstore.New(nil)
	for i := range onPage + 7 {
		unknown(t, one, once.Key{Operation: "pay", ID: fmt.Sprintf("one-%d", i)})
		unknown(t, two, once.Key{Operation: "pay", ID: fmt.Sprintf("two-%d", i)})
		settle(t, two, claim(t, two, once.Key{Operation: "ship", ID: fmt.Sprintf("done-%d", i)}, once.Key{}, time.Minute), once.Done, "", "", "")
	}
	c := open(t, Options{Stores: []Store{{Name: "one", Store: one}, {Name: "two", Store: two}}})
	for query, want := range map[string]int{"all=1": 3 * (onPage + 7), "status=unknown": 2 * (onPage + 7), "status=unknown&store=two": onPage + 7, "operation=ship": onPage + 7,
		"q=two-&scan=1": onPage + 7, "status=unknown&newer=1h": 2 * (onPage + 7), "older=1h": 0, "scope=none": 0} {
		b := as(t, c, lookToken).get("/find?" + query).is(http.StatusOK)
		seen := make(map[string]bool)
		for pages := 1; ; pages++ {
			rows := 0
			for _, a := range b.page.all("a") {
				if a.attr["class"] == "row" {
					rows++
					seen[a.attr["href"]] = true
				}
			}
			if rows > onPage || pages > 10 {
				t.Fatalf("%s: page %d has %d rows", query, pages, rows)
			}
			if !strings.Contains(b.text, `rel="next"`) {
				break
			}
			b.follow("Next page").is(http.StatusOK)
		}
		if len(seen) != want {
			t.Errorf("%s lists %d keys, want %d", query, len(seen), want)
		}
	}
	b := as(t, c, lookToken)
	for _, bad := range []string{"after=x", "after=" + base64.RawURLEncoding.EncodeToString([]byte(`[9,"","",""]`)), "status=x", "older=x", "older=-1h", "older=2h&newer=1h"} {
		if b.get("/find?all=1&" + bad).is(http.StatusOK); len(b.page.all("table")) != 0 || !strings.Contains(b.text, "note bad") {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// ailing is a store that can fail.
type ailing struct {
	*memstore.Store
	down bool
}

var errDown = errors.New("connection refused " + script)

func (s *ailing) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if s.down {
		return once.Record{}, errDown
	}
	return s.Store.Get(ctx, k)
}

func (s *ailing) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if s.down {
		return once.RecordPage{}, errDown
	}
	return s.Store.List(ctx, q)
}

func (s *ailing) Settle(ctx context.Context, set once.Settlement) error {
	if s.down {
		return errDown
	}
	return s.Store.Settle(ctx, set)
}

func (s *ailing) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	if s.down {
		return nil, errDown
	}
	return s.Store.OutboxDepth(ctx, count)
}

func TestAStoreThatFailsIsNamedAndComesBack(t *testing.T) {
	well, ill := memstore.New(nil), &ailing{Store: memstore.New(nil)}
	unknown(t, well, once.Key{Operation: "pay", ID: "well-1"})
	unknown(t, ill, once.Key{Operation: "pay", ID: "ill-1"})
	c := open(t, Options{Stores: []Store{{Name: "ill", Store: ill}, {Name: "well", Store: well}}})
	b := as(t, c, lookToken)
	ill.down = true
	b.get("/find?all=1").is(http.StatusOK).shows("The store ill does not answer", "connection refused", "well-1").hides(script)
	b.get("/find?q=well-1").is(http.StatusOK).shows("The store ill does not answer", "well-1")
	b.get("/key?store=well&operation=pay&id=well-1").is(http.StatusOK).shows("The store ill does not answer")
	b.get("/key?store=ill&operation=pay&id=ill-1").is(http.StatusServiceUnavailable).shows("Load the page again")
	ill.down = false
	b.get("/find?all=1").is(http.StatusOK).shows("ill-1", "well-1").hides("does not answer")
	b.get("/key?store=ill&operation=pay&id=ill-1").is(http.StatusOK)
}

// openOnly lists open records only.
type openOnly struct{ *memstore.Store }

func (s openOnly) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	for _, status := range q.Status {
		if status != once.Unknown && status != once.Parked && status != once.Running {
			return once.RecordPage{}, once.ErrInvalid
		}
	}
	if len(q.Status) == 0 && q.UUID == [16]byte{} {
		return once.RecordPage{}, once.ErrInvalid
	}
	return s.Store.List(ctx, q)
}

func TestAStoreThatListsOpenKeysSaysSo(t *testing.T) {
	s := openOnly{memstore.New(nil)}
	unknown(t, s, once.Key{Operation: "pay", ID: "open-1"})
	c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}})
	b := as(t, c, lookToken)
	b.get("/find?all=1").is(http.StatusOK).shows("open-1", "lists only keys that are unknown, parked or running")
	b.get("/find?status=done").is(http.StatusOK).shows("lists only keys that are unknown, parked or running")
}

// spoiled has a record that cannot be read.
type spoiled struct{ *memstore.Store }

func (s spoiled) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	page, err := s.Store.List(ctx, q)
	page.Records = slices.DeleteFunc(page.Records, func(r once.Record) bool { return r.Key.ID == "lost-1" })
	page.Damaged = append(page.Damaged, fmt.Errorf("%w: the record of lost-1", once.ErrCorrupt))
	return page, err
}

func TestARecordThatCannotBeReadIsNamed(t *testing.T) {
	s := spoiled{memstore.New(nil)}
	for _, id := range []string{"good-1", "lost-1"} {
		unknown(t, s, once.Key{Operation: "pay", ID: id})
	}
	c := open(t, Options{Stores: []Store{{Name: "s", Store: s}}})
	b := as(t, c, lookToken)
	for _, link := range []string{"/find?all=1", "/find?status=unknown"} {
		b.get(link).is(http.StatusOK).shows("good-1", "A record of the store s cannot be read, and is not listed", "the record of lost-1")
	}
}

// An answer may be chosen by whoever calls, and indented JSON grows with the square
// of its depth.
func TestAnAnswerDoesNotGrowOnThePage(t *testing.T) {
	s, c, _, _ := bench(t)
	k := keyRef{"shop", once.Key{Operation: "pay", ID: "deep"}}
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	settle(t, s, claim(t, s, k.Key, once.Key{}, time.Minute), once.Done, "", deep, "application/json")
	b := as(t, c, decideToken)
	b.get(c.keyLink(k)).fill("/key/outcome").is(http.StatusOK).shows("[[[[")
	if len(b.text) > 200_000 {
		t.Errorf("the page has %d bytes", len(b.text))
	}
	u := keyRef{"shop", once.Key{Operation: "pay", ID: "open"}}
	unknown(t, s, u.Key)
	b.get(c.keyLink(u)).fill("/key/confirm", "choice", "happened", "reason", "seen", "answer", deep).is(http.StatusOK)
	if len(b.text) > 200_000 {
		t.Errorf("the confirmation has %d bytes", len(b.text))
	}
}

// An id that was found may be that of other keys, too.
func TestTheSearchForAnIDSaysWhatItTried(t *testing.T) {
	s, c, _, _ := bench(t)
	for _, k := range []once.Key{{Operation: "mail", ID: "order-1"}, {Operation: "pay", Scope: "a scope that was not seen", ID: "order-1"}} {
		unknown(t, s, k)
	}
	c.Close()
	c.names = names{}
	c.names.see(once.Key{Operation: "mail"})
	b := as(t, c, lookToken)
	b.get("/find?q=order-1").is(http.StatusOK).shows("A key with exactly this id, so far", "the 1 operation and 1 scope that this console has seen", "can have the same id").hides("There may be more")
	b.get("/find?q=order-1&scan=1").shows("A key with exactly this id", "pay order-1")
	c.names.see(once.Key{Operation: "x"})
	for i := range maxOperations { // and so many scopes
		c.names.see(once.Key{Operation: fmt.Sprint("m", i), Scope: fmt.Sprint(i)})
	}
	b.get("/find?q=order-1").is(http.StatusOK).shows("with exactly this id, so far", "There may be more", "but not with all pairs of them").hides("not all could be searched")
	b.follow("Search all keys").shows("2 keys with exactly this id", "pay order-1", "This is all.").hides("so far", "There may be more")
}

// oneByOne is a store that lists a key at a time, slowly by the console's clock, and
// reads keys one at a time.
type oneByOne struct {
	once.Store
	once.Lister
	listed func()
}

func (s oneByOne) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if q.Limit == 1000 {
		s.listed()
		q.Limit = 1
	}
	return s.Lister.List(ctx, q)
}

// Whoever settles a charge sees the other one of the order, without a search.
func TestAKeyShowsOthersWithItsID(t *testing.T) {
	s, c, _, _ := bench(t)
	app, web := once.Key{Operation: "charge", Scope: "app", ID: "order-1"}, once.Key{Operation: "charge", Scope: "web", ID: "order-1"}
	unknown(t, s, app)
	settle(t, s, claim(t, s, web, once.Key{}, time.Minute), once.Done, "", "{}", "application/json")
	unknown(t, s, once.Key{Operation: "mail", Scope: "web", ID: "order-2"})
	c.Close()
	c.names = names{}
	b := as(t, c, lookToken)
	b.get(c.keyLink(keyRef{"shop", app})).is(http.StatusOK).hides("Other keys") // nobody has seen what there could be
	b.get(c.keyLink(keyRef{"shop", web}))
	b.get(c.keyLink(keyRef{"shop", app})).shows("Other keys with this ID", "charge order-1 of web done").hides("order-2")
	b.follow("charge order-1 of web").is(http.StatusOK).shows("It is done", "charge order-1 of app unknown")
}

func TestNamesBesideAKey(t *testing.T) {
	var n names
	for _, k := range []once.Key{{Operation: "a", Scope: "9"}, {Operation: "pay", Scope: "2"}, {Operation: "pay", Scope: "1"}, {Operation: "mail", Scope: "1"}, {Operation: "pay"}} {
		n.see(k)
	}
	k := once.Key{Operation: "pay", Scope: "1", ID: "x"}
	want := []once.Key{{Operation: "pay"}, {Operation: "pay", Scope: "2"}, {Operation: "mail", Scope: "1"}, {Operation: "a", Scope: "9"}}
	if got := n.beside(k, 9); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := n.beside(k, 2); !slices.Equal(got, want[:2]) {
		t.Errorf("of two, got %v", got)
	}
}

// A person who names an operation and a scope has the key at once, however many others
// the console has seen.
func TestAFilterIsTriedFirst(t *testing.T) {
	s, c, _, _ := bench(t)
	k := once.Key{Operation: "zebra", Scope: "zoo", ID: "order-1"}
	unknown(t, s, k)
	c.Close()
	c.names = names{}
	for i := range 2 * maxTries {
		c.names.see(once.Key{Operation: fmt.Sprint("m", i%100), Scope: fmt.Sprint(i)})
	}
	b := as(t, c, lookToken)
	b.get("/find?q=order-1&operation=zebra&scope=zoo").is(http.StatusOK).shows("A key with exactly this id", "zebra order-1 of zoo").hides("It was looked for")
}

// What was seen together is tried before pairs that may not exist.
func TestPairsThatWereSeenAreTriedFirst(t *testing.T) {
	var n names
	n.see(once.Key{Operation: "b", Scope: "2"})
	n.see(once.Key{Operation: "a", Scope: "1"})
	all, operations, scopes := n.tries(filter{}, []string{"c"})
	if want := []once.Key{{Operation: "a", Scope: "1"}, {Operation: "b", Scope: "2"}}; !slices.Equal(all[:2], want) || len(all) != 9 || operations != 3 || scopes != 3 {
		t.Errorf("%v, of %d and %d", all, operations, scopes)
	}
	if all, _, _ := n.tries(filter{NoScope: true, Operation: "z"}, nil); !slices.Equal(all, []once.Key{{Operation: "z"}}) {
		t.Errorf("by a filter: %v", all)
	}
}

// Each page of a search shows all that was found, and how much was read.
func TestASearchThatGoesOnKeepsWhatItFound(t *testing.T) {
	of := memstore.New(nil)
	for i := range 6 {
		unknown(t, of, once.Key{Operation: "pay", Scope: fmt.Sprint("tenant-", i), ID: fmt.Sprint("order-", i%2)})
	}
	var now atomic.Int64
	s := oneByOne{Store: of, Lister: of, listed: func() { now.Add(int64(time.Minute)) }}
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	c.Close() // nothing else learns names
	c.now = func() time.Time { return time.Unix(0, now.Load()) }
	b := as(t, c, lookToken)
	b.get("/find?q=order-1&scan=1").is(http.StatusOK)
	pages := 1
	for ; strings.Contains(b.text, "data-further"); pages++ {
		b.shows(fmt.Sprint(pages, " keys were read so far"), "The search goes on")
		b.follow("Search on").is(http.StatusOK)
	}
	b.shows("This is all: 6 keys were read")
	for _, scope := range []string{"tenant-1", "tenant-3", "tenant-5"} {
		b.shows("pay order-1 of " + scope)
	}
	if n := strings.Count(b.text, `class="row"`); n != 3 || pages != 6 {
		t.Errorf("after %d pages there are %d rows", pages, n)
	}
	b.get("/find?q=order-1&scan=1").follow("Stop").is(http.StatusOK).shows("search on, or name its operation and scope")
	if strings.Contains(b.text, "data-further") || strings.Contains(b.text, "http-equiv") {
		t.Error("a search that was stopped goes on")
	}
	for _, bad := range []string{"kept=%25", "kept=W10x", "read=-1", "read=x"} {
		b.get("/find?q=order-1&scan=1&" + bad).is(http.StatusBadRequest)
	}
}

// What is left out of a link because it cannot be read would make a selection larger.
func TestADamagedLinkSelectsNothing(t *testing.T) {
	_, c, _, _ := bench(t)
	b := as(t, c, adminToken)
	for _, link := range []string{"/change?of=messages&do=discard&consumer=billing&id=%zz", "/change?of=messages&amp;do=discard&amp;consumer=billing",
		"/messages?consumer=billing;id=7", "/messages?id=1&id=2", "/messages?id=%00", "/find?q=%ff", "/find?q=a%00b", "/key?operation=pay&id=1&scope=%zz"} {
		b.get(link).is(http.StatusBadRequest).shows("The link is damaged")
	}
}
