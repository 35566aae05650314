package oncetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Process is one process of the service under test, from its start until it
// stops or crashes. The service accesses the world through it: it gets messages
// from [Process.Source], and uses [Store], [Plain], [Process.Publisher],
// [Process.Transport] and [Process.Step] as needed.
//
// Each call through them that changes something is a step. A process can crash
// before a step, which then never happens, or after it, and then its reply is
// lost. The goroutine that made the call ends there, as by runtime.Goexit, and
// each other goroutine ends at its next call. Deferred functions run. Later
// calls of a crashed process have no effect: its open transaction is rolled
// back, what it has not acknowledged is delivered again, and its leases lapse.
type Process struct {
	trial  *trial
	cancel context.CancelFunc

	// The following are guarded by the mutex of the trial.
	dead     bool
	told     bool // told to stop
	ended    bool // Run has returned
	err      error
	calls    int // calls in progress
	waiting  int // calls waiting for messages
	refused  int // calls after the crash
	sessions []broker.Session
	claims   []claim
}

// claim is a claim of a process, which may still own the key.
type claim struct {
	store once.Store
	fence once.Fence
}

var (
	errDead = fmt.Errorf("%w: oncetest: this process has died", once.ErrClosed) // ErrClosed, so that nobody retries
	errLost = errors.New("oncetest: the reply was lost: the caller cannot know whether it happened")
)

// Step adds a step of the service where it may crash: between effects that do
// not go through the process, or after the commit of a transaction that it
// began itself. The name says what was just done, such as "charged".
func (p *Process) Step(name string) {
	_ = p.cross(name, func() error { return nil })
}

// cross makes a call that changes something outside the process.
func (p *Process) cross(step string, call func() error) error {
	pt := p.begin(step)
	defer p.leave()
	p.pass(pt, before)
	err := call()
	if p.pass(pt, after) == loseReply && err == nil {
		return errLost
	}
	return err
}

// look makes a call that changes nothing. A crash there would be like one after
// the previous step.
func (p *Process) look(call func() error) error {
	p.begin("")
	defer p.leave()
	err := call()
	if p.isDead() {
		runtime.Goexit()
	}
	return err
}

// transaction runs a transaction of a store, which calls enter when its body
// begins and leave when its body succeeds. Its steps are "begin", which
// includes its claims, and "commit".
func (p *Process) transaction(run func(enter func(), leave func() error) error) error {
	begun, commit, entered := p.begin("begin"), point{}, false
	defer p.leave()
	p.pass(begun, before)
	err := run(func() {
		if !entered {
			entered = true
			p.pass(begun, after)
		}
	}, func() error {
		commit = p.name("commit")
		if _, dead := p.reach(commit, before); dead {
			return errDead
		}
		return nil
	})
	switch {
	case p.isDead():
		runtime.Goexit()
	case !entered:
		p.pass(begun, after)
	case err == nil:
		p.pass(commit, after)
	}
	return err
}

// begin counts a call as in progress, and names its step. A goroutine of a
// crashed process ends here.
func (p *Process) begin(step string) point {
	t := p.trial
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.dead {
		runtime.Goexit()
	}
	p.calls++
	if step == "" {
		return point{}
	}
	return t.name(step)
}

func (p *Process) leave() {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	p.calls--
	p.trial.notify()
}

func (p *Process) name(step string) point {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	return p.trial.name(step)
}

// pass is like reach for a goroutine that ends if its process crashes.
func (p *Process) pass(pt point, s side) action {
	d, dead := p.reach(pt, s)
	if dead {
		runtime.Goexit()
	}
	return d
}

// reach does what the schedule says at a point.
func (p *Process) reach(pt point, s side) (d action, dead bool) {
	t := p.trial
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.dead {
		return nothing, true
	}
	pt.side = s
	t.trace = append(t.trace, pt)
	d = t.plan(pt, len(t.trace))
	switch d {
	case die:
		p.die()
		t.deaths = append(t.deaths, len(t.trace))
	case breakSessions:
		t.broker.Restart()
	}
	t.acted = t.acted || d != nothing
	return d, p.dead
}

// die is called with the mutex of the trial held.
func (p *Process) die() {
	p.dead = true
	p.cancel()
	p.trial.notify()
}

// refuse reports whether the process has crashed, for a call that then returns
// an error. A goroutine that ignores the error and keeps calling ends.
func (p *Process) refuse() bool {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	if p.dead {
		if p.refused++; p.refused > 100 {
			runtime.Goexit()
		}
	}
	return p.dead
}

func (p *Process) isDead() bool {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	return p.dead
}

// claimed records the claims of a call.
func (p *Process) claimed(s once.Store, rs []once.ClaimRequest, recs []once.Record, lasting bool) {
	t := p.trial
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range rs {
		t.claimed(r.Key)
		if i < len(recs) && recs[i].Owner == r.Owner && lasting {
			p.claims = append(p.claims, claim{s, once.Fence{Key: r.Key, Owner: r.Owner, Attempt: recs[i].Attempt}})
		}
	}
}
