package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

const (
	aTrace  = "0af7651916cd43dd8448eb211c80319c"
	another = "1af7651916cd43dd8448eb211c80319c"
)

func parent(trace string) string { return "00-" + trace + "-b7ad6b7169203331-01" }

func inTrace(trace string) map[string]string {
	return map[string]string{"traceparent": "00-" + trace + "-c0ffee6b71692033-01"}
}

// putBy puts messages into the outbox, from the work of a key.
func putBy(t *testing.T, s *memstore.Store, k once.Key, ms ...*broker.Message) {
	t.Helper()
	op := &once.Operation[string]{Name: k.Operation}
	if _, err := once.DoTx(t.Context(), s, op.For(k.ID).In(k.Scope), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		return "", outbox.New(s, nil).Put(ctx, tx, ms...)
	}); err != nil {
		t.Fatal(err)
	}
}

// move changes the state of all pending messages.
func move(t *testing.T, s *memstore.Store, to store.OutgoingState) {
	t.Helper()
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if to == store.Published {
		_, err = s.Sent(t.Context(), [16]byte{}, ms, store.Keep)
	} else {
		_, err = s.MoveOutgoing(t.Context(), [16]byte{}, ms, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// found returns the ids of the messages in the table of a page, in its order.
func (b *browser) found() (ids []string) {
	for _, table := range b.page.all("table") {
		if !strings.Contains(table.content(), "Messages of this trace") {
			continue
		}
		for _, cell := range table.all("th") {
			if cell.attr["data-label"] == "Message" {
				ids = append(ids, cell.content())
			}
		}
	}
	return ids
}

// Somebody has a trace id, as their tracing shows it. The messages that carry it are
// found wherever they are, those that need a person first, and lead to the work that
// put them and to that of their consumers.
func TestATraceIsFoundInMessages(t *testing.T) {
	shop, stock := memstore.New(nil), memstore.New(nil)
	order := once.Key{Scope: "tenant-7", Operation: "order", ID: "order-4711"}
	for state, id := range map[store.OutgoingState]string{store.Stuck: "is-stuck", store.Held: "is-held", store.Published: "is-published"} {
		putBy(t, shop, once.Key{Operation: "order", ID: id}, &broker.Message{ID: id, Topic: "orders", Header: inTrace(aTrace)},
			&broker.Message{ID: "not-" + id, Topic: "orders", Header: inTrace(another)})
		move(t, shop, state)
	}
	putBy(t, shop, order, &broker.Message{ID: "is-pending", Topic: "orders", Header: inTrace(aTrace)}, &broker.Message{ID: "not-traced", Topic: "orders"})
	of := func(id string, state store.ShelfState) store.Shelved {
		header := inTrace(aTrace)
		header[store.KeyHeader] = order.String()
		return store.Shelved{Consumer: "mailing", Key: id, State: state, Message: broker.Message{ID: id, Topic: "orders", Header: header}}
	}
	shelve(t, stock, append([]store.Shelved{of("is-handled", store.Handled), of("is-waiting", store.Waiting), of("is-parked", store.Parked)}, parked("billing", 3)...)...)
	settle(t, stock, claim(t, stock, once.Key{Operation: "mailing", ID: "is-parked"}, order, time.Minute), once.Parked, "smtp", "", "")

	c := open(t, Options{Stores: []Store{{Name: "shop", Store: shop}, {Name: "stock", Store: stock}}})
	b := as(t, c, lookToken)
	want := "is-parked is-stuck is-held is-pending is-waiting is-published is-handled"
	for _, q := range []string{aTrace, strings.ToUpper(aTrace), "0af76519-16cd-43dd-8448-eb211c80319c", parent(aTrace),
		" " + strings.ToUpper(parent(aTrace)) + " ", "traceparent: " + parent(aTrace), `traceparent="` + parent(aTrace) + `"`, "01-" + aTrace + "-b7ad6b7169203331-01-more"} {
		b.get("/find?q="+url.QueryEscape(q)).is(http.StatusOK).shows("Messages of this trace", "14 messages were read. That is all that is kept.", "once.key")
		if got := strings.Join(b.found(), " "); got != want {
			t.Errorf("%q finds %s, want %s", q, got, want)
		}
		b.hides("c0ffee", "Nothing here has this id")
	}
	b.follow("order order-4711 of tenant-7").is(http.StatusOK).shows("Timeline")
	b.get("/find?q="+aTrace).follow("mailing is-parked").is(http.StatusOK).shows("Timeline", "Caused by a message of")
	b.get("/find?q="+aTrace).follow("is-parked").is(http.StatusOK).shows("Message is-parked", "parked")
	b.get("/find?q="+aTrace).follow("is-stuck").is(http.StatusOK).shows("Message is-stuck", "stuck")
	b.get("/find?store=stock&q=" + aTrace)
	if got := strings.Join(b.found(), " "); got != "is-parked is-waiting is-handled" {
		t.Errorf("in one store it finds %s", got)
	}

	b.get("/find?q="+strings.Repeat("a", 32)).is(http.StatusOK).shows("14 messages were read, and none is of this trace. That is all that is kept.", "whose messages are no longer kept", "once.key", "Nothing here has this id")
	b.get("/find?status=done&q=" + aTrace).is(http.StatusOK).shows("With a filter, messages are not searched for it").hides("is-parked")
	b.follow("Search messages for it as a trace id").shows("Messages of this trace", "is-parked")
	for _, text := range []string{strings.Repeat("0", 32), aTrace[1:], aTrace + "0", strings.Repeat("g", 32), "00-" + aTrace, "0-" + aTrace + "-b7ad6b7169203331-01", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"} {
		b.get("/find?q=" + url.QueryEscape(text)).is(http.StatusOK).hides("This looks like a trace id")
	}
	for _, cursor := range []string{"x", "0.0.0.0", "9.0.0.0.0.0", "0.3.0.0.0.0", "-1.0.0.0.0.0", "0.0.0.9999999999999.0.0", "0.0.0.0.9999999999999.0", "0.0.0.0.0.2", "0.0.99999999999999999999.0.0.0", "0.0.0.0.0.0.0"} {
		b.get("/find?q=" + aTrace + "&trace=" + cursor).is(http.StatusOK).shows("The link to the rest of the search is damaged")
	}
}

// A trace id that is the UUID of a key is what spans of that key link to. An id that
// may be both is searched for as an id first.
func TestATraceIDMayBeAKeyOrAnID(t *testing.T) {
	s := memstore.New(nil)
	k := once.Key{Operation: "pay", ID: "order-1"}
	unknown(t, s, k)
	unknown(t, s, once.Key{Operation: "pay", ID: aTrace})
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Operations: []string{"pay"}})
	b := as(t, c, lookToken)
	id := k.UUID()
	bare := strings.ReplaceAll(name.Format(id), "-", "")
	for _, q := range []string{bare, strings.ToUpper(bare), parent(bare), k.String()} {
		b.get("/find?q="+q).is(http.StatusOK).shows("Timeline", "order-1")
	}
	b.get("/find?q=" + aTrace).shows("A key with exactly this id").hides("messages were read")
	b.follow("Search messages for it as a trace id").shows("0 messages were read, and none is of this trace")
	b.get("/find?q=" + aTrace + "&scan=1").shows("Search messages for it as a trace id")
}

// Many messages are read in bounded time, some with each request, and each that is of
// the trace is found once. The page says how many were read, and what was not.
func TestASearchForATraceGoesOn(t *testing.T) {
	for _, step := range []time.Duration{0, scanTime + 1} {
		one, two := memstore.New(nil), memstore.New(nil)
		want := make(map[string]int)
		for of, s := range map[string]*memstore.Store{"one": one, "two": two} {
			ms := make([]*broker.Message, 301)
			for i := range ms {
				ms[i] = &broker.Message{ID: fmt.Sprint(of, "-out-", i), Topic: "t", Header: inTrace(another)}
				if i%7 == 0 {
					ms[i].Header = inTrace(aTrace)
					want[ms[i].ID] = 1
				}
			}
			putBy(t, s, once.Key{Operation: "order", ID: "1"}, ms[:200]...)
			move(t, s, store.Stuck)
			putBy(t, s, once.Key{Operation: "order", ID: "2"}, ms[200:]...)
			on := parked("billing", 100)
			for i := range on {
				on[i].Message.ID = fmt.Sprint(of, "-on-", i)
				if on[i].Message.Header = inTrace(another); i >= 30 {
					on[i].Message.Header = inTrace(aTrace)
					want[on[i].Message.ID] = 1
				}
			}
			shelve(t, s, on...)
		}
		c := open(t, Options{Stores: []Store{{Name: "one", Store: one}, {Name: "two", Store: two}}})
		c.Close()
		b := as(t, c, lookToken)
		now := time.Now()
		c.now = func() time.Time { now = now.Add(step); return now }
		c.sessions.idle = 100 * time.Hour
		got, pages := make(map[string]int), 0
		for b.get("/find?q=" + parent(aTrace)).is(http.StatusOK); ; pages++ {
			for _, id := range b.found() {
				got[id]++
			}
			if strings.Contains(b.text, "That is all that is kept") {
				break
			}
			b.shows("Not all was read yet:")
			on := "Next messages"
			if strings.Contains(b.text, "Search messages on") {
				on = "Search messages on"
			}
			if before := b.at; b.follow(on).at == before || pages > 200 {
				t.Fatalf("it does not go on after %s", before)
			}
		}
		b.shows("So far, 802 messages were read")
		for id := range want {
			if got[id] != 1 {
				t.Errorf("a step of %v: %s is found %d times in %d pages", step, id, got[id], pages)
			}
		}
		if len(got) != len(want) || step > scanTime && pages < 20 {
			t.Errorf("a step of %v: %d are found in %d pages, want %d", step, len(got), pages, len(want))
		}
	}
}

// What anybody wrote into a header is compared, and never shown.
func TestHostileTraceHeadersAreHarmless(t *testing.T) {
	s := memstore.New(nil)
	values := map[string]string{
		"joined":    parent(another) + ", " + parent(aTrace),
		"spaces":    "  " + strings.ToUpper(parent(aTrace)) + "\t",
		"later":     "cc-" + aTrace + "-b7ad6b7169203331-01-" + script,
		"html":      script,
		"invalid":   "\xff\xfe-" + aTrace + "-\xff",
		"cut":       "00-" + aTrace,
		"none":      "",
		"dashes":    strings.Repeat("-", 1<<20),
		"long":      strings.Repeat("0", 1<<20) + parent(aTrace),
		"commas":    strings.Repeat(",", 1<<20) + parent(aTrace),
		"elsewhere": "00-" + another + "-" + aTrace[:16] + "-" + aTrace,
	}
	var ms []store.Shelved
	for id, value := range values {
		ms = append(ms, store.Shelved{Consumer: "c", Message: broker.Message{ID: id, Header: map[string]string{"traceparent": value, "TraceParent": script, "x\xff": parent(aTrace)}}})
	}
	ms = append(ms, store.Shelved{Consumer: "c", Message: broker.Message{ID: "case", Header: map[string]string{"TraceParent": parent(aTrace), store.KeyHeader: script}}},
		store.Shelved{Consumer: "c", Message: broker.Message{ID: script, Header: map[string]string{"traceparent": parent(aTrace), store.KeyHeader: once.Key{Operation: "forgotten", ID: "1"}.String()}}})
	shelve(t, s, ms...)
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, lookToken).get("/find?q="+aTrace).is(http.StatusOK).hides(script, "\xff")
	got := make(map[string]bool)
	for _, id := range b.found() {
		got[id] = true
	}
	for _, id := range []string{"joined", "spaces", "later", "case", script} {
		if !got[id] {
			t.Errorf("%s is not found", id)
		}
	}
	if len(got) != 5 {
		t.Errorf("found %v", got)
	}
	b.shows("put by " + once.Key{Operation: "forgotten", ID: "1"}.String())
	b.get("/find?q=" + url.QueryEscape("00-"+aTrace+"-b7ad6b7169203331-01-"+script)).is(http.StatusOK).shows("Messages of this trace").hides(script)
}

// Headers that are sealed are opened to be compared. Those that cannot be are counted.
func TestSealedMessagesAreSearchedForATrace(t *testing.T) {
	ring := func(id string) *once.Ring {
		r, err := once.NewRing(once.Secret{ID: id, Bytes: []byte(strings.Repeat(id, 32))})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	sealing := once.Sealing{Ring: ring("a"), Seal: once.SealOutbox | once.SealShelf}
	s := memstore.New(&memstore.Options{Options: once.Options{Sealing: sealing}})
	putBy(t, s, once.Key{Operation: "order", ID: "1"}, &broker.Message{ID: "out", Topic: "t", Header: inTrace(aTrace)})
	shelve(t, s, store.SealShelved(&sealing, store.Shelved{Consumer: "c", Reason: "broken", State: store.Parked, Message: broker.Message{ID: "on", Topic: "t", Header: inTrace(aTrace)}}))
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b := as(t, c, lookToken).get("/find?q=" + aTrace).shows("broken")
	if got := strings.Join(b.found(), " "); got != "on out" {
		t.Errorf("found %s", got)
	}
	s.Options().Sealing.Ring = ring("b")
	b.get("/find?q=" + aTrace).shows("2 messages were read, and none is of this trace. 2 of them are sealed, and cannot be opened here.")
}

// lame is a store whose outbox and shelf cannot be read.
type lame struct {
	*memstore.Store
}

func (lame) Outgoing(context.Context, store.OutgoingQuery) ([]store.Outgoing, error) {
	return nil, errors.New("connection refused " + script)
}

func (lame) Shelved(context.Context, store.ShelfQuery) ([]store.Shelved, error) {
	panic("index out of range")
}

// A store that fails hides nothing of the others, and the page does not claim that all
// was read.
func TestASearchForATraceNamesWhatFails(t *testing.T) {
	good := memstore.New(nil)
	putBy(t, good, once.Key{Operation: "order", ID: "1"}, &broker.Message{ID: "m", Topic: "t", Header: inTrace(aTrace)})
	c := open(t, Options{Stores: []Store{{Name: "lame", Store: lame{memstore.New(nil)}}, {Name: "good", Store: good}}})
	b := as(t, c, lookToken).get("/find?q="+aTrace).is(http.StatusOK).shows("The store lame does not answer", "1 message was read").hides("That is all that is kept", script)
	if got := strings.Join(b.found(), " "); got != "m" {
		t.Errorf("found %s", got)
	}
	if b = b.get("/find?q=" + aTrace + "&trace=1.0.0.0.0.0&scan=1"); strings.Join(b.found(), " ") != "m" {
		t.Errorf("then found %v", b.found())
	}
	bare := struct{ once.Store }{memstore.New(nil)}
	as(t, open(t, Options{Stores: []Store{{Name: "bare", Store: bare}}}), lookToken).get("/find?q=" + aTrace).shows("no store here that answers has an outbox or a shelf")
}

// mum is a store whose shelf and outbox answer at first, and then never again.
type mum struct {
	*memstore.Store
	gone *atomic.Bool
	end  chan struct{}
}

func (s mum) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if s.gone.Load() {
		<-s.end
	}
	return s.Store.Outgoing(ctx, q)
}

func (s mum) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if s.gone.Load() {
		<-s.end
	}
	return s.Store.Shelved(ctx, q)
}

// A store that does not answer takes its own time only: all others are searched, and
// named rightly. Where there are several of them, the search goes on at the next click.
func TestASearchForATraceWaitsForNobody(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		silent := mum{memstore.New(nil), new(atomic.Bool), make(chan struct{})}
		defer close(silent.end)
		good := memstore.New(nil)
		putBy(t, good, once.Key{Operation: "order", ID: "1"}, &broker.Message{ID: "m", Topic: "t", Header: inTrace(aTrace)})
		c := open(t, Options{Stores: []Store{{Name: "mum", Store: silent}, {Name: "good", Store: good}}})
		b := as(t, c, lookToken)
		silent.gone.Store(true)
		begun := time.Now()
		b.get("/find?q="+parent(aTrace)).is(http.StatusOK).shows("The store mum does not answer", "1 message was read").hides("The store good does not answer", "That is all that is kept")
		if got := strings.Join(b.found(), " "); got != "m" {
			t.Errorf("found %s", got)
		}
		if took := time.Since(begun); took > askTime+2*oneRead {
			t.Errorf("it took %v", took)
		}
		other := memstore.New(nil)
		shelve(t, other, store.Shelved{Consumer: "mailing", Message: broker.Message{ID: "p", Header: inTrace(aTrace)}})
		many := []Store{{Name: "good", Store: other}}
		for i := range 4 {
			many = append([]Store{{Name: fmt.Sprint("mum", i), Store: silent}}, many...)
		}
		silent.gone.Store(false)
		c = open(t, Options{Stores: many})
		b = as(t, c, lookToken)
		silent.gone.Store(true)
		for clicks := 0; len(b.found()) == 0; clicks++ {
			begun = time.Now()
			if clicks == 0 {
				b.get("/find?q=" + parent(aTrace)).is(http.StatusOK)
			} else {
				b.follow("Search messages on").is(http.StatusOK)
			}
			if took := time.Since(begun); took > 15*time.Second || clicks > 5 {
				t.Fatalf("click %d took %v", clicks, took)
			}
		}
	})
}

// The last page of a search says what those before it could not read or open.
func TestASearchForATraceRemembersWhatItMissed(t *testing.T) {
	sealing := once.Sealing{Seal: once.SealShelf}
	var err error
	if sealing.Ring, err = once.NewRing(once.Secret{ID: "a", Bytes: []byte(strings.Repeat("a", 32))}); err != nil {
		t.Fatal(err)
	}
	s := flakyShelf{memstore.New(nil), new(atomic.Bool)}
	shelve(t, s.Store, store.SealShelved(&sealing, store.Shelved{Consumer: "c", State: store.Parked, Message: broker.Message{ID: "sealed", Header: inTrace(aTrace)}}))
	putBy(t, s.Store, once.Key{Operation: "order", ID: "1"}, &broker.Message{ID: "out", Topic: "t", Header: inTrace(another)})
	c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	c.Close()
	b := as(t, c, lookToken)
	now := time.Now()
	c.now = func() time.Time { now = now.Add(scanTime + 1); return now }
	c.sessions.idle = 100 * time.Hour
	toTheEnd := func() {
		for strings.Contains(b.page.content(), "Search messages on") {
			b.follow("Search messages on")
		}
	}
	b.get("/find?q=" + parent(aTrace)).shows("1 message was read, and none is of this trace. 1 of them is sealed")
	toTheEnd()
	b.shows("So far, 2 messages were read, and no further one is of this trace. 1 of them is sealed, and cannot be opened here. That is all that is kept.")

	s.fails.Store(true)
	b.get("/find?q=" + parent(aTrace)).shows("The store shop does not answer")
	s.fails.Store(false)
	toTheEnd()
	b.shows("That is not all that is kept: not every store has answered").hides("That is all that is kept")
}

// flakyShelf is a store whose shelf is not read at times.
type flakyShelf struct {
	*memstore.Store
	fails *atomic.Bool
}

func (s flakyShelf) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	if s.fails.Load() {
		return nil, errRefused
	}
	return s.Store.Shelved(ctx, q)
}

// heavyShelf is a store with many large messages on its shelf.
type heavyShelf struct {
	*memstore.Store
	body []byte
	most *int // messages of a page
}

func (s heavyShelf) Shelved(_ context.Context, q store.ShelfQuery) (page []store.Shelved, err error) {
	if q.Bodiless || q.States[0] != store.Parked {
		return nil, nil
	}
	for seq := q.After + 1; seq <= 300 && len(page) < q.Limit; seq++ {
		page = append(page, store.Shelved{Seq: seq, Consumer: "c", State: store.Parked, Message: broker.Message{ID: fmt.Sprint(seq), Body: s.body, Header: inTrace(another)}})
	}
	*s.most = max(*s.most, len(page))
	return page, nil
}

// Pages of large messages are small: the program that the console is part of needs its
// memory.
func TestASearchForATraceReadsFewLargeMessagesAtOnce(t *testing.T) {
	for size, want := range map[int]int{1 << 20: firstPage, 64 << 10: maxBodies / (64 << 10), 0: largestPage} {
		s := heavyShelf{memstore.New(nil), make([]byte, size), new(int)}
		c := open(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
		c.Close()
		b := as(t, c, lookToken)
		now := time.Now()
		c.now = func() time.Time { return now }
		b.get("/find?q=" + parent(aTrace) + "&scan=1&trace=0.0.0.0.0.0").shows("300 messages were read, and none is of this trace. That is all that is kept.")
		if *s.most > want {
			t.Errorf("bodies of %d bytes: a page has %d messages, want at most %d", size, *s.most, want)
		}
	}
}
