package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/internal/sim"
)

const refusedStatus = http.StatusPaymentRequired

// handlers are what a server does under its guards.
type handlers[Tx any] struct {
	*web[Tx]
	l *life[Tx]
}

// keyOf returns the key under which a request runs, and notes that it has an
// effect.
func (h *handlers[Tx]) keyOf(kind string, r *http.Request) (once.Key, error) {
	body, err := io.ReadAll(r.Body)
	claim, ok := once.ClaimFrom(r.Context())
	if err == nil && !ok {
		err = errors.New("world: the handler runs without a claim")
	}
	if err == nil {
		h.nameOnce(kind, string(body), claim.Key)
	}
	return claim.Key, err
}

// order writes a row.
func (h *handlers[Tx]) order(w http.ResponseWriter, r *http.Request, tx Tx) error {
	key, err := h.keyOf(inTx, r)
	if err != nil {
		return err
	}
	a, err := h.l.row(r.Context(), tx, key)
	if err != nil && !errors.Is(err, once.ErrRejected) {
		return once.RetryAfter(time.Second, err)
	}
	respond(w, a)
	return nil
}

// pay calls a downstream that can be asked.
func (h *handlers[Tx]) pay(w http.ResponseWriter, r *http.Request) {
	key, err := h.keyOf(asks, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a, err := h.l.effect(r.Context(), key)
	if err == nil || errors.Is(err, once.ErrRejected) {
		respond(w, a)
		return
	}
	if isNotDone(err) {
		httponce.NotDone(w)
		http.Error(w, "nothing happened", http.StatusServiceUnavailable)
		return
	}
	http.Error(w, "nobody knows", http.StatusGatewayTimeout)
}

// isNotDone reports whether effect says that nothing happened.
func isNotDone(err error) bool { return errors.Is(err, sim.ErrDown) || errors.Is(err, errBusiness) }

func (h *handlers[Tx]) lookup(ctx context.Context, key once.Key) (*httponce.Response, bool, error) {
	a, found, err := h.keys.lookup(ctx, h.l.p, asks, key)
	if !found {
		return nil, false, err
	}
	r := &httponce.Response{Status: http.StatusCreated, Header: http.Header{"Content-Type": {"text/plain"}}, Body: []byte(a.Text)}
	if a.Refused {
		r.Status = refusedStatus
	}
	return r, true, nil
}

func respond(w http.ResponseWriter, a Answer) {
	w.Header().Set("Content-Type", "text/plain")
	status := http.StatusCreated
	if a.Refused {
		status = refusedStatus
	}
	w.WriteHeader(status)
	io.WriteString(w, a.Text)
}

// client sends all requests until it has all answers.
func (v *web[Tx]) client(ctx context.Context, p *sim.Process) error {
	program, _, _ := strings.Cut(p.Name, ".")
	v.book.works(program, true)
	defer v.book.works(program, true) // its next life sends them again
	c := &http.Client{Transport: &httponce.Transport{Base: &wire[Tx]{v, p}}}
	var all sync.WaitGroup
	for _, kind := range []string{inTx, asks} {
		for n := range v.Keys {
			id := fmt.Sprintf("k%d", n+1)
			all.Go(func() { v.rounds(ctx, p, c, kind, id) })
		}
		all.Go(func() { v.single(ctx, p, c, kind) })
	}
	all.Go(func() { v.bare(ctx, p) })
	all.Wait()
	if ctx.Err() == nil {
		v.book.works(program, false)
		<-ctx.Done()
	}
	return nil
}

// rounds sends a request that all clients send, under one key.
func (v *web[Tx]) rounds(ctx context.Context, p *sim.Process, c *http.Client, kind, id string) {
	e := &exchange{id: id}
	for n := range v.Rounds {
		d := v.Seed.Draw("pause before", p.Name, kind, id).Nth(n)
		longest := v.Length / time.Duration(v.Rounds)
		if v.Now() > v.Length {
			longest = time.Second
		}
		if sim.Sleep(ctx, d.Between(0, longest)) != nil {
			return
		}
		for v.send(ctx, p, c, kind, e, true) {
			again := v.DrawNth(p.Name, "waits to send", kind+"/"+id)
			left := max(0, e.due-v.Now())
			if sim.Sleep(ctx, left+again.Between(100*time.Millisecond, 3*time.Second)) != nil {
				return
			}
		}
		v.mistake(ctx, p, c, kind, id)
		if v.Now() > v.Length {
			return
		}
	}
}

// single sends a request of its own, to which only the Transport gives a key. A
// client above the Transport may send it again.
func (v *web[Tx]) single(ctx context.Context, p *sim.Process, c *http.Client, kind string) {
	d := v.Seed.Draw("pause before a single", p.Name, kind)
	if sim.Sleep(ctx, d.Between(0, v.Length)) == nil {
		v.repeat(ctx, p, c, kind, p.Name, 1+d.Number(4))
	}
}

// bare sends a request without a key and without a Transport, until there is an
// answer.
func (v *web[Tx]) bare(ctx context.Context, p *sim.Process) {
	d := v.Seed.Draw("pause before a bare request", p.Name)
	kind := []string{inTx, asks}[d.Number(2)]
	if sim.Sleep(ctx, d.Between(0, v.Length)) == nil {
		v.repeat(ctx, p, &http.Client{Transport: &wire[Tx]{v, p}}, kind, p.Name+"-bare", 1+d.Number(4))
	}
}

// repeat sends the same request up to so many times, as clients do that know
// nothing of keys.
func (v *web[Tx]) repeat(ctx context.Context, p *sim.Process, c *http.Client, kind, id string, times int) {
	e := &exchange{id: id}
	req := v.request(context.WithValue(ctx, exchangeKey{}, e), kind, e.id)
	if kind == inTx && v.CAS != nil && v.CAS.ClaimFirst { // nobody else finds out about a claim that was left
		times = 1000
	}
	for range times {
		req.Body, _ = req.GetBody() // of a string
		if !v.sends(p, c, req, kind, e, false) {
			return
		}
		again := v.DrawNth(p.Name, "sends the same again", kind+"/"+id)
		if sim.Sleep(ctx, max(0, e.due-v.Now())+again.Between(100*time.Millisecond, 3*time.Second)) != nil {
			return
		}
	}
}

// mistake sends another request under the key of one that has its answer, which
// must not be taken for it.
func (v *web[Tx]) mistake(ctx context.Context, p *sim.Process, c *http.Client, kind, id string) {
	d := v.DrawNth(p.Name, "makes a mistake", kind+"/"+id)
	if !d.Chance(.2) {
		return
	}
	path, body := kind, id+" and more"
	if kind == inTx && d.Chance(.5) {
		path, body = oldPath[1:]+kind, id
	}
	e := &exchange{id: id}
	resp, err := c.Do(v.request(httponce.WithKey(context.WithValue(ctx, exchangeKey{}, e), id), path, body))
	if err != nil || p.IsDead() {
		return
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusCreated, refusedStatus:
		v.Broke(OneAnswer, kind+"/"+id, "another request with its key, %q to /%s, got %d", body, path, resp.StatusCode)
	}
}

// request returns a request that can be sent again.
func (v *web[Tx]) request(ctx context.Context, path, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop/"+path, strings.NewReader(body))
	if err != nil {
		panic(err) // of constants
	}
	return req
}

// send sends a request, and judges the response. It reports whether it is to be
// sent again.
func (v *web[Tx]) send(ctx context.Context, p *sim.Process, c *http.Client, kind string, e *exchange, named bool) (again bool) {
	d := v.DrawNth(p.Name, "sends a request", kind+"/"+e.id)
	limited, cancel := ctx, context.CancelFunc(func() {})
	if d.Chance(.2) {
		limited, cancel = context.WithTimeout(ctx, d.Between(time.Second, 20*time.Second))
	}
	defer cancel()
	limited = context.WithValue(limited, exchangeKey{}, e)
	if named {
		limited = httponce.WithKey(limited, e.id)
	}
	return v.sends(p, c, v.request(limited, kind, e.id), kind, e, named)
}

// sends is send of a request.
func (v *web[Tx]) sends(p *sim.Process, c *http.Client, req *http.Request, kind string, e *exchange,
	named bool) (again bool) {

	resp, err := c.Do(req)
	if err != nil || p.IsDead() {
		return true
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return true
	}
	key := kind + "/" + e.id
	v.Tell(sim.Line{Who: p.Name, What: "is told", About: key, Note: fmt.Sprintf("%d %.60s", resp.StatusCode, text)})
	switch resp.StatusCode {
	case http.StatusCreated, refusedStatus:
		if named {
			v.book.answeredText(kind, key, string(text), resp.StatusCode == refusedStatus)
		}
		return false
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusConflict:
		if _, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			return true
		}
	}
	v.Broke(MayRetry, key, "a client was told that a repeat cannot help, and nothing that happened here is final: %d %.200s",
		resp.StatusCode, text)
	return false
}
