package sim

import (
	"context"
	"fmt"
	"time"

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
	begun := time.Now()
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
	l.shared.prove(l.p, at.id, begun)
	l.p.OnDeath(at.Close)
	return at, nil
}

func (s *Store) mark(id [16]byte, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present[id] = present
}

func (at *presence) ID() [16]byte { return at.id }

// breaks reports whether the connection that has the lock breaks now.
func (at *presence) breaks() bool {
	w := at.link.p.World
	if w.Chances.Hang == 0 {
		return false
	}
	n := w.Number(at.link.p.Name, "connection of its lock", "")
	d := w.Seed.Draw(at.link.p.Name, "connection of its lock").Nth(n)
	return d.Chance(w.Chances.Hang/2) && w.Happens(fmt.Sprintf("%s loses the connection of its lock #%d", at.link.p.Name, n))
}

func (at *presence) Look(ctx context.Context, others [][16]byte) ([][16]byte, error) {
	if at.breaks() { // the server notices at once, and the process when it gets no answer
		at.Close()
		d := at.link.p.World.DrawNth(at.link.p.Name, "waits for a broken connection", "")
		_ = Sleep(ctx, d.Between(0, 5*time.Second))
		return nil, ErrReset
	}
	begun := time.Now()
	missing, err := Cross(ctx, at.link.p, StorePoll("Look", ""), func(context.Context) ([][16]byte, error) {
		return at.link.shared.missing(at.id, others)
	})
	if err != nil {
		at.Close() // the server notices a broken connection as well
	} else {
		at.link.shared.prove(at.link.p, at.id, begun)
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
