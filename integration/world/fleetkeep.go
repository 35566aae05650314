package world

import (
	"context"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store"
)

// Keep are the settings of a fleet that forgets, while some of its consumers are away
// for longer than keys are kept. The zero value forgets nothing.
type Keep struct {
	Keys    time.Duration // Policy.KeepKey of consumers, and how long messages are kept that are done
	Away    []string      // consumers that nobody runs for a while
	Janitor janitor.Janitor
}

// keepsOf draws what a fleet keeps, and for how long. That is longer than any outage:
// what was handled, and is delivered again after KeepKey, is handled again if a person
// has had it replayed, or may be if its process ends again and again.
func (p MailPlan) keepsOf(d *sim.Draw) Keep {
	k := Keep{Keys: oneOf(d, 4*time.Minute, 5*time.Minute)}
	for _, name := range append([]string{ledgerName, mailerName}, p.Fleet.names()...) {
		if d.Chance(.4) {
			k.Away = append(k.Away, name)
		}
	}
	k.Janitor = janitor.Janitor{Every: oneOf(d, 10*time.Second, 20*time.Second), Batch: oneOf(d, 1, 2, 50), BatchTime: batchTime, Share: .5}
	return k
}

// forgets is how long after its time what may be forgotten is, at most.
func (k Keep) forgets() time.Duration { return 10*k.Janitor.Every + 3*5*batchTime/2 + 3*time.Minute }

// startJanitor starts the process that forgets.
func (m *mail) startJanitor() {
	if m.Fleet.Keep.Keys == 0 {
		return
	}
	m.Start("janitor", func(ctx context.Context, p *sim.Process) error {
		j := m.Fleet.Keep.Janitor
		j.Store, j.Logger = m.store.Link(p), m.logger
		j.KeepShelved, j.KeepPublished = m.Fleet.Keep.Keys, m.Fleet.Keep.Keys
		return j.Run(ctx)
	})
}

// keeps has a consumer keep keys for as long as the plan says.
func (m *mail) keeps(c *inbox.Consumer) {
	if k := m.Fleet.Keep.Keys; k > 0 {
		c.Policy.KeepOutcome, c.Policy.KeepKey = k, k
	}
}

// leavesFor is how long it is until a consumer goes away, and until it is back.
func (m *mail) leavesFor(name, topic string) (leaves, back time.Duration) {
	for _, away := range m.Fleet.Keep.Away {
		if d := m.Seed.Draw("goes away", name, topic); away == name {
			leaves = d.Between(20*time.Second, 2*time.Minute)
			return leaves, leaves + m.Fleet.Keep.Keys + d.Between(-time.Minute, 2*time.Minute)
		}
	}
	return 0, 0
}

// runs runs a consumer in one life of a process, if it is not away.
func (m *mail) runs(ctx context.Context, p *sim.Process, c *inbox.Consumer, leaves, back time.Duration) error {
	switch now := m.Now(); {
	case now < leaves:
		t := time.AfterFunc(leaves-now, p.Stop)
		defer t.Stop()
	case now < back:
		if sim.Sleep(ctx, back-now) != nil {
			return nil
		}
	}
	return c.Run(ctx)
}

// tooOld begins the Reason of a message whose key may be forgotten.
const tooOld = "older than keys are remembered"

// isTooOld reports whether a message is parked because it is old, and judges that it
// was when it was parked.
func (m *mail) isTooOld(s store.Shelved) bool {
	reason := s.Reason
	if strings.HasPrefix(reason, store.UnknownOutcome) { // by an attempt before that, of which the Reason tells first
		_, reason, _ = strings.Cut(reason, "; ")
	}
	if m.Fleet.Keep.Keys == 0 || !strings.HasPrefix(reason, tooOld) {
		return false
	}
	if age := s.Updated.Sub(s.Message.Time); age <= m.Fleet.Keep.Keys {
		m.Broke(Blame, s.Message.ID, "parked by %s as too old, %v after it was put", s.Consumer, age)
	}
	return true
}

// wasHandled reports whether a person who looks at the rows of a consumer finds that
// it has handled a message.
func (l *ledger) wasHandled(id, consumer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id].at[consumer].done > 0
}

// judgeForgotten waits until nothing is to be kept, and judges that all is forgotten.
func (m *mail) judgeForgotten() {
	k := m.Fleet.Keep
	if k.Keys == 0 {
		return
	}
	time.Sleep(k.Keys + k.forgets())
	ctx := context.Background()
	due, _, _ := m.store.Forgettable(ctx, 1000)
	for _, r := range due {
		m.Broke(Forgotten, sim.KeyText(r.Key), "is there, %v after all is done and KeepKey has passed", k.forgets())
	}
	page, _ := m.store.List(ctx, once.RecordQuery{Limit: 1000})
	for _, r := range page.Records {
		consumer, _, _ := strings.Cut(r.Key.Operation, "-")
		if step := strings.Contains(r.Key.Operation, "/"); !step && r.Status == once.Done && consumer != mailerName && m.ledger.isReader(consumer) && !m.ledger.wasDiscarded(r.Key.ID, consumer) {
			m.Broke(Forgotten, sim.KeyText(r.Key), "is done, %v after all is done and KeepKey has passed", k.forgets())
		}
	}
	for _, s := range m.shelf(store.Handled, store.Discarded) {
		m.Broke(Forgotten, s.Message.ID, "is on the shelf of %s, %v, %v after all is done and KeepShelved has passed", s.Consumer, s.State, k.forgets())
	}
	rows, _ := m.store.Outgoing(ctx, store.OutgoingQuery{State: store.Published, Limit: 1000})
	for _, s := range rows {
		m.Broke(Forgotten, s.Message.ID, "is in the outbox, %v after all is done and KeepPublished has passed", k.forgets())
	}
}

// wasDiscarded reports whether a person has given up a message of a consumer. Its key
// is kept for as long as the person wants.
func (l *ledger) wasDiscarded(id, consumer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	return m != nil && m.at[consumer].discarded > 0
}

func (l *ledger) isReader(consumer string) bool {
	for _, c := range l.consumers {
		if c == consumer {
			return true
		}
	}
	return false
}
