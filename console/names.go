package console

import (
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
