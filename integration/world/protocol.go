package world

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/cas"
)

// protocol judges that each change of a record is one that the model key.pml makes.
// See models.Life for what it does not look at.
type protocol struct {
	world *sim.World
	// begin returns the life of a key that is new. It returns false if the model has
	// none like it, or if a replica may have lost the key.
	begin func(once.Key) (_ models.Life, ok bool)

	mu    sync.Mutex
	lives map[once.Key]*models.Life
}

func newProtocol(w *sim.World, begin func(once.Key) (_ models.Life, ok bool)) *protocol {
	return &protocol{world: w, begin: begin, lives: make(map[once.Key]*models.Life)}
}

// wrote is told of each record that a process has written, in the order in which
// they were written.
func (l *protocol) wrote(p *sim.Process, k once.Key, w models.Write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, ok := l.begin(k)
	if !ok {
		return
	}
	life := l.lives[k]
	if life == nil {
		life = &first
		l.lives[k] = life
	}
	w.By, w.Person = p.Name, strings.HasPrefix(p.Name, "person")
	if err := life.Next(w); err != nil {
		l.world.Broke(Protocol, sim.KeyText(k), "%v", err)
	}
}

// watch has a store in memory tell of each record that has changed.
func (l *protocol) watch(s *sim.Store) {
	s.Recorded = func(p *sim.Process, k once.Key, keep time.Duration) {
		is, err := s.Get(context.Background(), k)
		if err != nil || is.Attempt == 0 { // past its KeepKey: the next claim tells
			return
		}
		w := models.Write{Status: is.Status, Attempt: is.Attempt, Owner: is.Owner, Updated: is.Updated,
			Lease: time.Now().Add(is.LeaseLeft), Keep: is.Updated.Add(keep)}
		switch {
		case is.Lapsed():
			w.Status = once.Running
		case is.Status == once.Expired:
			w.Status = once.Done
		}
		l.mu.Lock()
		life := l.lives[k]
		same := life != nil && life.Is(w)
		l.mu.Unlock()
		if !same {
			l.wrote(p, k, w)
		}
	}
}

// wroteRow is told of each row that a process has asked for, and the engine has
// written over another one. If there was none, it is the engine that decided, and
// not the process when it asked.
func (l *protocol) wroteRow(e *casEngine, row cas.Row, over string, asked time.Time) {
	if over == "" {
		asked = time.Now()
	}
	w := models.Write{Status: row.Status, Attempt: row.Attempt, Owner: row.Owner, Updated: row.Updated.Time(),
		Lease: row.Lease.Time(), Keep: row.KeepKey.Time(), Within: e.within(), Decided: asked.Add(e.rules.Ahead)}
	if row.Status == once.Running { // Updated may be later, because another writer has taken the time for that
		w.Updated = w.Lease.Add(-e.rules.Lease)
	}
	l.wrote(e.p, row.Key, w)
}

// lifeOf returns the life of a key of a world of keys.
func (plan KeysPlan) lifeOf(k once.Key) (_ models.Life, ok bool) {
	if workOf(k) == recalls {
		return models.Life{}, false // the other system of the model does not forget
	}
	kind := map[string]models.Kind{asks: models.Ask, honours: models.Keyed, parks: models.Park, inTx: models.Tx}[workOf(k)]
	if kind == models.Keyed && plan.Moved > 0 { // the model does the work of a key in one way
		return models.Life{}, false
	}
	life := models.Life{Kind: kind, SettleTime: plan.Settles}
	if plan.CAS != nil {
		life.Learned, life.Collects = true, true
	}
	return life, true
}

// lifeOfMail returns the life of a key of a world of messages. Those of consumers
// are parked with their messages, which the model leaves out.
func lifeOfMail(k once.Key) (_ models.Life, ok bool) {
	switch k.Operation {
	case callName:
		return models.Life{Kind: models.Ask, SettleTime: time.Minute}, true
	case "order":
		return models.Life{Kind: models.Tx}, true
	}
	return models.Life{}, false
}
