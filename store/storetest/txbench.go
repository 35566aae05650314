package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// txBench is a bench with transactions.
type txBench[Tx any] struct {
	*bench
	txStores []once.TxStore[Tx] // the same stores
	txStore  once.TxStore[Tx]
	h        TxHarness[Tx]
}

type txFixture[Tx any] struct {
	fixture
	stores  []once.TxStore[Tx]
	harness TxHarness[Tx]
}

type txRule[Tx any] struct {
	name, rule string
	check      func(*txBench[Tx])
}

func transactionCases[Tx any](f txFixture[Tx]) []Case {
	var cases []Case
	groups := [][]txRule[Tx]{transactRules[Tx](), speculativeRules[Tx](), flightRules[Tx](f.harness.Batched), callerTxRules[Tx](), doTxRules[Tx]()}
	for _, group := range append(groups, consumerRules(f.stores[0], f.harness)...) {
		for _, r := range group {
			cases = append(cases, Case{Name: r.name, Rule: r.rule, check: func(ctx context.Context) error {
				return inCase(ctx, f.fixture, func(b *bench) {
					r.check(&txBench[Tx]{bench: b, txStores: f.stores, txStore: f.stores[0], h: f.harness})
				})
			}})
		}
	}
	return cases
}

// consumerRules returns the rules of the capabilities for consumers and relays
// that a store has.
func consumerRules[Tx any](s once.TxStore[Tx], h TxHarness[Tx]) (groups [][]txRule[Tx]) {
	hasRegistry := hasCapability[store.Registry](s)
	hasPositions := hasCapability[store.Positions[Tx]](s)
	hasTxShelf := hasCapability[store.TxShelf[Tx]](s)
	if hasRegistry {
		groups = append(groups, registryRules[Tx](), damageRegistryRules[Tx](h.Damages))
	}
	if hasCapability[store.RegistryEditor](s) {
		groups = append(groups, registryEditRules[Tx]())
	}
	if hasPositions {
		groups = append(groups, positionRules[Tx](h.Batched), damagePositionRules[Tx](h.Damages))
	}
	if hasCapability[store.Shelf](s) {
		groups = append(groups, shelfRules[Tx](), shelfQueryRules[Tx](), damageShelfRules[Tx](h.Damages))
	}
	if hasTxShelf {
		groups = append(groups, txShelfRules[Tx]())
	}
	if hasPositions && hasTxShelf {
		groups = append(groups, shelfFlagRules[Tx]())
	}
	if hasCapability[store.Outbox[Tx]](s) && !h.NoOutbox {
		groups = append(groups, outboxRules(s, h.Damages)...)
	}
	return groups
}

func (b *txBench[Tx]) txSpread(i int) once.TxStore[Tx] { return b.txStores[i%len(b.txStores)] }

// name returns the name of an effect that no other case uses.
func (b *txBench[Tx]) name(effect string) string { return b.run + "-" + effect }

// effect writes a row. It returns its error for a body to return.
func (b *txBench[Tx]) effect(tx Tx, effect string) error { return b.h.Effect(b, tx, b.name(effect)) }

func (b *txBench[Tx]) wantEffects(effect string, want int) {
	n, err := b.h.Count(b, b.name(effect))
	b.must("Count", err)
	if n != want {
		b.failf("%d rows of %q are committed, want %d", n, effect, want)
	}
}

type body[Tx any] = func(Tx, []once.Record) ([]once.Settlement, error)

// completing returns a body that writes a row and settles each claim of the
// owner as Done.
func (b *txBench[Tx]) completing(effect string, owner [16]byte) body[Tx] {
	return func(tx Tx, recs []once.Record) (sets []once.Settlement, err error) {
		for _, rec := range recs {
			if rec.Status == once.Running && rec.Owner == owner {
				sets = append(sets, done(fenceOf(rec)))
			}
		}
		return sets, b.effect(tx, effect)
	}
}

// neverRuns is a body that must not be called.
func (b *txBench[Tx]) neverRuns(Tx, []once.Record) ([]once.Settlement, error) {
	return nil, errRan
}

var errRan = errors.New("the body was called, and none of the claims was the caller's")

// transact calls Transact, which must succeed.
func (b *txBench[Tx]) transact(r once.ClaimRequest, do body[Tx]) once.Record {
	recs, err := b.txStore.Transact(b, []once.ClaimRequest{r}, do)
	b.must("Transact", err)
	if len(recs) != 1 {
		b.failf("Transact of one request returned %d records", len(recs))
	}
	return recs[0]
}

// inTx runs a transaction of the caller and ends it.
func (b *txBench[Tx]) inTx(commit bool, do func(Tx)) {
	tx, err := b.h.Begin(b)
	b.must("Begin", err)
	ended := false
	defer func() {
		if !ended {
			_ = b.h.Rollback(context.WithoutCancel(b), tx)
		}
	}()
	do(tx)
	ended = true
	if commit {
		b.must("Commit", b.h.Commit(b, tx))
	} else {
		b.must("Rollback", b.h.Rollback(b, tx))
	}
}

// claimTx claims one key in a transaction of the caller.
func (b *txBench[Tx]) claimTx(tx Tx, r once.ClaimRequest) once.Record {
	recs, err := b.txStore.ClaimTx(b, tx, []once.ClaimRequest{r})
	b.must("ClaimTx", err)
	if len(recs) != 1 {
		b.failf("ClaimTx of one request returned %d records", len(recs))
	}
	return recs[0]
}

// flight is a Transact that another goroutine holds open.
type flight struct {
	decide chan error
	ended  chan error
}

// takeOff begins a transaction that claims r and writes a row, and returns
// while it is in flight.
func (b *txBench[Tx]) takeOff(r once.ClaimRequest, effect string) *flight {
	f, up := &flight{make(chan error, 1), make(chan error, 1)}, make(chan struct{})
	go func() {
		_, err := b.txStore.Transact(b, []once.ClaimRequest{r}, func(tx Tx, recs []once.Record) ([]once.Settlement, error) {
			if err := b.effect(tx, effect); err != nil {
				return nil, err
			}
			close(up)
			select {
			case err := <-f.decide:
				return []once.Settlement{done(fenceOf(recs[0]))}, err
			case <-b.Done(): // the case has failed
				return nil, b.Err()
			}
		})
		f.ended <- err
	}()
	select {
	case <-up:
	case err := <-f.ended:
		b.failf("a Transact that must succeed ended with %v", err)
	}
	return f
}

// land ends the transaction: it commits if err is nil.
func (f *flight) land(err error) error {
	f.decide <- err
	return <-f.ended
}

// inFlightWait is how long a claim may wait for a transaction in flight.
const inFlightWait = time.Second

// meets checks the result of a claim that meets a transaction in flight.
func (b *txBench[Tx]) meets(doing string, r once.ClaimRequest, rec once.Record, err error) {
	switch {
	case err == nil && (rec.Status != once.Running || rec.LeaseLeft != 0 || rec.Owner == r.Owner):
		b.failf("%s that meets a transaction in flight returned %s, want Running with LeaseLeft 0", doing, show(rec))
	case errors.Is(err, errRan):
		b.failf("%s that meets a transaction in flight: %v", doing, err)
	case err != nil && b.h.SeesInFlight:
		b.failf("%s that meets a transaction in flight returned the error %v, want Running with LeaseLeft 0", doing, err)
	}
}

// ways returns the ways to claim a key, in another process than that of the
// transaction in flight.
func (b *txBench[Tx]) ways() map[string]func(context.Context, once.ClaimRequest) (once.Record, error) {
	one := func(recs []once.Record, err error) (once.Record, error) {
		if err == nil && len(recs) != 1 {
			err = fmt.Errorf("one request was answered with %d records", len(recs))
		}
		if err != nil {
			return once.Record{}, err
		}
		return recs[0], nil
	}
	other := b.txStores[1]
	return map[string]func(context.Context, once.ClaimRequest) (once.Record, error){
		"Claim": other.Claim,
		"Transact": func(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
			return one(other.Transact(ctx, []once.ClaimRequest{r}, b.neverRuns))
		},
		"ClaimTx": func(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
			tx, err := b.h.Begin(ctx)
			if err != nil {
				return once.Record{}, err
			}
			defer func() { _ = b.h.Rollback(context.WithoutCancel(ctx), tx) }() // it may already be broken
			return one(other.ClaimTx(ctx, tx, []once.ClaimRequest{r}))
		},
	}
}
