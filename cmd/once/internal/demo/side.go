package demo

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/trial"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

const (
	pollEvery  = 50 * time.Millisecond
	meetTime   = 1500 * time.Millisecond // how long the first of two waits for the second
	copyTime   = time.Second             // delay of a copy, longer than its message takes
	quietTime  = 250 * time.Millisecond
	stuckAfter = 2 * time.Minute
)

// side is the environment of one service. The two sides share only the seed.
type side struct {
	name     string
	options  Options
	where    setup
	db       *sql.DB // the demo's own connection
	store    *sqlstore.Store
	provider *provider
	events   *events
	schedule *schedule

	mu        sync.Mutex
	changed   *sync.Cond
	processes []*process
	stopping  bool
	client    *http.Client
	turn      int                 // of the processes, for requests
	placed    []placed            // in order
	mixed     bool                // in the phase "everything"
	acked     map[string]bool     // orders by ID
	met       map[string]bool     // windows that have happened, by order
	meetings  map[string]*meeting // by what they are about
	crashes   int
	outages   int
	copying   int
	delivered int
	news      string // the latest event

	counting    sync.Mutex // guards what follows, and keeps orders from being forgotten while they are counted
	past        Side       // orders that were forgotten
	pastTallies map[string]*Tally
}

// placed is an order and the phase in which it was placed.
type placed struct {
	Order
	phase string
}

func newSide(ctx context.Context, name, dir string, o Options) (_ *side, err error) {
	s := &side{name: name, options: o, schedule: newSchedule(o), acked: map[string]bool{}, met: map[string]bool{}, meetings: map[string]*meeting{}, pastTallies: map[string]*Tally{}, client: trial.NewClient(requestTime)}
	s.changed = sync.NewCond(&s.mu)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.provider, err = newProvider(); err != nil {
		return nil, err
	}
	if s.events, err = startEvents(); err != nil {
		return nil, err
	}
	s.where = setup{Side: name, Database: dataSource(dir, name), Provider: s.provider.url, Broker: s.events.url()}
	if o.Lasting != nil {
		s.where.Keep = keptFor
	}
	if s.db, err = sql.Open("sqlite", s.where.Database); err != nil {
		return nil, err
	}
	s.store = sqlstore.New(s.db, sqlstore.SQLite, quiet)
	if err = s.store.Migrate(ctx); err == nil {
		_, err = s.db.ExecContext(ctx, tables)
	}
	if err != nil {
		return nil, fmt.Errorf("the database in %s cannot be set up: %w", dir, err)
	}
	return s, nil
}

func (s *side) close() {
	if s.provider != nil {
		s.provider.close()
	}
	if s.events != nil {
		s.events.stop()
	}
	if s.db != nil {
		_ = s.db.Close()
	}
}

// run places all orders and returns when all of them are settled.
func (s *side) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for range s.options.Workers {
		running.Go(func() { s.keep(ctx, cancel) })
	}
	if s.options.Lasting != nil && s.name == With {
		running.Go(func() {
			if err := s.last(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err := s.play(ctx)
	s.stop()
	if err != nil {
		cancel(err)
	}
	running.Wait()
	return context.Cause(ctx)
}

// play runs all phases.
func (s *side) play(ctx context.Context) error {
	for p := s.schedule.next(); len(p.orders) > 0; p = s.schedule.next() {
		s.mu.Lock()
		s.mixed = p.name == everything
		s.mu.Unlock()
		if err := s.place(ctx, p); err != nil {
			return err
		}
		if err := s.settle(ctx); err != nil {
			return err
		}
		if s.options.Lasting == nil {
			continue
		}
		if err := s.forget(ctx); err != nil {
			return err
		}
	}
	return nil
}

// keep restarts a process whenever it is killed, until the side stops.
func (s *side) keep(ctx context.Context, failed context.CancelCauseFunc) {
	for {
		p, err := startProcess(ctx, s.options.Command, s.where)
		if err != nil {
			failed(err)
			return
		}
		s.enter(p)
		for {
			var q question
			if err := p.lines.Decode(&q); err != nil {
				break
			}
			go s.reply(ctx, p, q)
		}
		s.leave(p)
		err = p.Wait()
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		switch {
		case stopping || ctx.Err() != nil:
			return
		case !p.Killed():
			failed(fmt.Errorf("a worker exited, see its output above: %w", err))
			return
		}
	}
}

func (s *side) enter(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	if s.stopping {
		p.stop()
	}
	s.changed.Broadcast()
}

func (s *side) leave(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.processes {
		if other == p {
			s.processes = append(s.processes[:i:i], s.processes[i+1:]...)
			return
		}
	}
}

func (s *side) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for _, p := range s.processes {
		p.stop()
	}
}

// reply tells a process how to continue, or kills it.
func (s *side) reply(ctx context.Context, p *process, q question) {
	a := answer{Number: q.Number}
	window := q.Order.Window
	switch {
	case window == doubleClick:
		s.begins(q)
		s.meet(ctx, q.Order.ID+" "+string(q.At))
	case window == raced && q.At == atDelivery:
		s.meet(ctx, q.Order.ID+" "+q.Consumer)
	case waits[window] == q.At:
		if q.Consumer == "" || q.Consumer == "points" { // only the consumer with a transaction
			s.quiet(ctx)
		}
	case !s.begins(q):
	case window == copied:
		s.again(ctx, q.Message, copyTime)
	case window == raced:
		s.again(ctx, q.Message, copyAfter)
	case window == lostAck:
		a.Lose = true
	default:
		if waits[window] == "" {
			s.quiet(ctx)
		}
		if p.Kill() {
			s.mu.Lock()
			s.crashes++
			s.mu.Unlock()
		}
		return
	}
	p.answer(a)
}

// quiet lets a process finish its other work before it is killed, so that the
// effect of the kill is known. It does not wait in the phase "everything".
func (s *side) quiet(ctx context.Context) {
	s.mu.Lock()
	mixed := s.mixed
	s.mu.Unlock()
	if !mixed {
		trial.Pause(ctx, quietTime)
	}
}

// begins reports whether the window of an order begins now. It begins once.
func (s *side) begins(q question) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.met[q.Order.ID] {
		return false
	}
	s.met[q.Order.ID] = true
	s.news = q.Order.Window + ", " + q.Order.ID
	return true
}

func (s *side) again(ctx context.Context, m *broker.Message, later time.Duration) {
	s.mu.Lock()
	s.copying++
	s.mu.Unlock()
	go func() {
		s.events.again(ctx, m, later)
		s.mu.Lock()
		s.copying--
		s.mu.Unlock()
	}()
}

// meeting releases two callers when both have arrived, or the first one after a
// timeout. Later callers do not wait.
type meeting struct {
	guests int
	both   chan struct{}
}

func (s *side) meet(ctx context.Context, about string) {
	s.mu.Lock()
	m := s.meetings[about]
	if m == nil {
		m = &meeting{both: make(chan struct{})}
		s.meetings[about] = m
	}
	if m.guests++; m.guests == 2 {
		close(m.both)
	}
	s.mu.Unlock()
	timer := time.NewTimer(meetTime)
	defer timer.Stop()
	select {
	case <-m.both:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// settle waits until the outbox is empty and every message is handled or
// parked. It repeats failed queries, because on a busy machine a broker may
// answer after its client's timeout.
func (s *side) settle(ctx context.Context) error {
	last, since := -1, time.Now()
	for {
		left, err := s.left(ctx)
		late := time.Since(since) > stuckAfter
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && late:
			return err
		case err != nil:
		case left == 0:
			return nil
		case left != last:
			last, since = left, time.Now()
		case late:
			return fmt.Errorf("%d messages have been in flight for %v", left, stuckAfter)
		}
		trial.Pause(ctx, pollEvery)
	}
}

// left returns the number of messages in flight. It asks in the order in which
// they move.
func (s *side) left(ctx context.Context) (int, error) {
	s.mu.Lock()
	left := s.copying
	s.mu.Unlock()
	depths, err := s.store.OutboxDepth(ctx, 1000)
	if err != nil {
		return 0, err
	}
	for _, d := range depths {
		if d.State != store.Stuck { // which only a person can change
			left += d.Count
		}
	}
	delivered, open := s.events.load()
	s.mu.Lock()
	s.delivered = delivered
	s.mu.Unlock()
	for _, consumer := range consumers {
		waiting, err := s.store.Shelved(ctx, store.ShelfQuery{Consumer: consumer, States: []store.ShelfState{store.Waiting}, Bodiless: true})
		if err != nil {
			return 0, err
		}
		left += len(waiting)
	}
	return left + open, nil
}
