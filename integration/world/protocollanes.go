package world

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
)

// watchedLanes judges that each change of a message in the outbox, and of a lane, is
// one that the model lanes.pml makes, and that the model begins each call of the
// broker. See models.Lane for what it does not look at.
type watchedLanes struct {
	*mail
	mu sync.Mutex
	at *models.Lane
}

func (m *mail) watchLanes() *watchedLanes {
	l := &watchedLanes{mail: m, at: models.NewLane()}
	if !m.Fleet.FailsOver && !m.Shelving.Logged { // the model loses nothing, and has no log
		m.store.Outboxed = l.wrote
	}
	return l
}

// wrote is told of each call that may have changed the outbox, in their order.
func (l *watchedLanes) wrote(p *sim.Process, w sim.Outboxed) {
	by := ""
	if p != nil {
		by = p.Name
	}
	var after []store.Outgoing
	if w.Relay == [16]byte{} {
		after = l.messagesIn(w.Lanes)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	switch {
	case w.Leased != nil:
		err = l.at.Leased(by, w.Relay, w.Lanes, *w.Leased, time.Now())
	case w.Released:
		err = l.at.Released(by, w.Relay, w.Lanes, w.Counts, time.Now())
	default:
		err = l.at.Wrote(by, isPerson(p), w.Lanes, after)
	}
	if err != nil {
		l.Broke(Protocol, fmt.Sprint("lanes ", w.Lanes), "%s: %v", by, err)
	}
}

// messagesIn returns the messages of lanes that are neither delayed nor gone.
func (l *watchedLanes) messagesIn(lanes []int) (all []store.Outgoing) {
	if len(lanes) == 0 {
		return nil
	}
	for _, state := range []store.OutgoingState{store.Pending, store.Held, store.Stuck} {
		q := store.OutgoingQuery{State: state, Lanes: lanes, Limit: 20_000, Bodiless: true}
		ms, _ := l.store.Outgoing(context.Background(), q)
		all = append(all, ms...)
	}
	return all
}

// sends is mail.sends, which judges the lease.
func (l *watchedLanes) sends(p *sim.Process, ms []*broker.Message, underWay time.Duration) {
	l.mail.sends(p, ms, underWay)
	if underWay > 0 || l.store.Outboxed == nil {
		return
	}
	l.store.Still(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err := l.at.Sends(p.Name, ms); err != nil {
			l.Broke(Protocol, ms[0].ID, "%s: %v", p.Name, err)
		}
	})
}

// published is told that the broker has a message.
func (l *watchedLanes) published(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at.Published(id)
}
