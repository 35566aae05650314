package world

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
)

// retiredName is the reader that people retire, and perhaps bring back.
const retiredName = "intern"

// retirement is what is known of the retirement of a consumer.
type retirement struct {
	consumer, topic string
	leaves          time.Duration // when its processes end for good

	mu     sync.Mutex
	told   bool   // a person was told that it is retired
	never  bool   // it did not run before it was to be, and so there is nothing to retire
	source string // with which it may continue; empty: it is not to
	since  time.Time
}

func (r *retirement) name() string { return r.consumer + "-" + r.topic }

// isGone reports whether the consumer is retired, and not brought back.
func (r *retirement) isGone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told && r.source == ""
}

func (r *retirement) sharedWith() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source
}

// begins notes since when the consumer is retired.
func (r *retirement) begins() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = time.Now()
	}
}

// isLate reports whether a row came when the consumer was retired: a relay was about
// to put it there.
func (r *retirement) isLate(s store.Shelved) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.since.IsZero() && !s.Created.Before(r.since)
}

// neverRan reports whether a person was told that there is no such consumer.
func (r *retirement) neverRan() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.never
}

// planRetirements says when the processes of the retired consumer end, on each topic.
func (m *mail) planRetirements() {
	m.store.Retired = func(name string) {
		for _, r := range m.ledger.retired {
			if r.name() == name {
				r.begins()
			}
		}
	}
	for _, topic := range m.Topics {
		if m.Fleet.Retires && !m.isFar(topic) {
			d := m.Seed.Draw("retires", topic)
			r := &retirement{consumer: retiredName, topic: topic, leaves: d.Between(20*time.Second, 2*time.Minute)}
			m.ledger.retired[route{retiredName, topic}] = r
			m.Start("retirer-"+topic, func(ctx context.Context, p *sim.Process) error { return m.retire(ctx, p, r) })
		}
	}
}

// runConsumer runs a consumer in one life of a process.
func (m *mail) runConsumer(ctx context.Context, p *sim.Process, name, topic string) error {
	c, r := m.consumer(p, name, topic), m.ledger.retired[route{name, topic}]
	if r == nil {
		leaves, back := m.leavesFor(name, topic)
		return m.runs(ctx, p, c, leaves, back)
	}
	if left := r.leaves - m.Now(); left > 0 {
		t := time.AfterFunc(left, p.Stop)
		defer t.Stop()
		return c.Run(ctx)
	}
	d := m.Seed.Draw("looks again", p.Name)
	for n := 0; r.sharedWith() == "" && !r.neverRan(); n++ {
		if sim.Sleep(ctx, d.Between(2*time.Second, time.Minute)) != nil {
			return nil
		}
		if r.isGone() && n < 2 { // somebody starts it by accident
			m.judgeStart(ctx, r, m.consumer(p, name, topic).Run(ctx))
		}
	}
	c.SharedWith = r.sharedWith()
	return c.Run(ctx)
}

// judgeStart judges what became of a start of a consumer that is retired.
func (m *mail) judgeStart(ctx context.Context, r *retirement, err error) {
	if ctx.Err() == nil && !errors.Is(err, once.ErrInvalid) && r.isGone() {
		m.Broke(Retired, r.name(), "it was started, and has ended with %v", err)
	}
}

// retire is a person who retires a consumer, and perhaps has it continue.
func (m *mail) retire(ctx context.Context, p *sim.Process, r *retirement) error {
	d := m.Seed.Draw("retires in", p.Name)
	admin := inbox.Admin{Store: m.store.Link(p)}
	discard := d.Chance(.5) // at once; else it is refused first, if there is anything to discard
	for !r.isGone() && r.sharedWith() == "" && !r.neverRan() {
		if sim.Sleep(ctx, max(r.leaves+inbox.RetireSilence-m.Now(), 0)+d.Between(0, 30*time.Second)) != nil {
			return nil
		}
		if discard {
			m.ledger.givesUpShelf(r, m.shelf(store.Waiting, store.Parked))
		}
		_, err := admin.Retire(ctx, r.name(), discard, inbox.Decision{By: person, Reason: "nobody needs it"})
		m.ledger.givesUpShelf(r, m.shelf(store.Discarded)) // what came meanwhile
		m.Tell(sim.Line{Who: p.Name, What: "RETIRES", About: r.name(), Note: told(1, err)})
		if errors.Is(err, store.ErrNoConsumer) {
			r.mu.Lock()
			r.never = true
			r.mu.Unlock()
			<-ctx.Done()
			return nil
		}
		discard = discard || errors.Is(err, store.ErrShelfInUse)
		if source := m.retiredSource(r); err == nil || source != "" {
			m.isRetired(r, source)
		}
	}
	if !m.Fleet.Returns || r.neverRan() || sim.Sleep(ctx, d.Between(30*time.Second, 2*time.Minute)) != nil {
		<-ctx.Done()
		return nil
	}
	for r.sharedWith() == "" {
		err := m.bringBack(ctx, admin, r)
		m.Tell(sim.Line{Who: p.Name, What: "BRINGS BACK", About: r.name(), Note: told(1, err)})
		if err != nil && sim.Sleep(ctx, d.Between(time.Second, 10*time.Second)) != nil {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// givesUpShelf records that a person is about to give up what a consumer has on the
// shelf.
func (l *ledger) givesUpShelf(r *retirement, shelf []store.Shelved) {
	for _, s := range shelf {
		if id := originalOf(s); consumerOf(s) == r.consumer && strings.HasPrefix(s.Consumer, r.name()) && l.knows(id) {
			l.discard(id, r.consumer)
		}
	}
}

// retiredSource is the source of a consumer in the registry, if it is retired.
func (m *mail) retiredSource(r *retirement) string {
	all, _ := m.store.Store.Consumers(context.Background())
	for _, c := range all {
		if _, _, _, is := store.RetiredAt(c.Source); is && c.Name == r.name() {
			return c.Source
		}
	}
	return ""
}

// isRetired judges what is left of a consumer when a person is told that it is
// retired.
func (m *mail) isRetired(r *retirement, source string) {
	if source == "" {
		m.Broke(Retired, r.name(), "a person was told that it is retired, and it is not")
	}
	m.judgeRetired(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = true
}

// judgeRetired judges that a retired consumer has no messages but those that a relay
// was putting into its queue.
func (m *mail) judgeRetired(r *retirement) {
	for _, name := range []string{r.name(), store.QueueOf(r.name())} {
		q := store.ShelfQuery{Consumer: name, States: []store.ShelfState{store.Waiting, store.Parked}}
		ms, _ := m.store.Shelved(context.Background(), q)
		for _, s := range ms {
			if name == store.QueueOf(r.name()) && r.isLate(s) {
				continue
			}
			m.Broke(Retired, r.name(), "it is retired, and %s is on the shelf of %s, %v", s.Message.ID, name, s.State)
		}
	}
}

// bringBack has a retired consumer continue where it was.
func (m *mail) bringBack(ctx context.Context, admin inbox.Admin, r *retirement) error {
	ps, err := admin.Positions(ctx, r.name())
	if err != nil {
		return err
	}
	for _, at := range ps {
		if at.Log == store.RetiredLog {
			at.Log = r.topic + "#1"
			err = errors.Join(err, admin.SetPosition(ctx, at))
		}
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source = m.retiredSource(r)
	return nil
}

// isNotGone reports whether a consumer of a topic is still to handle its messages.
func (l *ledger) isNotGone(consumer, topic string) bool {
	r := l.retired[route{consumer, topic}]
	return r == nil || !r.isGone()
}

// openRetirements are those that no person was told of yet, or that are to end.
func (m *mail) openRetirements() (all []string) {
	for _, r := range m.ledger.retired {
		if !r.isGone() && r.sharedWith() == "" && !r.neverRan() || r.isGone() && m.Fleet.Returns {
			all = append(all, "the retirement of "+r.name())
		}
	}
	return all
}

// judgeGone judges what is left of those that are retired.
func (m *mail) judgeGone() {
	for _, r := range m.ledger.retired {
		if r.isGone() {
			m.judgeRetired(r)
		}
	}
}
