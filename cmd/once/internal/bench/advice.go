package bench

import "fmt"

// Advice is something to change, and what it changes.
type Advice struct {
	Name string // speculative, async-commit, pool-smaller, pool-larger or isolation
	Text string
}

// worth is the part of a cost that must go for an option to be worth its price.
const worth = 0.1

// Advice returns what the measurements speak for.
func (r Report) Advice() (all []Advice) {
	add := func(name, format string, args ...any) {
		all = append(all, Advice{name, fmt.Sprintf(format, args...)})
	}
	if less := r.saves(Speculative, New); less > worth {
		add("speculative", "Operation.Speculative makes DoTx %.0f %% cheaper for new keys. A duplicate may then enter the work, "+
			"whose statements are rolled back.", 100*less)
	}
	if less := r.saves(Async, Do); less > worth {
		add("async-commit", "Operation.AsyncCommit makes Do %.0f %% cheaper, where effects have idempotency keys. If the database crashes, it "+
			"may forget a claim, and the next call runs as the first.", 100*less)
	}
	all = append(all, r.pool()...)
	if r.Isolation != "" && r.Isolation != "read committed" {
		add("isolation", "default_transaction_isolation is %s: calls with the same key at the same moment end in ErrConflict and are repeated. "+
			`Set pgstore's Options.Isolation to "read committed", unless your work needs more.`, r.Isolation)
	}
	return all
}

// saves returns which part of the cost of a variant another one saves.
func (r Report) saves(with, without string) float64 {
	a, b := r.side(with), r.side(without)
	if a == nil || b == nil {
		return 0
	}
	return 1 - a.Cost/b.Cost
}

func (r Report) side(name string) *Side {
	for i := range r.Sides {
		if r.Sides[i].Name == name {
			return &r.Sides[i]
		}
	}
	return nil
}

// Where half the workers do nearly as much, more connections only wait for each
// other. Where they do hardly more than half, the end is not in sight.
const (
	enough = 1.1
	scarce = 1.6
)

// pool compares the workers with half of them.
func (r Report) pool() []Advice {
	half, bare := r.side(Half), r.side(Bare)
	if half == nil {
		return nil
	}
	switch {
	case half.Cost <= enough:
		return []Advice{{"pool-smaller", fmt.Sprintf("%d workers do nearly as much as %d: a larger pool than %d connections only adds waiting.",
			half.Workers, bare.Workers, half.Workers)}}
	case half.Cost >= scarce:
		return []Advice{{"pool-larger", fmt.Sprintf("%d workers do %.1f times as much as %d: try --workers %d, and a larger pool.",
			bare.Workers, half.Cost, half.Workers, min(2*bare.Workers, MaxWorkers))}}
	}
	return nil
}

// MaxWorkers is the most that [Options] may have.
const MaxWorkers = 256
