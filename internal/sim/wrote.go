package sim

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// shelvedFor returns the consumers of messages that come onto the shelf, or change there.
func shelvedFor(tx *memstore.Tx, ms []store.Shelved) (all []touch) {
	for _, m := range ms {
		i := slices.IndexFunc(all, func(t touch) bool { return t.consumer == m.Consumer })
		if i < 0 {
			i, all = len(all), append(all, touch{consumer: m.Consumer, tx: tx})
		}
		if tx != nil {
			all[i].aside = append(all[i].aside, m)
		}
	}
	return all
}

// Change and ChangeMany are those of a person who works at the store itself.

func (s *Store) Change(ctx context.Context, m store.Shelved) error {
	defer s.record(nil, touch{consumer: m.Consumer})()
	return s.Store.Change(ctx, m)
}

func (s *Store) ChangeMany(ctx context.Context, ms []store.Shelved) ([]bool, error) {
	defer s.record(nil, shelvedFor(nil, ms)...)()
	return s.Store.ChangeMany(ctx, ms)
}

func (s *Store) MoveOutgoing(ctx context.Context, me [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	defer s.record(nil, outboxed(ms))()
	return s.Store.MoveOutgoing(ctx, me, ms, to)
}

func (s *Store) Sent(ctx context.Context, me [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	defer s.record(nil, outboxed(ms))()
	return s.Store.Sent(ctx, me, ms, then)
}

// Still calls do while nobody changes what is recorded.
func (s *Store) Still(do func()) {
	s.recording.Lock()
	defer s.recording.Unlock()
	do()
}

// Outboxed is a call that may have changed the messages of lanes, or their leases.
type Outboxed struct {
	Lanes []int

	Relay    [16]byte      // whose leases may have changed
	Leased   *store.Leases // the answer of a call that leases
	Released bool
	Counts   bool // Relay counted on its presence when its lanes were released
}

func outboxed(ms []store.Outgoing) touch {
	at := Outboxed{Lanes: []int{}}
	for _, m := range ms {
		lane := store.Lane(&m.Message)
		if !slices.Contains(at.Lanes, lane) {
			at.Lanes = append(at.Lanes, lane)
		}
	}
	return touch{outbox: at}
}

// orAll returns lanes, or all: nil.
func (s *Store) orAll(lanes []int) []int {
	if lanes != nil {
		return lanes
	}
	all := make([]int, store.Lanes)
	for i := range all {
		all[i] = i
	}
	return all
}

// proved is when a relay has last looked whether it is present, and found so.
type proved struct {
	p  *Process
	at time.Time
}

// presentFor is how long a relay counts on its presence after it began to look: see
// presentFor in outbox.
const presentFor = 1750 * time.Millisecond

// counts reports whether a relay counts on its presence.
func (s *Store) counts(relay [16]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, known := s.proved[relay]
	return known && !is.p.IsDead() && time.Since(is.at) < presentFor
}

func (s *Store) prove(p *Process, relay [16]byte, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proved[relay] = proved{p, at}
}
