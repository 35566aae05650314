package world

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
)

// relaysSettings are those of a small world in which relays lose their lanes to each
// other.
func relaysSettings(seed sim.Seed) sim.Settings {
	s := smallSettings(seed)
	d := seed.Draw("settings of relays")
	s.Deaths, s.Stalls, s.Stall = d.Number(3), d.Number(4), []time.Duration{12 * time.Second, 50 * time.Second}[d.Number(2)]
	s.Stops = d.Number(2)
	s.Slow = []float64{0, 0, .2}[d.Number(3)]
	s.Outages = nil
	for _, link := range []sim.Link{sim.StoreName, sim.BrokerName, sim.TopicLink("a"), sim.TopicLink("b")} {
		if d.Chance(.3) {
			longest := []time.Duration{5 * time.Second, 20 * time.Second, 3 * time.Minute}[d.Number(3)]
			s.Outages = append(s.Outages, sim.Outage{Link: link, Times: 1 + d.Number(3), Longest: longest})
		}
	}
	for n := range 3 {
		if d.Chance(.3) {
			cut := sim.LinkOf(sim.StoreName, fmt.Sprint("relay", n+1))
			s.Outages = append(s.Outages, sim.Outage{Link: cut, Times: 1 + d.Number(3), Longest: 20 * time.Second})
		}
	}
	return s
}

// relaysMail is a small world of relays and nobody else but people.
func relaysMail(seed sim.Seed) MailPlan {
	d := seed.Draw("plan of relays")
	p := MailPlan{Topics: []string{"a", "b"}, Keys: 1 + d.Number(4), PerKey: 20, Relays: 1 + d.Number(3), Silent: true,
		Unordered: d.Chance(.1), Bursts: d.Chance(.5), Mixed: d.Chance(.5), Attempts: []int{2, 3, 5}[d.Number(3)],
		Flaky: d.Some(.3), Invalid: d.Some(.1), Refused: d.Some(.1), Drain: 20 * time.Minute}
	p.Operators = []int{0, 0, 1, 2}[d.Number(4)]
	p.Meet = d.Chance(.6)
	p.Relay.Batch = []int{0, 1, 1, 3}[d.Number(4)]
	p.Relay.PublishTime = []time.Duration{0, 0, time.Minute}[d.Number(3)]
	p.Deaf = d.Chance(.3)
	if d.Chance(.2) { // what fails in an outage fails by itself as well
		p.Flaky, p.Attempts, p.Invalid = .6, 3, 0
	}
	p.Pause = []time.Duration{0, 2 * time.Second, 20 * time.Second}[d.Number(3)]
	if p.Plain = d.Chance(.5); p.Plain {
		p.Relay.Poll = time.Second
	}
	return p
}

// startNoConsumers has the broker take the messages.
func (m *mail) startNoConsumers() {
	for _, topic := range m.Topics {
		m.broker.Bind("archive", topic)
	}
}

// overlap is for how long a call of a relay whose presence has ended may go on
// beside the one that has taken its lanes.
const overlap = 2 * time.Second

// sends judges that a relay begins a call, or that its call arrives while it still
// waits for the answer.
func (m *mail) sends(p *sim.Process, ms []*broker.Message, underWay time.Duration) {
	for _, b := range ms {
		lane := m.store.LaneHeldBy(store.Lane(b))
		had := time.Since(lane.Since)
		lost := m.log != nil || m.ledger.losses.failedOver()
		if !lost && lane.Who != "" && lane.Who != p.Name && (underWay == 0 || had > overlap) {
			m.Broke(Lease, b.ID, "%s sends it, after %v under way, and %s has had its lane for %v", p.Name, underWay, lane.Who, had)
		}
		if underWay == 0 {
			m.ledger.sends(p, b.ID, lane)
		}
	}
}

// sends judges that a relay begins to send a message.
func (l *ledger) sends(p *sim.Process, id string, lane sim.LaneHold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m.parked && l.world.Now()-m.parkedAt > knownTime {
		l.world.Broke(Held, id, "%s sends it, and it was parked %v ago", p.Name, l.world.Now()-m.parkedAt)
	}
	at, told := m.told[p.Name]
	told = told && (!l.rules.Shelving.Logged || l.world.DeathsOf("relay") == 0) // else the log may show what is in the table, too
	if told && lane.Who == p.Name && lane.Since.Before(at) && !m.decided && l.world.FaultsAbout("relay", id) == 0 {
		l.world.Broke(SentOnce, id, "%s sends it again %v after it has heard that it was published", p.Name, time.Since(at))
	}
}

// knownTime is how long after a park a relay may begin to send a message, because it
// does not know of that yet: as long as its leases last.
const knownTime = 10 * time.Second

// told records that a process has heard that messages were published.
func (l *ledger) told(p *sim.Process, ms []*broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range ms {
		l.letters[b.ID].told[p.Name] = time.Now()
	}
}

// areStuck records that a relay has made messages Stuck, or those of them that were
// still in the outbox.
func (m *mail) areStuck(ids []string) {
	ms, _ := m.store.Outgoing(context.Background(), store.OutgoingQuery{State: store.Stuck, IDs: ids, Limit: len(ids)})
	l := m.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ms {
		id := ms[i].Message.ID
		if m := l.letters[id]; !m.parked {
			m.parked, m.parkedAt, m.decided = true, l.world.Now(), true
		}
	}
}

// refusesFirst reports whether the broker has not refused a message as invalid yet.
func (l *ledger) refusesFirst(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	was := m.invalid
	m.invalid = true
	return !was
}

// wasInvalid reports whether the broker has refused a message as invalid.
func (l *ledger) wasInvalid(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id].invalid
}
