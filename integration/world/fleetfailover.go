package world

import (
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/sim"
)

// losses are what a replica lacks that has taken over as the store: the last commits.
type losses struct {
	mu      sync.Mutex
	since   time.Duration // what is committed from then on is lost; 0: nothing is yet
	over    bool          // it has taken over
	facts   []fact        // of the commits that are lost
	effects map[string]bool
}

// isLosing reports whether what is committed now will be lost.
func (l *losses) isLosing() bool { return l.since > 0 && !l.over }

// loses records a fact if its commit will be lost. The caller holds mu of the ledger.
func (l *losses) loses(f fact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLosing() {
		l.facts = append(l.facts, f)
	}
}

// failedOver reports whether a replica has taken over.
func (l *losses) failedOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// losesKey reports whether the record of a key is, or may be, lost.
func (l *losses) losesKey(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[key]
}

// startFailover has a replica take over as the store, once.
func (m *mail) startFailover() {
	if !m.Fleet.FailsOver {
		return
	}
	lost, d := &m.ledger.losses, m.Seed.Draw("failover")
	lost.effects = make(map[string]bool)
	was := m.store.Recorded
	m.store.Recorded = func(p *sim.Process, k once.Key, keep time.Duration) {
		lost.mu.Lock()
		if lost.isLosing() {
			lost.effects[sim.KeyText(k)] = true
		}
		lost.mu.Unlock()
		was(p, k, keep)
	}
	m.Go(func() {
		if sim.Sleep(m.Running(), d.Between(m.Length/3, m.Length-10*time.Second)) != nil || !m.Happens("failover") {
			return
		}
		lost.mu.Lock()
		lost.since = m.Now()
		lost.mu.Unlock()
		m.store.FailOver(d.Between(time.Millisecond, 5*time.Second), d.Between(time.Second, 20*time.Second), m.ledger.loseAll)
	})
}

// loseAll takes back what is lost. What a consumer was told about a message in that
// time may be lost, too, unless it reads its log again from its position.
func (l *ledger) loseAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses.mu.Lock()
	l.losses.over = true
	facts, since := l.losses.facts, l.losses.since
	l.losses.mu.Unlock()
	for _, f := range facts {
		m := l.letters[f.id]
		if f.consumer == "" {
			m.isPut, m.lost = false, true
			continue
		}
		m.at[f.consumer].done--
	}
	l.world.CalledSince(since, func(who, about string) {
		consumer, _, _ := strings.Cut(who, "-")
		for _, m := range l.letters {
			if h := m.at[consumer]; h != nil && sim.HasWord(about, m.id) {
				h.lost = true
			}
		}
	})
	for _, m := range l.letters {
		clear(m.told)
		if m.parkedAt >= since { // the park is lost
			m.parked = false
		}
	}
}

// mayLack reports whether nobody is to blame if a consumer never handles a message, or
// handles it in another order: a replica has lost what was known of it. A consumer
// with a position reads its log again when the next message of the partition arrives.
// The caller holds mu.
func (l *ledger) mayLack(m *letter, consumer string) bool {
	hasPosition := l.rules.shapeOf(consumer).Position && !l.rules.Carrier.On
	return m.lost || m.at[consumer].lost && !(hasPosition && l.goesOn(m, consumer))
}

// goesOn reports whether a consumer has handled a later message of the partition of a
// message since a replica has taken over.
func (l *ledger) goesOn(m *letter, consumer string) bool {
	had, has := false, false
	for _, e := range l.order {
		h := e.at[consumer]
		if e.topic != m.topic || e.key != m.key || e.key == "" || h.done == 0 {
			continue
		}
		had = had || e.seq < m.seq && !h.again && !h.lost // else the replica may have no position at all
		has = has || e.seq > m.seq && h.again
	}
	return had && has
}

// mayRepeat is how often an effect may happen whose key a replica has lost.
func (l *ledger) mayRepeat(key string) int {
	if l.losses.failedOver() && l.losses.losesKey(key) {
		return 2
	}
	return 1
}

// lostAttempts is how many attempts at a message a replica may have forgotten.
func (l *ledger) lostAttempts(m *letter, consumer string) int {
	if !l.losses.failedOver() {
		return 0
	}
	return l.rules.mostAttempts() + 1
}

// lifeOf is lifeOfMail, but for keys that a replica has lost.
func (l *ledger) lifeOf(k once.Key) (_ models.Life, ok bool) {
	if l.losses.losesKey(sim.KeyText(k)) {
		return models.Life{}, false
	}
	return lifeOfMail(k)
}
