package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
)

// Shelving is what brings messages to the shelf of a consumer and keeps them there.
// The zero value does nothing.
type Shelving struct {
	After    float64       // failures after which the handler asks for so long a pause that its message waits on the shelf
	Together bool          // a consumer has one queue for all topics, and tries one message at a time
	Sick     time.Duration // with Together: how long after the faults nothing of the last topic gets through
	Stutters float64       // deliveries after which their first message comes again
	Lease    time.Duration // of the consumers; 0: the default
	Lingers  time.Duration // how long a handler goes on after its effect, at most, whatever it is told
	Asks     time.Duration // from one look of the reconciler to the next; 0: the default
	GivesUp  bool          // people give up what waits on the shelf, and do nothing else
	Regrets  bool          // people park what is held in the outbox and release it at once, and do nothing else
	Logged   bool          // relays read the messages from a log of the database
	EachTime time.Duration // from one look of people to the next; 0: the default
}

// A shelfTheme is what the worlds of the kind shelf are about. Each has few other
// faults, because these hide what it is about.
type shelfTheme int

const (
	renewals shelfTheme = iota // slow handlers, and replies to renewals that are lost
	copied                     // copies of what waits, without an order
	batches                    // several messages of an ordering key that fail, while the store often fails
	sickness                   // a topic of which nothing gets through, and another one beside it on the shelf
	stutters                   // a log that delivers a message again among later ones
	givingUp                   // people who give up what waits while it is handled
	unknowns                   // processes that stall longer than the lease of an effect that cannot be asked about
	regrets                    // people who park what is held in the outbox, and release it at once
	logs                       // relays that read a log, and topics that are down for seconds
	shelfThemes
)

func shelfThemeOf(seed sim.Seed) (shelfTheme, sim.Draw) {
	d := seed.Draw("theme of the shelf")
	return shelfTheme(d.Number(int(shelfThemes))), d
}

// shelfSettings are those of a small world that is about one of the themes.
func shelfSettings(seed sim.Seed) sim.Settings {
	theme, d := shelfThemeOf(seed)
	s := sim.Settings{Seed: seed, Length: 2 * time.Minute, Stall: 15 * time.Second}
	p := []float64{.01, .03}[d.Number(2)]
	s.Chances = sim.Chances{Before: d.Some(p), After: d.Some(p), Late: d.Some(p / 3)}
	switch theme {
	case renewals:
		s.At = map[sim.Link]sim.Chances{sim.StoreName: {After: oneOf(&d, .05, .1, .2)}}
	case copied, givingUp:
		s.Deaths = d.Number(2)
	case batches:
		s.At = map[sim.Link]sim.Chances{sim.StoreName: {Before: oneOf(&d, .1, .2, .3)}}
	case sickness:
		s.Chances = sim.Chances{Before: p}
	case stutters:
		s.Chances.Before, s.Deaths = .1, d.Number(2)
	case unknowns:
		s.Stalls, s.Stall, s.Chances = 1+d.Number(3), oneOf(&d, 15*time.Second, 40*time.Second), sim.Chances{}
	case logs:
		s.Length, s.Chances, s.Deaths = time.Minute, sim.Chances{}, d.Number(2)
		s.Outages = []sim.Outage{{Link: sim.TopicLink("b"), Times: 3 + d.Number(5), Longest: oneOf(&d, 2*time.Second, 5*time.Second)}}
	case regrets:
		s.Slow, s.Stalls = oneOf(&d, .1, .3), d.Number(2)
	}
	return s
}

// shelfMail is a small world in which much goes to the shelf.
func shelfMail(seed sim.Seed) MailPlan {
	theme, d := shelfThemeOf(seed)
	p := MailPlan{Topics: []string{"a"}, Keys: 2, PerKey: 6, Relays: 1, Processes: 1, Bursts: true, Attempts: 3 + d.Number(3),
		Flaky: .4, Outage: longestOutages, Drain: 20 * time.Minute, Pause: oneOf(&d, 6*time.Second, 20*time.Second), Plain: true}
	p.Relay.Poll = time.Second
	p.Shelving.After = .7
	switch theme {
	case renewals:
		p.Flaky, p.Slow, p.Slowest, p.Processes = .6, .6, 20*time.Second, 1+d.Number(2)
		p.Shelving.Lease = oneOf(&d, 0, 10*time.Second)
	case copied:
		p.Unordered, p.Copied, p.Copies, p.Attempts, p.Processes = true, .6, 6, 2+d.Number(3), 1+d.Number(2)
		p.Queues, p.Stubborn, p.Poison = d.Chance(.5), .3, d.Some(.1)
	case batches:
		p.Shape = Shape{Batch: true, Names: true, BatchSize: oneOf(&d, 0, 5)}
		p.Keys, p.PerKey, p.Flaky, p.Queues = 1+d.Number(2), 12, .5, d.Chance(.5)
	case sickness:
		p.Topics, p.Keys, p.PerKey, p.Unordered, p.Queues = []string{"a", "b"}, 10, 3, d.Chance(.5), true
		p.Flaky, p.Slow, p.Slowest, p.Outage = .6, d.Some(.1), 5*time.Second, time.Hour
		p.Shelving.Together, p.Shelving.Sick = true, 8*time.Minute
	case stutters:
		p.Shape = Shape{Position: true, Names: d.Chance(.5), BatchSize: oneOf(&d, 0, 2, 5)}
		p.PerKey, p.Flaky, p.Shelving.Stutters = 10, d.Some(.2), .3
	case givingUp:
		p.Shape.Charged, p.Unordered, p.Flaky, p.Slow, p.Slowest = d.Chance(.7), d.Chance(.5), .7, .7, 12*time.Second
		p.Operators, p.Meet, p.Shelving.GivesUp, p.Shelving.EachTime = 1+d.Number(2), true, true, time.Second
	case unknowns:
		p.Blind, p.Flaky, p.Slow, p.Slowest, p.Unordered = true, .1, .8, 20*time.Second, d.Chance(.5)
		p.Shelving.Lease, p.Shelving.Asks, p.Shelving.Lingers = 5*time.Second, 5*time.Second, 12*time.Second
	case logs:
		p = logsMail(d)
	case regrets:
		p = regretsMail(d)
	}
	return p
}

// regretsMail is a world of relays whose held messages people park and release
// while they are retried.
func regretsMail(d sim.Draw) MailPlan {
	p := MailPlan{Topics: []string{"a", "b"}, Keys: 1 + d.Number(3), PerKey: 20, Relays: 1, Silent: true, Bursts: true,
		Mixed: d.Chance(.5), Attempts: 5, Flaky: .6, Drain: 20 * time.Minute, Plain: true, Pause: 2 * time.Second,
		Operators: 1 + d.Number(2), Meet: true}
	p.Relay.Batch, p.Relay.Poll = oneOf(&d, 1, 3), time.Second
	p.Shelving.Regrets, p.Shelving.EachTime = true, oneOf(&d, 100*time.Millisecond, 500*time.Millisecond)
	return p
}

// logsMail is a world of a relay that reads a log, and sets aside what it cannot
// publish.
func logsMail(d sim.Draw) MailPlan {
	p := MailPlan{Topics: []string{"a", "b"}, Keys: 2 + d.Number(6), PerKey: 40, Relays: 1, Silent: true, Bursts: true, Mixed: true,
		Attempts: 5, Flaky: d.Some(.1), Drain: 20 * time.Minute, Plain: true, Pause: 2 * time.Second}
	p.Relay.Batch, p.Relay.Poll = oneOf(&d, 1, 3, 0), time.Second
	p.Shelving.Logged = true
	return p
}

// setShelving gives a consumer the settings of a world of the kind shelf.
func (m *mail) setShelving(c *inbox.Consumer) {
	c.Policy.Lease = max(c.Policy.Lease, m.Shelving.Lease)
	if m.Shelving.Together {
		c.Concurrency, c.Window = 1, 4
	}
}

// topicsOf are the topics of a consumer.
func (m *mail) topicsOf(topic string) []string {
	if m.Shelving.Together {
		return m.Topics
	}
	return []string{topic}
}

// failure is the error of a handler that fails a message. After some, it is to wait
// for so long that it does so on the shelf.
func (h *handler) failure(m *broker.Message) error {
	d := h.DrawNth(h.consumer, "asks for a pause", m.ID)
	if d.Chance(h.Shelving.After) {
		return once.RetryAfter(d.Between(6*time.Second, 15*time.Second), errBusiness)
	}
	return errBusiness
}

// linger has a handler go on after its effect. It does not end with its context, as
// some handlers do not.
func (h *handler) linger(ctx context.Context, m *broker.Message) {
	if h.Shelving.Lingers == 0 {
		return
	}
	d := h.DrawNth(h.consumer, "lingers", m.ID)
	time.Sleep(d.Between(0, h.Shelving.Lingers))
	c := sim.Call{Links: []sim.Link{Downstream}, What: "Goodbye", About: m.ID, Faults: sim.ReadFault}
	_ = sim.Do(context.WithoutCancel(ctx), h.p, c, func(context.Context) error { return nil }) // nobody needs its answer
}

var errSick = errors.New("world: nothing of this topic gets through")

// isSick reports whether nothing of a topic gets through now.
func (m *mail) isSick(topic string) bool {
	return m.Shelving.Sick > 0 && topic == m.Topics[len(m.Topics)-1] && m.Now() < m.Length+m.Shelving.Sick
}

// soon is how long after the faults a message is handled at the latest that has no
// part in the sickness of another topic.
const soon = 5 * time.Minute

// judgeSick judges that a topic that is sick keeps no other one waiting.
func (m *mail) judgeSick(left []string, since time.Duration) {
	if m.Shelving.Sick == 0 || since < soon || since > soon+6*time.Second {
		return
	}
	for _, at := range left {
		if !m.ledger.isOf(at, m.Topics[len(m.Topics)-1]) {
			m.Broke(Drained, at, "waits for %v, and only messages of another topic fail", since.Round(time.Second))
		}
	}
}

// stuttering is the source of a log that delivers the first of several messages
// again after the others, as after an ack that was lost.
type stuttering struct {
	broker.Source
	p *sim.Process
	m *mail
}

func (s *stuttering) Open(ctx context.Context, window int) (broker.Session, error) {
	at, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	seeker, ok := at.(broker.Seeker)
	if !ok {
		return at, nil
	}
	return &stutteringSession{at, seeker, s}, nil
}

type stutteringSession struct {
	broker.Session
	broker.Seeker
	of *stuttering
}

func (s *stutteringSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, limit)
	if len(ds) == 0 {
		return ds, err
	}
	w, first := s.of.p.World, ds[0]
	d := w.DrawNth(s.of.p.Name, "delivers again", s.of.Name())
	n := w.Number(s.of.p.Name, "stutters", first.Message.ID)
	if d.Chance(s.of.m.Shelving.Stutters) && w.Happens(fmt.Sprintf("%s gets %s again #%d", s.of.p.Name, first.Message.ID, n)) {
		first.Redelivered = true
		ds = append(ds, first)
	}
	return ds, err
}
