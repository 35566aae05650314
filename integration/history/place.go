package history

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/store/storetest"
)

// place is where a kind of store keeps its records: a database, or a service.
type place struct {
	// open returns a store as another process has it. Each round has its own. If
	// claimFirst is set, its transactions claim before they call their body, if
	// collects is set as well.
	open func(claimFirst bool) (*process, error)

	// collects is set if transactions write nothing before their commit, unless they
	// claim first.
	collects bool

	// inSteps is set for SQLite: see call.
	inSteps bool

	// compares is set for SQL stores: see call.
	compares bool

	// resolution is that of the time that the service tells, if its clock is learned.
	resolution time.Duration

	// brief is how long a short lease or retention may be, and longest how long clients
	// pause at most, after which they are over.
	brief, longest time.Duration

	// beside is how many rounds run at once, because they mostly pause, and units how
	// many units of work a worker does in one.
	beside, units int

	veteran func() (*process, error) // see withVeteran

	// expire deletes what the service deletes by itself some time. It may be nil.
	expire func()
}

// process is a store as one process has it.
type process struct {
	store   once.Store
	txs     once.TxStore[tx] // the same store; nil: it has no transactions
	begin   func(context.Context) (tx, error)
	effects effects // of work that is not in a transaction

	claimsFirst bool // its transactions claim before they call their body

	line  *line  // of its client; nil: it goes without one
	close func() // may be nil

	// looked is how long the first call took, in which a clock that is learned was
	// learned.
	looked time.Duration
	since  time.Time
	place  *place
}

// tx is a transaction of any store.
type tx interface {
	// write has an effect, which is not idempotent.
	write(ctx context.Context, k once.Key, value int64) error
	commit(context.Context) error
	rollback(context.Context) error
}

// effects are those of work, in the place of its records or elsewhere.
type effects interface {
	// write has an effect, which is not idempotent.
	write(ctx context.Context, k once.Key, value int64) error
	// read returns how many effects a key has had, and the largest value.
	read(ctx context.Context, k once.Key) (n, value int64, err error)
}

// Where the store's clock decides, or processes know it well.
const (
	shortLease = 20 * time.Millisecond
	shortPause = 15 * time.Millisecond
)

// kinds have a function each that returns a new place, or skips the test.
func kinds() map[string]func(testing.TB) *place {
	all := map[string]func(testing.TB) *place{
		"redisstore":  redisPlace,
		"natsstore":   natsPlace,
		"dynamostore": dynamoPlace,
		"cosmosstore": cosmosPlace,
		"tablestore":  tablePlace,
	}
	for _, e := range engine.All() {
		all[e.Name] = func(t testing.TB) *place { return sqlPlace(t, e) }
	}
	return all
}

// onEach runs a test in parallel on each kind of store, or on those named.
func onEach(t *testing.T, test func(*testing.T, *place), only ...string) {
	t.Helper()
	for name, newPlace := range kinds() {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newPlace(t))
		})
	}
}

// process returns a process, which knows the time of the service.
func (p *place) process(ctx context.Context, claimFirst bool) (*process, error) {
	is, err := p.open(claimFirst)
	if err != nil {
		return nil, err
	}
	is.place, is.since, is.claimsFirst = p, time.Now(), claimFirst && p.collects
	if p.learns() {
		err = is.look(ctx)
		is.looked = time.Since(is.since)
	}
	return is, err
}

// processes returns those of a round, and a function that ends them. Every other
// one claims first.
func (p *place) processes(ctx context.Context, n int) (all []*process, end func(), err error) {
	end = func() {
		for _, is := range all {
			if is.close != nil {
				is.close()
			}
		}
	}
	for i := range n {
		var is *process
		if i == 0 && p.veteran != nil {
			is, err = p.veteran()
		} else {
			is, err = p.process(ctx, i%2 > 0)
		}
		if err != nil {
			end()
			return nil, nil, err
		}
		all = append(all, is)
	}
	return all, end, nil
}

// withVeteran has one process in all rounds, which has learned the time from
// responses before and after a second began, beside new ones, which know little.
// Its requests do not go wrong.
func (p *place) withVeteran(t testing.TB) *place {
	first := sync.OnceValues(func() (*process, error) {
		is, err := p.process(t.Context(), false)
		if err != nil {
			return nil, err
		}
		if is.close != nil {
			t.Cleanup(is.close)
		}
		is.line, is.close = nil, nil
		for time.Since(is.since) < p.resolution+p.resolution/10 && err == nil {
			_, err = is.store.Get(t.Context(), lookAt)
			err = errors.Join(err, wait(t.Context(), 10*time.Millisecond))
		}
		return is, err
	})
	p.veteran = first
	return p
}

// learns reports whether processes learn the clock of the service.
func (p *place) learns() bool { return p.resolution > 0 }

// lookAt is a key that nobody claims.
var lookAt = once.Key{Operation: "history", ID: "look"}

// look makes a call that asks for the time of the service.
func (p *process) look(ctx context.Context) error {
	if p.txs == nil {
		_, err := p.store.Get(ctx, lookAt)
		return err
	}
	tx, err := p.begin(ctx)
	if err == nil {
		err = p.txs.SettleTx(ctx, tx, nil)
		_ = tx.rollback(ctx)
	}
	return err
}

// blur returns the width of the interval in which the service's clock is for this
// process, at most: the time that it told was that of some moment of the first
// call, and the interval grows on both sides by a two-thousandth of the time that
// has passed, and of that of a call. Later responses only make it narrower. It is 0 for a store that has
// its clock decide.
func (p *process) blur() time.Duration {
	if !p.place.learns() {
		return 0
	}
	return p.place.resolution + p.looked + (time.Since(p.since)+callLimit)/1000
}

// faulty returns a process whose calls have the faults of a plan, and a function
// that waits until the late ones have been made.
func (p *process) faulty(plan storetest.Plan) (with *process, wait func()) {
	is := *p
	if p.txs == nil {
		faulty := storetest.Faulty(p.store, plan)
		is.store = faulty
		return &is, faulty.Wait
	}
	faulty := storetest.FaultyTx(p.txs, plan)
	is.store, is.txs = faulty, faulty
	return &is, faulty.Wait
}

// erased gives a store the transaction type tx.
type erased[T any] struct {
	once.TxStore[T]
	wrap   func(T) tx
	unwrap func(tx) T
}

// Unwrap returns the store with its own type of transaction.
func (s erased[T]) Unwrap() once.Store { return s.TxStore }

func (s erased[T]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	return s.TxStore.Transact(ctx, rs, func(of T, recs []once.Record) ([]once.Settlement, error) {
		return body(s.wrap(of), recs)
	})
}

func (s erased[T]) ClaimTx(ctx context.Context, in tx, rs []once.ClaimRequest) ([]once.Record, error) {
	return s.TxStore.ClaimTx(ctx, s.unwrap(in), rs)
}

func (s erased[T]) SettleTx(ctx context.Context, in tx, sets []once.Settlement) error {
	return s.TxStore.SettleTx(ctx, s.unwrap(in), sets)
}

// dialect is how the transactions of a store are used.
type dialect[T any] struct {
	begin            func(context.Context) (T, error)
	write            func(context.Context, T, once.Key, int64) error
	commit, rollback func(context.Context, T) error
}

// spoken is a transaction of a store.
type spoken[T any] struct {
	of T
	*dialect[T]
}

func (s spoken[T]) write(ctx context.Context, k once.Key, value int64) error {
	return s.dialect.write(ctx, s.of, k, value)
}
func (s spoken[T]) commit(ctx context.Context) error   { return s.dialect.commit(ctx, s.of) }
func (s spoken[T]) rollback(ctx context.Context) error { return s.dialect.rollback(ctx, s.of) }

// newProcess returns a process of a store with transactions.
func newProcess[T any](s once.TxStore[T], d *dialect[T], of effects) *process {
	txs := erased[T]{s, func(of T) tx { return spoken[T]{of, d} }, func(in tx) T { return in.(spoken[T]).of }}
	return &process{store: txs, txs: txs, effects: of, begin: func(ctx context.Context) (tx, error) {
		of, err := d.begin(ctx)
		return spoken[T]{of, d}, err
	}}
}
