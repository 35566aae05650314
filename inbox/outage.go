package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/logs"
)

const (
	probeFirst = 250 * time.Millisecond // delay before the first probe of an outage, doubled each time
	probeLimit = 10 * time.Second       // longest delay between two probes
	probeTime  = 30 * time.Second       // after so long, a probe that has not ended no longer keeps others from trying

	outageMessages = 5                // so many messages of a topic, or of as many topics, that fail one after another are an outage
	heldLimit      = 5 * time.Minute  // a message that was held for so long goes to the shelf
	heldCrowded    = 30 * time.Second // the same if half of the window is held
	suspectsLimit  = 10_000           // messages whose failures are remembered
	topicsLimit    = 1_000            // topics that are remembered; those that are down are, beyond it
	outageKept     = 15 * time.Minute // an outage that was reported within this time goes on
)

// AllTopics is the Topic of an [Outage] in which nothing of the consumer gets
// through, of whatever topic.
const AllTopics = "*"

// outages knows for which topics nothing gets through, and tries one message at a
// time of these. The session and the shelf of a run share it.
//
// A message is blamed for its failures only while others of its topic get
// through. If nothing does, what the handler needs is probably down: then failed
// attempts are not counted. A topic may be that of one entity, and have one
// message only. Such a message is judged by all others of the consumer, and if
// messages of several topics fail one after another, all topics are down.
type outages struct {
	limit   time.Duration // Retry.Outage
	logger  *slog.Logger
	down    *atomic.Int64 // Stats.Down
	changed chan struct{} // has an element when there is something to report

	mu         sync.Mutex
	earlier    map[string]time.Time // when outages began that others have reported, or earlier runs, and that are not seen here
	through    int64                // messages that got through
	all        *topicState          // down if nothing gets through, of whatever topic
	failing    map[string]bool      // topics whose messages failed since anything got through, and not before that
	topics     map[string]*topicState
	dropAt     int                // so many topics are too many
	suspects   map[[16]byte]int64 // how many had got through when a message first failed
	interested map[int]func()     // called when a topic recovers
	nextID     int
}

// topicState is what is known of a topic.
type topicState struct {
	name    string
	passed  int64             // how many had got through when one of the topic did last
	lately  time.Time         // when that was
	failing map[[16]byte]bool // messages that failed since one got through, and not before that

	down     bool
	since    time.Time // when it began, here or at the others that report it
	own      time.Time // when it began here
	begun    int64     // how many had got through then
	reason   string
	next     time.Time // when a message may be tried
	probing  bool      // one is being tried
	distance *backoff.Backoff
}

func newOutages(c *Consumer, logger *slog.Logger) *outages {
	return &outages{limit: c.Retry.Outage, logger: logger, down: &c.Stats.Down,
		changed: make(chan struct{}, 1), all: &topicState{name: AllTopics}, failing: make(map[string]bool),
		topics: make(map[string]*topicState), dropAt: topicsLimit, suspects: make(map[[16]byte]int64),
		interested: make(map[int]func()), earlier: make(map[string]time.Time)}
}

// admission says whether a message may be tried now.
type admission int

const (
	admitted admission = iota
	asProbe            // alone, to find out whether its topic has recovered
	held               // its topic is down
)

// admit reports whether a message of a topic may be tried now, and otherwise how
// long it waits.
func (o *outages) admit(topic string) (admission, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.downState(topic)
	if t == nil {
		return admitted, 0
	}
	if wait := time.Until(t.next); wait > 0 {
		return held, wait
	}
	if t.isIdle() { // what has been down meanwhile is not known
		t.own = time.Now()
		t.since = t.own
		o.report()
	}
	t.next, t.probing = time.Now().Add(probeTime), true
	return asProbe, 0
}

// isIdle reports whether no message has been tried for a while, although one could
// be: others have handled those that waited for this topic.
func (t *topicState) isIdle() bool { return !t.probing && time.Since(t.next) > OutageShown }

// nextProbe returns how long it is until a message of a topic that is down may be
// tried; 0 if none is down.
func (o *outages) nextProbe() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all.down {
		return min(max(time.Until(o.all.next), time.Millisecond), probeLimit)
	}
	first := time.Duration(0)
	for _, t := range o.topics {
		if wait := max(time.Until(t.next), time.Millisecond); t.down && (first == 0 || wait < first) {
			first = wait
		}
	}
	return min(first, probeLimit)
}

// isDown reports whether nothing of a topic gets through.
func (o *outages) isDown(topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.downState(topic) != nil
}

// downState returns what is down for a topic: all of them, or it alone. It is nil
// if the topic is not down.
func (o *outages) downState(topic string) *topicState {
	if o.all.down {
		return o.all
	}
	if t := o.topics[topic]; t != nil && t.down {
		return t
	}
	return nil
}

// hasOther reports whether messages of another topic have been tried, and may get
// through.
func (o *outages) hasOther(topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.all.down && (len(o.topics) > 1 || len(o.topics) == 1 && o.topics[topic] == nil)
}

func (o *outages) topic(name string) *topicState {
	t := o.topics[name]
	if t == nil {
		if len(o.topics) >= o.dropAt {
			o.drop()
		}
		t = &topicState{name: name, failing: make(map[[16]byte]bool)}
		o.topics[name] = t
	}
	return t
}

// drop forgets topics that are not down, first those with nothing that fails. What
// got through of the consumer remains as evidence.
func (o *outages) drop() {
	for _, failing := range []int{0, outageMessages} {
		for name, t := range o.topics {
			if len(o.topics) > topicsLimit/2 && !t.down && len(t.failing) <= failing {
				delete(o.topics, name)
			}
		}
	}
	o.dropAt = max(topicsLimit, 2*len(o.topics))
}

// passed is called when the handler of a message has returned, and that is
// committed.
func (o *outages) passed(ctx context.Context, it *item) {
	o.mu.Lock()
	t := o.topic(it.Message.Topic)
	o.through++
	t.passed, t.lately = o.through, time.Now()
	o.all.lately = t.lately
	if len(o.suspects) > 0 {
		delete(o.suspects, digest(it.Message))
	}
	clear(t.failing)
	clear(o.failing)
	type ended struct {
		topic string
		after time.Duration
	}
	var over []ended
	for _, d := range []*topicState{t, o.all} {
		if _, was := o.earlier[d.name]; was {
			delete(o.earlier, d.name)
			o.report()
		}
		if d.down {
			o.end(d)
			over = append(over, ended{d.name, time.Since(d.since)})
		}
	}
	var calls []func()
	if len(over) > 0 {
		calls = slices.Collect(maps.Values(o.interested))
	}
	o.mu.Unlock()
	for _, d := range over {
		o.logger.InfoContext(ctx, "inbox: messages of a topic get through again", "topic", d.topic, "after", d.after.Round(time.Millisecond))
	}
	for _, call := range calls {
		call()
	}
}

// end notes that a topic is not down.
func (o *outages) end(t *topicState) {
	t.down, t.probing = false, false
	o.down.Add(-1)
	o.report()
}

// unused is called when a message that was tried as a probe has shown nothing. If
// its handler was not called, another one may be tried at once.
func (o *outages) unused(topic string, called bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.downState(topic)
	if t == nil {
		return
	}
	t.probing = false
	if t.next = time.Now(); called {
		t.next = t.next.Add(t.distance.Next())
	}
}

// blame says what a failed attempt means for its message.
type blame int

const (
	itsFault blame = iota // the attempt counts
	nobodys               // the attempt does not count: the topic is down
)

// failed is called when the handler of a message has failed. If the message is not
// to blame, after is the delay before its next attempt.
func (o *outages) failed(ctx context.Context, it *item, err error) (b blame, after time.Duration) {
	b, after, news := o.judge(it, err)
	o.tell(ctx, news, it, err)
	return b, after
}

func (o *outages) judge(it *item, err error) (b blame, after time.Duration, news outageNews) {
	var said *unavailableError
	unavailable := errors.As(err, &said)
	o.mu.Lock()
	defer o.mu.Unlock()
	t, id := o.topic(it.Message.Topic), digest(it.Message)
	first := o.firstFailure(id)
	if t.passed <= first && len(t.failing) < outageMessages {
		t.failing[id] = true
	}
	if o.through <= first && len(o.failing) < outageMessages && (unavailable || o.limit > 0) {
		o.failing[t.name] = true
	}
	d := cmp.Or(o.downState(t.name), t)
	switch {
	case d.down && d == t && !unavailable && t.isAlone(id) && o.through > max(first, t.begun):
		o.end(t) // others of the consumer get through now
		return itsFault, 0, outageNews{}
	case d.down && it.probe:
		news, d.reason = outageNews{d.name, goesOn}, whyOf(err)
		o.wait(d, err)
	case d.down: // it was begun before that
	case len(o.failing) >= outageMessages:
		d = o.all
		news = o.begin(d, err)
	case unavailable, o.limit > 0 && (len(t.failing) >= outageMessages || o.goesOn(t)):
		news = o.begin(d, err)
	default:
		return itsFault, 0, outageNews{}
	}
	if o.limit > 0 && time.Since(d.since) >= o.limit {
		return itsFault, 0, news
	}
	return nobodys, o.delay(d), news
}

// mayPark reports whether a message whose attempts are used up is parked. If there
// is no evidence against it, its topic is down instead, and after is the delay
// before the next attempt.
func (o *outages) mayPark(ctx context.Context, it *item, err error, attempts int) (parks bool, after time.Duration) {
	var panicked *contain.Error
	if o.limit <= 0 || attempts == 1 || errors.As(err, &panicked) {
		return true, 0
	}
	parks, after, news := o.judgeLast(it, err)
	o.tell(ctx, news, it, err)
	return parks, after
}

func (o *outages) judgeLast(it *item, err error) (parks bool, after time.Duration, news outageNews) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.topic(it.Message.Topic)
	if o.isSuspect(digest(it.Message), t) {
		return true, 0, outageNews{}
	}
	d := o.downState(t.name)
	if d == nil {
		d = t
		news = o.begin(d, err)
	}
	if time.Since(d.since) >= o.limit {
		return true, 0, news
	}
	return false, o.delay(d), news
}

// blames reports whether a message is to blame for its attempts, which are used up
// before an attempt is made here. Without evidence for that, another attempt shows
// whether its topic is down.
func (o *outages) blames(it *item, attempts int) bool {
	if o.limit <= 0 || attempts == 1 {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.topic(it.Message.Topic)
	if o.isSuspect(digest(it.Message), t) {
		return true
	}
	d := o.downState(t.name)
	return d != nil && time.Since(d.since) >= o.limit
}

// outageNews is what the log is told about a topic.
type outageNews struct {
	topic string
	kind  newsKind
}

type newsKind int

const (
	begins newsKind = iota + 1
	goesOn
)

// tell logs news.
func (o *outages) tell(ctx context.Context, news outageNews, it *item, err error) {
	switch news.kind {
	case begins:
		o.logger.WarnContext(ctx, "inbox: nothing of a topic gets through: its messages are tried one at a time, and no attempts are counted",
			"topic", news.topic, "message", it.Message.ID, "error", err)
	case goesOn:
		o.logger.WarnContext(ctx, "inbox: still nothing of a topic gets through", logs.Spaced(news.topic), "topic", news.topic,
			"message", it.Message.ID, "error", err)
	}
}

// forget is called when a message is parked.
func (o *outages) forget(it *item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.suspects, digest(it.Message))
}

// delay is the delay of a message that failed while its topic is down. Those that
// were not tried come before it.
func (o *outages) delay(t *topicState) time.Duration {
	d := max(time.Until(t.next), 0)
	return d + min(d/2, probeLimit) + time.Millisecond
}

// isSuspect reports whether others of its topic got through since a message first
// failed; if it is the only one of its topic that fails, any others.
func (o *outages) isSuspect(id [16]byte, t *topicState) bool {
	passed := t.passed
	if t.isAlone(id) {
		passed = o.through
	}
	return passed > o.firstFailure(id)
}

// isAlone reports whether no other message of the topic has failed since one got
// through.
func (t *topicState) isAlone(id [16]byte) bool {
	return len(t.failing) == 0 || len(t.failing) == 1 && t.failing[id]
}

// firstFailure returns how many messages had got through when one first failed. It
// remembers one that has failed for the first time.
func (o *outages) firstFailure(id [16]byte) int64 {
	first, known := o.suspects[id]
	if known {
		return first
	}
	if len(o.suspects) >= suspectsLimit {
		clear(o.suspects) // most of them got through
	}
	o.suspects[id] = o.through
	return o.through
}

// goesOn reports whether an outage that others have reported, or an earlier run, has
// lasted since, for all that is known here.
func (o *outages) goesOn(t *topicState) bool {
	since, was := o.earlier[t.name]
	lately := t.lately
	if len(t.failing) <= 1 { // it is judged by all others
		lately = o.all.lately
	}
	return was && !lately.After(since)
}

// begin notes that nothing of a topic gets through.
func (o *outages) begin(t *topicState, err error) outageNews {
	t.down, t.own, t.begun, t.reason = true, time.Now(), o.through, whyOf(err)
	t.since = t.own
	if o.goesOn(t) {
		t.since = o.earlier[t.name]
	}
	t.distance = &backoff.Backoff{First: probeFirst, Limit: probeLimit}
	o.wait(t, err)
	o.down.Add(1)
	o.report()
	return outageNews{t.name, begins}
}

// wait sets when the next message may be tried.
func (o *outages) wait(t *topicState, err error) {
	after, _ := once.MayRetry(err)
	t.probing = false
	t.next = time.Now().Add(max(t.distance.Next(), after))
}

// whenUp has call called whenever a topic recovers, until stop is called.
func (o *outages) whenUp(call func()) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := o.nextID
	o.nextID++
	o.interested[id] = call
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.interested, id)
	}
}

// report has the state reported to the store.
func (o *outages) report() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}
