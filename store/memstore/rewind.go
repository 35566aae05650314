package memstore

import (
	"maps"
	"slices"

	"github.com/effectively-once/once/internal/rewind"
	"github.com/effectively-once/once/store"
)

func init() { rewind.Save = func(s any) func() { return s.(*Store).save() } }

// save copies what is committed. restore takes the store back to it, once. Numbers
// are not assigned again.
func (s *Store) save() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, values, positions := maps.Clone(s.rows), maps.Clone(s.values), maps.Clone(s.positions)
	shelf, aside, leases := maps.Clone(s.shelf), maps.Clone(s.aside), s.outbox.leases
	consumers := make(map[string][]registered)
	for name, of := range s.consumers {
		consumers[name] = slices.Clone(of)
	}
	var lanes [store.Lanes][]*outgoing
	for i, lane := range s.outbox.lanes {
		for _, m := range lane {
			c := *m
			lanes[i] = append(lanes[i], &c)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restored.Add(1)
		s.rows, s.values, s.positions, s.shelf, s.aside, s.consumers = rows, values, positions, shelf, aside, consumers
		s.outbox.lanes, s.outbox.leases = lanes, leases
		clear(s.taken)
		clear(s.moving)
		clear(s.changing)
		s.outbox.ring()
	}
}
