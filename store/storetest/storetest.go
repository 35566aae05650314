// Package storetest tests stores. Its suite checks the contract of [once.Store]
// and [once.TxStore], and each optional capability that a store has. It also
// has stores with faults.
//
// [Run] and [RunTx] are for authors of stores. Each [Case] names the rule that it
// checks. A store that passes keeps these rules in one process that opens it
// several times, on a database that stays up. The suite cannot check durability,
// because it kills nothing, and what depends on the database alone, such as a
// failover or a clock that jumps.
//
// [Faulty], [FaultyTx] and [FaultyOutbox] wrap a store so that requests or replies
// are lost, commits are late, or leases lapse. They are for tests of code that uses
// a store.
//
// Minor releases add cases, and a store that passed may then fail.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Harness connects the suite to a store without transactions.
type Harness struct {
	// Open returns a new store on the same database at each call. Like two
	// processes, two of these stores share nothing in memory. The suite opens
	// four. Keys are unique to a run, so the database need not be empty, but
	// nothing else may call Forget on it while a suite runs.
	Open func(testing.TB) once.Store

	// NoList declares that the store is not a [once.Lister]. A store that is not
	// one fails unless NoList is set.
	NoList bool

	// ListsOpen declares that the store lists only records that are Running,
	// Unknown or Parked, and one by its UUID. Other queries are ErrInvalid.
	ListsOpen bool

	// Expires declares that the engine itself drops what is past its time, so that
	// Forget may find nothing to do.
	Expires bool

	// LearnsTime declares that each opened store knows the time only up to an
	// interval, for example from the headers of responses. So a lease may have
	// lapsed for one store and not yet for another, and seem longer to some.
	LearnsTime bool

	// Damages are ways to damage stored records, one for each kind of value that
	// they have. Without them, the cases about damage are left out.
	Damages []Damage

	// Patience is how long the suite waits for something that must happen.
	// Default: 10 seconds.
	Patience time.Duration
}

// TxHarness connects the suite to a transactional store and its database.
type TxHarness[Tx any] struct {
	// Open and the next six are as in [Harness], with damages of messages too. If the store has an outbox, it
	// must be empty when the suite begins, and nothing else may put messages there
	// or lease its lanes while the suite runs.
	Open       func(testing.TB) once.TxStore[Tx]
	NoList     bool
	ListsOpen  bool
	Expires    bool
	LearnsTime bool
	Damages    []Damage
	Patience   time.Duration

	// Begin, Commit and Rollback manage a transaction of the caller.
	Begin    func(context.Context) (Tx, error)
	Commit   func(context.Context, Tx) error
	Rollback func(context.Context, Tx) error

	// Effect writes a row with a name in a transaction. Several rows may have the
	// same name.
	Effect func(ctx context.Context, tx Tx, name string) error

	// Count returns how many committed rows have a name. It reads outside any
	// transaction, and does not wait for one that is in flight.
	Count func(ctx context.Context, name string) (int, error)

	// SeesInFlight declares that a claim which meets a transaction in flight
	// returns Running with LeaseLeft 0. Without it, the claim may also wait for
	// that transaction, or fail.
	SeesInFlight bool

	// ForgetsTogether declares that Forget drops whole partitions: records past
	// their time go together with the others of their partition, and an outcome no
	// sooner than its key. So Forget may find nothing to do although some records
	// are due.
	ForgetsTogether bool

	// Slow declares an engine that takes seconds for a thousand rows. Cases that
	// need many thousands are left out.
	Slow bool

	// Batched declares that a transaction is one conditional request, which is sent
	// at its commit: until then it holds nothing that others could meet. Bodies of
	// several transactions on a key may be called at once, of which one commits.
	Batched bool

	// ClaimsFirst declares that Transact of a Batched store writes its claims before
	// it calls body, so that others meet them. After a rollback, a key that was never
	// seen is Absent, and has an attempt.
	ClaimsFirst bool

	// NoOutbox leaves out the cases of the outbox, which another harness has run: they
	// take long where each request does.
	NoOutbox bool

	// MaxMessages is how many messages PutTx takes in a transaction. 0: any number.
	MaxMessages int

	// MaxBody is how large a body PutTx takes. 0: several MiB.
	MaxBody int
}

// Case checks one rule of the contract.
type Case struct {
	Name string
	Rule string // in the words of the contract, or close to them

	check func(context.Context) error
}

// Check returns an error that says how the rule is broken, or nil. It may be
// called repeatedly. Cases may run concurrently, except for forget/bounded and
// shelf/forget, which count what is forgotten, the archive cases, during which
// nothing else may forget records, the outbox cases, which share its lanes, and
// damage/consumers and damage/registry, during which no other consumer may be
// registered.
func (c Case) Check(ctx context.Context) error { return c.check(ctx) }

// Run checks a store without transactions, including its capabilities
// [once.Lister], store.Archivable and store.Reopener. Each case is a subtest.
// The test of an adapter is short:
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

// RunTx checks a transactional store: all that [Run] checks, its transactions,
// and those of its capabilities that are for consumers and relays.
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

// Cases returns the cases of [Run], to run them in another way. It opens the
// stores.
func Cases(tb testing.TB, h Harness) []Case {
	tb.Helper()
	f := fixture{patience: h.patience(), forgetsElsewhere: h.Expires, listsOpen: h.ListsOpen, learnsTime: h.LearnsTime,
		damages: h.Damages}
	for range processes {
		f.stores = append(f.stores, h.Open(tb))
	}
	return storeCases(f, h.NoList)
}

// TxCases returns the cases of [RunTx], to run them in another way. It opens
// the stores.
func TxCases[Tx any](tb testing.TB, h TxHarness[Tx]) []Case {
	tb.Helper()
	plain := Harness{NoList: h.NoList, Patience: h.Patience}
	f := fixture{patience: plain.patience(), forgetsElsewhere: h.ForgetsTogether || h.Expires, listsOpen: h.ListsOpen,
		learnsTime: h.LearnsTime, damages: h.Damages}
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

// storeCases returns the cases in the order in which the author of a new store
// makes them pass.
func storeCases(f fixture, noList bool) []Case {
	groups := [][]rule{keyRules(), claimRules(), settleRules(), outcomeRules(), leaseRules(), takeoverRules(),
		retentionRules(), forgetRules(), raceRules(), contextRules(), doRules()}
	if !noList {
		groups = append(groups, listRules())
	}
	groups = append(groups, damageRules(f.damages, !noList))
	archives := hasCapability[store.Archivable](f.stores[0])
	reopens := hasCapability[store.Reopener](f.stores[0])
	switch {
	case archives && f.forgetsElsewhere:
		groups = append(groups, []rule{unsupportedRule()})
	case archives:
		groups = append(groups, archiveRules(), damageArchiveRules(f.damages))
	}
	if reopens {
		groups = append(groups, reopenRules())
	}
	var cases []Case
	for _, group := range groups {
		for _, r := range group {
			cases = append(cases, Case{Name: r.name, Rule: r.rule, check: func(ctx context.Context) error {
				return inCase(ctx, f, r.check)
			}})
		}
	}
	return cases
}

// fixture is shared by all cases.
type fixture struct {
	stores   []once.Store
	patience time.Duration

	forgetsElsewhere bool // Forget may find nothing to do although some records are due
	listsOpen        bool // other records cannot be listed
	learnsTime       bool // the stores do not agree on the time
	damages          []Damage
}

type rule struct {
	name, rule string
	check      func(*bench)
}
