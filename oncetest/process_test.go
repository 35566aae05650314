package oncetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// newProcess is one whose Run waits for its end, and to which the plan is done.
func newProcess(t *testing.T, plan func(point, int) deed) (*trial, *Process) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	tr := newTrial(ctx, world{run: func(ctx context.Context, _ *Process) error {
		<-ctx.Done()
		return nil
	}})
	if plan != nil {
		tr.plan = plan
	}
	tr.start()
	return tr, tr.lives[0]
}

func dieAt(step string, s side) func(point, int) deed {
	return func(pt point, _ int) deed {
		if pt.step == step && pt.side == s {
			return die
		}
		return nothing
	}
}

// returns reports whether a call came back, and did not end its goroutine.
func returns(call func()) bool {
	returned := make(chan bool)
	go func() {
		came := false
		defer func() { returned <- came }()
		call()
		came = true
	}()
	return <-returned
}

var ctx = context.Background()

func request(id string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "op", ID: id}, Owner: [16]byte{1}}, Lease: time.Hour}
}

func finished(recs []once.Record) []once.Settlement {
	fence := once.Fence{Key: recs[0].Key, Owner: recs[0].Owner, Attempt: recs[0].Attempt}
	return []once.Settlement{{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}}
}

// At each side of each step: what a transaction has written is there if the process died after its commit, and else
// not.
func TestWhereATransactionEnds(t *testing.T) {
	for _, test := range []struct {
		step   string
		side   side
		leaves bool
	}{{"begin", before, false}, {"begin", after, false}, {"inside", before, false}, {"inside", after, false},
		{"commit", before, false}, {"commit", after, true}} {
		t.Run(point{step: test.step, nth: 1, side: test.side}.String(), func(t *testing.T) {
			inner := memstore.New(nil)
			_, p := newProcess(t, dieAt(test.step, test.side))
			s := Store(p, once.TxStore[*memstore.Tx](inner))
			if returns(func() {
				_, _ = s.Transact(ctx, []once.ClaimRequest{request("1")}, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
					tx.Set("row", "1")
					p.Step("inside")
					return finished(recs), nil
				})
			}) {
				t.Error("the goroutine goes on")
			}
			rec, err := inner.Get(ctx, request("1").Key)
			if _, found := inner.Value("row"); err != nil || found != test.leaves || (rec.Status == once.Done) != test.leaves {
				t.Errorf("the row is there: %v, and its key is %v (%v)", found, rec.Status, err)
			}
		})
	}
}

// A process that dies while a transaction of another goroutine is open takes that along.
func TestATransactionBesideADeath(t *testing.T) {
	inner := memstore.New(nil)
	_, p := newProcess(t, dieAt("dies", before))
	s := Store(p, once.TxStore[*memstore.Tx](inner))
	returns(func() {
		_, _ = s.Transact(ctx, []once.ClaimRequest{request("1")}, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			tx.Set("row", "1")
			returns(func() { p.Step("dies") })
			return finished(recs), nil
		})
	})
	if _, found := inner.Value("row"); found {
		t.Error("it was committed by a process that was dead")
	}
}

func TestADeadProcessReachesNobody(t *testing.T) {
	inner, sent := memstore.New(nil), 0
	tr, p := newProcess(t, dieAt("dies", after))
	tx := Store(p, once.TxStore[*memstore.Tx](inner))
	mem := membroker.New(nil)
	mem.Queue("events")
	pub := p.Publisher(mem.Publisher())
	client := http.Client{Transport: p.Transport(roundTripper(func(*http.Request) { sent++ }))}
	session, err := p.Source().Open(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if returns(func() { p.Step("dies") }) {
		t.Fatal("it lives")
	}
	if err := tx.Extend(ctx, request("1").Fence, time.Hour); !errors.Is(err, errDead) {
		t.Error("Extend:", err)
	}
	for name, call := range map[string]func(){
		"Claim":   func() { _, _ = tx.Claim(ctx, request("1")) },
		"Get":     func() { _, _ = tx.Get(ctx, request("1").Key) },
		"Step":    func() { p.Step("more") },
		"Publish": func() { pub.Publish(ctx, []*broker.Message{{ID: "e", Topic: "events"}}) },
		"Ack":     func() { _ = session.Ack(ctx, nil) },
		"Transact": func() {
			_, _ = tx.Transact(ctx, []once.ClaimRequest{request("2")}, func(*memstore.Tx, []once.Record) ([]once.Settlement, error) {
				t.Error("a body ran")
				return nil, nil
			})
		},
		"RoundTrip": func() { _, _ = client.Get("http://bank/") },
		"a loop of Receive": func() {
			for {
				if _, err := session.Receive(ctx, 1); err == nil {
					t.Error("it receives")
				}
			}
		},
	} {
		if returns(call) {
			t.Errorf("%s: the goroutine goes on", name)
		}
	}
	page, err := inner.List(ctx, once.RecordQuery{})
	if len(page.Records) > 0 || err != nil || sent > 0 || len(mem.Messages("events")) > 0 {
		t.Errorf("it left %v (%v), %d requests, %d events", page.Records, err, sent, len(mem.Messages("events")))
	}
	if !tr.until(5*time.Second, func() bool { return p.ended && p.calls == 0 }) {
		t.Error("its context has not ended, or calls are still under way")
	}
}

type roundTripper func(*http.Request)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	f(r)
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
}

// A claim of a process that died is unknown for the next one at once, and what it had received comes again.
func TestWhatTheNextProcessFinds(t *testing.T) {
	inner := memstore.New(nil)
	tr, p := newProcess(t, dieAt("claim", after))
	tr.broker.Bind(queue, "orders")
	if errs := tr.broker.Publisher().Publish(ctx, []*broker.Message{{ID: "m", Topic: "orders"}}); errs != nil {
		t.Fatal(errs)
	}
	session, err := p.Source().Open(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Receive(ctx, 1); err != nil {
		t.Fatal(err)
	}
	s := Plain(p, inner)
	if returns(func() { _, _ = s.Claim(ctx, request("1")) }) {
		t.Fatal("it lives")
	}
	if _, _, err := tr.look(); err != nil || len(tr.lives) != 2 {
		t.Fatal(len(tr.lives), err)
	}
	rec, err := inner.Get(ctx, request("1").Key)
	if err != nil || rec.Status != once.Unknown {
		t.Error("the key is", rec.Status, err)
	}
	next, err := tr.lives[1].Source().Open(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	ds, err := next.Receive(ctx, 1)
	if err != nil || ds[0].Message.ID != "m" || !ds[0].Redelivered {
		t.Error(ds, err)
	}
	if other := Plain(tr.lives[1], inner); s.Options() == other.Options() {
		t.Error("two processes wait for each other in memory")
	}
}

func TestAWrapperIsWhatItsStoreIs(t *testing.T) {
	_, p := newProcess(t, nil)
	mem := memstore.New(nil)
	check := func(name string, inner, outer any) {
		t.Helper()
		for what, is := range map[string]func(any) bool{
			"once.Lister":     func(s any) bool { _, ok := s.(once.Lister); return ok },
			"store.Registry":  func(s any) bool { _, ok := s.(store.Registry); return ok },
			"store.Positions": func(s any) bool { _, ok := s.(store.Positions[*memstore.Tx]); return ok },
			"store.Shelf":     func(s any) bool { _, ok := s.(store.Shelf); return ok },
			"store.TxShelf":   func(s any) bool { _, ok := s.(store.TxShelf[*memstore.Tx]); return ok },
			"once.TxStore":    func(s any) bool { _, ok := s.(once.TxStore[*memstore.Tx]); return ok },
		} {
			if is(inner) != is(outer) {
				t.Errorf("%s: the inner store is a %s: %v, the wrapper: %v", name, what, is(inner), is(outer))
			}
		}
	}
	s, l, r := &txStore[*memstore.Tx]{newPlain(p, mem), mem}, &lister{p, mem}, &registrar{p, mem}
	o, f := &positions[*memstore.Tx]{p, mem}, &txShelf[*memstore.Tx]{&shelf{p, mem}, mem}
	for bits := range 16 {
		has := [4]bool{bits&1 > 0, bits&2 > 0, bits&4 > 0, bits&8 > 0}
		inner := assembled(s, l, r, o, f, has) // as good an inner store as any
		_, isLister := inner.(once.Lister)
		_, isRegistry := inner.(store.Registry)
		_, isPositions := inner.(store.Positions[*memstore.Tx])
		_, isShelf := inner.(store.TxShelf[*memstore.Tx])
		if is := [4]bool{isLister, isRegistry, isPositions, isShelf}; is != has {
			t.Errorf("asked for %v, assembled %v", has, is)
		}
		check(fmt.Sprint("Store ", has), inner, Store(p, inner))
	}
	type list = once.Lister
	type reg = store.Registry
	type put = store.Shelf
	for name, inner := range map[string]once.Store{
		"none": struct{ once.Store }{mem},
		"l": struct {
			once.Store
			list
		}{mem, mem},
		"r": struct {
			once.Store
			reg
		}{mem, mem},
		"lr": struct {
			once.Store
			list
			reg
		}{mem, mem, mem},
		"s": struct {
			once.Store
			put
		}{mem, mem},
		"ls": struct {
			once.Store
			list
			put
		}{mem, mem, mem},
		"rs": struct {
			once.Store
			reg
			put
		}{mem, mem, mem},
		"lrs": struct {
			once.Store
			list
			reg
			put
		}{mem, mem, mem, mem},
	} {
		check("Plain "+name, inner, Plain(p, inner))
	}
}

func TestSeedsReproduce(t *testing.T) {
	ms := []*broker.Message{{ID: "a", Topic: "t", OrderingKey: "k"}, {ID: "b", Topic: "t", OrderingKey: "k"}, {ID: "c", Topic: "t"}, {ID: "d", Topic: "t"}}
	windows := func() (text string) {
		pr, err := Case[int]{Setup: func(testing.TB) int { return 0 }, Messages: ms, Crashes: 3,
			Run:   func(context.Context, *Process, int) error { return nil },
			Probe: func(context.Context, int) (string, error) { return "", nil }}.prover()
		if err != nil {
			t.Fatal(err)
		}
		ref := reference{states: make([]string, 5)}
		for i := range 30 {
			ref.trace = append(ref.trace, point{step: "s", nth: i})
		}
		for _, s := range pr.schedules(ref) {
			text += s.name + s.window + "\n"
		}
		return text
	}
	first := windows()
	if windows() != first {
		t.Error("the same seed gives two sets of schedules")
	}
	t.Setenv("ONCETEST_SEED", "2")
	if windows() == first {
		t.Error("another seed changes nothing")
	}
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		want, got string
		is        fault
	}{
		{"a 1\nb 2", "a 1\nb 3", double}, {"a 10", "a 9", lost}, {"a 1\nb 2", "a 2\nb 1", other}, {"a\nb", "a\nb\nb", double},
		{"a\nb", "b", lost}, {"a\nb", "a\nc", other}, {"last: m1", "last: m0", other}, {"a (3)", "a (2)", lost}, {"a\nb", "b\na", other}, {"a b", "a  b", other},
	} {
		if is := compare(test.want, test.got); is != test.is {
			t.Errorf("%q and then %q: %s", test.want, test.got, titles[is])
		}
	}
}

// What waits on the shelf has yet to be done, but not what waits for a person; and no wait outlives the process.
func TestTheShelf(t *testing.T) {
	inner := memstore.New(nil)
	tr, p := newProcess(t, dieAt("dies", before))
	s := Store(p, once.TxStore[*memstore.Tx](inner)).(store.Shelf)
	aside := func(id, order string, state store.ShelfState) store.Shelved {
		m := broker.Message{ID: id, Topic: "orders", OrderingKey: order}
		return store.Shelved{Consumer: "c", Message: m, State: state, Due: time.Hour, Reason: "why " + id}
	}
	left := func(want int) {
		t.Helper()
		if n, err := tr.shelved(func(store.Shelf, store.Shelved) {}); err != nil || n != want {
			t.Errorf("%d (%v) have yet to be done, want %d", n, err, want)
		}
	}
	err := s.Shelve(ctx, []store.Shelved{aside("a", "k", store.Parked), aside("b", "k", store.Waiting)})
	if left(0); err != nil || tr.parked["a"] != "why a" {
		t.Error(tr.parked, err)
	}
	if err := s.Shelve(ctx, []store.Shelved{aside("c", "l", store.Waiting)}); err != nil {
		t.Error(err)
	}
	left(1)
	returns(func() { p.Step("dies") })
	if _, _, err := tr.look(); err != nil {
		t.Error(err)
	}
	ready, err := inner.Shelved(ctx, store.ShelfQuery{Ready: true, BehindParked: true})
	if err != nil || len(ready) != 1 || ready[0].Message.ID != "c" {
		t.Error(ready, err)
	}
}
