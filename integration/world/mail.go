package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// Downstream is the link to a system outside the database.
const Downstream sim.Link = "downstream"

// MailPlan is a world of messages: producers put them in transactions, relays
// publish them, and consumers handle them.
type MailPlan struct {
	Topics    []string
	Keys      int // ordering keys, in turns on the topics
	PerKey    int // messages
	Relays    int
	Processes int     // of each consumer
	Queues    bool    // consumers read queues and not logs
	Unordered bool    // messages have no ordering keys
	Mixed     bool    // the messages of a key go to the topics in turns
	Silent    bool    // there are no consumers
	Deaf      bool    // the publisher does not end its calls with their contexts
	Bursts    bool    // producers put many messages at once, and then none for long
	Calls     int     // calls of once.Do beside the messages, for each key
	Refused   float64 // messages before which an order is refused whose message was put already

	Attempts int     // of consumers and relays, before a message is set aside
	Flaky    float64 // messages that their handler fails a few times, and those that the broker refuses a few times
	Invalid  float64 // messages that the broker refuses for ever, until somebody there changes a setting
	Poison   float64 // messages that their handler always fails
	Stubborn float64 // messages that their handler fails more often than it may, and then no more
	Blind    bool    // the system of the mailer cannot be asked, so that what may have happened waits for a person
	Deadly   float64 // messages that end the process which handles them, always
	Slow     float64 // messages whose handler takes long
	Slowest  time.Duration
	Copied   float64 // messages that the broker stores several times
	Copies   int     // up to so many times

	Shelving Shelving // in worlds of the kind shelf

	Shape   Shape   // of the consumer with a transaction
	Fleet   Fleet   // what there is beside the ledger and the mailer
	Joins   bool    // producers begin and commit the transactions of their orders
	Renames bool    // with Rolling, some lives of a consumer have another name
	Rolling bool    // each life of a process has settings of its own
	Carrier Carrier // which carries the messages if it is on, instead of a broker

	Operators int  // people who decide while all is at work
	Meet      bool // they do so at the same moments, and often about the same

	Relay  outbox.Relay  // settings
	Plain  bool          // the store tells relays neither of messages nor of each other
	Outage time.Duration // that consumers wait for: inbox.Retry.Outage
	Pause  time.Duration // the longest between two attempts; 0: the default

	Counting Counting // what counts as an attempt

	Drain time.Duration // the bound within which everything is done after the faults
}

// mail is a run of a MailPlan.
type mail struct {
	*sim.World
	MailPlan
	store  *sim.Store
	broker *sim.Broker
	ledger *ledger
	logger *slog.Logger

	lanes    *watchedLanes
	log      *rowLog // which has the messages that are put; nil: the table has them
	discards discards
}

// Run runs the plan in a world.
func (p MailPlan) Run(w *sim.World) *sim.Result {
	m := &mail{World: w, MailPlan: p, ledger: newLedger(w, p), logger: slog.New(slog.DiscardHandler)}
	m.store = sim.NewStore(w, &memstore.Options{Options: once.Options{Logger: m.logger}})
	m.store.Committed, m.store.Shelves = m.ledger.committed, m.queued
	if m.Shelving.Logged {
		m.log = m.newRowLog()
	}
	newProtocol(w, m.ledger.lifeOf).watch(m.store)
	m.watchPositions()
	m.lanes = m.watchLanes()
	m.broker = sim.NewBroker(w, nil)
	m.broker.Copies, m.broker.Deaf = m.copies, m.Deaf
	m.broker.Refuses = m.refuses
	m.broker.Failed, m.broker.Excused = m.ledger.refusedOnce, m.ledger.refusedAtOnset
	m.broker.Sends, m.broker.Told = m.lanes.sends, m.ledger.told
	m.store.Stuck = m.areStuck
	m.OnOutage(m.ledger.hears)
	m.broker.Stored = func(b *broker.Message) {
		m.lanes.published(b.ID)
		m.isStored(b.ID, b)
	}

	if m.Silent {
		m.startNoConsumers()
	} else {
		m.ledger.consumers = append([]string{ledgerName, mailerName}, m.Fleet.names()...)
		m.planRetirements()
		m.startConsumers()
	}
	for i := range m.Relays {
		w.Start(fmt.Sprint("relay", i+1), m.relay)
	}
	for k := range m.Keys {
		m.startProducer(k)
	}
	m.startOperators()
	m.startJanitor()
	m.startFailover()
	w.BeginOutages()
	time.Sleep(w.BusyTime())
	w.Calm()
	m.drain()
	m.judgeForgotten()
	r := w.End()
	m.judgeRest()
	m.judgeGone()
	return r
}

func (m *mail) relay(ctx context.Context, p *sim.Process) error {
	r := m.Relay
	r.Store, r.Publisher, r.Logger = m.store.Link(p), m.publisherOf(p), m.logger
	r.Retry.Attempts, r.Retry.Limit = m.Attempts, m.Pause
	m.rollRelay(p, &r)
	if m.Plain {
		r.Store = plain{r.Store}
	}
	if m.log != nil {
		r.Store = &logged{r.Store, m.log, p}
	}
	return r.Run(ctx)
}

// plain hides what a store has beyond what relays need: a bell, and their presence.
type plain struct{ store.Relayable }

// copies is how often the broker stores a message when it is published.
func (m *mail) copies(b *broker.Message) int {
	times := 1
	if d, copied := m.Trait("copies of "+b.ID, m.Copied); copied {
		times = 2 + d.Number(m.Copies-1)
	}
	m.ledger.stores(b.ID, times)
	return times
}

// refuses has the broker refuse a flaky message a few times, and an invalid one once.
func (m *mail) refuses(_ *sim.Process, b *broker.Message) error {
	if _, invalid := m.Trait("too large "+b.ID, m.Invalid); invalid && m.ledger.refusesFirst(b.ID) {
		return fmt.Errorf("%w: the message is too large today", broker.ErrInvalid)
	}
	if d, flaky := m.Trait("refusals of "+b.ID, m.Flaky); flaky && m.Number("broker", "refuses", b.ID) <= 1+d.Number(m.Attempts-1) {
		return errRefused
	}
	return nil
}

var errRefused = errors.New("world: the broker refuses this message")

const forEver = math.MaxInt

// isDeadly reports whether a message ends the processes which handle it.
func (m *mail) isDeadly(id string) bool {
	_, deadly := m.Trait("deadly "+id, m.Deadly)
	return deadly
}

// failsAt is how often the handler of a consumer fails a message.
func (m *mail) failsAt(consumer, id string) int {
	if m.isDeadly(id) {
		return forEver
	}
	if _, poison := m.Trait("poison "+id, m.Poison); poison {
		return forEver
	}
	if d, stubborn := m.Trait("stubborn "+id+" at "+consumer, m.Stubborn); stubborn {
		return m.Attempts + d.Number(m.Attempts)
	}
	if d, flaky := m.Trait("flaky "+id+" at "+consumer, m.Flaky); flaky {
		return 1 + d.Number(m.Attempts-1)
	}
	return 0
}

// slowness is how long the handler of a consumer takes for a message.
func (m *mail) slowness(consumer, id string) time.Duration {
	if d, slow := m.Trait("slow "+id+" at "+consumer, m.Slow); slow {
		return d.Between(time.Second, m.Slowest)
	}
	return 0
}

// whereIs tells where a message is in the outbox.
func (m *mail) whereIs(id string) string {
	for state := store.Pending; state <= store.Published; state++ {
		ms, err := m.store.Outgoing(context.Background(), store.OutgoingQuery{State: state, IDs: []string{id}})
		if err == nil && len(ms) > 0 {
			return fmt.Sprintf("%v after %d attempts: %s", state, ms[0].Attempts, ms[0].Reason)
		}
	}
	return notInOutbox
}

const notInOutbox = "not in the outbox"

const (
	ledgerName = "ledger" // a consumer with a transaction
	mailerName = "mailer" // a consumer with an effect outside
)

func (m *mail) startConsumers() {
	for _, topic := range m.Topics {
		if m.Shelving.Together && topic != m.Topics[0] {
			break
		}
		for _, name := range m.ledger.readersOf(topic) {
			m.source(topic, name) // before the first message is published
			for i := range m.Processes {
				m.Start(fmt.Sprintf("%s-%s%d", name, topic, i+1), func(ctx context.Context, p *sim.Process) error {
					return m.runConsumer(ctx, p, name, topic)
				})
			}
		}
	}
	m.Start("reconciler", func(ctx context.Context, p *sim.Process) error {
		r := &reconcile.Reconciler{Store: m.store.Link(p), Logger: m.logger, Every: m.Shelving.Asks}
		for _, topic := range m.Topics {
			r.Operations = append(r.Operations, reconcile.Of(m.operation(p, mailerName+"-"+topic)))
		}
		r.Operations = append(r.Operations, reconcile.Of(m.operation(p, callName)))
		return r.Run(ctx)
	})
}

const partitions = 3

func (m *mail) source(topic, consumer string) broker.Source {
	if m.Carrier.On {
		return m.queue(topic, consumer)
	}
	if m.Queues {
		topics := m.topicsOf(topic)
		queue := consumer + "-" + topics[0]
		for _, topic := range topics {
			m.broker.Bind(queue, topic)
		}
		return m.broker.Queue(queue)
	}
	return m.broker.Log(topic, consumer, partitions)
}

func (m *mail) consumer(p *sim.Process, name, topic string) *inbox.Consumer {
	c := &inbox.Consumer{Name: name + "-" + topic, Source: m.sourceOf(p, topic, name),
		Retry: inbox.Retry{Attempts: m.Attempts, Limit: m.Pause, Outage: m.Outage}}
	m.Counting.settingsOf(c)
	m.rollConsumer(p, c)
	m.keeps(c)
	m.setShelving(c)
	h := &handler{mail: m, p: p, consumer: name}
	if name == mailerName {
		c.Handler = inbox.Do(m.store.Link(p), m.operation(p, c.Name), h.effect)
	} else {
		m.rolled(p, name).set(c, h)
	}
	return c
}
