//go:build linux

// Package killproof proves what a store promises about messages, with processes
// that are killed.
//
// Producers do units of work, each of which notes itself in a list of its line and
// puts messages, some of them with an ordering key. Relays publish to a JetStream
// that drops no duplicates. Consumers note in another list what they handle. Each
// process kills itself at the place that its plan names, or is killed at a random
// moment, and is replaced. At the end
//
//   - every unit that should commit did so once, and each one that a producer knew to
//     be done is among them,
//   - each message of these units was published, and no other,
//   - what was published again is the same message, with its ID and once-seq,
//   - the first times of the messages of an ordering key are in the order in which
//     their units committed,
//   - consumers handled each message once.
//
// A test gives a [Setting], which says how to open its store. SIGKILL shows the
// death of a process, and not a power failure.
package killproof

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/nats-io/nats.go/jetstream"
)

// Store is what a store needs for these proofs.
type Store[Tx any] interface {
	once.TxStore[Tx]
	store.Outbox[Tx]
}

// Place is a store with lists beside it, as one process has opened them. The IDs
// of keys and the names of lists begin with their line and a slash. In a store
// with partitions, a line is a partition: see [LineOf].
type Place[Tx any] struct {
	Store Store[Tx]

	// Note appends an entry to a list in a transaction, once in each transaction. The
	// entries are in the order of the commits.
	Note func(ctx context.Context, tx Tx, list, entry string) error

	// Noted returns a list.
	Noted func(ctx context.Context, list string) ([]string, error)
}

// Setting is how a test proves its store.
type Setting[Tx any] struct {
	// Make makes an empty store, and returns what Open needs to reach it from other
	// processes.
	Make func(t *testing.T) (address string)

	// Open opens it. It is called in other processes, too.
	Open func(address string) (*Place[Tx], error)

	// Wrap returns a plan as the TestMain of the package knows it. Nil: as it is.
	Wrap func(Plan) any

	// Slow lets a store that does one thing at a time go on for longer between two
	// kills.
	Slow bool

	// Lease is that of relays and consumers, so of lanes when a relay was killed.
	// A third of it is enough for each call of the store. Default: 1.5 seconds.
	Lease time.Duration

	// Pause is how long a producer waits between two units, at most. Default: 30 ms.
	Pause time.Duration

	// Disturb breaks something between two kills. It may be nil.
	Disturb func(t *testing.T)

	// Calm ends what still goes wrong, before the rest is waited for. It may be nil.
	Calm func(t *testing.T)
}

// How many processes there are.
const (
	producers = 2
	relays    = 2
	consumers = 2
)

// Run runs the proof for a few seconds, or again and again in a soak.
func Run[Tx any](t *testing.T, s Setting[Tx]) {
	soak, begun := proof.Soaking(t), time.Now()
	seed := proof.Seed(t)
	if soak == 0 {
		newStorm(t, s, seed).run(t, 3*time.Second)
		return
	}
	for round := uint64(0); time.Since(begun) < soak && !t.Failed(); round++ {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) { newStorm(t, s, seed+round).run(t, 20*time.Second) })
	}
}

// storm is one run.
type storm[Tx any] struct {
	Setting[Tx]
	place  *Place[Tx]
	plan   Plan
	chance *rand.Rand
	heard  *heard
	calm   atomic.Bool // processes that start do not die by themselves any more
	fleets []*fleet.Fleet
}

func newStorm[Tx any](t *testing.T, setting Setting[Tx], seed uint64) *storm[Tx] {
	t.Helper()
	s := &storm[Tx]{Setting: setting, chance: rand.New(rand.NewPCG(seed, 1))}
	s.plan = Plan{Store: setting.Make(t), NATS: offices.StartNATS(t).URL(), Seed: seed, Lease: cmp.Or(setting.Lease, 1500*time.Millisecond),
		Pause: cmp.Or(setting.Pause, 30*time.Millisecond)}
	var err error
	s.place, err = setting.Open(s.plan.Store)
	proof.Must(t, err)
	js, err := offices.DialNATS(s.plan.NATS)
	proof.Must(t, err)
	t.Cleanup(js.Conn().Close)
	_, err = js.CreateStream(proof.Soon(t), jetstream.StreamConfig{Name: stream, Subjects: []string{topic},
		Duplicates: 100 * time.Millisecond}) // the shortest, so that what is published twice gets through
	proof.Must(t, err)
	_, err = js.CreateConsumer(proof.Soon(t), stream, jetstream.ConsumerConfig{Durable: group,
		AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, AckWait: time.Second})
	proof.Must(t, err)
	s.heard = listen(t, js, natsbroker.New(js, nil))
	for _, f := range []struct {
		role   string
		places []string
		size   int
	}{
		{roleProducer, []string{diesInWork, diesAfterCommit, ""}, producers},
		{roleRelay, []string{diesBeforeSent, diesHalfway, diesAfterSent, ""}, relays},
		{roleConsumer, []string{diesInHandler, diesBeforeAck, ""}, consumers},
	} {
		s.fleets = append(s.fleets, fleet.Keep(t, f.size, func(n int) any { return s.planOf(f.role, f.places, n) }))
	}
	return s
}

// planOf returns the plan of the n-th process of a role. A fleet calls it for one
// process at a time.
func (s *storm[Tx]) planOf(role string, places []string, n int) any {
	p := s.plan
	p.Role, p.Seed = role, p.Seed+uint64(n)
	if !s.calm.Load() {
		p.Dies, p.At = places[n%len(places)], 1+n/len(places)%3
	}
	if role == roleProducer { // it repeats some of what others have done
		p.From = max(s.heard.last()-20, 0)
	}
	if s.Wrap == nil {
		return p
	}
	return s.Wrap(p)
}

// places are where processes have to die by themselves.
var places = []string{diesInWork, diesAfterCommit, diesBeforeSent, diesHalfway, diesAfterSent, diesInHandler, diesBeforeAck}

// enough is how many messages have to be published to prove something.
const enough = 60

// run kills processes for a while, and judges.
func (s *storm[Tx]) run(t *testing.T, length time.Duration) {
	defer func() {
		if t.Failed() {
			for i, role := range []string{roleProducer, roleRelay, roleConsumer} {
				t.Logf("the last words of a %s: %s", role, s.fleets[i].LastWords())
			}
		}
	}()
	begun, wait := time.Now(), time.Second
	if s.Slow {
		wait = 10 * time.Second
	}
	for kills := 0; kills < 6 || s.heard.arrived() < enough || len(s.heard.never(places)) > 0 || time.Since(begun) < length; kills++ {
		before, since := s.heard.arrived(), time.Now()
		for s.heard.arrived() < before+5 && time.Since(since) < wait {
			proof.Pause(10 * time.Millisecond)
		}
		proof.Pause(time.Duration(s.chance.IntN(200)) * time.Millisecond)
		s.fleets[s.chance.IntN(len(s.fleets))].Kill(s.chance.IntN(2))
		if s.Disturb != nil {
			s.Disturb(t)
		}
		if time.Since(begun) > length+proof.Patience {
			t.Fatalf("%d messages were published, and nobody died %q: this proves little", s.heard.arrived(), s.heard.never(places))
		}
	}
	stormed := time.Since(begun)
	s.calm.Store(true)
	proof.Must(t, s.heard.js.Conn().Publish(calm, nil))
	if s.Calm != nil {
		s.Calm(t)
	}
	s.fleets[0].Stop()
	s.finish(t)
	v := s.settle(t)
	v.check(t)
	if len(v.doubled) == 0 {
		t.Error("no message was published twice, although relays died between publishing it and writing that down")
	}
	t.Logf("%v; killed in %v of %v: %d producers, %d relays and %d consumers, of these by themselves: %v", v,
		stormed.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond), s.fleets[0].Deaths(), s.fleets[1].Deaths(), s.fleets[2].Deaths(), s.heard.deaths())
}

// finish does what killed producers have left, and again what they have done.
func (s *storm[Tx]) finish(t *testing.T) {
	t.Helper()
	w := newWork(s.place)
	ctx := proof.Soon(t)
	for n := range s.heard.last() + 1 {
		u := unitOf(n)
		if u.doomed {
			continue
		}
		proof.Await(t, fmt.Sprint("unit ", n, " is done"), func() bool { return w.do(ctx, u, func() {}) == nil })
	}
}

// waiting says what is in the outbox.
func (s *storm[Tx]) waiting(ctx context.Context) (open []string) {
	depths, err := s.place.Store.OutboxDepth(ctx, 1000)
	if err != nil {
		return []string{err.Error()}
	}
	for _, d := range depths {
		open = append(open, fmt.Sprintf("%d messages that are %v", d.Count, d.State))
	}
	return open
}

// stuckAfter is for how many leases nothing may be published, while there is
// something in the outbox.
const stuckAfter = 20

// settle waits until all messages are published and handled, ends the processes,
// and compares. It does not wait if something is wrong already that will stay so.
func (s *storm[Tx]) settle(t *testing.T) verdict {
	t.Helper()
	ctx := proof.Soon(t)
	l := ledger{made: make(map[string][]string)}
	read := func(into map[string][]string, kind string) {
		for _, line := range Lines {
			all, err := s.place.Noted(ctx, line+kind)
			proof.Must(t, err)
			into[line] = all
		}
	}
	read(l.made, madeList)
	want := l.expected()
	var looked time.Time
	var stuck []string
	empty := 0 // looks, although messages are missing
	arrived, moved := s.heard.arrived(), time.Now()
	proof.Settled(t, proof.Patience, func() []string {
		missing := s.heard.missing(want)
		if len(missing) > 0 && time.Since(looked) < time.Second { // a look may be expensive
			return missing
		}
		looked = time.Now()
		if l.prints, l.told = s.heard.all(); len(l.judge().lasting()) > 0 {
			return nil
		}
		if n := s.heard.arrived(); n != arrived {
			arrived, moved = n, time.Now()
		}
		if open := append(s.waiting(ctx), s.heard.unread(ctx)...); len(open) > 0 {
			if empty = 0; time.Since(moved) > stuckAfter*s.plan.Lease {
				stuck = open
				return nil
			}
			return open
		}
		if empty++; empty < 2 { // an index may be behind
			return missing
		}
		return nil // what is missing is lost, which the verdict says
	})
	s.fleets[1].Stop()
	l.prints, l.told = s.heard.all()
	v := l.judge()
	if len(stuck) > 0 {
		v.wrong[wrongStuck] = stuck
	}
	if len(v.wrong) > 0 {
		return v // consumers park a message that comes with two bodies, and hold those after it
	}
	l.handled = make(map[string][]string)
	proof.Settled(t, proof.Patience, func() (open []string) {
		read(l.handled, handledList)
		return append(l.unhandled(s.heard.published()), s.heard.undelivered(ctx)...)
	})
	s.fleets[2].Stop()
	read(l.handled, handledList)
	l.prints, l.told = s.heard.all()
	return l.judge()
}
