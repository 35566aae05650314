package inbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
)

const (
	probeFirst = 250 * time.Millisecond // delay before the first probe of an outage, doubled each time
	probeLimit = 10 * time.Second       // longest delay between two probes
	probeTime  = 30 * time.Second       // after so long, a probe that has not ended no longer keeps others from trying

	outageMessages = 5                // so many messages that fail one after another are an outage
	heldLimit      = 5 * time.Minute  // a message that was held for so long goes to the shelf
	heldCrowded    = 30 * time.Second // the same if half of the window is held
	suspectsLimit  = 10_000           // messages whose failures are remembered
	outageKept     = 15 * time.Minute // an outage that was reported within this time goes on
)

// outages knows for which topics nothing gets through, and tries one message at a
// time of these. The session and the shelf of a run share it.
//
// A message is blamed for its failures only while others of its topic get
// through. If nothing does, what the handler needs is probably down: then failed
// attempts are not counted.
type outages struct {
	limit   time.Duration // Retry.Outage
	logger  *slog.Logger
	down    *atomic.Int64 // Stats.Down
	changed chan struct{} // has an element when there is something to report

	mu         sync.Mutex
	earlier    map[string]time.Time // when outages began that were reported before this run
	recovered  map[string]bool      // those of them that are over
	topics     map[string]*topicState
	suspects   map[[16]byte]int64 // what topicState.passed was when a message first failed
	interested map[int]func()     // called when a topic recovers
	nextID     int
}

// topicState is what is known of a topic.
type topicState struct {
	passed  int64             // messages that got through
	failing map[[16]byte]bool // messages that failed since one got through, and not before that

	down     bool
	since    time.Time
	reason   string
	next     time.Time // when a message may be tried
	distance *backoff.Backoff
}

func newOutages(c *Consumer, logger *slog.Logger) *outages {
	return &outages{limit: c.Retry.Outage, logger: logger, down: &c.Stats.Down,
		changed: make(chan struct{}, 1), topics: make(map[string]*topicState), suspects: make(map[[16]byte]int64),
		interested: make(map[int]func()), recovered: make(map[string]bool)}
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
	t := o.topics[topic]
	if t == nil || !t.down {
		return admitted, 0
	}
	if wait := time.Until(t.next); wait > 0 {
		return held, wait
	}
	t.next = time.Now().Add(probeTime)
	return asProbe, 0
}

// nextProbe returns how long it is until a message of a topic that is down may be
// tried; 0 if none is down.
func (o *outages) nextProbe() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
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
	t := o.topics[topic]
	return t != nil && t.down
}

// hasOther reports whether messages of another topic have been tried.
func (o *outages) hasOther(topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.topics) > 1 || len(o.topics) == 1 && o.topics[topic] == nil
}

func (o *outages) topic(name string) *topicState {
	t := o.topics[name]
	if t == nil {
		t = &topicState{failing: make(map[[16]byte]bool)}
		o.topics[name] = t
	}
	return t
}

// passed is called when the handler of a message has returned, and that is
// committed.
func (o *outages) passed(ctx context.Context, it *item) {
	o.mu.Lock()
	t := o.topic(it.Message.Topic)
	t.passed++
	if len(o.suspects) > 0 {
		delete(o.suspects, digest(it.Message))
	}
	clear(t.failing)
	if _, was := o.earlier[it.Message.Topic]; was { // until another process says that it is down
		delete(o.earlier, it.Message.Topic)
		o.recovered[it.Message.Topic] = true
		o.report()
	}
	if !t.down {
		o.mu.Unlock()
		return
	}
	t.down = false
	lasted := time.Since(t.since)
	o.down.Add(-1)
	o.report()
	var calls []func()
	for _, call := range o.interested {
		calls = append(calls, call)
	}
	o.mu.Unlock()
	o.logger.InfoContext(ctx, "inbox: messages of a topic get through again", "topic", it.Message.Topic, "after", lasted.Round(time.Millisecond))
	for _, call := range calls {
		call()
	}
}

// unused is called when a message that was tried as a probe has shown nothing. If
// its handler was not called, another one may be tried at once.
func (o *outages) unused(topic string, called bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.topics[topic]
	if t == nil || !t.down {
		return
	}
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
	t := o.topic(it.Message.Topic)
	if id := digest(it.Message); !o.isSuspect(id, t) && len(t.failing) < outageMessages {
		t.failing[id] = true
	}
	switch {
	case t.down && it.probe:
		news, t.reason = goesOn, whyOf(err)
		o.wait(t, err)
	case t.down: // it was begun before that
	case unavailable, o.limit > 0 && len(t.failing) >= outageMessages:
		news = o.begin(it, t, err)
	default:
		return itsFault, 0, 0
	}
	if o.limit > 0 && time.Since(t.since) >= o.limit {
		return itsFault, 0, news
	}
	return nobodys, o.delay(t), news
}

// mayPark reports whether a message whose attempts are used up is parked. If
// nothing else of its topic got through since it first failed, the topic is down
// instead, and after is the delay before the next attempt.
func (o *outages) mayPark(ctx context.Context, it *item, err error, attempts int) (parks bool, after time.Duration) {
	var panicked *panicError
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
		return true, 0, 0
	}
	if !t.down {
		news = o.begin(it, t, err)
	}
	if time.Since(t.since) >= o.limit {
		return true, 0, news
	}
	return false, o.delay(t), news
}

// outageNews is what the log is told about a topic.
type outageNews int

const (
	begins outageNews = iota + 1
	goesOn
)

// tell logs news.
func (o *outages) tell(ctx context.Context, news outageNews, it *item, err error) {
	switch news {
	case begins:
		o.logger.WarnContext(ctx, "inbox: nothing of a topic gets through: its messages are tried one at a time, and no attempts are counted",
			"topic", it.Message.Topic, "message", it.Message.ID, "error", err)
	case goesOn:
		o.logger.WarnContext(ctx, "inbox: still nothing of a topic gets through", logs.Spaced(it.Message.Topic), "topic", it.Message.Topic,
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
	return max(time.Until(t.next), 0)*3/2 + time.Millisecond
}

// isSuspect reports whether others of its topic got through since a message first
// failed. It remembers a message that has failed for the first time.
func (o *outages) isSuspect(id [16]byte, t *topicState) bool {
	first, known := o.suspects[id]
	if known {
		return t.passed > first
	}
	if len(o.suspects) >= suspectsLimit {
		clear(o.suspects) // most of them got through
	}
	o.suspects[id] = t.passed
	return false
}

// begin notes that nothing of a topic gets through.
func (o *outages) begin(it *item, t *topicState, err error) outageNews {
	t.down, t.since, t.reason = true, time.Now(), whyOf(err)
	if since, goesOn := o.earlier[it.Message.Topic]; goesOn {
		t.since = since
	}
	t.distance = &backoff.Backoff{First: probeFirst, Limit: probeLimit}
	o.wait(t, err)
	o.down.Add(1)
	o.report()
	return begins
}

// wait sets when the next message may be tried.
func (o *outages) wait(t *topicState, err error) {
	after, _ := once.MayRetry(err)
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
