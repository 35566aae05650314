// Package storetest checks that a store keeps the contract of [once.Store], [once.TxStore] and [once.Lister], and those
// of store.Registry, store.Positions, store.TxShelf, store.Outbox, store.Bell, store.Archivable and store.Reopener that
// it has, and ships stores that misbehave on purpose.
//
// [Run] and [RunTx] are the suite for the author of an adapter. Every [Case] names the rule that it checks.
// A store that passes has shown these rules for one process that opens it several times, on a database that
// stays up. What the suite cannot show is durability (nothing is killed here) and what depends on the database
// alone, such as a failover or a clock that jumps.
//
// [Faulty], [FaultyTx] and [FaultyOutbox] wrap a store so that requests or replies are lost, commits are late and
// leases break. They are for tests of whatever stands on a store.
//
// Cases are added in minor releases: a store that passed may then be found to break a rule that it always broke.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Harness is how the suite gets at a store that has no transactions.
type Harness struct {
	// Open returns another store on the same database at each call: two of them share nothing in memory,
	// as two processes do. The suite opens four. Keys are unique to a run, so the database need not be empty;
	// but while a suite runs nobody else may call Forget on it.
	Open func(testing.TB) once.Store

	// NoList declares that the store is not a [once.Lister]. Undeclared, it is a failure if it is not.
	NoList bool

	// Patience is how long the suite waits for something that must happen. Default 10 seconds.
	Patience time.Duration
}

// TxHarness is how the suite gets at a transactional store and its database.
type TxHarness[Tx any] struct {
	// Open, NoList and Patience are as in [Harness]. But an outbox is empty when the suite begins, and nobody else puts
	// anything there, or leases its lanes, while the suite runs.
	Open     func(testing.TB) once.TxStore[Tx]
	NoList   bool
	Patience time.Duration

	// Begin, Commit and Rollback handle a transaction of the caller's own.
	Begin    func(context.Context) (Tx, error)
	Commit   func(context.Context, Tx) error
	Rollback func(context.Context, Tx) error

	// Effect writes a row of that name within a transaction; more of one name are allowed.
	Effect func(ctx context.Context, tx Tx, name string) error

	// Count tells how many rows of a name are committed, read outside any transaction.
	Count func(ctx context.Context, name string) (int, error)

	// SeesInFlight declares that a claim which meets a transaction in flight returns Running with LeaseLeft 0.
	// Undeclared, it may wait for that transaction as well, or fail because of it.
	SeesInFlight bool

	// ForgetsTogether declares that Forget drops records by the partition: those that are past their time go when all that
	// came with them can, an outcome no sooner than its key. So a Forget may find nothing to do although some are due.
	ForgetsTogether bool

	// Slow declares an engine that takes seconds for a thousand rows: cases that need many thousands are left out.
	Slow bool
}

// Case checks one rule of the contract.
type Case struct {
	Name string
	Rule string // in the words of the contract, or close to them

	check func(context.Context) error
}

// Check reports how the rule is broken, or nil. It may be called repeatedly. Cases may run at once, except for
// forget/bounded and shelf/forget, which count what is forgotten, those of archive, which nobody else may forget
// anything of, and those of outbox, which share its lanes.
func (c Case) Check(ctx context.Context) error { return c.check(ctx) }

// Run checks a store without transactions, and as far as it is one a store.Archivable and a store.Reopener. Each case is
// a subtest. A test of an adapter is no more than
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open: func(tb testing.TB) once.Store { return redisstore.New(connect(tb)) },
//		})
//	}
func Run(t *testing.T, h Harness) {
	t.Helper()
	runCases(t, Cases(t, h))
}

// RunTx checks a transactional store: all that [Run] checks, and its transactions, and what it keeps for consumers and
// relays, as far as it is a store.Registry, a store.Positions, a store.TxShelf, a store.Outbox and a store.Bell.
func RunTx[Tx any](t *testing.T, h TxHarness[Tx]) {
	t.Helper()
	runCases(t, TxCases(t, h))
}

func runCases(t *testing.T, cases []Case) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t.Context()); err != nil {
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			}
		})
	}
}

// Cases are the cases of [Run], for those who run them in another way. It opens the stores.
func Cases(tb testing.TB, h Harness) []Case {
	tb.Helper()
	f := fixture{patience: h.patience()}
	for range processes {
		f.stores = append(f.stores, h.Open(tb))
	}
	return storeCases(f, h.NoList)
}

// TxCases are the cases of [RunTx], for those who run them in another way. It opens the stores.
func TxCases[Tx any](tb testing.TB, h TxHarness[Tx]) []Case {
	tb.Helper()
	plain := Harness{NoList: h.NoList, Patience: h.Patience}
	f := fixture{patience: plain.patience(), forgetsTogether: h.ForgetsTogether}
	var txStores []once.TxStore[Tx]
	for range processes {
		s := h.Open(tb)
		f.stores, txStores = append(f.stores, s), append(txStores, s)
	}
	return append(storeCases(f, h.NoList), transactionCases(txFixture[Tx]{fixture: f, stores: txStores, harness: h})...)
}

const processes = 4

func (h Harness) patience() time.Duration {
	if h.Patience <= 0 {
		return 10 * time.Second
	}
	return h.Patience
}

// storeCases are in the order in which the author of a new store wants to see them pass.
func storeCases(f fixture, noList bool) []Case {
	groups := [][]rule{keyRules(), claimRules(), settleRules(), outcomeRules(), leaseRules(), takeoverRules(),
		retentionRules(), forgetRules(), raceRules(), contextRules(), doRules()}
	if !noList {
		groups = append(groups, listRules())
	}
	_, archives := f.stores[0].(store.Archivable)
	_, reopens := f.stores[0].(store.Reopener)
	switch {
	case archives && f.forgetsTogether:
		groups = append(groups, []rule{unsupportedRule()})
	case archives:
		groups = append(groups, archiveRules())
	}
	if reopens {
		groups = append(groups, reopenRules())
	}
	var cases []Case
	for _, group := range groups {
		for _, r := range group {
			cases = append(cases, Case{Name: r.name, Rule: r.rule, check: func(ctx context.Context) error {
				return inCase(ctx, f.patience, func(b *bench) {
					b.stores, b.store, b.forgetsTogether = f.stores, f.stores[0], f.forgetsTogether
					r.check(b)
				})
			}})
		}
	}
	return cases
}

// fixture is what all cases share.
type fixture struct {
	stores   []once.Store
	patience time.Duration

	forgetsTogether bool
}

type rule struct {
	name, rule string
	check      func(*bench)
}
