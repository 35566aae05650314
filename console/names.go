package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
)

const (
	maxOperations = 200
	maxScopes     = 1000
	maxPairs      = 1000
	maxChoices    = 50 // scopes that a form suggests
)

// names are operations and scopes that were seen. A search tries an id with them,
// because a store finds a whole key by its index, and an id alone only by reading
// everything.
type names struct {
	mu                 sync.Mutex
	operations, scopes map[string]bool
	pairs              map[once.Key]bool // without IDs
}

func (n *names) see(k once.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.operations == nil {
		n.operations, n.scopes = make(map[string]bool), map[string]bool{"": true}
	}
	if len(n.operations) < maxOperations && k.Operation != "" {
		n.operations[k.Operation] = true
	}
	if len(n.scopes) < maxScopes {
		n.scopes[k.Scope] = true
	}
	if n.pairs == nil {
		n.pairs = make(map[once.Key]bool)
	}
	if len(n.pairs) < maxPairs && k.Operation != "" {
		n.pairs[once.Key{Scope: k.Scope, Operation: k.Operation}] = true
	}
}

// tries returns the operations with the scopes that a search for an id tries, without
// IDs: those that were seen together come first. also are further operations. A filter
// leaves only what it names, whether that was seen or not.
func (n *names) tries(f filter, also []string) (all []once.Key, operations, scopes int) {
	ops, in := n.known()
	for _, op := range also {
		if !slices.Contains(ops, op) {
			ops = append(ops, op)
		}
	}
	if f.Operation != "" {
		ops = []string{f.Operation}
	}
	if f.Scope != "" || f.NoScope {
		in = []string{f.Scope}
	} else if len(in) == 0 {
		in = []string{""}
	}
	var rest []once.Key
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, scope := range in {
		for _, op := range ops {
			if k := (once.Key{Scope: scope, Operation: op}); n.pairs[k] {
				all = append(all, k)
			} else {
				rest = append(rest, k)
			}
		}
	}
	return append(all, rest...), len(ops), len(in)
}

// beside returns up to most pairs of an operation and a scope that were seen together,
// without that of k: first its operation in other scopes, then other operations in its
// scope, and at last the others.
func (n *names) beside(k once.Key, most int) (all []once.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for pair := range n.pairs {
		if pair.Operation != k.Operation || pair.Scope != k.Scope {
			all = append(all, pair)
		}
	}
	rank := func(pair once.Key) int {
		switch {
		case pair.Operation == k.Operation:
			return 0
		case pair.Scope == k.Scope:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b once.Key) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Scope, b.Scope))
	})
	return all[:min(len(all), most)]
}

// learnFrom is the number of records from which a sample learns names.
const learnFrom = 100

// learn sees the operations and scopes of some records. The order of a list is that
// of digests, so the records after any key are as good as drawn. A store that lists
// open records only, or not in such an order, teaches less.
func (c *Console) learn(ctx context.Context, lister once.Lister) {
	for _, after := range []once.Key{{Operation: "console", ID: rand.Text()}, {}} {
		page, err := lister.List(ctx, once.RecordQuery{After: after, Limit: learnFrom})
		if err != nil {
			return // what a sample is for will say so
		}
		for _, rec := range page.Records {
			c.names.see(rec.Key)
		}
		if len(page.Records) > 0 {
			return // or else it was near the end
		}
	}
}

// plain returns those names that show all that is in them: to choose from.
func plain(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" || legible.Line(name) != name })
}

// known returns the operations and the scopes in order. The empty scope is first.
func (n *names) known() (operations, scopes []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for op := range n.operations {
		operations = append(operations, op)
	}
	for scope := range n.scopes {
		scopes = append(scopes, scope)
	}
	slices.Sort(operations)
	slices.Sort(scopes)
	return operations, scopes
}
