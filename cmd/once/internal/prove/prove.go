// Package prove runs a program against its servers, kills it, breaks its
// connections, repeats its requests, and counts what happened.
//
//	callers ── HTTP, each request several times ──▶ copies of the program
//	                                                  │  killed, and started again
//	                                                  ▼
//	                                                proxy: connections cut, replies swallowed
//	                                                  ▼
//	                     this process ── reads ──▶ the store, and its database
//
// The seed decides which request has which fault. What is under way at that moment
// depends on the machine. The laws hold at every moment, so a program that is right
// passes with every seed, on every machine.
//
// Nothing that was there before is changed. What the program writes stays.
package prove

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/cmd/once/internal/trial"
	"github.com/effectively-once/once/internal/chance"
)

// Options configure a proof.
type Options struct {
	Command     []string // with placeholders
	Environment []string // NAME=VALUE, with placeholders, besides that of this process
	Service     string   // URL of a copy, with placeholders
	Copies      int
	Words       map[string]string // placeholders besides those of the package
	Servers     []Server
	Output      io.Writer // of the copies; default: none

	Templates []Request // of the requests, in turn
	Requests  int       // of a round
	Kills     int       // of a round, and so on
	Cuts      int
	Swallowed int
	Lost      int
	Callers   int // who send requests at the same time
	Seed      uint64
	For       time.Duration // rounds begin until this time is over; default: one round
	Patience  time.Duration // for a start, for an answer, and for progress in the end

	Counts   []Count
	Database *sql.DB // of the counts
	MayPark  bool    // what needs a person is no finding
	Progress func(text string)
}

// Server is a server that the program reaches through a proxy. Its name is the
// placeholder for the address of the proxy.
type Server struct {
	Name, Address string

	// Words returns more placeholders that depend on the address of the proxy.
	// Default: none.
	Words func(address string) map[string]string
}

// ErrNothing is wrapped by an error that says why nothing was proved.
var ErrNothing = errors.New("nothing was proved")

// run is a proof that runs.
type run struct {
	options Options
	target  *target.Target
	begun   time.Time // by the clock of the store
	id      string
	proxies []*proxy
	direct  map[string]string // placeholders of the commands that count
	copies  *copies
	callers *callers

	mu       sync.Mutex
	requests []*request
	doubled  int
	neverHit int // replies that were to be swallowed
}

// Run runs a proof. It ends all its processes, even when ctx ends.
func Run(ctx context.Context, t *target.Target, o Options) (Report, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	begun := time.Now()
	now, err := t.Now(ctx)
	if err != nil {
		return Report{}, err
	}
	r := &run{options: o, target: t, begun: now, id: fmt.Sprintf("prove-%06x", chance.N(1<<24)), direct: map[string]string{}}
	words := map[string]string{}
	maps.Copy(words, o.Words)
	maps.Copy(r.direct, o.Words)
	defer func() {
		for _, p := range r.proxies {
			p.close()
		}
	}()
	for _, s := range o.Servers {
		p, err := newProxy(s.Name, s.Address)
		if err != nil {
			return Report{}, err
		}
		r.proxies = append(r.proxies, p)
		s.name(words, p.address())
		s.name(r.direct, s.Address)
	}
	if err := unknownWords(o, words); err != nil {
		return Report{}, err
	}
	if err := r.unused(ctx); err != nil {
		return Report{}, err
	}
	if r.options.Output != nil {
		r.options.Output = &oneByOne{to: o.Output}
	}
	r.copies = newCopies(r.options, words)
	r.callers = &callers{options: o, client: trial.NewClient(o.Patience), copies: r.copies}
	report, err := r.prove(ctx)
	report.Seconds = float64(time.Since(begun).Milliseconds()/10) / 100
	return report, err
}

// name adds the placeholders of a server at an address.
func (s Server) name(words map[string]string, address string) {
	words[s.Name] = address
	if s.Words != nil {
		maps.Copy(words, s.Words(address))
	}
}

// unknownWords returns an error if a placeholder has no meaning.
func unknownWords(o Options, words map[string]string) error {
	for _, c := range o.Counts {
		if err := onlyKnown(words, []string{c.Command}); err != nil {
			return err
		}
	}
	known := map[string]string{"copy": "", "listen": "", "port": ""}
	maps.Copy(known, words)
	if err := onlyKnown(known, append(append([]string{o.Service}, o.Command...), o.Environment...)); err != nil {
		return err
	}
	for _, t := range o.Templates {
		if err := onlyKnown(map[string]string{"id": ""}, t.texts()); err != nil {
			return t.in(err)
		}
	}
	return nil
}

// ErrWord is wrapped by an error about a placeholder.
var ErrWord = errors.New("unknown placeholder")

func onlyKnown(known map[string]string, texts []string) error {
	for _, text := range texts {
		for rest := text; ; {
			_, after, begins := strings.Cut(rest, "{{")
			name, end, ends := strings.Cut(after, "}}")
			if !begins || !ends {
				break
			}
			if _, ok := known[name]; !ok {
				return fmt.Errorf("%w {{%s}} in %s", ErrWord, name, text)
			}
			rest = end
		}
	}
	return nil
}

// oneByOne lets several copies write to one file.
type oneByOne struct {
	mu sync.Mutex
	to io.Writer
}

// Write implements io.Writer.
func (w *oneByOne) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(data)
}

// prove runs the copies while the requests are sent and the rest drains, and then
// counts.
func (r *run) prove(ctx context.Context) (Report, error) {
	running, end := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	stop := func() {
		end(nil)
		all.Wait()
	}
	defer stop()
	all.Go(func() { r.keepAll(running, end) })
	begun := time.Now()
	for round := uint64(0); round == 0 || r.options.For > time.Since(begun); round++ {
		if err := r.round(running, plan(r.options, round)); err != nil {
			return Report{}, causeOf(running, err)
		}
	}
	for _, p := range r.proxies {
		r.neverHit += p.calm()
	}
	r.options.Progress("faults are over: every request is sent again")
	if err := r.again(running); err != nil {
		return Report{}, causeOf(running, err)
	}
	p, err := r.drain(running)
	if err != nil {
		return Report{}, causeOf(running, err)
	}
	stop()
	return r.report(ctx, p)
}

// keepAll runs the first copy alone until it listens, since it may have tables to
// make.
func (r *run) keepAll(ctx context.Context, failed context.CancelCauseFunc) {
	var all sync.WaitGroup
	for n := range r.options.Copies {
		all.Go(func() {
			if err := r.copies.keep(ctx, n+1); err != nil {
				failed(err)
			}
		})
		if n == 0 {
			_, _ = r.copies.next(ctx)
		}
	}
	all.Wait()
}

func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// round sends the requests of a plan, and returns when each was answered, or given
// up, and all its faults have happened.
func (r *run) round(ctx context.Context, steps []step) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var faults sync.WaitGroup
	defer faults.Wait()
	next := make(chan int)
	first := r.grow(len(steps))
	var senders sync.WaitGroup
	for range r.options.Callers {
		senders.Go(func() {
			for i := range next {
				r.faults(ctx, &faults, steps[i])
				if err := r.callers.send(ctx, r.requests[first+i], steps[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range steps {
		select {
		case next <- i:
			r.options.Progress(fmt.Sprintf("%d requests sent, %d copies killed", first+i+1, r.copies.kills()))
		case <-ctx.Done():
		}
	}
	close(next)
	senders.Wait()
	faults.Wait()
	return context.Cause(ctx)
}

// grow adds n requests, and returns the place of the first.
func (r *run) grow(n int) (first int) {
	first = len(r.requests)
	for i := range n {
		t := &r.options.Templates[i%len(r.options.Templates)]
		r.requests = append(r.requests, t.request(fmt.Sprintf("%s-%d", r.id, first+i+1)))
	}
	return first
}

// faults lets the faults of a step happen.
func (r *run) faults(ctx context.Context, running *sync.WaitGroup, s step) {
	if s.double {
		r.mu.Lock()
		r.doubled++
		r.mu.Unlock()
	}
	for _, after := range s.kills {
		running.Go(func() {
			trial.Pause(ctx, after)
			_ = r.copies.kill(ctx)
		})
	}
	for _, b := range s.breaks {
		running.Go(func() {
			trial.Pause(ctx, b.after)
			if p := r.proxies[b.server]; b.swallow {
				p.swallow(b.commit)
			} else {
				p.cut()
			}
		})
	}
}

// again sends every request once more: answers must be the same, and effects must
// not happen again.
func (r *run) again(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *request)
	var senders sync.WaitGroup
	for range r.options.Callers {
		senders.Go(func() {
			for q := range next {
				if err := r.callers.insist(ctx, q, step{}); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, q := range r.requests {
		if q.answered() == nil {
			continue // it is a finding already, and would take patience once more
		}
		select {
		case next <- q:
		case <-ctx.Done():
		}
	}
	close(next)
	senders.Wait()
	return context.Cause(ctx)
}

const drainEvery = 50 * time.Millisecond

// drain waits until nothing is left to do, or until nothing has changed for as long
// as patience lasts.
func (r *run) drain(ctx context.Context) (p pile, err error) {
	last, since := -1, time.Now()
	for ; ; trial.Pause(ctx, drainEvery) {
		if p, err = see(ctx, r.target, r.begun); err != nil {
			return p, err
		}
		n := p.left.toDo()
		if n == 0 {
			return p, nil
		}
		r.options.Progress(fmt.Sprintf("waiting for %v", p.left))
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > r.options.Patience {
			return p, nil
		}
	}
}
