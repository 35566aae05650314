package pgstore

// LagOf returns the lag that is reported for a slot.
var LagOf = lagOf

// Waiting returns how many claims wait for a batch.
func (s *Store) Waiting() int {
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	return len(s.batcher.waiting[0]) + len(s.batcher.waiting[1])
}

// ExpectDuplicates makes the next call take its key for a duplicate.
func (s *Store) ExpectDuplicates() {
	for _, l := range []*lossRate{&s.losses.claim, &s.losses.claimTx, &s.losses.transact} {
		l.lost.Store(allLost)
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
