package sim

import (
	"context"

	"github.com/effectively-once/once/store"
)

// presence is the lock that a relay holds in the store. It ends with the process,
// and with the connection.
type presence struct {
	link *StoreLink
	id   [16]byte
}

// AppearRelay takes the lock of a relay.
func (l *StoreLink) AppearRelay(ctx context.Context) (store.Present, error) {
	d := l.p.World.DrawNth(l.p.Name, "ID of its relay", "")
	at := &presence{l, d.Token()}
	err := Do(ctx, l.p, StoreRead("AppearRelay", ""), func(context.Context) error {
		l.shared.mark(at.id, true)
		return nil
	})
	if err != nil {
		at.Close()
		return nil, err
	}
	l.p.OnDeath(at.Close)
	return at, nil
}

func (s *Store) mark(id [16]byte, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present[id] = present
}

func (at *presence) ID() [16]byte { return at.id }

func (at *presence) Look(ctx context.Context, others [][16]byte) ([][16]byte, error) {
	missing, err := Cross(ctx, at.link.p, StorePoll("Look", ""), func(context.Context) ([][16]byte, error) {
		return at.link.shared.missing(at.id, others)
	})
	if err != nil {
		at.Close() // the server notices a broken connection as well
	}
	return missing, err
}

// missing returns the other processes that have appeared and are not present. It
// fails for a relay that is not present itself.
func (s *Store) missing(me [16]byte, others [][16]byte) (gone [][16]byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.present[me] {
		return nil, ErrReset
	}
	for _, id := range others {
		if present, appeared := s.present[id]; appeared && !present {
			gone = append(gone, id)
		}
	}
	return gone, nil
}

func (at *presence) Close() { at.link.shared.mark(at.id, false) }
