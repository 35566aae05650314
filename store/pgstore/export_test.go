package pgstore

// Waiting is how many claims wait to go together.
func (s *Store) Waiting() int {
	s.claimer.mu.Lock()
	defer s.claimer.mu.Unlock()
	return len(s.claimer.waiting[0]) + len(s.claimer.waiting[1])
}
