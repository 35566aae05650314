package pgstore

// LagOf is what a slot is to whoever watches a store.
var LagOf = lagOf

// Waiting is how many claims wait to go together.
func (s *Store) Waiting() int {
	s.claimer.mu.Lock()
	defer s.claimer.mu.Unlock()
	return len(s.claimer.waiting[0]) + len(s.claimer.waiting[1])
}

// Mute lets the bell of a store tell nobody elsewhere, so that nothing but the work itself is sent.
func (s *Store) Mute() {
	s.bell.mu.Lock()
	defer s.bell.mu.Unlock()
	s.bell.running = true
}

// Ringing reports whether the bell has a goroutine.
func (s *Store) Ringing() bool {
	s.bell.mu.Lock()
	defer s.bell.mu.Unlock()
	return s.bell.running
}
