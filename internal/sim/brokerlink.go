package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

// BrokerName is the link to the broker.
const BrokerName Link = "broker"

// TopicLink is the link to a topic of the broker, which can be down alone.
func TopicLink(topic string) Link { return Link("topic " + topic) }

// Broker is the broker that the processes of a world share.
type Broker struct {
	*membroker.Broker
	world *World

	mu    sync.Mutex
	turns map[string]chan struct{} // of the queues, by name

	// Refuses reports whether the broker refuses a message this time. Nil: it refuses
	// none.
	Refuses func(p *Process, m *broker.Message) error

	// Copies is how often a message is stored when it is published. Nil: once.
	Copies func(m *broker.Message) int

	// Deaf is set if publishers do not end a call when its context ends, as some
	// clients of brokers do not.
	Deaf bool

	// Failed is called when a message was not published, while the broker was not down.
	// While a topic is down and others are not, relays blame its messages. It may be
	// nil.
	Failed func(id string)

	// Excused is called when a message was not published because the broker was down.
	// It may be nil.
	Excused func(id string)

	// Sends is called when a process begins a call with messages, and again when the
	// call arrives, if its caller waits for it: under way is for how long it was then.
	// It may be nil.
	Sends func(p *Process, ms []*broker.Message, underWay time.Duration)

	// Told is called when a process hears that messages were stored. It may be nil.
	Told func(p *Process, ms []*broker.Message)

	// Stored is called when a message is stored. It may be nil.
	Stored func(m *broker.Message)
}

// NewBroker returns a broker whose sessions break when its link goes down.
func NewBroker(w *World, o *membroker.Options) *Broker { return BrokerOn(w, membroker.New(o)) }

// BrokerOn is NewBroker for a broker that may have been in other worlds before.
func BrokerOn(w *World, at *membroker.Broker) *Broker {
	b := &Broker{Broker: at, world: w, turns: make(map[string]chan struct{})}
	w.OnOutage(func(link Link, down bool) {
		if link == BrokerName {
			b.Down(down)
		}
	})
	return b
}

var brokerLinks = []Link{BrokerName}

func brokerCall(what, about string, faults []FaultKind) Call {
	return Call{Links: brokerLinks, What: what, About: about, Faults: faults}
}

// Publisher returns the broker as a process that publishes sees it.
func (b *Broker) Publisher(p *Process) broker.Publisher {
	return &publisher{b, b.Broker.Publisher(), p}
}

type publisher struct {
	broker *Broker
	at     broker.Publisher
	p      *Process
}

func (u *publisher) Close() error { return nil }

// Publish publishes what the broker does not refuse.
func (u *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs, was := make([]error, len(ms)), u.broker.world.IsDown(BrokerName)
	var sent []*broker.Message
	for i, m := range ms {
		if errs[i] = u.refused(m); errs[i] == nil {
			c := *m
			sent = append(sent, &c)
		}
	}
	begun, until := time.Now(), ctx
	u.sends(ms, 0)
	if u.broker.Deaf {
		until = context.WithoutCancel(ctx)
	}
	stored, err := Cross(until, u.p, brokerCall("Publish", messagesText(ms), AnyFault), func(free context.Context) ([]error, error) {
		if ctx.Err() == nil {
			u.sends(sent, time.Since(begun))
		}
		return u.store(free, sent), nil
	})
	next := 0
	for i := range ms {
		switch {
		case errs[i] != nil:
		case err != nil:
			errs[i] = err
		default:
			errs[i] = stored[next]
			next++
		}
	}
	failed := u.count(ms, errs, was)
	u.told(ms, errs)
	if !failed {
		return nil
	}
	return errs
}

func (u *publisher) sends(ms []*broker.Message, underWay time.Duration) {
	if u.broker.Sends != nil && !u.p.IsDead() {
		u.broker.Sends(u.p, ms, underWay)
	}
}

func (u *publisher) told(ms []*broker.Message, errs []error) {
	var stored []*broker.Message
	for i, m := range ms {
		if errs[i] == nil {
			stored = append(stored, m)
		}
	}
	if u.broker.Told != nil && len(stored) > 0 {
		u.broker.Told(u.p, stored)
	}
}

// count reports whether a message was not published, and counts failures if the
// broker is not, and was not, down.
func (u *publisher) count(ms []*broker.Message, errs []error, wasDown bool) (failed bool) {
	excused := u.broker.Failed == nil || wasDown || u.broker.world.IsDown(BrokerName)
	for i, m := range ms {
		if errs[i] == nil {
			continue
		}
		failed = true
		switch {
		case !excused:
			u.broker.Failed(m.ID)
		case u.broker.Excused != nil:
			u.broker.Excused(m.ID)
		}
	}
	return failed
}

func (u *publisher) refused(m *broker.Message) error {
	if u.broker.world.IsDown(TopicLink(m.Topic)) {
		return ErrDown
	}
	if u.broker.Refuses != nil && !u.broker.world.IsDown(BrokerName) {
		return u.broker.Refuses(u.p, m)
	}
	return nil
}

func (u *publisher) store(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		times := 1
		if u.broker.Copies != nil {
			times = u.broker.Copies(m)
		}
		for range times {
			if failed := u.at.Publish(ctx, []*broker.Message{m}); failed != nil {
				errs[i] = failed[0]
			}
		}
		if errs[i] == nil && u.broker.Stored != nil {
			u.broker.Stored(m)
		}
	}
	return errs
}

func messagesText(ms []*broker.Message) string {
	ids := make([]string, len(ms))
	for i, m := range ms {
		ids[i] = m.ID
	}
	return strings.Join(ids, " ")
}

// Source returns a source of the broker as a process sees it. A process with
// several sources gives each a label, so that the calls of one are not taken for
// those of another.
func (b *Broker) Source(p *Process, src broker.Source, label string) broker.Source {
	return &source{src, b, p, label}
}

type source struct {
	broker.Source
	broker *Broker
	p      *Process
	label  string
}

// Open opens a session, which ends with the process.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	var at broker.Session
	err := Do(ctx, s.p, brokerCall("Open", s.Name(), LostOnly), func(ctx context.Context) (err error) {
		at, err = s.Source.Open(ctx, window)
		return err
	})
	if err != nil {
		if at != nil { // the process died on the way back, and its connection with it
			_ = at.Close(context.Background())
		}
		return nil, err
	}
	s.p.OnDeath(func() { _ = at.Close(context.Background()) }) // fails for no reason but a broken session
	through := session{Session: at, p: s.p, of: s.Name(), label: s.label}
	if seeker, ok := at.(broker.Seeker); ok {
		return &logSession{through, seeker}, nil
	}
	through.turn = s.broker.turn(s.Name())
	return &through, nil
}

// turn returns what the sessions of a queue take turns with. A message wakes all of
// them at one instant, so that the scheduler would decide which one gets it.
func (b *Broker) turn(queue string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turns[queue] == nil {
		b.turns[queue] = make(chan struct{}, 1)
	}
	return b.turns[queue]
}

type session struct {
	broker.Session
	p     *Process
	of    string
	label string
	turn  chan struct{} // of a queue: has an element while one of its sessions receives
}

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
	_ broker.Seeker       = (*logSession)(nil)
)

func (s *session) LongestDelay() time.Duration { return s.Session.(broker.Delayer).LongestDelay() }
func (s *session) KeepsRejected() bool         { return s.Session.(broker.DeadLetterer).KeepsRejected() }

// Receive receives messages. Many sessions break at once, and each process hears
// of it in its own time.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if s.p.IsDead() {
		return nil, ErrDead
	}
	ds, err := s.receive(ctx, limit)
	if err != nil {
		d := s.p.World.DrawNth(s.p.Name, "hears of a broken session", s.of)
		time.Sleep(d.Between(100*time.Microsecond, 5*time.Millisecond))
		return nil, err
	}
	// A caller that is told that its time is over has lost nothing.
	arrived := Do(context.WithoutCancel(ctx), s.p, brokerCall("Receive", s.text(ds), LostOnly), func(context.Context) error { return nil })
	if arrived != nil {
		return nil, arrived // the session is broken, and gives everything back when it is closed
	}
	return ds, nil
}

// text returns the objects of a call.
func (s *session) text(ds []broker.Delivery) string {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.Message.ID
		if s.label != "" {
			ids[i] = s.label + "/" + ids[i]
		}
	}
	return strings.Join(ids, " ")
}

func (s *session) receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if s.turn != nil {
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Session.Receive(ctx, limit)
}

func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	ds = slices.Clone(ds)
	return Do(ctx, s.p, brokerCall("Ack", s.text(ds), AnyFault), func(ctx context.Context) error { return s.Session.Ack(ctx, ds) })
}

func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	ds = slices.Clone(ds)
	about := fmt.Sprintf("%s for %v", s.text(ds), after.Round(time.Second))
	return Do(ctx, s.p, brokerCall("Return", about, WriteFault), func(ctx context.Context) error { return s.Session.Return(ctx, ds, after) })
}

func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	ds = slices.Clone(ds)
	return Do(ctx, s.p, brokerCall("Reject", s.text(ds), WriteFault), func(ctx context.Context) error {
		return s.Session.Reject(ctx, ds, reason)
	})
}

// logSession is a session of a log.
type logSession struct {
	session
	seeker broker.Seeker
}

func (s *logSession) Seek(ctx context.Context, to broker.Position) error {
	about := fmt.Sprintf("%s@%d", to.Partition, to.Offset)
	return Do(ctx, s.p, brokerCall("Seek", about, ReadFault), func(ctx context.Context) error { return s.seeker.Seek(ctx, to) })
}
