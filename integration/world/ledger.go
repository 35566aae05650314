package world

import (
	"fmt"
	"slices"
	"strings"
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
	cause     cause   // whose handling puts it, if it is not that of a producer
	next      []*letter
	seq       int64 // with which it was published
	lost      bool  // a replica took over that lacks its transaction

	isPut     bool
	discarded int                  // decisions of people to give it up in the outbox, which have or may have taken effect
	published int                  // how often
	told      map[string]time.Time // when processes heard that it was published
	decided   bool                 // a person has decided about it in the outbox, or it was stuck
	invalid   bool                 // the broker has refused it as invalid
	stored    int                  // records of it at the broker, at most
	refused   int                  // attempts to publish it that failed while nothing was down
	putAt     time.Time            // when it was put
	besideAt  time.Time            // see refusedAtOnset
	at        map[string]*handling
	givenUp   int  // the value of releases when a person was told so; 0: nobody was
	parkedBy  int  // the same of parks
	parked    bool // by a person, in the outbox, or stuck
	parkedAt  time.Duration
	releases  int           // that persons have begun, and 1
	releasing int           // those of them that may still take effect
	released  time.Duration // when a person was last about to do so; 0: never
	disorder  bool          // the publish order of it was judged
}

// handling is what is known of a message at a consumer.
type handling struct {
	tries
	done      int
	lost      bool        // a replica took over that may lack what became of it
	again     bool        // it was handled since
	own       int         // attempts that its handler failed
	failedAt  time.Time   // the last of these
	ends      []time.Time // when its handler failed
	discarded int         // the same here
	replayed  bool        // a person had it tried again
	success   *success    // the last attempt whose handler has succeeded
	givenUp   bool        // a person was told that it was discarded while it waited
	disorder  bool        // the handle order of it was judged
}

// tries are the attempts at a message since a person last had it tried again.
type tries struct {
	failed    int       // began and did not succeed, while nothing was down
	excused   int       // failed while something was down
	killed    int       // their process was killed
	proven    int       // their handler failed, and others had got through since it did before
	deadly    int       // the message ended their process
	began     time.Time // the first one that failed; zero: none has
	unended   unended   // of a deadly one
	failedIn  string    // the process in which a deadly one last failed
	uncounted int       // processes that it ended after it had failed in them
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
	lastPut map[string]*letter    // by ordering key, of those that handlers put
	losses  losses
	retired map[route]*retirement  // not changed once consumers have begun
	looked  map[[2]int64]bool      // parked messages that somebody has looked at, by Seq and Version
	lately  time.Time              // when the broker last stored a message
	lastOut map[sim.Link]time.Time // when a link last went down, or came back
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
		through: make(map[route][]time.Time), looked: make(map[[2]int64]bool), lastPut: make(map[string]*letter),
		retired: make(map[route]*retirement), lastOut: make(map[sim.Link]time.Time)}
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
	m := &letter{id: id, topic: topic, key: key, at: make(map[string]*handling), told: make(map[string]time.Time), releases: 1}
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
		l.losses.loses(f)
		if m := l.letters[f.id]; f.consumer == "" {
			l.puts(m)
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
	if l.effects[key]++; l.effects[key] > l.mayRepeat(key) {
		l.world.Broke(EffectOnce, key, "happened %d times at the downstream", l.effects[key])
	}
	switch {
	case consumer != "" && l.effects[key] == 1:
		l.handled(l.letters[id], consumer)
	case id != "":
		l.charged(id)
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
	if h.done++; h.done > l.mayHandle(m, consumer) {
		l.world.Broke(EffectOnce, m.id, "handled %d times by %s", h.done, consumer)
	}
	h.again = l.losses.failedOver()
	if h.done > 1 {
		return
	}
	if !l.isNotGone(consumer, m.topic) {
		l.world.Broke(Retired, m.id, "handled by %s, which is retired", consumer)
	}
	if h.givenUp && l.isClean(m.id, consumer) {
		l.world.Broke(Decision, m.id, "handled by %s, and a person was told that it is given up there", consumer)
	}
	if !m.isPut && !m.lost {
		l.world.Broke(Appeared, m.id, "handled by %s, and was not put", consumer)
	}
	for e := m.before; e != nil; e = e.before {
		he := e.at[consumer]
		if e.topic != m.topic || he.done > 0 || e.discarded > 0 || he.discarded > 0 || he.disorder || l.mayLack(m, consumer) || l.mayLack(e, consumer) {
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
			l.world.Broke(Held, id, "published before %s, which was parked %v ago", e.id, l.world.Now()-e.parkedAt)
			break
		}
	}
	if m.parked && l.world.Now()-m.parkedAt > sendingTime {
		l.world.Broke(Held, id, "published, and it was parked %v ago", l.world.Now()-m.parkedAt)
	}
	l.lately = time.Now()
	if m.published++; m.published > 1 {
		return
	}
	if !m.isPut && !m.lost {
		l.world.Broke(Appeared, id, "published, and was not put")
	}
	for e := m.before; e != nil; e = e.before {
		if e.published > 0 || e.discarded > 0 || e.disorder || e.lost || m.lost {
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
	m.decided = true
	before := m.releases
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if m.releases == before && m.releasing == 0 {
			m.parked, m.parkedAt, m.parkedBy = true, l.world.Now(), before
			l.judgeDecisions(m)
		}
	}
}

// releases is called when a person is about to release a message in the outbox, and
// told with what the person is told. If that is an error, it may be released later.
func (l *ledger) releases(id string) (told func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	m.parked, m.decided = false, true
	m.releases++
	m.releasing++
	m.released = l.world.Now()
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil {
			m.releasing--
		}
	}
}

// sinceRelease is how long ago a person was last about to release a message.
func (l *ledger) sinceRelease(id string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.letters[id]; m.released > 0 {
		return l.world.Now() - m.released
	}
	return time.Hour
}

// judgeDecisions judges that not both of two people have decided about a message in
// the outbox. Its caller holds mu.
func (l *ledger) judgeDecisions(m *letter) {
	if m.givenUp > 0 && m.givenUp == m.parkedBy {
		l.world.Broke(Decision, m.id, "one person was told that it is parked, and another one that it is given up")
	}
}

// givesUp is called when a person is about to give up a message that waits in the
// outbox. ended is called with what the person was told.
func (l *ledger) givesUp(id string) (ended func(changed int, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	m.decided = true
	before := m.releases
	m.discarded++
	return func(changed int, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil && changed == 0:
			m.discarded--
		case err == nil && m.releases == before:
			m.givenUp = before
			l.judgeDecisions(m)
		}
	}
}

// givesUpWaiting is givesUp for a message on the shelf of a consumer.
func (l *ledger) givesUpWaiting(id, consumer string) (ended func(changed int, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	h := m.at[consumer]
	h.discarded++
	return func(changed int, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil && changed == 0:
			h.discarded--
		case err == nil:
			h.givenUp = true
		}
	}
}

// isClean reports whether a consumer knows what became of its attempts at a message.
// Its caller holds mu.
func (l *ledger) isClean(id, consumer string) bool {
	h := l.letters[id].at[consumer]
	return h.killed == 0 && h.excused == 0 && l.world.FaultsAbout(consumer, id) == 0 && !l.world.HasStalled()
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
	h.tries, h.replayed = tries{}, true
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
// the first times. Only those of a message alone are attempts.
func (l *ledger) mustFail(id, consumer string, times int, alone bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	h := m.at[consumer]
	if h.own >= times {
		return false
	}
	h.own++
	if last, _ := l.quiet(consumer, m.topic, time.Now()); alone && !h.failedAt.IsZero() && last.After(h.failedAt) {
		h.proven++
	}
	h.failedAt = time.Now()
	most := l.rules.mostAttempts()*(l.rules.Processes+l.world.DeathsOf(consumer)) + l.lost(m, consumer)
	most += max(0, m.stored-1) // a copy may begin before the failure of another is written
	if len(l.lastOut) > 0 {
		most += l.rules.mostAttempts() // the shelf counts anew what waits there for the end of an outage
	}
	if h.proven > most*l.records(m, consumer) && !l.rules.Meet && l.rules.Stubborn == 0 { // people have it tried again
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
	m := l.letters[id]
	h, most := m.at[consumer], 2*l.rules.mostAttempts()+1+l.lost(m, consumer)
	if h.deadly++; h.deadly > most*l.records(m, consumer) && !l.rules.Counting.Fickle {
		l.world.Broke(Bounded, id, "it ends the %dth process of %s", h.deadly, consumer)
	}
	if l.rules.Counting.Exact {
		l.judgeDeath(m, consumer)
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
	if l.rules.Counting.Exact && l.rules.Copied > 0 { // a copy that waited was counted, and its process could not take that back before it stopped
		n += min(l.world.StopsOf(consumer, h.began, parked), 1)
	}
	if l.rules.Deadly+l.rules.Stubborn > 0 || h.killed > 0 {
		// Attempts are counted before they begin, and the process may end by then. Such as
		// in the wait for the transaction of a process that was killed.
		n += max(l.world.DeathsOf(consumer)-h.killed, 0)
	}
	if last.Add(noticed).After(h.began) || parked.Sub(since) >= outage || h.killed > 0 {
		n += h.excused
	}
	return n
}

// lacksAnEnd reports whether a message may be parked because its process could not
// record how an attempt ended while the store was down, and was stopped, or lost the
// message with its session: then others have it, who do not know.
func (l *ledger) lacksAnEnd(s store.Shelved, consumer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.letters[s.Message.ID].at[consumer]
	counted := h.excused > 0 || slices.ContainsFunc(l.world.CallsAbout(s.Consumer+"@@attempts/"+s.Message.ID), func(c sim.Line) bool {
		return c.Note == sim.ErrDown.Error() // a copy is counted before it waits for another one
	})
	stopped := l.world.StopsOf(consumer, h.began, s.Updated) > 0
	lost := l.rules.Processes > 1 && l.lastOut[sim.BrokerName].After(h.began)
	return strings.Contains(s.Reason, "never ended") && counted && l.lastOut[sim.StoreName].After(h.began) && (stopped || lost)
}

// hears is told when a link goes down or comes back.
func (l *ledger) hears(link sim.Link, _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastOut[link] = time.Now()
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
		l.letters[id].discarded++
		return
	}
	l.letters[id].at[consumer].discarded++
}

// waiting returns what has not reached its end: "ledger/k1-02", or "k1-02" if it
// was not even put.
func (l *ledger) waiting() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.order {
		switch {
		case m.discarded > 0, m.lost, !m.isPut && !l.mayBePut(m):
		case !m.isPut, m.published == 0:
			all = append(all, m.id)
		default:
			for _, c := range l.readersOf(m.topic) {
				if h := m.at[c]; h.done == 0 && h.discarded == 0 && !l.mayLack(m, c) {
					all = append(all, fmt.Sprintf("%s/%s", c, m.id))
				}
			}
		}
	}
	return all
}
