package sim

import (
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// touch is a key whose record a call may change, and for how long a settlement
// keeps the key. Or it is a consumer whose positions and shelf a call may change, and
// its transaction, with what that puts on the shelf. Or it is a change of the outbox.
type touch struct {
	key  once.Key
	keep time.Duration

	consumer string
	tx       *memstore.Tx
	aside    []store.Shelved

	outbox Outboxed
}

func claimed(rs []once.ClaimRequest) (all []touch) {
	for _, r := range rs {
		all = append(all, touch{key: r.Key})
	}
	return all
}

func settled(sets []once.Settlement) (all []touch) {
	for _, s := range sets {
		all = append(all, touch{key: s.Key, keep: s.KeepKey})
	}
	return all
}

// record is called before a call changes records, and returns what is to be called
// after it.
func (l *StoreLink) record(all ...touch) (end func()) { return l.shared.record(l.p, all...) }

func (s *Store) record(p *Process, all ...touch) (end func()) {
	s.recording.Lock()
	return func() {
		defer s.recording.Unlock()
		for _, t := range all {
			switch {
			case t.outbox.Lanes != nil:
				if s.Outboxed != nil {
					s.Outboxed(p, t.outbox)
				}
			case t.consumer != "" && s.Wrote != nil:
				s.Wrote(p, t.consumer, t.tx, t.aside)
			case t.consumer == "" && s.Recorded != nil:
				s.Recorded(p, t.key, t.keep)
			}
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
			if other.key == t.key && other.consumer == t.consumer && other.outbox.Lanes == nil && t.outbox.Lanes == nil {
				is := &s.touched[tx][i]
				is.keep, is.aside, known = t.keep, append(is.aside, t.aside...), true
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
