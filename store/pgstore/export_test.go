package pgstore

import "github.com/effectively-once/once/internal/lossrate"

// LagOf returns the lag that is reported for a slot.
var LagOf = lagOf

// Waiting returns how many claims wait for a batch.
func (s *Store) Waiting() int {
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	return len(s.batcher.waiting[0]) + len(s.batcher.waiting[1])
}

// Expect makes the next call take its key for a duplicate, or for a new one.
func (s *Store) Expect(duplicate bool) {
	for _, l := range []*lossrate.Rate{&s.losses.claim, &s.losses.claimTx, &s.losses.transact} {
		l.Expect(duplicate)
	}
}

// Mute stops NOTIFY, so that nothing but the work itself is sent.
func (s *Store) Mute() {
	s.notifier.mu.Lock()
	defer s.notifier.mu.Unlock()
	s.notifier.running = true
}

// Notifying reports whether a goroutine sends NOTIFY.
func (s *Store) Notifying() bool {
	s.notifier.mu.Lock()
	defer s.notifier.mu.Unlock()
	return s.notifier.running
}
