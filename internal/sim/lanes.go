package sim

import (
	"time"

	"github.com/effectively-once/once/store"
)

// LaneHold says which process has a lane of the outbox.
type LaneHold struct {
	Who   string    // empty: nobody
	Since time.Time // when it took the lane, under the ID that it has now
	Until time.Time // when its lease lapses

	relay [16]byte
}

// LaneHeldBy returns who has a lane now.
func (s *Store) LaneHeldBy(lane int) LaneHold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.lanes[lane]; time.Now().Before(at.Until) {
		return at
	}
	return LaneHold{}
}

// leased notes the leases as they are now. Its caller has the turn.
func (s *Store) leased(p *Process, me [16]byte, leases store.Leases) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relays[me] = p.Name
	now := time.Now()
	for i, lane := range leases.Lanes {
		at := &s.lanes[i]
		if lane.Relay != at.relay || !now.Before(at.Until) {
			*at = LaneHold{Who: s.relays[lane.Relay], Since: now, relay: lane.Relay}
		}
		at.Until = now.Add(lane.Left)
	}
}

// released notes that a relay has given up lanes, or all: nil. Its caller has the
// turn.
func (s *Store) released(me [16]byte, lanes []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lanes == nil {
		for i := range s.lanes {
			lanes = append(lanes, i)
		}
	}
	for _, i := range lanes {
		if s.lanes[i].relay == me {
			s.lanes[i] = LaneHold{}
		}
	}
}
