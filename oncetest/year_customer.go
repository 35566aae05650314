//go:build go1.25

package oncetest

import (
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
	if c.Message != nil {
		return c.publish(limited, p)
	}
	notices := at.Between(time.Nanosecond, 100*time.Microsecond)
	leaves := at.Between(time.Nanosecond, time.Second) // until the instance sees that the customer has gone
	number := at.Number(c.Instances)
	call := sim.Call{Links: []sim.Link{network}, What: "sends", About: c.request.id, Faults: sim.AnyFault}
	replies := make(chan reply, 1)
	c.world.Go(func() {
		r, err := sim.Cross(limited, p, call, func(context.Context) (reply, error) { return c.arrive(limited, leaves, number) })
		if err != nil {
			r = reply{err: err}
		}
		replies <- r
	})
	select {
	case r := <-replies:
		return r
	case <-limited.Done():
		time.Sleep(notices)
		return reply{err: limited.Err()}
	}
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
func (c *customer) arrive(customer context.Context, leaves time.Duration, number int) (reply, error) {
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
	if c.Request != nil {
		r = i.serve(c.Request(c.request.id).WithContext(ctx))
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
func (i *Instance) serve(req *http.Request) (r reply) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			r = reply{err: sim.ErrReset}
		} else if p != nil {
			panic(p)
		}
	}()
	w := httptest.NewRecorder()
	i.program.Handler.ServeHTTP(w, req)
	body, _ := io.ReadAll(w.Result().Body) // of a buffer
	text := fmt.Sprintf("%d %s", w.Code, body)
	seconds, _ := strconv.Atoi(w.Result().Header.Get("Retry-After"))
	switch w.Code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return reply{err: errors.New(text), after: time.Duration(seconds) * time.Second}
	}
	if w.Code >= http.StatusInternalServerError {
		return reply{err: errors.New(text), after: time.Duration(seconds) * time.Second}
	}
	return reply{answer: answer{text, w.Code >= http.StatusBadRequest}}
}
