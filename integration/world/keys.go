package world

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/cas/memcas"
	"github.com/effectively-once/once/store/memstore"
)

// KeysPlan is a world of keys: several processes repeat the same work, at systems
// that honour keys, that can be asked, that do neither, and in transactions.
type KeysPlan struct {
	CAS       *CASRules // the store is an engine of package cas; nil: the transactional store in memory
	Keys      int       // of each kind of work
	Processes int       // that call each key
	Rounds    int       // in which each process calls each key
	Persons   int       // who decide about parked keys
	Stray     float64   // keys that are called with another input, too
	Abandoned float64   // keys that callers give up on when they are in trouble
	Fleeting  float64   // calls from a process that has just begun, and knows little of the store's time

	Speculative bool    // transactions may begin before their claim is won
	Moved       float64 // calls of a release that does in the database what was at a downstream that honours keys

	Hasty float64 // calls whose caller has no more than eight seconds

	Policy   once.Policy
	Settles  time.Duration // a call of the downstream arrives within this, or never
	ValidFor time.Duration // of keys at the downstream that honours them; 0: for ever
	Recalls  time.Duration // for how long the downstream that can be asked knows what happened, instead of one that does neither; 0: there is none
	Every    time.Duration // of reconciler and janitor
	Resumes  bool          // the reconciler finishes work, instead of asking
	Pace     float64       // records of an operation that it begins in a second; 0: any number

	Refused float64 // keys that are refused when they are first tried
	Failing float64 // keys whose work says a few times that nothing happened
	Panics  float64 // keys whose work panics once
	Slow    float64 // keys whose work takes long
	Slowest time.Duration
	Large   float64 // keys whose answer is large
	Limit   int     // the largest outcome that is recorded; 0: any of these
	Plain   bool    // answers are recorded as text, and an empty one is valid

	LookupTakes time.Duration // the longest time until a downstream that is asked has answered; 0: at once

	Drain time.Duration // the bound within which everybody has an answer after the faults
}

// shop is the store of a world of keys, whose transactions hold rows of the user.
type shop[Tx any] interface {
	open(p *sim.Process) once.TxStore[Tx]
	write(tx Tx, row string) // to be told to the book when tx commits
	records() []once.Record  // all that are stored
	record(once.Key) once.Record
	due() int // records that may be forgotten, and are not
}

// Run runs the plan in a world.
func (plan KeysPlan) Run(w *sim.World) *sim.Result {
	b := newBook(w, plan)
	if plan.CAS != nil {
		return runKeys(w, plan, b, shop[*memcas.Batch](newCASShop(w, *plan.CAS, b)))
	}
	return runKeys(w, plan, b, shop[*memstore.Tx](newMemoryShop(w, b)))
}

// options are those of each process.
func (plan KeysPlan) options() once.Options {
	return once.Options{Logger: quiet, MaxOutcome: plan.Limit}
}

// keys is a run of a KeysPlan.
type keys[Tx any] struct {
	*sim.World
	KeysPlan
	shop  shop[Tx]
	book  *book
	begun int         // goroutines when the world began
	done  atomic.Bool // nothing is left to decide
}

func runKeys[Tx any](w *sim.World, plan KeysPlan, b *book, s shop[Tx]) *sim.Result {
	k := &keys[Tx]{World: w, KeysPlan: plan, shop: s, book: b, begun: runtime.NumGoroutine()}
	for i := range k.Processes {
		w.Start(fmt.Sprint("caller", i+1), k.caller)
	}
	for i := range k.Persons {
		w.Start(fmt.Sprint("person", i+1), k.person)
	}
	w.Start("reconciler", k.reconciler)
	w.Start("janitor", func(ctx context.Context, p *sim.Process) error {
		return (&janitor.Janitor{Store: s.open(p), Every: k.Every, BatchTime: batchTime, Share: .5, Logger: quiet}).Run(ctx)
	})
	return k.finish()
}

// A janitor rests after a call for as long as that took, or half as long again, and
// after trouble for ten looks. It has three kinds of data.
const batchTime = 10 * time.Second

func (plan KeysPlan) forgets() time.Duration { return 10*plan.Every + 3*5*batchTime/2 + time.Minute }

// finish lets faults happen, calms the world, ends it, and judges what is left.
func (k *keys[Tx]) finish() *sim.Result {
	k.BeginOutages()
	time.Sleep(k.Length)
	k.Calm()
	k.drain()
	r := k.End()
	k.judgeRest()
	return r
}

var quiet = slog.New(slog.DiscardHandler)

// drain waits until everybody is answered and no key is open, and then until
// everything that may go has gone.
func (k *keys[Tx]) drain() {
	began := time.Now()
	for {
		waiting, open := k.book.waiting(), k.open()
		if waiting == "" && len(open) == 0 {
			break
		}
		if time.Since(began) > k.Drain {
			for _, r := range open {
				k.Broke(Drained, sim.KeyText(r.Key), "is %s %v after the last fault: %s", r.Status, k.Drain, r.Reason)
			}
			if waiting != "" {
				k.Broke(Drained, "callers", "%s: no answer %v after the last fault", waiting, k.Drain)
			}
			return
		}
		time.Sleep(5*time.Second + 7*time.Nanosecond)
	}
	k.done.Store(true)
	k.Tell(sim.Line{What: "DRAINED", Note: fmt.Sprint("after ", time.Since(began).Round(time.Second))})
	if k.Policy.KeepKey < time.Hour {
		time.Sleep(k.Policy.KeepKey + k.forgets())
		for _, r := range k.shop.records() {
			if k.book.wasTouched(sim.KeyText(r.Key)) { // it is kept for long
				continue
			}
			k.Broke(Forgotten, sim.KeyText(r.Key), "is %s, %v after the last call and KeepKey", r.Status, k.forgets())
		}
		if n := k.shop.due(); n > 0 {
			k.Broke(Forgotten, "store", "%d records may be forgotten, and are not", n)
		}
	}
}

// open returns the records whose work has no end.
func (k *keys[Tx]) open() (open []once.Record) {
	for _, r := range k.shop.records() {
		if r.Status == once.Running || r.Status == once.Unknown || r.Status == once.Parked {
			open = append(open, r)
		}
	}
	return open
}

// judgeRest judges what is left when all processes have ended. A call that leaves
// has a second to give its claim back.
func (k *keys[Tx]) judgeRest() {
	for _, r := range k.open() {
		if k.WasCutOff(sim.KeyText(r.Key)) {
			continue
		}
		k.Broke(NothingLeft, sim.KeyText(r.Key), "is %s, and all processes have ended", r.Status)
	}
	judgeGoroutines(k.World, k.begun)
}

// judgeGoroutines judges that no goroutine is left, of those that began in the
// world.
func judgeGoroutines(w *sim.World, begun int) {
	time.Sleep(time.Minute) // goroutines that wait for their deadlines
	if runtime.NumGoroutine() <= begun {
		return
	}
	// Others outside of the bubble, such as those that run finalizers, come and go.
	all := sim.Stacks()
	if left := strings.Count(all, ", synctest bubble ") - ownGoroutines; left > 0 {
		w.Broke(NothingLeft, "goroutines", "%d more than at the beginning:\n%s", left, all)
	}
}

// ownGoroutines are those of a bubble itself, and the one that runs the world.
const ownGoroutines = 3

// memoryShop is the store in memory.
type memoryShop struct {
	*sim.Store
	book *book
	mu   sync.Mutex
	rows map[*memstore.Tx][]string
}

func newMemoryShop(w *sim.World, b *book) *memoryShop {
	s := &memoryShop{book: b, Store: sim.NewStore(w, &memstore.Options{Options: b.options()}), rows: make(map[*memstore.Tx][]string)}
	s.Committed = func(tx *memstore.Tx) {
		s.mu.Lock()
		rows := s.rows[tx]
		delete(s.rows, tx)
		s.mu.Unlock()
		b.committed(rows)
	}
	newProtocol(w, b.lifeOf).watch(s.Store)
	newInputs(b).watch(s.Store)
	return s
}

func (s *memoryShop) open(p *sim.Process) once.TxStore[*memstore.Tx] {
	return &ownLink{s.Link(p), s.book.options().Ready()}
}

func (s *memoryShop) write(tx *memstore.Tx, row string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[tx] = append(s.rows[tx], row)
}

func (s *memoryShop) records() []once.Record {
	page, _ := s.List(context.Background(), once.RecordQuery{Limit: 1000}) // of a store in memory
	return page.Records
}

func (s *memoryShop) record(k once.Key) once.Record {
	r, _ := s.Get(context.Background(), k)
	return r
}

func (s *memoryShop) due() int {
	due, _, _ := s.Forgettable(context.Background(), 1000)
	return len(due)
}

// ownLink has options of its own, as each process has: duplicates that meet in one
// process wait for each other.
type ownLink struct {
	*sim.StoreLink
	options *once.Options
}

func (l *ownLink) Options() *once.Options { return l.options }

// casShop is a store on an engine of package cas.
type casShop struct{ *CAS }

func newCASShop(w *sim.World, rules CASRules, b *book) casShop {
	s := casShop{NewCAS(w, rules)}
	s.Committed, s.protocol, s.Freed = b.committed, newProtocol(w, b.lifeOf), b.judgeFree
	return s
}

func (s casShop) open(p *sim.Process) once.TxStore[*memcas.Batch] { return s.Link(p) }

func (casShop) write(tx *memcas.Batch, row string) { tx.Effects = append(tx.Effects, row) }

func (s casShop) records() (all []once.Record) {
	for _, row := range s.all() {
		all = append(all, row.Record(s.exactly()))
	}
	return all
}

func (s casShop) record(k once.Key) once.Record {
	row, _ := s.Load(context.Background(), k)
	return row.Record(s.exactly())
}

// due returns none: each engine deletes in its own time.
func (casShop) due() int { return 0 }
