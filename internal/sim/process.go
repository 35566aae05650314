package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Program is what a process runs. It returns nil when ctx ends, and an error if a
// person must act, which no fault of a world is a reason for.
type Program func(ctx context.Context, p *Process) error

// Process is one life of a program.
type Process struct {
	World *World
	Name  string // of the program, and the number of the life: "relay1.2"

	host Link // see HostLink
	way  Link // see WayLink
	kill context.CancelFunc

	mu      sync.Mutex
	dead    bool
	awake   time.Time // the end of its last stall
	onDeath []func()
}

// HostLink is the link between a program and all that it calls. While it is down,
// the others work on.
func HostLink(program string) Link { return Link("host of " + program) }

// WayLink is the link between a program and the store. While it is down, the program
// has its effects elsewhere.
func WayLink(program string) Link { return Link("way to the store of " + program) }

// Start runs a program until the world ends. It is killed, stalled and started
// again as the settings say.
func (w *World) Start(name string, program Program) {
	if w.Without[name] {
		return
	}
	w.result.Started = append(w.result.Started, name)
	ended := make(chan struct{})
	w.parts = append(w.parts, ended)
	go func() {
		defer close(ended)
		w.live(name, program)
	}()
}

// live runs one life of a program after the other.
func (w *World) live(name string, program Program) {
	d := w.Seed.Draw("life of", name)
	deaths := w.moments(&d, w.Deaths)
	stalls := w.moments(&d, w.Stalls)
	ofStops := w.Seed.Draw("stops of", name)
	stops := w.moments(&ofStops, w.Stops)
	_ = Sleep(w.running, d.Between(0, time.Second))
	for life := 1; w.running.Err() == nil; life++ {
		ctx, kill := context.WithCancel(context.Background())
		p := &Process{World: w, Name: fmt.Sprintf("%s.%d", name, life), host: HostLink(name), way: WayLink(name), kill: kill}
		timers := append(p.plan(d.Nth(life), &deaths, stalls), p.planStops(stops)...)
		hears := d.Between(0, time.Second/10)
		detach := context.AfterFunc(w.running, func() { // each process hears of the end in its own time
			time.Sleep(hears)
			kill()
		})
		err := program(ctx, p)
		detach()
		kill()
		for _, t := range timers {
			t.Stop()
		}
		if w.running.Err() != nil {
			return
		}
		if err != nil && !p.IsDead() {
			w.Broke(RunEnded, p.Name, "%v", err)
			return
		}
		_ = Sleep(w.running, d.Between(time.Second/2, 20*time.Second))
	}
}

// moments returns times of the world, in order.
func (w *World) moments(d *Draw, n int) (at []time.Duration) {
	for range n {
		at = append(at, d.Between(time.Second, w.Length))
	}
	slices.Sort(at)
	return at
}

// plan sets timers for the next death and for the stalls to come.
func (p *Process) plan(d Draw, deaths *[]time.Duration, stalls []time.Duration) (timers []*time.Timer) {
	now := p.World.Now()
	for len(*deaths) > 0 && (*deaths)[0] < now {
		*deaths = (*deaths)[1:]
	}
	if len(*deaths) > 0 {
		timers = append(timers, time.AfterFunc((*deaths)[0]-now, func() {
			if p.World.Happens("death of " + p.Name) {
				p.Die()
			}
		}))
	}
	for n, at := range stalls {
		if at < now {
			continue
		}
		lasts := d.Nth(n)
		timers = append(timers, time.AfterFunc(at-now, func() {
			if p.World.Happens(fmt.Sprintf("stall of %s %d", p.Name, n+1)) {
				p.stall(lasts.Between(time.Second, p.World.Stall))
			}
		}))
	}
	return timers
}

// planStops sets timers for the stops to come. The program ends as it does at the
// end of the world, and is then started again.
func (p *Process) planStops(at []time.Duration) (timers []*time.Timer) {
	now := p.World.Now()
	for n, at := range at {
		if at < now {
			continue
		}
		timers = append(timers, time.AfterFunc(at-now, func() {
			if p.World.Happens(fmt.Sprintf("stop of %s %d", p.Name, n+1)) {
				p.World.Tell(Line{Who: p.Name, What: stops})
				p.kill()
			}
		}))
	}
	return timers
}

// Die kills the process: nothing of what it calls from now on arrives.
func (p *Process) Die() {
	p.mu.Lock()
	p.dead = true
	then := p.onDeath
	p.mu.Unlock()
	p.World.Tell(Line{Who: p.Name, What: dies})
	p.kill()
	for _, f := range then {
		f()
	}
}

// OnDeath has f called when the process is killed, as an operating system closes
// connections and ends locks.
func (p *Process) OnDeath(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onDeath = append(p.onDeath, f)
}

// IsDead reports whether the process was killed.
func (p *Process) IsDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// stall stops the process for a while: no call leaves it, and no reply reaches
// it. Its timers that end meanwhile have ended when it wakes.
func (p *Process) stall(d time.Duration) {
	p.World.Tell(Line{Who: p.Name, What: stalls, Note: fmt.Sprint("for ", d.Round(time.Millisecond))})
	p.World.stalled.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awake = time.Now().Add(d)
}

// wake waits for the end of a stall, and a moment of the caller's own: several
// goroutines of the process may wait.
func (p *Process) wake(moment time.Duration) {
	for {
		p.mu.Lock()
		left := time.Until(p.awake)
		p.mu.Unlock()
		if left <= 0 {
			return
		}
		time.Sleep(left + moment)
	}
}
