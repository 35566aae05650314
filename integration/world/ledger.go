package world

import (
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// letter is what is known of a message.
type letter struct {
	id, topic string
	key       string
	before    *letter // the message of its ordering key that was put before

	isPut     bool
	discarded bool // by a person, in the outbox
	published int  // how often
	refused   int  // attempts to publish it that failed while nothing was down
	at        map[string]*handling
	parked    bool // by a person, in the outbox
	parkedAt  time.Duration
	releases  int  // that persons have begun
	disorder  bool // the publish order of it was judged
}

// handling is what is known of a message at a consumer.
type handling struct {
	tries
	done      int
	own       int       // attempts that its handler failed
	failedAt  time.Time // the last of these
	discarded bool
	disorder  bool // the handle order of it was judged
}

// tries are the attempts at a message since a person last had it tried again.
type tries struct {
	failed  int       // began and did not succeed, while nothing was down
	excused int       // failed while something was down
	killed  int       // their process was killed
	proven  int       // their handler failed, and others had got through since it did before
	deadly  int       // the message ended their process
	began   time.Time // the first one that failed; zero: none has
}

// ledger is what the world knows of its messages. It judges what it is told.
type ledger struct {
	world     *sim.World
	consumers []string
	rules     MailPlan

	mu      sync.Mutex
	letters map[string]*letter
	order   []*letter // as they were planned
	pending map[*memstore.Tx][]fact
	effects map[string]int        // at the downstream, by key
	through map[route][]time.Time // when messages were handled
	looked  map[[2]int64]bool     // parked messages that somebody has looked at, by Seq and Version
}

// route is a topic at a consumer.
type route struct{ consumer, topic string }

// fact becomes true when its transaction commits.
type fact struct {
	consumer string // empty: the message is put
	id       string
}

func newLedger(w *sim.World, plan MailPlan) *ledger {
	return &ledger{world: w, rules: plan, letters: make(map[string]*letter), pending: make(map[*memstore.Tx][]fact), effects: make(map[string]int),
		through: make(map[route][]time.Time), looked: make(map[[2]int64]bool)}
}

// plan makes a message known before it is put.
func (l *ledger) plan(id, topic, key string, before *letter) *letter {
	m := l.never(id, topic, key)
	l.mu.Lock()
	defer l.mu.Unlock()
	m.before = before
	l.order = append(l.order, m)
	return m
}

// never makes a message known whose transaction is rolled back.
func (l *ledger) never(id, topic, key string) *letter {
	m := &letter{id: id, topic: topic, key: key, at: make(map[string]*handling)}
	for _, c := range l.consumers {
		m.at[c] = new(handling)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id] = m
	return m
}

// within records what becomes true if a transaction commits.
func (l *ledger) within(tx *memstore.Tx, f fact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[tx] = append(l.pending[tx], f)
}

// committed is told of each transaction that commits.
func (l *ledger) committed(tx *memstore.Tx) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.pending[tx] {
		if m := l.letters[f.id]; f.consumer == "" {
			m.isPut = true
		} else {
			l.handled(m, f.consumer)
		}
	}
	delete(l.pending, tx)
}

// effect is told of each effect at the downstream. consumer is empty if it is not
// about a message.
func (l *ledger) effect(key, consumer, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.effects[key]++; l.effects[key] > 1 {
		l.world.Broke(EffectOnce, key, "happened %d times at the downstream", l.effects[key])
	}
	if consumer != "" && l.effects[key] == 1 {
		l.handled(l.letters[id], consumer)
	}
}

func (l *ledger) hasEffect(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[key] > 0
}

// handled judges that a consumer has handled a message.
func (l *ledger) handled(m *letter, consumer string) {
	h, way := m.at[consumer], route{consumer, m.topic}
	l.through[way] = append(l.through[way], time.Now())
	if h.done++; h.done > 1 {
		l.world.Broke(EffectOnce, m.id, "handled %d times by %s", h.done, consumer)
		return
	}
	if !m.isPut {
		l.world.Broke(Appeared, m.id, "handled by %s, and was not put", consumer)
	}
	for e := m.before; e != nil; e = e.before {
		he := e.at[consumer]
		if he.done > 0 || e.discarded || he.discarded || he.disorder {
			continue
		}
		he.disorder = true
		l.world.Broke(HandledIn, m.id, "handled by %s before %s", consumer, e.id)
		return
	}
}

// publish judges that the broker has stored a message. where tells where another
// one is.
func (l *ledger) publish(id string, where func(id string) string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	for e := m.before; e != nil && m.published == 0; e = e.before {
		if e.parked && e.published == 0 && l.world.Now()-e.parkedAt > sendingTime {
			l.world.Broke(Held, id, "published before %s, which a person parked %v ago", e.id, l.world.Now()-e.parkedAt)
			break
		}
	}
	if m.parked && l.world.Now()-m.parkedAt > sendingTime {
		l.world.Broke(Held, id, "published, and a person parked it %v ago", l.world.Now()-m.parkedAt)
	}
	if m.published++; m.published > 1 {
		return
	}
	if !m.isPut {
		l.world.Broke(Appeared, id, "published, and was not put")
	}
	for e := m.before; e != nil; e = e.before {
		if e.published > 0 || e.discarded || e.disorder {
			continue
		}
		e.disorder = true
		l.world.Broke(PublishedIn, id, "published before %s, which is %s", e.id, where(e.id))
		return
	}
}

// parks is called when a person is about to park a message in the outbox. done is
// called when the person has: another one may have released it since.
func (l *ledger) parks(id string) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	before := m.releases
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if m.releases == before {
			m.parked, m.parkedAt = true, l.world.Now()
		}
	}
}

// releases is called when a person is about to release a message in the outbox.
func (l *ledger) releases(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	m.parked = false
	m.releases++
}

// triesAgain records that a person is about to have a message handled again, with
// all attempts. undo is called if the person has changed nothing.
func (l *ledger) triesAgain(id, consumer string) (undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	if h.done > 0 {
		return func() {}
	}
	was := h.tries
	h.tries = tries{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		h.failed, h.excused, h.killed = h.failed+was.failed, h.excused+was.excused, h.killed+was.killed
		h.proven, h.deadly, h.began = h.proven+was.proven, h.deadly+was.deadly, was.began
	}
}

// looksFirst reports whether nobody has looked at a parked message before, since it
// last changed. Whoever decides about it is about to change what counts against it.
func (l *ledger) looksFirst(s store.Shelved) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := [2]int64{s.Seq, s.Version}
	seen := l.looked[at]
	l.looked[at] = true
	return !seen
}

// sendingTime is how long after a park a message may be published that a relay was
// sending at that moment: the time of a call of the publisher, and of a late one.
const sendingTime = 10*time.Second + sim.Latest

// refusedOnce records an attempt to publish that failed.
func (l *ledger) refusedOnce(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id].refused++
}

// begin counts an attempt against a message.
func (l *ledger) begin(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	if h.failed++; h.began.IsZero() {
		h.began = time.Now()
	}
}

// excuse takes that back: something else was down.
func (l *ledger) excuse(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	h.failed--
	h.excused++
}

// kill records that the process of an attempt was killed.
func (l *ledger) kill(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.letters[id].at[consumer].killed++
}

// mustFail reports whether a handler is to fail this attempt, of which it fails
// the first times.
func (l *ledger) mustFail(id, consumer string, times int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	h := m.at[consumer]
	if h.own >= times {
		return false
	}
	h.own++
	if last, _ := l.quiet(consumer, m.topic, time.Now()); !h.failedAt.IsZero() && last.After(h.failedAt) {
		h.proven++
	}
	h.failedAt = time.Now()
	if h.proven > l.rules.Attempts*(l.rules.Processes+l.world.DeathsOf(consumer))+l.world.FaultsAbout(consumer, m.id) {
		l.world.Broke(Bounded, m.id, "%s fails it for the %dth time, and others got through between these", consumer, h.proven+1)
		h.proven = 0
	}
	return true
}

// endsProcess records that a message ends the process which handles it. The first
// delivery may not be counted, as nothing tells it from others, and the shelf counts
// anew what has waited for an answer of Lookup.
func (l *ledger) endsProcess(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[id].at[consumer]
	if h.deadly++; h.deadly > 2*l.rules.Attempts+1+l.world.FaultsAbout(consumer, id) {
		l.world.Broke(Bounded, id, "it ends the %dth process of %s", h.deadly, consumer)
	}
}

// failures returns the attempts at a message that count against it, which was
// parked at a time. Those in an outage count too if others of its topic were
// handled meanwhile, as a consumer then blames the message, if nothing of its topic
// was handled for longer than the consumer waits, perhaps because of poison, or if
// its process was killed, as nobody can tell it from a message that does that. An
// attempt whose process has stalled may count as well: it did not end in its lease.
func (l *ledger) failures(id, consumer string, parked time.Time, outage time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	h := m.at[consumer]
	n := h.failed - min(h.done, 1) + l.world.StallsOf(consumer, h.began, parked)
	last, since := l.quiet(consumer, m.topic, parked)
	if l.rules.Deadly > 0 { // attempts are counted before they begin, and others may end the process by then
		n += max(l.world.DeathsOf(consumer)-h.killed, 0)
	}
	if last.Add(noticed).After(h.began) || parked.Sub(since) >= outage || h.killed > 0 {
		n += h.excused
	}
	return n
}

// noticed is how long after its effect a consumer knows that a message was handled.
const noticed = time.Second

// quiet returns when a message of a topic was last handled before a time, and since
// when its messages have failed. Its caller holds mu.
func (l *ledger) quiet(consumer, topic string, before time.Time) (last, failing time.Time) {
	for _, at := range l.through[route{consumer, topic}] {
		if at.Before(before) && at.After(last) {
			last = at
		}
	}
	failing = before
	for _, m := range l.order {
		if began := m.at[consumer].began; m.topic == topic && !began.IsZero() && began.Before(failing) {
			failing = began
		}
	}
	if last.After(failing) {
		failing = last
	}
	return last, failing
}

// refusals returns the attempts to publish a message that count against it.
func (l *ledger) refusals(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id].refused
}

// knows reports whether a message was planned.
func (l *ledger) knows(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id] != nil
}

func (l *ledger) isPut(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.letters[id].isPut
}

// discard records that a person gives a message up, at a consumer or in the
// outbox.
func (l *ledger) discard(id, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if consumer == "" {
		l.letters[id].discarded = true
		return
	}
	l.letters[id].at[consumer].discarded = true
}

// waiting returns what has not reached its end: "ledger/k1-02", or "k1-02" if it
// was not even put.
func (l *ledger) waiting() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.order {
		switch {
		case m.discarded:
		case !m.isPut, m.published == 0:
			all = append(all, m.id)
		default:
			for _, c := range l.consumers {
				if h := m.at[c]; h.done == 0 && !h.discarded {
					all = append(all, fmt.Sprintf("%s/%s", c, m.id))
				}
			}
		}
	}
	return all
}
