//go:build go1.25

package oncetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sim"
)

// customer sends a request until it is answered.
type customer struct {
	*day
	request *requestState
	again   bool // it was answered on another day

	mu     sync.Mutex
	life   *sim.Process
	client http.RoundTripper // of this life
}

// run is the program of a customer, and of its next life.
func (c *customer) run(ctx context.Context, p *sim.Process) error {
	at := c.world.Seed.Draw("customer", c.request.id)
	if sim.Sleep(ctx, at.Between(0, busyTime/2)) != nil {
		return nil
	}
	windows, rounds := 1, 1
	if at.Chance(.2) && c.does(p, opensWindow) {
		windows = 2
	}
	if at.Chance(.3) && c.does(p, comesAgain) {
		rounds = 2
	}
	leaves := at.Chance(.3) && !c.again && c.does(p, isImpatient)
	var all sync.WaitGroup
	for range windows {
		all.Add(1)
		opens := at.Between(time.Nanosecond, 2*time.Second)
		go func() {
			defer all.Done()
			_ = sim.Sleep(ctx, opens)
			for range rounds {
				c.insist(ctx, p, leaves)
			}
		}()
	}
	all.Wait()
	<-ctx.Done()
	return nil
}

// does reports whether the customer may do what makes trouble.
func (c *customer) does(p *sim.Process, what string) bool {
	happens := c.world.Happens(fmt.Sprintf("%s %s", p.Name, what))
	if happens {
		c.world.Tell(sim.Line{Who: p.Name, What: what, About: c.request.id})
	}
	return happens
}

// insist sends the request until it is answered. A customer who leaves does so when
// the first attempt fails.
func (c *customer) insist(ctx context.Context, p *sim.Process, leaves bool) {
	for ctx.Err() == nil {
		final, after := c.send(ctx, p)
		if final {
			return
		}
		if leaves && !c.world.IsCalm() {
			c.leave(p)
			return
		}
		pause := c.world.DrawNth(p.Name, "waits to send", c.request.id)
		_ = sim.Sleep(ctx, after+pause.Between(100*time.Millisecond, 3*time.Second))
	}
}

func (c *customer) leave(p *sim.Process) {
	c.world.Tell(sim.Line{Who: p.Name, What: toldGivesUp, About: c.request.id})
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.request.gaveUp = true
}

// reply is what came back from an attempt. Err is nil for a final answer.
type reply struct {
	answer
	err   error
	after time.Duration // until the next attempt, at least
	never bool          // a repeat cannot help

	response *http.Response // if an instance handled an HTTP request
}

// send sends the request once. It reports whether the customer is done.
func (c *customer) send(ctx context.Context, p *sim.Process) (final bool, after time.Duration) {
	r := c.attempt(ctx, p)
	if ctx.Err() != nil || p.IsDead() {
		return false, 0 // nobody is there to hear it
	}
	c.totals.attempts.Add(1)
	note := fmt.Sprint(r.answer)
	if r.err != nil {
		note = sim.FirstLine(r.err)
	}
	c.world.Tell(sim.Line{Who: p.Name, What: "hears", About: c.request.id, Note: note})
	if r.err == nil {
		c.hears(c.request, r.answer)
		return true, 0
	}
	c.fails(c.request, r.err)
	return r.never, r.after
}

// fails records an attempt without an answer.
func (l *ledger) fails(r *requestState, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.told = sim.FirstLine(err)
}

// attempt makes one attempt, on which the customer waits for a while. The instance
// works on.
func (c *customer) attempt(ctx context.Context, p *sim.Process) reply {
	at := c.world.DrawNth(p.Name, "sends", c.request.id)
	limited, cancel := context.WithTimeout(ctx, at.Between(time.Second, 30*time.Second))
	defer cancel()
	switch {
	case c.Message != nil:
		return c.publish(limited, p)
	case c.Client != nil:
		return c.byClient(limited, p)
	case c.Request != nil:
		return c.cross(limited, p, at, c.Request(c.request.id))
	}
	return c.cross(limited, p, at, nil)
}

// cross sends the request to an instance, over the network.
func (c *customer) cross(ctx context.Context, p *sim.Process, at sim.Draw, req *http.Request) reply {
	var body []byte
	if req != nil && req.Body != nil {
		body, _ = io.ReadAll(req.Body) // of a request in memory
		_ = req.Body.Close()
	}
	c.totals.sent.Add(1)
	notices := at.Between(time.Nanosecond, 100*time.Microsecond)
	leaves := at.Between(time.Nanosecond, time.Second) // until the instance sees that the customer has gone
	number := at.Number(c.Instances)
	call := sim.Call{Links: []sim.Link{network}, What: "sends", About: c.request.id, Faults: sim.AnyFault}
	replies := make(chan reply, 1)
	c.world.Go(func() {
		r, err := sim.Cross(ctx, p, call, func(context.Context) (reply, error) { return c.arrive(ctx, leaves, number, req, body) })
		if err != nil {
			r = reply{err: err}
		}
		replies <- r
	})
	select {
	case r := <-replies:
		return r
	case <-ctx.Done():
		time.Sleep(notices)
		return reply{err: ctx.Err()}
	}
}

// byClient sends the request through Service.Client, which may send it several
// times.
func (c *customer) byClient(ctx context.Context, p *sim.Process) reply {
	req := c.Request(c.request.id)
	own, cancel := context.WithCancel(req.Context()) // which may have a key
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	w, err := c.clientOf(p).RoundTrip(req.WithContext(own))
	if err != nil {
		return reply{err: err}
	}
	return judge(w)
}

// clientOf returns the client of this life of the customer.
func (c *customer) clientOf(p *sim.Process) http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil || c.life != p {
		c.life, c.client = p, c.Client(&wire{c, p})
	}
	return c.client
}

// wire is the network, as a customer's client sees it.
type wire struct {
	*customer
	p *sim.Process
}

// RoundTrip has an instance handle the request.
func (n *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	r := n.cross(req.Context(), n.p, n.world.DrawNth(n.p.Name, "sends", n.request.id), req)
	if r.response == nil {
		return nil, dialed(r.err)
	}
	return r.response, nil
}

// publish publishes the message of the customer.
func (c *customer) publish(ctx context.Context, p *sim.Process) reply {
	errs := c.broker.Publisher(p).Publish(ctx, []*broker.Message{c.Message(c.request.id)})
	if errs != nil && errs[0] != nil {
		return reply{err: errs[0]}
	}
	return reply{answer: answer{text: "published"}}
}

// arrive has an instance do the work of the request.
func (c *customer) arrive(customer context.Context, leaves time.Duration, number int, req *http.Request,
	body []byte) (reply, error) {

	i := c.at(number)
	if i == nil || i.process.IsDead() {
		return reply{}, sim.ErrDown
	}
	ctx, cancel := context.WithCancel(i.ctx)
	defer cancel()
	defer context.AfterFunc(customer, func() {
		time.Sleep(leaves)
		cancel()
	})()
	var r reply
	if req != nil {
		r = i.serve(ctx, req, body)
	} else {
		r = i.do(ctx, c.request.id)
	}
	if i.process.IsDead() {
		return reply{}, sim.ErrReset
	}
	return r, nil
}

// do has the instance do a request.
func (i *Instance) do(ctx context.Context, id string) reply {
	text, err := i.program.Do(ctx, id)
	if err == nil || errors.Is(err, once.ErrRejected) {
		return reply{answer: answer{text, err != nil}}
	}
	after, again := once.MayRetry(err)
	return reply{err: err, after: after, never: !again}
}

// serve has the instance handle an HTTP request.
func (i *Instance) serve(ctx context.Context, sent *http.Request, body []byte) (r reply) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			r = reply{err: sim.ErrReset}
		} else if p != nil {
			panic(p)
		}
	}()
	req := sent.Clone(ctx)
	req.Body, req.RequestURI = io.NopCloser(bytes.NewReader(body)), sent.URL.RequestURI()
	w := httptest.NewRecorder()
	i.program.Handler.ServeHTTP(w, req)
	response := w.Result()
	r = judge(response)
	r.response, response.Body = response, io.NopCloser(bytes.NewReader(w.Body.Bytes()))
	return r
}

// judge says what a response means to a customer.
func judge(w *http.Response) reply {
	body, err := io.ReadAll(w.Body)
	_ = w.Body.Close()
	if err != nil {
		return reply{err: err}
	}
	text := fmt.Sprintf("%d %s", w.StatusCode, body)
	seconds, _ := strconv.Atoi(w.Header.Get("Retry-After"))
	switch w.StatusCode {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return reply{err: errors.New(text), after: time.Duration(seconds) * time.Second}
	}
	if w.StatusCode >= http.StatusInternalServerError {
		return reply{err: errors.New(text), after: time.Duration(seconds) * time.Second}
	}
	return reply{answer: answer{text, w.StatusCode >= http.StatusBadRequest}}
}
