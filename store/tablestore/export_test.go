package tablestore

import "time"

// SettleAfter sets how old an intent without a message is when its commit is taken
// for failed. A negative time: at once.
func (s *Store) SettleAfter(d time.Duration) { s.engine.settle = d }

// WaitAtMost sets how long a call waits for a busy service.
func (s *Store) WaitAtMost(d time.Duration) { s.engine.wait = d }

// MaxPages is how many pages Forget reads.
const MaxPages = maxPages
