package world

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
)

// Counting are the settings of a world that is about what counts as an attempt.
type Counting struct {
	// Exact has laws judge without the excuses that are there for other faults: no
	// reply is lost, nothing stalls, and nobody decides.
	Exact bool

	Fickle bool // deadly messages now end their process, now wait, and now fail
	Needs  bool // handlers need the downstream before all else

	First  time.Duration // before the second attempt; 0: the default
	Lease  time.Duration // of consumers; 0: the default
	Stop   time.Duration // that handlers have when their process is told to stop; 0: the default
	Settle time.Duration // after which the downstream knows of an effect; 0: a minute
}

// settingsOf sets how the consumers of a plan count.
func (n Counting) settingsOf(c *inbox.Consumer) {
	c.Retry.First, c.StopTime, c.Policy.Lease = n.First, n.Stop, n.Lease
	if n.First > 0 && c.Retry.Limit > 0 {
		c.Retry.Limit = max(c.Retry.Limit, n.First)
	}
}

// settleTime is the SettleTime of an operation.
func (n Counting) settleTime() time.Duration {
	if n.Settle > 0 {
		return n.Settle
	}
	return time.Minute
}

// needs asks the downstream for what a handler cannot do without.
func (h *handler) needs(ctx context.Context, m *broker.Message) error {
	if !h.Counting.Needs || h.isDeadly(m.ID) {
		return nil
	}
	c := sim.Call{Links: []sim.Link{Downstream}, What: "Need", About: h.consumer + "/" + m.ID, Faults: sim.ReadFault}
	return sim.Do(ctx, h.p, c, func(context.Context) error { return nil })
}

// longestWait is for how long a fickle message occupies its handler.
const longestWait = 30 * time.Second

// deadly ends the process, unless the message is fickle.
func (h *handler) deadly(ctx context.Context, m *broker.Message) error {
	if h.Counting.Fickle {
		switch d := h.DrawNth(h.consumer, "what a deadly one does", m.ID); d.Number(4) {
		case 0:
			h.ledger.survives(m.ID, h.consumer, h.p.Name)
			return errBusiness
		case 1:
			if err := sim.Sleep(ctx, d.Between(0, longestWait)); err != nil {
				h.ledger.survives(m.ID, h.consumer, h.p.Name)
				return err
			}
		}
	}
	h.ledger.diesIn(m.ID, h.consumer, h.p.Name)
	h.ledger.endsProcess(m.ID, h.consumer)
	h.p.Die()
	return sim.ErrDead
}

// unended is what is known of the attempts at a message that never ended.
type unended struct {
	deaths   int  // one after the other
	failures int  // the same
	last     bool // it has ended so many processes that the next attempt is its last one
	after    int  // processes that it has ended since
}

// survives records that a message that ends processes has failed in one, or was told
// to stop.
func (l *ledger) survives(id, consumer, process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	h.failedIn = process
	r := &h.unended
	r.deaths = 0
	if r.failures++; r.failures > 1 { // after the first one, nothing in the record of the key tells of the deaths before
		*r = unended{failures: r.failures}
	}
}

// diesIn records that a message ends a process. If it has failed there, that attempt
// was counted, and the next one is when it fails.
func (l *ledger) diesIn(id, consumer, process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.letters[id].at[consumer]; h.failedIn == process {
		h.uncounted++
	}
}

// shelves records that a message waits on the shelf, which counts its attempts anew.
func (l *ledger) shelves(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.letters[id]; m != nil && m.at[consumer] != nil {
		m.at[consumer].unended = unended{}
	}
}

// judgeDeath judges that a message does not end more processes than it has attempts.
// A transaction forgives none of these, apart from the first one and those after a
// failure in the same process. An effect forgives none either once the message has
// one attempt left, after deaths without anything between them. Its caller holds mu.
func (l *ledger) judgeDeath(m *letter, consumer string) {
	h, attempts, lost := m.at[consumer], l.rules.Attempts, l.lost(m, consumer)
	if consumer == ledgerName {
		if h.deadly > attempts+1+h.uncounted+lost {
			l.world.Broke(Bounded, m.id, "it ends the %dth process of %s, and %d of them did not count", h.deadly, consumer, 1+h.uncounted)
		}
		return
	}
	r := &h.unended
	if r.last {
		r.after++
	}
	r.failures = 0
	if r.deaths++; r.deaths >= attempts-1 {
		r.last = true
	}
	if r.after > 1+lost {
		l.world.Broke(Bounded, m.id, "it ends %d processes of %s after those that left it one attempt", r.after, consumer)
	}
}

// ends records that the handler of a message has failed, and its process lives.
func (l *ledger) ends(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	h.ends = append(h.ends, time.Now())
}

// mayPark reports whether a message may be parked for its failures, if no process
// ends and no reply is lost: if it fails as often as it may, and others get through
// meanwhile. If none do, its topic is down. Then nothing counts until one gets
// through, and what counted before is forgotten.
func (l *ledger) mayPark(id, consumer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m.at[consumer].replayed {
		return true
	}
	for _, early := range []time.Duration{-learned, 0, learned} {
		if l.mayParkIf(m, consumer, early) {
			return true
		}
	}
	return false
}

// learned is how long it takes a consumer to learn of what has happened.
const learned = 3 * time.Second

// mayParkIf is mayPark for a consumer that learns so much earlier of failures than
// of what gets through.
func (l *ledger) mayParkIf(of *letter, consumer string, early time.Duration) bool {
	counted := make(map[*letter]int)
	suspects := make(map[*letter]bool) // others got through since these first failed
	down, through := false, l.through[route{consumer, of.topic}]
	for _, f := range l.failuresOf(consumer, of.topic) {
		for len(through) > 0 && through[0].Before(f.at.Add(-early)) {
			for m := range counted {
				suspects[m] = true
			}
			down, through = false, through[1:]
		}
		if counted[f.of] += 0; down { // it has failed, which does not count
			continue
		}
		if counted[f.of]++; counted[f.of] < l.rules.Attempts {
			continue
		}
		if suspects[f.of] && f.of == of {
			return true
		}
		counted[f.of], down = 0, !suspects[f.of]
	}
	return false
}

// failure is one of a handler.
type failure struct {
	of *letter
	at time.Time
}

// failuresOf returns the failures of the messages of a topic, in order.
func (l *ledger) failuresOf(consumer, topic string) (all []failure) {
	for _, m := range l.order {
		for _, at := range m.at[consumer].ends {
			if m.topic == topic {
				all = append(all, failure{m, at})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b failure) int { return a.at.Compare(b.at) })
	return all
}

// isQuiet reports whether no process of a consumer has ended or stalled, and no call
// about a message went wrong.
func (m *mail) isQuiet(id, consumer string) bool {
	return m.ledger.lost(m.ledger.letters[id], consumer) == 0 && m.DeathsOf(consumer) == 0 && m.Stops == 0 && m.Stalls == 0 && m.Processes == 1
}

// What worlds of the kind deaths are about, each in turn.
const (
	aboutDeaths = iota
	aboutOutages
	aboutCopies
	aboutRelays
)

// about draws what a world is about.
func about(seed sim.Seed) int {
	d := seed.Draw("about")
	return oneOf(&d, aboutDeaths, aboutDeaths, aboutOutages, aboutOutages, aboutCopies, aboutRelays)
}

// deathsSettings are those of a small world in which few calls fail by themselves.
func deathsSettings(seed sim.Seed) sim.Settings {
	d := seed.Draw("settings of deaths")
	s := sim.Settings{Seed: seed, Length: 3 * time.Minute}
	switch about(seed) {
	case aboutDeaths:
		s.Stops, s.Deaths = d.Number(9), d.Number(2)
		if d.Chance(.5) {
			s.Outages = []sim.Outage{{Link: Downstream, Times: 1 + d.Number(4), Longest: 15 * time.Second}}
		}
	case aboutOutages:
		s.Outages = []sim.Outage{{Link: Downstream, Times: 2 + d.Number(6), Longest: oneOf(&d, 15*time.Second, 40*time.Second)}}
	case aboutCopies:
		s.Stops = d.Number(4)
		s.Outages = []sim.Outage{
			{Link: sim.StoreName, Times: 3 + d.Number(8), Longest: 7 * time.Second},
			{Link: sim.BrokerName, Times: 2 + d.Number(4), Longest: 2 * time.Second},
		}
	case aboutRelays:
		s.Outages = []sim.Outage{{Link: sim.BrokerName, Times: 1 + d.Number(3), Longest: oneOf(&d, time.Minute, 3*time.Minute)}}
		s.Stops = d.Number(2)
	}
	return s
}

// deathsMail is a small world of few messages.
func deathsMail(seed sim.Seed) MailPlan {
	d := seed.Draw("plan of deaths")
	p := MailPlan{Topics: []string{"a"}, Keys: 1 + d.Number(2), PerKey: 2, Relays: 1, Processes: 1, Attempts: 2 + d.Number(3),
		Bursts: d.Chance(.5), Queues: d.Chance(.5), Outage: longestOutages, Drain: 20 * time.Minute}
	if p.Plain = d.Chance(.8); p.Plain {
		p.Relay.Poll = time.Second
	}
	switch about(seed) {
	case aboutDeaths:
		p.Deadly, p.Shape.Batch = .5, d.Chance(.2)
		p.Counting = Counting{Exact: true, Fickle: d.Chance(.8), Lease: 5 * time.Second, Settle: 3 * time.Second,
			Stop: oneOf(&d, 0, time.Second)}
	case aboutOutages:
		p.Flaky, p.Bursts = .6, d.Chance(.8)
		p.Counting = Counting{Exact: true, Needs: true, First: oneOf(&d, 0, 5*time.Second, 7*time.Second)}
	case aboutCopies:
		p.Queues, p.Unordered, p.Processes, p.Attempts = true, true, 3, 2+d.Number(2)
		p.Copied, p.Copies, p.Slow, p.Slowest = .8, 4, .7, 40*time.Second
		p.Counting = Counting{Exact: true, Stop: oneOf(&d, 0, time.Second)}
	case aboutRelays:
		p.Silent, p.Keys, p.PerKey, p.Attempts, p.Flaky = true, 2+d.Number(3), 6, 2+d.Number(2), .6
		p.Relay.Batch = oneOf(&d, 0, 1, 1, 3)
	}
	return p
}

// longestRound is how long a relay may publish what it has read at once.
const longestRound = time.Minute

// refusedAtOnset counts a failure to publish a message while the broker was down, if
// one that waited beside it got through just before. A relay takes that for the
// fault of the message, because it does not know yet that the broker is down.
func (l *ledger) refusedAtOnset(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m.besideAt == l.lately || m.putAt.After(l.lately) || time.Since(l.lately) > longestRound {
		return
	}
	m.besideAt = l.lately
	m.refused++
}
