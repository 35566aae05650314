package world

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store/cas/memcas"
	"github.com/effectively-once/once/store/memstore"
)

// HTTPPlan is a world of requests: clients send them with httponce.Transport, over
// a wire that loses, delays and repeats them, to servers with guards of httponce.
type HTTPPlan struct {
	KeysPlan               // Keys are requests of each kind, Processes and Rounds those of clients
	Servers  int           // on one store
	Patience time.Duration // the longest time until a client gives up on an attempt
	Halves   float64       // responses that break off
}

// Network is the link between clients and servers.
const Network sim.Link = "network"

// Run runs the plan in a world.
func (plan HTTPPlan) Run(w *sim.World) *sim.Result {
	b := newBook(w, plan.KeysPlan)
	if plan.CAS != nil {
		return runWeb(w, plan, b, shop[*memcas.Batch](newCASShop(w, *plan.CAS, b)))
	}
	return runWeb(w, plan, b, shop[*memstore.Tx](newMemoryShop(w, b)))
}

// web is a run of an HTTPPlan.
type web[Tx any] struct {
	*keys[Tx]
	count    int // of servers
	patience time.Duration
	halves   float64

	mu      sync.Mutex
	servers map[int]*server
	named   map[string]string // the keys under which requests without one had an effect, by body
}

func runWeb[Tx any](w *sim.World, plan HTTPPlan, b *book, s shop[Tx]) *sim.Result {
	k := &keys[Tx]{World: w, KeysPlan: plan.KeysPlan, shop: s, book: b, begun: runtime.NumGoroutine()}
	v := &web[Tx]{keys: k, count: plan.Servers, patience: plan.Patience, halves: plan.Halves,
		servers: make(map[int]*server), named: make(map[string]string)}
	for i := range plan.Servers {
		w.Start(fmt.Sprint("server", i+1), func(ctx context.Context, p *sim.Process) error { return v.serve(ctx, p, i) })
	}
	for i := range plan.Processes {
		w.Start(fmt.Sprint("caller", i+1), v.client)
	}
	w.Start("reconciler", v.reconciler)
	return k.finish()
}

// server is a server in one life of its process.
type server struct {
	p       *sim.Process
	ctx     context.Context
	handler http.Handler
}

// serve is the program of a server.
func (v *web[Tx]) serve(ctx context.Context, p *sim.Process, i int) error {
	l := &life[Tx]{v.keys, p, v.shop.open(p)}
	mux := http.NewServeMux()
	order := httponce.HandlerTx(l.store, anybody, (&handlers[Tx]{v, l}).order,
		&httponce.Options{Operation: inTx, Policy: v.Policy, Key: byBody})
	mux.Handle("POST /"+inTx, order)
	mux.Handle("POST "+oldPath+inTx, http.StripPrefix("/old", order))
	var pay http.Handler = http.HandlerFunc((&handlers[Tx]{v, l}).pay)
	if d := v.Seed.Draw("limits handlers", p.Name); d.Chance(.5) {
		pay = http.TimeoutHandler(pay, time.Hour, "")
	}
	mux.Handle("POST /"+asks, httponce.Handler(l.store, anybody, pay,
		&httponce.Options{Operation: asks, Policy: v.Policy, Key: byBody, SettleTime: v.Settles, Lookup: (&handlers[Tx]{v, l}).lookup}))
	v.put(i, &server{p, ctx, mux})
	<-ctx.Done()
	v.put(i, nil)
	return nil
}

// reconciler finds out about requests that nobody repeats.
func (v *web[Tx]) reconciler(ctx context.Context, p *sim.Process) error {
	l := &life[Tx]{v.keys, p, v.shop.open(p)}
	op := &once.Operation[once.Outcome]{Name: asks, Policy: v.Policy, SettleTime: v.Settles,
		Lookup: func(ctx context.Context, k once.Key) (out once.Outcome, found bool, err error) {
			r, found, err := (&handlers[Tx]{v, l}).lookup(ctx, k)
			if found && err == nil {
				out, err = r.Outcome()
			}
			return out, found, err
		}}
	r := &reconcile.Reconciler{Store: l.store, Every: v.Every, Logger: quiet, Operations: []reconcile.Operation{reconcile.Of(op)}}
	return r.Run(ctx)
}

// oldPath is before the path of orders at another address, which is another
// request.
const oldPath = "/old/"

// byBody names requests of clients that send no key.
func byBody(_ *http.Request, body []byte) (string, error) { return string(body), nil }

func anybody(*http.Request) (string, error) { return "anybody", nil }

func (v *web[Tx]) put(i int, s *server) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.servers[i] = s
}

func (v *web[Tx]) at(i int) *server {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.servers[i]
}

// wire is the http.RoundTripper of a client: it crosses the boundary.
type wire[Tx any] struct {
	*web[Tx]
	p *sim.Process
}

// exchange is what a client knows of a request that it sends.
type exchange struct {
	id  string
	mu  sync.Mutex
	due time.Duration // no attempt may come earlier: Retry-After
}

type exchangeKey struct{}

// RoundTrip sends a request to one of the servers. The client gives up on it after
// a while, and the server works on.
func (x *wire[Tx]) RoundTrip(req *http.Request) (*http.Response, error) {
	e := req.Context().Value(exchangeKey{}).(*exchange)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	e.judge(x.World)
	d := x.DrawNth(x.p.Name, "sends", req.URL.Path+e.id)
	limited, cancel := context.WithTimeout(req.Context(), d.Between(time.Second, x.patience))
	notices := d.Between(time.Nanosecond, 100*time.Microsecond)
	leaves := d.Between(time.Nanosecond, time.Second) // until the server sees that the client has gone
	i := d.Number(x.count)
	c := sim.Call{Links: []sim.Link{Network}, What: "POST", About: req.URL.Path[1:] + "/" + e.id, Faults: sim.AnyFault}
	type reply struct {
		resp *http.Response
		err  error
	}
	replies := make(chan reply, 1)
	x.Go(func() {
		resp, err := sim.Cross(limited, x.p, c, func(context.Context) (*http.Response, error) {
			return x.handle(limited, leaves, i, req, body, e.id)
		})
		replies <- reply{resp, err}
	})
	select {
	case r := <-replies:
		cancel()
		if r.err == nil {
			e.obey(x.World, r.resp)
		}
		return r.resp, r.err
	case <-limited.Done():
		cancel()
		time.Sleep(notices)
		return nil, limited.Err()
	}
}

// handle has a server handle a request, as net/http does.
func (x *wire[Tx]) handle(client context.Context, leaves time.Duration, i int, req *http.Request, body []byte, id string) (
	*http.Response, error) {

	s := x.at(i)
	if s == nil || s.p.IsDead() {
		return nil, sim.ErrDown
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	defer context.AfterFunc(client, func() {
		time.Sleep(leaves)
		cancel()
	})()
	r := httptest.NewRequestWithContext(ctx, req.Method, req.URL.String(), bytes.NewReader(body))
	r.Header = req.Header.Clone()
	w := httptest.NewRecorder()
	if panics(func() { s.handler.ServeHTTP(w, r) }) || s.p.IsDead() {
		return nil, sim.ErrReset
	}
	resp := w.Result()
	note := fmt.Sprintf("%d %.60s", resp.StatusCode, bytes.TrimSpace(w.Body.Bytes()))
	if after := resp.Header.Get("Retry-After"); after != "" {
		note += ", retry after " + after + " s"
	}
	if d := x.DrawNth(x.p.Name, "gets half", req.URL.Path+id); d.Chance(x.halves) &&
		x.Happens(fmt.Sprintf("half a response of %s to %s", id, x.p.Name)) {
		resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, 3), broken{}))
		note += ", and breaks off"
	}
	x.Tell(sim.Line{Who: s.p.Name, What: "answers", About: req.URL.Path[1:] + "/" + id, Note: note})
	return resp, nil
}

// panics reports whether a handler panics, for which net/http closes the
// connection.
func panics(handle func()) (panicked bool) {
	defer func() {
		if v := recover(); v == errPanic {
			panicked = true
		} else if v != nil {
			panic(v)
		}
	}()
	handle()
	return false
}

// broken is a connection that was reset.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, sim.ErrReset }

// judge judges that no attempt comes before the server has asked for it.
func (e *exchange) judge(w *sim.World) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if early := e.due - w.Now(); early > 0 {
		w.Broke(RetryAfter, e.id, "an attempt comes %v before the server has asked for it", early)
	}
}

func (e *exchange) obey(w *sim.World, resp *http.Response) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.due = w.Now() + time.Duration(s)*time.Second
	}
}

// nameOnce judges that a request whose client has not named it has effects under
// one key.
func (v *web[Tx]) nameOnce(kind, body string, k once.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := kind + "/" + body
	if other := v.named[at]; other != "" && other != k.ID {
		v.Broke(EffectOnce, at, "happened under the keys %s and %s", other, k.ID)
	}
	v.named[at] = k.ID
}
