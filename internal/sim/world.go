package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Settings are what a world may do. The zero value does no harm.
type Settings struct {
	Seed    Seed
	Length  time.Duration // of the time in which faults happen
	Chances Chances
	At      map[Link]Chances // of links that have chances of their own
	Deaths  int              // of each process
	Stalls  int              // of each process
	Stall   time.Duration    // the longest
	Stops   int              // of each process, in order, as for a new version
	Slow    float64          // calls whose way takes up to two seconds more, beside one in 50
	Outages []Outage

	// Open is the probability that a claim whose reply is lost is not committed yet:
	// its server waits for another one. It is soon, or in two seconds.
	Open float64

	// Busy is when the faults stop, if that is not after Length.
	Busy time.Duration

	// Without lists programs that are not started, by name.
	Without map[string]bool

	// Progress counts steps, for a watchdog. It may be nil.
	Progress *atomic.Int64

	Loud bool // the history has all calls, also those that look for work

	// Only lists the faults that may happen, by ID. Nil allows all. What is not in it
	// does not happen, and neither does anything that would happen instead.
	Only map[string]bool
}

// Link is what a process calls: "store", "broker", "downstream", or a part of
// one, such as "topic a".
type Link string

// LinkOf is a link as one program sees it, which can be cut alone.
func LinkOf(l Link, program string) Link { return l + " of " + Link(program) }

// Outage takes a link down, Times times, each time for up to Longest.
type Outage struct {
	Link    Link
	Times   int
	Longest time.Duration
}

// World is one run.
type World struct {
	Settings
	begin time.Time

	mu      sync.Mutex
	numbers map[call]int
	traits  map[string]bool
	calm    bool
	down    map[Link]int
	cuts    bool               // there are outages of links of one program
	heard   []func(Link, bool) // told when a link goes down or comes back
	parts   []<-chan struct{}  // end with the processes
	result  Result

	running context.Context // ends when processes are to end
	end     context.CancelFunc
	ended   atomic.Bool
	beside  sync.WaitGroup // of Go
	stalled atomic.Bool
	late    atomic.Int64 // calls that are still to arrive
}

// Result is what a run has left.
type Result struct {
	History []Line
	Faults  []Fault
	Started []string // programs, by name
	Broken  []Break
	Calls   int           // over boundaries
	Lasted  time.Duration // in the world
}

// Laws returns the laws that were broken, each once.
func (r *Result) Laws() (all []Law) {
	for _, b := range r.Broken {
		if !slices.Contains(all, b.Law) {
			all = append(all, b.Law)
		}
	}
	return all
}

// call is a kind of call, whose occurrences are numbered.
type call struct{ who, what, about string }

// New returns a world that begins now. It is called within a bubble of
// testing/synctest, with crypto/rand seeded.
func New(s Settings) *World {
	w := &World{Settings: s, begin: time.Now(), numbers: make(map[call]int), traits: make(map[string]bool),
		down: make(map[Link]int)}
	if w.Progress == nil {
		w.Progress = new(atomic.Int64)
	}
	for _, o := range s.Outages {
		w.cuts = w.cuts || strings.Contains(string(o.Link), " of ")
	}
	w.running, w.end = context.WithCancel(context.Background())
	return w
}

// BusyTime returns how long faults happen.
func (w *World) BusyTime() time.Duration {
	if w.Busy > 0 {
		return min(w.Busy, w.Length)
	}
	return w.Length
}

// Now returns the time since the world began.
func (w *World) Now() time.Duration { return time.Since(w.begin) }

// Number returns how often it was called with these arguments, from 1 on.
func (w *World) Number(who, what, about string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := call{who, what, about}
	w.numbers[c]++
	return w.numbers[c]
}

// DrawNth returns the chance of the next decision of this kind.
func (w *World) DrawNth(who, what, about string) Draw {
	return w.Seed.Draw(who, what, about).Nth(w.Number(who, what, about))
}

// Tell adds a line to the history.
func (w *World) Tell(l Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell(l)
}

func (w *World) tell(l Line) {
	w.Progress.Add(1)
	if w.running.Err() != nil && !l.isLaw && l.Fault != Cut && !w.Loud {
		return // what happens while processes end is no part of the history
	}
	l.At = w.Now()
	w.result.History = append(w.result.History, l)
}

// Happens reports whether a fault may happen, and records that it does.
func (w *World) Happens(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calm || w.Only != nil && !w.Only[id] {
		return false
	}
	w.result.Faults = append(w.result.Faults, Fault{id, w.Now()})
	return true
}

// Trait reports whether something has a property that makes trouble, with a
// probability, and returns the chance of how much. It has it for ever.
func (w *World) Trait(id string, p float64) (Draw, bool) {
	d := w.Seed.Draw(id)
	has := d.Chance(p) && (w.Only == nil || w.Only[id])
	w.mu.Lock()
	defer w.mu.Unlock()
	if has && !w.traits[id] {
		w.traits[id] = true
		w.result.Faults = append(w.result.Faults, Fault{id, w.Now()})
	}
	return d, has
}

// Broke records that a law was broken.
func (w *World) Broke(law Law, about, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := Break{law, about, fmt.Sprintf(format, args...), w.Now()}
	w.result.Broken = append(w.result.Broken, b)
	w.tell(Line{What: "LAW " + string(law), About: about, Note: b.Note, isLaw: true})
}

// The What of a process that stalls, is killed, or is told to stop.
const (
	stalls = "STALLS"
	dies   = "DIES"
	stops  = "STOPS"
)

// StallsOf returns how often processes of a program began to stall between two times.
func (w *World) StallsOf(program string, from, to time.Time) int {
	return w.happened(stalls, program, from, to)
}

// StopsOf is StallsOf for stops in order.
func (w *World) StopsOf(program string, from, to time.Time) int {
	return w.happened(stops, program, from, to)
}

// DeathsOf returns how often processes of a program were killed; "": of any.
func (w *World) DeathsOf(program string) int {
	return w.happened(dies, program, w.begin, time.Now())
}

// happened returns how often something happened to processes of a program between
// two times.
func (w *World) happened(what, program string, from, to time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.result.History {
		if at := w.begin.Add(l.At); l.What == what && strings.HasPrefix(l.Who, program) && at.After(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// HasStalled reports whether a process has stalled.
func (w *World) HasStalled() bool { return w.stalled.Load() }

// LateCalls returns how many late calls are still to arrive.
func (w *World) LateCalls() int { return int(w.late.Load()) }

// whenLate runs a call that arrives late.
func (w *World) whenLate(run func()) {
	w.late.Add(1)
	w.Go(func() {
		defer w.late.Add(-1)
		run()
	})
}

// Go runs a function in a goroutine for which End waits.
func (w *World) Go(run func()) {
	w.beside.Add(1)
	go func() {
		defer w.beside.Done()
		run()
	}()
}

// Running returns a context that ends when processes are to end.
func (w *World) Running() context.Context { return w.running }

// FaultsAbout returns how many calls of a program about an object went wrong, by
// themselves.
func (w *World) FaultsAbout(program, object string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.result.History {
		if l.Fault != NoFault && strings.HasPrefix(l.Who, program) && hasWord(l.About, object) {
			n++
		}
	}
	return n
}

// CallsAbout returns the calls about an object, so far.
func (w *World) CallsAbout(object string) (calls []Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.result.History {
		if rest, found := strings.CutPrefix(l.About, object); found && l.Nth > 0 && (rest == "" || rest[0] == ' ') {
			calls = append(calls, l)
		}
	}
	return calls
}

// WasCutOff reports whether the last call about an object was cut off on its way.
func (w *World) WasCutOff(object string) bool {
	calls := w.CallsAbout(object)
	return len(calls) > 0 && calls[len(calls)-1].Fault == Cut
}

// Calm ends all faults. Those that have begun, such as late calls, may still have
// their effects.
func (w *World) Calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = true
	for link := range w.down {
		if w.down[link] > 0 {
			w.down[link] = 0
			w.hear(link, false)
		}
	}
	w.tell(Line{What: "CALM"})
}

// IsCalm reports whether the faults have ended.
func (w *World) IsCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// hear is called with the lock held.
func (w *World) hear(link Link, down bool) {
	for _, f := range w.heard {
		f(link, down)
	}
}

// OnOutage has f called whenever a link goes down or comes back. It does not call
// the world.
func (w *World) OnOutage(f func(link Link, down bool)) { w.heard = append(w.heard, f) }

// IsDown reports whether any of the links is down.
func (w *World) IsDown(links ...Link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range links {
		if w.down[l] > 0 {
			return true
		}
	}
	return false
}

// isCut reports whether a process does not reach what is called.
func (w *World) isCut(p *Process, l Link) bool {
	if !w.cuts {
		return false
	}
	program, _, _ := strings.Cut(p.Name, ".")
	return w.IsDown(LinkOf(l, program))
}

// AnyDown reports whether any link at all is down.
func (w *World) AnyDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.down {
		if n > 0 {
			return true
		}
	}
	return false
}

func (w *World) setDown(link Link, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.down[link] > 0
	w.down[link] = max(w.down[link]+by, 0)
	is := w.down[link] > 0
	if was == is {
		return
	}
	what := "BACK"
	if is {
		what = "DOWN"
	}
	w.tell(Line{What: what, About: string(link)})
	w.hear(link, is)
}

// BeginOutages lets the outages of the settings happen.
func (w *World) BeginOutages() {
	for _, o := range w.Outages {
		for n := range o.Times {
			go w.outage(o, n)
		}
	}
}

func (w *World) outage(o Outage, n int) {
	id := fmt.Sprintf("outage of %s %d", o.Link, n+1)
	d := w.Seed.Draw(id)
	at, lasts := d.Between(time.Second, w.Length), d.Between(time.Second, o.Longest)
	if Sleep(w.running, at) != nil || !w.Happens(id) {
		return
	}
	w.setDown(o.Link, 1)
	_ = Sleep(w.running, lasts)
	w.setDown(o.Link, -1)
}

// Sleep waits for a while, or returns the error of ctx when it ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// End ends all processes, waits for them and for late calls, and returns the
// result.
func (w *World) End() *Result {
	w.end()
	for _, ended := range w.parts {
		<-ended
	}
	w.beside.Wait()
	w.ended.Store(true)
	w.result.Lasted = w.Now()
	return &w.result
}
