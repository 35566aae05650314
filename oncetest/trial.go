package oncetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/store"
)

// world is the world of a case, without its type parameter.
type world struct {
	run    func(context.Context, *Process) error
	probe  func(context.Context) (string, error)
	forget func(context.Context) error
}

type side bool

const (
	before side = false
	after  side = true
)

// point is one side of a step. It has the message that was being delivered, so
// that it is the same in each run.
type point struct {
	message string // empty: before the first message
	step    string
	nth     int // number of the step with this name, for this message
	side    side
}

func (pt point) String() string {
	when := "before"
	if pt.side == after {
		when = "after"
	}
	if pt.nth > 1 {
		when += fmt.Sprintf(" the %d.", pt.nth)
	}
	if pt.message == "" {
		return when + " " + pt.step + " at the start"
	}
	return when + " " + pt.step + " of " + pt.message
}

// action is what a schedule does at a point.
type action int

const (
	nothing action = iota
	die
	breakSessions
	loseReply
)

// trial is a run of a schedule in its own world.
type trial struct {
	world    world
	broker   *membroker.Broker
	source   broker.Source
	plan     func(pt point, n int) action // n is the number of the point in the trial
	deadline context.Context
	quiet    time.Duration
	wanted   string // the state to come to; empty: not known
	changed  chan struct{}

	mu        sync.Mutex
	message   string // the message that is being delivered
	counts    map[point]int
	trace     []point
	deaths    []int // the number of points before each crash
	acted     bool  // the plan has done something
	keys      map[string]map[once.Key]bool
	outside   map[string]bool // steps that reach another system
	published int
	settled   map[string]bool // by origin
	lostAcks  map[string]bool // by origin; nil: none is lost
	shelves   []store.Shelf
	lives     []*Process

	parked map[string]string // reasons by message ID; only for the goroutine of the schedule
}

func newTrial(deadline context.Context, w world) *trial {
	t := &trial{world: w, broker: membroker.New(nil), deadline: deadline, changed: make(chan struct{}, 1),
		plan: func(point, int) action { return nothing }, counts: make(map[point]int), keys: make(map[string]map[once.Key]bool),
		outside: make(map[string]bool), settled: make(map[string]bool), parked: make(map[string]string)}
	t.source = t.broker.Queue(queue)
	return t
}

// notify signals a change.
func (t *trial) notify() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// start begins another process of the service.
func (t *trial) start() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.deadline))
	p := &Process{trial: t, cancel: cancel}
	t.mu.Lock()
	t.lives = append(t.lives, p)
	t.mu.Unlock()
	go func() {
		var err error
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			p.ended, p.err = true, err
			t.notify()
		}()
		err = errEnded // if its goroutine ends
		err = t.world.run(ctx, p)
	}()
}

var errEnded = errors.New("the goroutine of Run has ended, by runtime.Goexit or a Fatal of the test")

// deliver publishes messages and waits until they are settled. Steps and keys
// meanwhile belong to the name.
func (t *trial) deliver(name string, last bool, ms ...*broker.Message) error {
	t.mu.Lock()
	t.message = name
	t.published += len(ms)
	t.mu.Unlock()
	for _, m := range ms {
		t.broker.Bind(queue, m.Topic)
	}
	if errs := t.broker.Publisher().Publish(t.deadline, ms); errs != nil {
		return errors.Join(errs...)
	}
	return t.await(last)
}

// stalled is how long a service may collect messages before the next one is
// delivered.
const stalled = 250 * time.Millisecond

// await waits until everything that was published is settled, and starts a
// process for each that crashed.
func (t *trial) await(last bool) error {
	idle := time.NewTimer(stalled)
	defer idle.Stop()
	for {
		settled, waiting, err := t.look()
		if err != nil || settled {
			return err
		}
		select {
		case <-t.changed:
			idle.Reset(stalled)
		case <-idle.C:
			if waiting && !last {
				return nil
			}
		case <-t.deadline.Done():
			return t.unsettled()
		}
	}
}

// look cleans up after crashed processes and replaces them. It reports whether
// everything is settled, and whether the service waits for messages.
func (t *trial) look() (settled, waiting bool, err error) {
	t.mu.Lock()
	calls, dead := 0, []*Process(nil)
	for _, p := range t.lives {
		calls += p.calls
		waiting = waiting || p.waiting > 0 && !p.dead
		switch {
		case p.dead && !p.told:
			dead = append(dead, p)
		case p.ended && !p.told:
			err = &finding{fault: runEnded, detail: fmt.Sprint(p.err)}
		}
	}
	settled = t.published == len(t.settled) && calls == 0 && waiting
	t.mu.Unlock()
	for _, p := range dead {
		t.cleanUp(p)
		t.start()
	}
	return settled && len(dead) == 0, waiting && calls == 0, err
}

// cleanUp ends the sessions, claims and waits that a crashed process had.
func (t *trial) cleanUp(p *Process) {
	t.until(time.Second, func() bool { return p.calls == 0 })
	t.mu.Lock()
	p.told = true
	sessions, claims := p.sessions, p.claims
	t.mu.Unlock()
	for _, s := range sessions {
		_ = s.Close(t.deadline)
	}
	for _, c := range claims { // this does nothing to those that it has settled
		_ = c.store.Settle(t.deadline, once.Settlement{Fence: c.fence, Status: once.Unknown, Reason: "oncetest: its process died"})
	}
	_, _ = t.shelved(func(s store.Shelf, m store.Shelved) {
		if m.Due > 0 {
			m.Due = 0
			_ = s.Change(t.deadline, m)
		}
	})
}

// until waits up to d for a condition, which it calls with the mutex held.
func (t *trial) until(d time.Duration, holds func() bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		t.mu.Lock()
		is := holds()
		t.mu.Unlock()
		if is {
			return true
		}
		select {
		case <-t.changed:
		case <-timer.C:
			return false
		case <-t.deadline.Done():
			return false
		}
	}
}

// shelved calls f for the messages on the shelves that wait only for their due
// time, and returns how many there are. It records the others as parked.
func (t *trial) shelved(f func(store.Shelf, store.Shelved)) (n int, err error) {
	t.mu.Lock()
	shelves := t.shelves
	t.mu.Unlock()
	for _, s := range shelves {
		q := store.ShelfQuery{States: []store.ShelfState{store.Waiting, store.Parked}, Limit: 1000, Bodiless: true}
		ms, err := s.Shelved(t.deadline, q)
		if err != nil {
			return n, err
		}
		parked := make(map[[2]string]bool)
		for _, m := range ms {
			lane := [2]string{m.Consumer, m.Message.OrderingKey}
			switch {
			case m.State == store.Parked:
				parked[lane] = lane[1] != ""
				t.parked[m.Message.ID] = m.Reason
			case m.State == store.Waiting && !parked[lane]:
				n++
				f(s, m)
			}
		}
	}
	return n, nil
}

// finish waits until the state is final, ends the service, and returns the state.
func (t *trial) finish() (state string, err error) {
	if state, err = t.rest(); err != nil {
		return state, err
	}
	if err := t.stop(); err != nil {
		return state, err
	}
	return t.world.probe(t.deadline)
}

// rest waits until the state is final: it has been the wanted one for a moment,
// or another one for so long that nothing more will happen.
func (t *trial) rest() (state string, err error) {
	tick := time.NewTicker(max(t.quiet/20, time.Millisecond))
	defer tick.Stop()
	since, last := time.Now(), "\x00"
	for {
		left, err := t.shelved(func(store.Shelf, store.Shelved) {})
		if err != nil {
			return "", err
		}
		if state, err = t.world.probe(t.deadline); err != nil {
			return "", err
		}
		if state != last || left > 0 {
			since, last = time.Now(), state
		}
		unchanged := t.quiet
		switch {
		case t.wanted == state:
			unchanged = t.quiet / 10
		case t.wanted != "":
			unchanged = t.quiet * 4
		}
		if time.Since(since) >= unchanged {
			return state, nil
		}
		select {
		case <-tick.C:
		case <-t.deadline.Done():
			return state, t.unsettled()
		}
		if _, _, err := t.look(); err != nil {
			return state, err
		}
	}
}

// stop stops the service.
func (t *trial) stop() error {
	t.mu.Lock()
	for _, p := range t.lives {
		p.told = true
		p.cancel()
	}
	t.mu.Unlock()
	ended := t.until(time.Minute, func() bool {
		for _, p := range t.lives {
			if !p.ended && !p.dead {
				return false
			}
		}
		return true
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.lives {
		if !ended && !p.ended && !p.dead {
			return &finding{fault: runStays}
		}
		if p.err != nil && !p.dead && !errors.Is(p.err, context.Canceled) {
			return &finding{fault: runEnded, detail: p.err.Error()}
		}
		p.dead = true // in case it has left goroutines
	}
	return nil
}

// name counts a step. It is called with the mutex held.
func (t *trial) name(step string) point {
	pt := point{message: t.message, step: step}
	t.counts[pt]++
	pt.nth = t.counts[pt]
	return pt
}

// claimed notes a key. It is called with the mutex held.
func (t *trial) claimed(k once.Key) {
	if t.keys[t.message] == nil {
		t.keys[t.message] = make(map[once.Key]bool)
	}
	t.keys[t.message][k] = true
}

func (t *trial) keep(s store.Shelf) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.shelves {
		if known == s {
			return
		}
	}
	t.shelves = append(t.shelves, s)
}

func (t *trial) settle(ds []broker.Delivery, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range ds {
		if err == nil {
			t.settled[d.Origin] = true
		}
	}
}

// loseFirst returns the deliveries whose acknowledgement is lost now, and the
// others.
func (t *trial) loseFirst(ds []broker.Delivery) (lost, kept []broker.Delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range ds {
		if t.lostAcks == nil || t.lostAcks[d.Origin] {
			kept = append(kept, d)
			continue
		}
		t.lostAcks[d.Origin], t.acted = true, true
		lost = append(lost, d)
	}
	return lost, kept
}

// unsettled returns the finding that the deadline has passed.
func (t *trial) unsettled() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.published - len(t.settled)
	switch {
	case len(t.trace) == 0:
		return &finding{fault: neverAsked}
	case left == 0:
		return &finding{fault: neverDone, detail: t.tail()}
	}
	return &finding{fault: notSettled, detail: fmt.Sprintf("%d of %d deliveries; %s", left, t.published, t.tail())}
}

// tail describes the latest steps.
func (t *trial) tail() string {
	var steps []string
	for i, pt := range t.trace {
		if pt.side == after {
			steps = append(steps, pt.step)
		}
		for _, n := range t.deaths {
			if n == i+1 {
				steps = append(steps, "DEATH "+pt.String())
			}
		}
	}
	const most = 16
	if len(steps) > most {
		steps = append([]string{"…"}, steps[len(steps)-most:]...)
	}
	return "steps: " + strings.Join(steps, ", ")
}
