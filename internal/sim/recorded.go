package sim

import (
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/memstore"
)

// touch is a key whose record a call may change, and for how long a settlement
// keeps the key.
type touch struct {
	key  once.Key
	keep time.Duration
}

func claimed(rs []once.ClaimRequest) (all []touch) {
	for _, r := range rs {
		all = append(all, touch{key: r.Key})
	}
	return all
}

func settled(sets []once.Settlement) (all []touch) {
	for _, s := range sets {
		all = append(all, touch{s.Key, s.KeepKey})
	}
	return all
}

// record is called before a call changes records, and returns what is to be called
// after it.
func (l *StoreLink) record(all ...touch) (end func()) {
	s := l.shared
	s.recording.Lock()
	return func() {
		defer s.recording.Unlock()
		if s.Recorded == nil {
			return
		}
		for _, t := range all {
			s.Recorded(l.p, t.key, t.keep)
		}
	}
}

// touch notes keys whose records a transaction changes when it commits.
func (s *Store) touch(tx *memstore.Tx, all ...touch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range all {
		known := false
		for i, other := range s.touched[tx] {
			if other.key == t.key {
				s.touched[tx][i].keep, known = t.keep, true
			}
		}
		if !known {
			s.touched[tx] = append(s.touched[tx], t)
		}
	}
}

// touchedBy returns the keys that a transaction has touched, and forgets them.
func (s *Store) touchedBy(tx *memstore.Tx) []touch {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.touched[tx]
	delete(s.touched, tx)
	return all
}
