package world

import (
	"context"
	"strings"
	"sync"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// isPerson reports whether a process is a person's. Who works at the store itself is
// one.
func isPerson(p *sim.Process) bool {
	return p == nil || strings.HasPrefix(p.Name, "person") || strings.HasPrefix(p.Name, "operator")
}

// watchPositions judges that each change of a position, and of the shelf beside it,
// is one that the model positions.pml makes. See models.Position for what it does not
// look at.
func (m *mail) watchPositions() {
	if !m.Shape.Position || m.Fleet.FailsOver { // the model loses nothing
		return
	}
	var mu sync.Mutex
	all := make(map[string]*models.Position) // by consumer
	m.store.Wrote = func(p *sim.Process, consumer string, tx *memstore.Tx, aside []store.Shelved) {
		if !strings.HasPrefix(consumer, ledgerName+"-") {
			return
		}
		held := models.Held{Person: isPerson(p), Aside: aside, Effects: m.ledger.effectsIn(tx, ledgerName)}
		if p != nil {
			held.By = p.Name
		}
		var err error
		if held.Places, err = m.store.Positions(context.Background(), consumer); err != nil {
			return // it is closed
		}
		held.Shelf = m.wholeShelf(consumer)
		mu.Lock()
		defer mu.Unlock()
		if all[consumer] == nil {
			all[consumer] = models.NewPosition(m.Shape.Keyed)
		}
		if err := all[consumer].Next(held); err != nil {
			m.Broke(Protocol, consumer, "%s: %v", held.By, err)
		}
	}
}

// wholeShelf returns the shelf of a consumer.
func (m *mail) wholeShelf(consumer string) (all []store.Shelved) {
	q := store.ShelfQuery{Consumer: consumer, Limit: 1000,
		States: []store.ShelfState{store.Waiting, store.Parked, store.Handled, store.Discarded}}
	for {
		page, err := m.store.Shelved(context.Background(), q)
		if all = append(all, page...); err != nil || len(page) < q.Limit {
			return all
		}
		q.After = page[len(page)-1].Seq
	}
}

// effectsIn returns the messages that have their effects at a consumer in a
// transaction, before the ledger is told that it was committed.
func (l *ledger) effectsIn(tx *memstore.Tx, consumer string) (ms []broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.pending[tx] {
		if f.consumer == consumer {
			ms = append(ms, broker.Message{ID: f.id, OrderingKey: l.letters[f.id].key})
		}
	}
	return ms
}
