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

// Quota bounds how many keys each scope may have in a store, so that nobody fills it by sending a new key with every
// request. It refuses new keys only: what is known is answered also where there is no room.
//
//	quota := &janitor.Quota{Store: store, Limit: janitor.Limit{Keys: 100_000}}
//	go quota.Run(ctx) // counts what is there; nothing else finds out what was forgotten
//	mux.Handle("POST /payments", httponce.Handler(store, tenantOf, payments, &httponce.Options{Admit: quota.Admit}))
//
// It counts the records of each scope, a page of the list at a time, with rests between them, and adds what it lets in
// itself: so a scope that fills up is refused at once, and one of which keys were forgotten has room after the next
// count. A record counts as long as List returns it, whatever its status; those of steps do as well.
//
// # Overshoot
//
// One process alone lets no scope have more than its limit L. What other processes let in it sees when it counts: n of
// them may let a scope have up to
//
//	(n-1) × (L - K)
//
// keys too many. K are those that it has, and had already before the oldest count began that one of them went by as it
// let in its last. That is never more than n × L in all, and nothing where one process does all the work of a scope.
// Where each lets in at most r new keys per second (see Limit.PerSecond), it is no more than (n-1) × (Burst + r × T)
// either, with T = Every and twice the time that a count takes: so long it is, at most, from the beginning of a count to
// the end of the next.
//
// A process that has not counted yet knows what it has let in by itself, and nothing else: its K is 0. So each start
// counts as one more process, unless there is a Count before the first request. A handler that leaves more records than
// that of its key, steps for example, adds those until they are counted.
//
// Until the next count it also errs on the other side: by keys that were forgotten meanwhile, by those whose clients hung
// up before they were claimed, and by those that were under way here when the count began, or came within a tenth of a
// second then, which count twice.
//
// # Cost
//
// Each process that admits counts for itself, and Share holds for each. A count lists all records, without outcomes: ten
// million of them, at 5 ms for a page of 1,000, keep a connection busy for 50 seconds, and with the default Share the
// count takes some twenty minutes. It takes 50 to 75 bytes of memory for each scope in the store, and some hundreds for
// each that has got new keys here since the last count.
//
// The fields are not changed while it is used, and it is not copied.
type Quota struct {
	// Store is whose keys are counted. It has to be a once.Lister.
	Store once.Store

	Limit   Limit                    // of every scope
	LimitOf func(scope string) Limit // in place of Limit; called for every key, by several goroutines at once

	// Operation says what is counted: only keys of this operation, as in once.RecordQuery. Default: all. Admit takes no notice
	// of it: ask only about keys of this operation then.
	Operation string

	// Every is the time between two counts, at most. Default 5 minutes.
	Every time.Duration

	// Share is the part of the time in which a count keeps the store at work, at most. Default 0.05, at most 1.
	Share float64

	Logger *slog.Logger // for trouble with the store, and refused callers; default: slog.Default()
	Stats  *QuotaStats  // counts what it does, if it is not nil

	unread   QuotaStats // where there is no Stats
	counting sync.Mutex // held by who counts
	logging  sync.Once  // sets log
	log      *slog.Logger

	mu       sync.Mutex
	last     counts // nil before the first count
	accounts map[string]*account
	open     map[once.Key]*admission
	took     time.Duration // by the last count
	next     time.Time     // when the next one is expected to end
}

// Limit is what one scope may have.
type Limit struct {
	Keys      int     // in the store at a time. 0: any number; below 0: no new ones
	PerSecond float64 // new ones, through this process, in the long run; 0: any number
	Burst     int     // new ones at once, if there is a PerSecond; default: as many as in one second, at least 1
}

// QuotaStats counts what a Quota does. The fields may be read at any time.
type QuotaStats struct {
	Counts  atomic.Int64 // how many ended: if it stands still, the store is in trouble, or Run does not run
	Keys    atomic.Int64 // in the last count
	Scopes  atomic.Int64 // in the last count
	Refused atomic.Int64 // how often there was no room for a key, known or not
}

// account is what is known of a scope that has asked for room here.
type account struct {
	counted int // by the last count, but for what is in mine
	mine    int // let in here since the last count began, or under way then
	since   int // the same of the count that is being made
	open    int // under way
	rate    bucket.Rate
	spent   bucket.Bucket
	told    bool // that it was refused, since the last count
}

// admission is a key under way. However many requests with it there are, it is one.
type admission struct {
	*account
	requests int
	kept     bool
}

// Admit asks for room for a key before it is claimed. Where wait is above 0 there is none: a new key should come back
// after that time, and a known one may go on. Else leave is called when the request is over, once, with whether its key
// may be in the store now and was not before; if not, its place is free again. A key that is under way here already takes
// no other place.
//
// It is made for the Admit in the options of httponce and grpconce, and does not touch the store.
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

// refusal is why there was no room.
type refusal struct {
	wait    time.Duration
	used    int
	counted bool // there was a count
	first   bool // of the scope since the last count
}

const soonest = 10 * time.Second // to come back, where the next count is overdue

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

// account is made when a scope asks for the first time, and goes when a count finds nothing in it.
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

// Used is how many keys a scope has, as far as is known here.
func (q *Quota) Used(scope string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.accounts[scope]; of != nil {
		return of.used()
	}
	return q.last.of(scope).all()
}

// Run counts again and again, until ctx ends, and returns nil then. Trouble with the store is logged, what was counted
// last still holds, and the count goes on where it was. An error means that the Quota is set up wrong: its text says
// what to do.
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

// Count counts once, with the rests of Run: see what it costs. The error is the store's, that of ctx, or says that the
// Quota is set up wrong; what was counted last still holds then.
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
