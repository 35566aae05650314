package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/models"
)

// TestKeysFollowTheModel checks that each change of a record in a real database,
// made by Do, DoTx and InTx with faults, is one that the model key.pml makes.
// Changes of one key come one after the other here, so that each is seen: what
// happens between calls at the same time is for the other tests.
func TestKeysFollowTheModel(t *testing.T) {
	seed := proof.Seed(t)
	onEach(t, func(t *testing.T, p *place) {
		w, opened := &watch{lives: make(map[once.Key]*watchedLife)}, 0
		watched := *p
		watched.open = func(claimFirst bool) (*process, error) {
			is, err := p.open(claimFirst)
			if err != nil {
				return nil, err
			}
			opened++
			return w.over(is, fmt.Sprint("process", opened)), nil
		}
		rounds := inRounds(t, p, func(round int) error {
			b := &board{clock: newClock(), attempts: map[once.Key][]attempt{}}
			if err := workRound(t.Context(), &watched, b, seed, round); err != nil {
				return fmt.Errorf("%s=%d, round %d: %w", proof.SeedVar, seed, round, err)
			}
			return w.judge(b)
		})
		steps := slices.Sorted(maps.Keys(w.seen))
		t.Logf("%s=%d: %d rounds, %d of %d steps of the model:\n%q", proof.SeedVar, seed, rounds, len(steps), len(models.Steps()), steps)
		for _, must := range []string{"tx: holder commits, new to done", "ask: holder settles, running to done", "ask: other settles, unknown to done"} {
			if rounds > 20 && !slices.Contains(steps, must) {
				t.Errorf("no history had this step: %s", must)
			}
		}
	}, engine.SQLite, engine.Postgres, engine.PGStore)
}

// watch knows the life of each key in a database.
type watch struct {
	mu    sync.Mutex
	lives map[once.Key]*watchedLife
	wrong error
	seen  map[string]bool
}

// watchedLife is locked from a call that may change the record until it was read.
type watchedLife struct {
	sync.Mutex
	models.Life
}

func (w *watch) of(k once.Key) *watchedLife {
	w.mu.Lock()
	defer w.mu.Unlock()
	life := w.lives[k]
	if life == nil {
		life = &watchedLife{Life: models.Life{Kind: models.Ask, SettleTime: workLease}}
		if k.Operation == inside.Name {
			life.Kind = models.Tx
		}
		w.lives[k] = life
	}
	return life
}

// judge returns the first step of a round that the model does not make.
func (w *watch) judge(b *board) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = make(map[string]bool)
	}
	for k := range b.attempts {
		if life := w.lives[k]; life != nil {
			maps.Copy(w.seen, life.Seen())
		}
		delete(w.lives, k)
	}
	return w.wrong
}

// over returns a process whose changes of records are watched.
func (w *watch) over(is *process, name string) *process {
	of := *is
	s := &watchedStore{is.txs, w, name}
	of.store, of.txs = s, s
	of.begin = func(ctx context.Context) (tx, error) {
		in, err := is.begin(ctx)
		return &watchedTx{tx: in, store: s}, err
	}
	return &of
}

// watchedStore reads each record that a call may have changed.
type watchedStore struct {
	once.TxStore[tx]
	*watch
	name string
}

// ends are how long a call gives a lease, and keeps a key.
type ends struct{ lease, keep time.Duration }

// look reads a record, and judges its change. A call whose reply was lost may have
// changed it or not: the record tells.
func (s *watchedStore) look(ctx context.Context, life *watchedLife, k once.Key, e ends) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	is, err := s.TxStore.Get(ctx, k)
	w := models.Write{By: s.name, Status: is.Status, Attempt: is.Attempt, Owner: is.Owner, Updated: is.Updated,
		Lease: is.Updated, Keep: is.Updated.Add(e.keep)}
	if is.Lapsed() {
		w.Status = once.Running
	}
	if w.Status == once.Running {
		w.Lease = is.Updated.Add(e.lease)
	}
	if err == nil && !life.Is(w) {
		err = life.Next(w)
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wrong = errors.Join(s.wrong, fmt.Errorf("%v: %w", k, err))
	}
}

func (s *watchedStore) change(ctx context.Context, k once.Key, e *ends, call func() error) error {
	life := s.of(k)
	life.Lock()
	defer life.Unlock()
	err := call()
	s.look(ctx, life, k, *e)
	return err
}

func (s *watchedStore) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.change(ctx, r.Key, &ends{lease: r.Lease}, func() error {
		rec, err = s.TxStore.Claim(ctx, r)
		return err
	})
	return rec, err
}

func (s *watchedStore) Extend(ctx context.Context, f once.Fence, d time.Duration) error {
	return s.change(ctx, f.Key, &ends{lease: d}, func() error { return s.TxStore.Extend(ctx, f, d) })
}

func (s *watchedStore) Settle(ctx context.Context, set once.Settlement) error {
	return s.change(ctx, set.Key, &ends{keep: set.KeepKey}, func() error { return s.TxStore.Settle(ctx, set) })
}

// Transact is that of one key.
func (s *watchedStore) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(tx, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	e := ends{lease: rs[0].Lease}
	err = s.change(ctx, rs[0].Key, &e, func() error {
		recs, err = s.TxStore.Transact(ctx, rs, func(of tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := body(of, recs)
			for _, set := range sets {
				e.keep = set.KeepKey
			}
			return sets, err
		})
		return err
	})
	return recs, err
}

// watchedTx has a key to itself until it ends.
type watchedTx struct {
	tx
	store *watchedStore
	held  *watchedLife
	key   once.Key
	ends  ends
}

// ClaimTx does not wait for another call of the key, which may wait for this
// transaction.
func (s *watchedStore) ClaimTx(ctx context.Context, in tx, rs []once.ClaimRequest) ([]once.Record, error) {
	of := in.(*watchedTx)
	if of.held == nil {
		life := s.of(rs[0].Key)
		if !life.TryLock() {
			return nil, once.ErrConflict
		}
		of.held, of.key, of.ends = life, rs[0].Key, ends{lease: rs[0].Lease}
	}
	return s.TxStore.ClaimTx(ctx, of.tx, rs)
}

func (s *watchedStore) SettleTx(ctx context.Context, in tx, sets []once.Settlement) error {
	of := in.(*watchedTx)
	for _, set := range sets {
		of.ends.keep = set.KeepKey
	}
	return s.TxStore.SettleTx(ctx, of.tx, sets)
}

func (t *watchedTx) commit(ctx context.Context) error { return t.end(ctx, t.tx.commit(ctx)) }

func (t *watchedTx) rollback(ctx context.Context) error { return t.end(ctx, t.tx.rollback(ctx)) }

func (t *watchedTx) end(ctx context.Context, err error) error {
	if t.held != nil {
		t.store.look(ctx, t.held, t.key, t.ends)
		t.held.Unlock()
		t.held = nil
	}
	return err
}
