package console

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
)

const maxOperations, maxScopes = 200, 50

// names are operations and scopes that were seen. A search tries an id with them,
// because a store finds a whole key by its index, and an id alone only by reading
// everything.
type names struct {
	mu                 sync.Mutex
	operations, scopes map[string]bool
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
