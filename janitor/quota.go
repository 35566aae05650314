package janitor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/bucket"
	"github.com/effectively-once/once/internal/logs"
)

// Quota bounds how many keys each scope may have in a store, so that nobody
// fills it by sending a new key with every request. It refuses new keys only.
// Known keys are answered even if there is no room.
//
//	quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 100_000}}
//	go quota.Run(ctx) // counts the keys; nothing else learns which were forgotten
//	mux.Handle("POST /payments", httponce.Handler(store, tenantOf, payments, &httponce.Options{Admit: quota.Admit}))
//
// It counts the records of each scope, one page of the list at a time with
// pauses between them, and adds the keys that it admits itself. A scope that
// fills up is refused at once, and has room again after a count that follows
// the forgetting of its keys. A record counts as long as List returns it,
// whatever its status. Records of steps count too.
//
// # Overshoot
//
// One process alone admits no more than the limit L of a scope. It learns only
// by counting what other processes admitted. Then n processes may admit up to
//
//	(n-1) × (L - K)
//
// keys too many. K is the number of keys that the scope had before the counts
// began by which these processes made their last admission, taking the oldest
// of those counts. The total is never more than n × L, and there is no overshoot
// if one process does all the work of a scope. If each process admits at most r new keys per second (see
// Limit.PerSecond), the overshoot is also at most (n-1) × (Burst + r × T),
// where T is Every plus twice the duration of a count: the maximum time from
// the beginning of one count to the end of the next.
//
// A process that has not counted yet knows only what it has admitted itself:
// its K is 0. Therefore each start counts as one more process, unless Count
// runs before the first request. If a handler leaves more records than that of
// its key, for example those of steps, they add to the overshoot until they are
// counted.
//
// Until the next count, a Quota also counts some keys too many: keys that were
// forgotten meanwhile, keys whose clients disconnected before they were
// claimed, and, twice, keys that were in progress here when the count began or
// that came within a tenth of a second of it.
//
// # Cost
//
// Each process that admits keys counts for itself, and Share bounds each of
// them. A count lists all records, without outcomes. For ten million records at
// 5 ms for a page of 1,000, it keeps a connection busy for 50 seconds, and
// takes about twenty minutes with the default Share. It takes 50 to 75 bytes of
// memory for each scope in the store, and some hundred bytes for each scope
// that has received new keys here since the latest count.
//
// Do not change the fields while a Quota is in use, and do not copy it.
type Quota struct {
	// Store is the store whose keys are counted. It must be a once.Lister.
	Store once.Store

	Limit   Limit                    // of every scope
	LimitOf func(scope string) Limit // replaces Limit; called concurrently, for every key

	// Operation restricts the count to keys of this operation, as in
	// once.RecordQuery. Default: all keys. Admit ignores it: call Admit only
	// for keys of this operation then.
	Operation string

	// Every is the maximum time between two counts. Default: 5 minutes.
	Every time.Duration

	// Share is the maximum part of the time in which a count keeps the store at
	// work. Default: 0.05, at most 1.
	Share float64

	Logger *slog.Logger // failures of the store, and refused scopes; default: slog.Default()
	Stats  *QuotaStats  // counts what the Quota does, if not nil

	unread   QuotaStats // used if Stats is nil
	counting sync.Mutex // held while counting
	logging  sync.Once  // sets log
	log      *slog.Logger

	mu       sync.Mutex
	last     counts // nil before the first count
	accounts map[string]*account
	open     map[once.Key]*admission
	took     time.Duration // by the last count
	next     time.Time     // when the next one is expected to end
}

// Limit bounds one scope.
type Limit struct {
	Keys      int     // in the store at a time; 0: any number; below 0: no new keys
	PerSecond float64 // new keys through this process, in the long run; 0: any number
	Burst     int     // new keys at once, if PerSecond is set; default: as many as in one second, at least 1
}

// QuotaStats counts what a Quota does. The fields may be read at any time.
type QuotaStats struct {
	Counts  atomic.Int64 // counts that ended; if it does not rise, the store fails, or Run is not running
	Keys    atomic.Int64 // in the last count
	Scopes  atomic.Int64 // in the last count
	Refused atomic.Int64 // how often there was no room for a key, known or new
}

// account is the state of a scope that has asked for room here.
type account struct {
	counted int // by the latest count, without those in mine
	mine    int // admitted here since the latest count began, or in progress then
	since   int // the same for the count in progress
	open    int // in progress
	rate    bucket.Rate
	spent   bucket.Bucket
	told    bool // the refusal was logged since the latest count
}

// admission is a key in progress, which may have several requests.
type admission struct {
	*account
	requests int
	kept     bool
}

// Admit asks for room for a key before it is claimed. If wait is above 0, there
// is none: a new key should come back after that time, and a known one may
// continue. Otherwise call leave once, when the request is over. Its argument
// says whether the key may be in the store now and was not before; if not, its
// place is free again. A key that is already in progress here takes no second
// place.
//
// Admit is made for Options.Admit of httponce and grpconce. It does not call
// the store.
func (q *Quota) Admit(key once.Key) (leave func(kept bool), wait time.Duration) {
	limit := q.limitOf(key.Scope)
	a, refused := q.enter(key, limit, time.Now())
	if a != nil {
		return func(kept bool) { q.leave(key, a, kept) }, 0
	}
	q.stats().Refused.Add(1)
	if refused.first {
		q.logger().Info("janitor: new keys of a scope are refused", "scope", key.Scope, "keys", refused.used,
			"limit", limit.Keys, "per_second", limit.PerSecond, "counted", refused.counted)
	}
	return nil, refused.wait
}

func (q *Quota) limitOf(scope string) Limit {
	if q.LimitOf != nil {
		return q.LimitOf(scope)
	}
	return q.Limit
}

// refusal says why there was no room.
type refusal struct {
	wait    time.Duration
	used    int
	counted bool // there was a count
	first   bool // of the scope since the last count
}

const soonest = 10 * time.Second // to come back, if the next count is overdue

func (q *Quota) enter(key once.Key, l Limit, now time.Time) (*admission, refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.open[key]; a != nil {
		a.requests++
		return a, refusal{}
	}
	of, wait := q.account(key.Scope), time.Duration(0)
	of.rate = bucket.Rate{PerSecond: l.PerSecond, Burst: l.Burst}
	if l.Keys != 0 && of.used() >= l.Keys {
		wait = max(q.next.Sub(now), soonest)
	} else {
		wait = of.spent.Take(of.rate, now)
	}
	if wait > 0 {
		told := of.told
		of.told = true
		return nil, refusal{wait, of.used(), q.last != nil, !told}
	}
	of.mine++
	of.since++
	of.open++
	a := &admission{account: of, requests: 1}
	q.open[key] = a
	return a, refusal{}
}

func (q *Quota) leave(key once.Key, a *admission, kept bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a.kept = a.kept || kept
	if a.requests--; a.requests > 0 {
		return
	}
	delete(q.open, key)
	a.open--
	if !a.kept {
		a.mine--
		a.since--
		a.spent.Return()
	}
}

// account returns the account of a scope. It is made when the scope asks for
// the first time, and removed when a count finds nothing in it.
func (q *Quota) account(scope string) *account {
	if q.accounts == nil {
		q.accounts, q.open = make(map[string]*account), make(map[once.Key]*admission)
	}
	of := q.accounts[scope]
	if of == nil {
		of = &account{counted: q.last.of(scope).all()}
		q.accounts[scope] = of
	}
	return of
}

func (a *account) used() int { return a.counted + a.mine }

// Used returns how many keys a scope has, as far as is known here.
func (q *Quota) Used(scope string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.accounts[scope]; of != nil {
		return of.used()
	}
	return q.last.of(scope).all()
}

// Run counts repeatedly until ctx ends, and then returns nil. If the store
// fails, it logs that, keeps the latest count, and continues the current one
// where it was. It returns an error only if the Quota is configured wrongly.
// The error says what to change.
func (q *Quota) Run(ctx context.Context) error {
	c, err := q.newCounter()
	if err != nil {
		return err
	}
	defer q.counting.Unlock()
	wait := backoff.Backoff{First: c.every, Limit: c.every}
	for ctx.Err() == nil {
		err := c.count(ctx, c.untilItWorks)
		if errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		_ = backoff.Sleep(ctx, wait.Next())
	}
	return nil
}

// Count counts once, with the pauses of Run: see the section on cost. It
// returns the error of the store or of ctx, or says that the Quota is
// configured wrongly. Then the latest count still holds.
func (q *Quota) Count(ctx context.Context) error {
	c, err := q.newCounter()
	if err != nil {
		return err
	}
	defer q.counting.Unlock()
	return c.count(ctx, c.page)
}

func (q *Quota) logger() *slog.Logger {
	q.logging.Do(func() { q.log = logs.Of(q.Logger) })
	return q.log
}

func (q *Quota) stats() *QuotaStats { return cmp.Or(q.Stats, &q.unread) }
