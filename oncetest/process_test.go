package oncetest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// newProcess returns a process with a plan, whose Run waits for its end.
func newProcess(t *testing.T, plan func(point, int) action) (*trial, *Process) {
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

func dieAt(step string, s side) func(point, int) action {
	return func(pt point, _ int) action {
		if pt.step == step && pt.side == s {
			return die
		}
		return nothing
	}
}

// returns reports whether a call returned, and did not end its goroutine.
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

// The writes of a transaction exist if the process crashed after its commit,
// and otherwise not.
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

// If a process crashes, an open transaction of another goroutine is rolled
// back.
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

// A claim of a crashed process is Unknown at once, and the messages that it had
// received are delivered again.
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

func TestAProcessFindsWhatItsStoreHas(t *testing.T) {
	_, p := newProcess(t, nil)
	full := memstore.New(nil)
	bare := struct{ once.TxStore[*memstore.Tx] }{full}
	has := func(s any) map[string]bool {
		return map[string]bool{
			"once.Lister":     found[once.Lister](s),
			"store.Registry":  found[store.Registry](s),
			"store.Positions": found[store.Positions[*memstore.Tx]](s),
			"store.Shelf":     found[store.Shelf](s),
			"store.TxShelf":   found[store.TxShelf[*memstore.Tx]](s),
			"store.Outbox":    found[store.Outbox[*memstore.Tx]](s),
			"store.Reopener":  found[store.Reopener](s),
		}
	}
	for name, s := range map[string]once.TxStore[*memstore.Tx]{"full": full, "bare": bare} {
		for wrapper, outer := range map[string]once.Store{"Plain": Plain(p, s), "Store": Store(p, s)} {
			for capability, is := range has(outer) {
				if want := name == "full"; is != want {
					t.Errorf("%s of a %s store is a %s: %v", wrapper, name, capability, is)
				}
			}
		}
	}
}

// found reports whether a store has a capability.
func found[Capability any](s any) bool {
	_, ok := once.As[Capability](s)
	return ok
}

// Calls of a capability are steps, with Plain and with Store.
func TestCallsOfACapabilityAreSteps(t *testing.T) {
	full := memstore.New(nil)
	for name, wrap := range map[string]func(*Process) once.Store{
		"Plain": func(p *Process) once.Store { return Plain(p, full) },
		"Store": func(p *Process) once.Store { return Store(p, once.TxStore[*memstore.Tx](full)) },
	} {
		tr, p := newProcess(t, nil)
		s := wrap(p)
		registry, _ := once.As[store.Registry](s)
		shelf, _ := once.As[store.Shelf](s)
		if _, err := registry.Register(ctx, store.Consumer{Name: "c", Source: "s"}); err != nil {
			t.Fatal(err)
		}
		if err := shelf.Shelve(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if steps := tr.tail(); steps != "steps: register, shelve" {
			t.Errorf("%s: %s", name, steps)
		}
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

// Waiting messages on the shelf have yet to be handled, and Parked ones have
// not. No wait survives a crash.
func TestTheShelf(t *testing.T) {
	inner := memstore.New(nil)
	tr, p := newProcess(t, dieAt("dies", before))
	s, _ := once.As[store.Shelf](Store(p, once.TxStore[*memstore.Tx](inner)))
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
