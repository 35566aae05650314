package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/servicedate"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/cas/memcas"
)

// CASRules are what an engine of package cas does beside storing rows.
type CASRules struct {
	Ahead    time.Duration // its clock, of the world's
	Gateway  float64       // requests that something else answers: with another clock, and without a request ID
	Astray   time.Duration // the clock of that, of the world's
	MaxValue int           // the largest outcome; 0: any
	MaxBatch int           // the writes in a request; 0: any
	Silent   bool          // a refused write does not tell what is stored
	Rests    time.Duration // the longest between two deletions of what may go

	Patience   time.Duration // of its client, for each request; 0: it has none of its own
	ClaimFirst bool          // see cas.Transactions

	Lease time.Duration // that claims ask for
}

// CAS is a store on an engine in memory that compares and swaps, as a service far
// away: its clock is known only by the dates of its responses.
type CAS struct {
	*memcas.Table
	rules  CASRules
	world  *sim.World
	leases leases
	ages   ages

	protocol *protocol
	writing  sync.Mutex // held while rows are written, and laws are told

	// Committed is called with the effects of each batch that was applied. It may be
	// nil.
	Committed func(effects []string)

	// Freed is called when a process has been told that a key is free after an
	// attempt, by a call that began at a time of the world, and when one has claimed
	// it. It may be nil.
	Freed func(key string, asked time.Duration)
}

// NewCAS returns an empty store.
func NewCAS(w *sim.World, rules CASRules) *CAS {
	s := &CAS{Table: memcas.New(), rules: rules, world: w, leases: leases{world: w, held: make(map[string]hold)},
		ages: ages{world: w, lives: make(map[string]*pastLife)}}
	s.Silent, s.Largest = rules.Silent, rules.MaxBatch
	go s.expire()
	return s
}

// expire deletes what may go, in its own time, until the world ends.
func (s *CAS) expire() {
	for {
		d := s.world.DrawNth("engine", "deletes", "")
		if sim.Sleep(s.world.Running(), d.Between(time.Second, max(s.rules.Rests, 2*time.Second))) != nil {
			return
		}
		if n := s.Expire(s.exactly()); n > 0 {
			s.world.Tell(sim.Line{Who: "engine", What: "deletes", Note: fmt.Sprint(n, " rows")})
		}
	}
}

// exactly is the time that only the service knows.
func (s *CAS) exactly() cas.Now {
	return cas.Exactly(cas.Instant(time.Now().Add(s.rules.Ahead).UnixMicro()))
}

// Link returns the store as a process sees it.
func (s *CAS) Link(p *sim.Process) *CASLink {
	e := &casEngine{CAS: s, p: p, calls: make(map[once.Key]span)}
	e.rollbacks.trouble, e.rollbacks.unknown = make(map[once.Key]time.Time), make(map[[16]byte]bool)
	e.clock.Ask = e.ask
	options := once.Options{Logger: quiet}.Ready()
	return &CASLink{cas.Transactions[*memcas.Batch]{Store: cas.New(e, &e.clock, options), Engine: e, ClaimFirst: s.rules.ClaimFirst}, e}
}

// CASLink is a store on an engine that is called over a boundary.
type CASLink struct {
	cas.Transactions[*memcas.Batch]
	engine *casEngine
}

var (
	_ once.TxStore[*memcas.Batch] = (*CASLink)(nil)
	_ once.Lister                 = (*CASLink)(nil)
)

// Forget has nothing to do: the engine deletes what may go.
func (l *CASLink) Forget(ctx context.Context, _ int) (int, error) { return 0, ctx.Err() }

// List returns all records that a query selects.
func (l *CASLink) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	asked := time.Now()
	now, err := l.engine.clock.Now(ctx)
	if err != nil {
		return once.RecordPage{}, err
	}
	rows, err := reach(ctx, l.engine, sim.StorePoll("Query", ""), func(context.Context) ([]cas.Stored, error) { return l.engine.all(), nil })
	var page once.RecordPage
	for _, row := range rows {
		if rec := row.Record(now); cas.Selects(q, rec, now) {
			_, _ = l.told(rec, nil, asked)
			page.Records = append(page.Records, rec)
		}
	}
	return page, err
}

// all returns the rows in the order of their keys.
func (s *CAS) all() (rows []cas.Stored) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, row := range s.Rows {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b cas.Stored) int {
		x, y := a.Key.UUID(), b.Key.UUID()
		return bytes.Compare(x[:], y[:])
	})
	return rows
}

// casEngine is the engine as a process sees it.
type casEngine struct {
	*CAS
	p     *sim.Process
	clock cas.LearnedClock
	width atomic.Int64 // nanoseconds: see within

	rollbacks rollbacks

	mu    sync.Mutex
	calls map[once.Key]span // requests about a key, each as soon as the one before has ended
}

// span is when something began, and when it ended.
type span struct{ began, ended time.Time }

// asks is told that a request about a key begins, and returns when the call of the
// store began that it is part of: its lease counts from then. ends is called when
// the request has ended.
func (e *casEngine) asks(k once.Key) (began time.Time, ends func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, call := time.Now(), e.calls[k]
	if now.Sub(call.ended) > time.Millisecond {
		call.began = now
	}
	return call.began, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls[k] = span{call.began, time.Now()}
	}
}

// errGateway is the error of a request that did not reach the service.
var errGateway = errors.New("world: 403 from a gateway")

// response is what arrives at the process.
type response[T any] struct {
	value T
	err   error
	head  http.Header
}

// reach makes a request of the service, and learns its time from the response.
func reach[T any](ctx context.Context, e *casEngine, c sim.Call, apply func(context.Context) (T, error)) (value T, err error) {
	sent := time.Now()
	if e.rules.Patience > 0 {
		limited, cancel := context.WithTimeout(ctx, e.rules.Patience)
		defer cancel()
		ctx = limited
	}
	gateway := e.world.DrawNth(e.p.Name, "gateway", c.What)
	astray := gateway.Chance(e.rules.Gateway)
	r, err := sim.Cross(ctx, e.p, c, func(ctx context.Context) (r response[T], err error) {
		if astray && e.world.Happens(fmt.Sprintf("%s gateway answers %s %s", e.p.Name, c.What, c.About)) {
			return response[T]{err: errGateway, head: headerAt(e.rules.Astray, false)}, errGateway
		}
		r.value, r.err = apply(ctx)
		r.head = headerAt(e.rules.Ahead, true)
		return r, r.err
	})
	if r.head == nil { // no response
		return value, err
	}
	if at, ok := servicedate.Of(&http.Response{Header: r.head}, requestID); ok {
		e.clock.Learn(sent, at, time.Second)
		e.knows(ctx)
	}
	return r.value, r.err
}

const requestID = "X-Request-Id"

// headerAt returns the header of a response that is sent now.
func headerAt(ahead time.Duration, service bool) http.Header {
	head := http.Header{"Date": {time.Now().Add(ahead).UTC().Format(http.TimeFormat)}}
	if service {
		head.Set(requestID, "1")
	}
	return head
}

func (e *casEngine) ask(ctx context.Context) error {
	_, err := reach(ctx, e, sim.StorePoll("Ask the time", ""), func(context.Context) (struct{}, error) { return struct{}{}, nil })
	return err
}

func (e *casEngine) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	_, ends := e.asks(k)
	defer ends()
	return reach(ctx, e, sim.StoreRead("Load", sim.KeyText(k)), func(ctx context.Context) (cas.Stored, error) { return e.Table.Load(ctx, k) })
}

func (e *casEngine) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	sent := time.Now()
	began, ends := e.asks(row.Key)
	defer ends()
	c := sim.StoreWrite("Put", fmt.Sprintf("%s %s", sim.KeyText(row.Key), row.Status))
	stored, err := reach(ctx, e, c, func(ctx context.Context) (cas.Stored, error) {
		if n := len(row.Outcome.Body); e.rules.MaxValue > 0 && n > e.rules.MaxValue {
			return cas.Stored{}, fmt.Errorf("%w: %d bytes", once.ErrOutcomeRefused, n)
		}
		e.writing.Lock()
		defer e.writing.Unlock()
		was := e.row(row.Key)
		stored, err := e.Table.Put(ctx, row, over)
		if err == nil {
			e.wrote(row, was, began, sent)
		}
		return stored, err
	})
	e.rollbacks.wrote(row.Key, err)
	return stored, err
}

// row returns what is stored of a key.
func (s *CAS) row(k once.Key) cas.Stored {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Rows[k.UUID()]
}

// wrote tells the laws of a row that was written over another one. It was sent at a
// time, in a call that began at one.
func (e *casEngine) wrote(row cas.Row, was cas.Stored, began, sent time.Time) {
	over := was.Version
	if is := was.At(e.exactly()).Status; is == once.Absent && row.Status != once.Absent && e.Freed != nil {
		e.Freed(sim.KeyText(row.Key), e.world.Now())
	}
	e.leases.wrote(e.p, row, began, e.rules.Lease)
	e.ages.wrote(row, over, began, e.rules.Lease)
	e.protocol.wroteRow(e, row, over, sent)
}

// knows notes how well the process knows the time that it has just learned.
func (e *casEngine) knows(ctx context.Context) {
	now, err := e.clock.Now(ctx)
	if width := now.Changed().Time().Sub(now.Earliest().Time()); err == nil && width > e.within() {
		e.width.Store(int64(width))
	}
}

// within is the most that the process has not known of the time. Between two
// responses, which are a minute apart at most, it knows a little less.
func (e *casEngine) within() time.Duration { return time.Duration(e.width.Load()) + time.Second/10 }

// Commit sends a batch. A gateway that answers has not passed it on.
func (e *casEngine) Commit(ctx context.Context, tx *memcas.Batch) error {
	changes, err := e.Changes(tx)
	if err != nil {
		return err
	}
	keys, asked := "", time.Now()
	for _, c := range changes.All() {
		keys += sim.KeyText(c.Is.Key) + " "
	}
	c := sim.StoreWrite("Commit", keys)
	c.Unknown = once.ErrOutcomeUnknown
	_, err = reach(ctx, e, c, func(ctx context.Context) (struct{}, error) {
		e.writing.Lock()
		defer e.writing.Unlock()
		err := e.Table.Commit(ctx, tx)
		if err == nil {
			for _, c := range changes.All() {
				e.wrote(c.Is, c.Was, asked, asked)
			}
		}
		if err == nil && e.Committed != nil {
			e.Committed(tx.Effects)
		}
		return struct{}{}, err
	})
	return err
}
