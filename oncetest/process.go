package oncetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Process is one life of the service under test, from its start until it stops or dies. Everything by which the
// service touches the world is taken through it: messages by [Process.Source], and of the rest what it uses, by
// [Store], [Plain], [Process.Publisher], [Process.Transport] and [Process.Step].
//
// Each call through them that changes something is a step. A process can die before a step, which then never happens,
// or after it, and then its reply is lost. The goroutine that made the call ends there, as by runtime.Goexit, and so
// does every other one at its next call; deferred functions run. Nothing that a dead process calls has an effect: a
// transaction that it has open is rolled back, what it has not acknowledged is delivered again, and its leases have
// lapsed.
type Process struct {
	trial  *trial
	cancel context.CancelFunc

	// The trial's mutex guards these.
	dead     bool
	told     bool // to stop
	ended    bool // Run is over
	err      error
	calls    int // under way
	waiting  int // calls that wait for messages
	refused  int // calls of the dead
	sessions []broker.Session
	claims   []claim
}

// claim is one that a process made, and may still hold.
type claim struct {
	store once.Store
	fence once.Fence
}

var (
	errDead = fmt.Errorf("%w: oncetest: this process has died", once.ErrClosed) // closed: nobody tries again
	errLost = errors.New("oncetest: the reply was lost: the caller cannot know whether it happened")
)

// Step is a boundary of the service's own, where it may die: between effects that do not go through the process,
// after the commit of a transaction that it began itself. The name says what was done just before: "charged".
func (p *Process) Step(name string) {
	_ = p.cross(name, func() error { return nil })
}

// cross makes a call that changes something outside of the process.
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

// look makes a call that changes nothing: a crash there is one after the step before it.
func (p *Process) look(call func() error) error {
	p.begin("")
	defer p.leave()
	err := call()
	if p.isDead() {
		runtime.Goexit()
	}
	return err
}

// transaction runs one of a store's, which calls enter when the body begins, and leave when it ends well. Its steps
// are its begin, which includes its claims, and its commit.
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

// begin counts a call as under way, and names its step. A goroutine of a dead process ends here.
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

// pass is reach for goroutines that end with their process.
func (p *Process) pass(pt point, s side) deed {
	d, dead := p.reach(pt, s)
	if dead {
		runtime.Goexit()
	}
	return d
}

// reach is where the schedule strikes.
func (p *Process) reach(pt point, s side) (d deed, dead bool) {
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
	t.struck = t.struck || d != nothing
	return d, p.dead
}

// die is called with the mutex of the trial held.
func (p *Process) die() {
	p.dead = true
	p.cancel()
	p.trial.notify()
}

// refuse reports whether the process is dead, to a call that answers with an error then. A loop that does not take it
// for an answer ends.
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

// claimed remembers the claims of a call, and whose they are.
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
