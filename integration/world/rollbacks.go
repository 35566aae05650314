package world

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/cas/memcas"
)

// rollbacks judges what a transaction that failed leaves: its claim is taken back
// before its caller is told, if the engine answers, and its caller is told soon, even
// if it does not.
type rollbacks struct {
	mu      sync.Mutex
	trouble map[once.Key]time.Time // when a write of this process was last not answered
	unknown map[[16]byte]bool      // owners of a commit that was not answered
}

// wrote is told how a write about a key ended.
func (r *rollbacks) wrote(k once.Key, err error) {
	if err == nil || errors.Is(err, cas.ErrStale) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble[k] = time.Now()
}

// lost is told of a commit that was not answered.
func (r *rollbacks) lost(rs []once.ClaimRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range rs {
		r.unknown[of.Owner] = true
	}
}

// answered reports whether all writes about the key of a request since a time were
// answered, and all commits of its owner.
func (r *rollbacks) answered(of once.ClaimRequest, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble[of.Key].Before(since) && !r.unknown[of.Owner]
}

// silence is how long a transaction that failed may still wait for an engine that
// does not answer.
const silence = 15 * time.Second

// Transact has what it leaves judged.
func (l *CASLink) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memcas.Batch, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	began, failed, won := time.Now(), time.Time{}, false
	noted := func(tx *memcas.Batch, recs []once.Record) (sets []once.Settlement, err error) {
		won = true
		if sets, err = body(tx, recs); err != nil {
			failed = time.Now()
		}
		return sets, err
	}
	recs, err := l.Transactions.Transact(ctx, rs, noted)
	if errors.Is(err, once.ErrOutcomeUnknown) {
		l.engine.rollbacks.lost(rs)
	}
	if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || !won {
		return recs, err
	}
	for _, r := range rs {
		l.judgeRollback(r, began)
	}
	e, took := l.engine, time.Since(failed)
	if !failed.IsZero() && took > silence && e.world.StallsOf(e.p.Name, began.Add(-e.world.Stall), time.Now()) == 0 {
		e.world.Broke(Returns, sim.KeyText(rs[0].Key), "%s was told %v after its work failed: %v", e.p.Name, took, err)
	}
	return recs, err
}

// judgeRollback judges that a transaction that failed has no claim, unless an earlier
// one of its owner may have left one: its reply was lost, or that of its commit.
func (l *CASLink) judgeRollback(r once.ClaimRequest, began time.Time) {
	e := l.engine
	if !e.rollbacks.answered(r, began.Add(-e.rules.Lease-time.Minute)) {
		return
	}
	if row := e.row(r.Key); row.Status == once.Running && row.Owner == r.Owner {
		e.world.Broke(RolledBack, sim.KeyText(r.Key), "%s still has it claimed, and its transaction was rolled back", e.p.Name)
	}
}
