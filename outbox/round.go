package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// sink is where it is written down what became of messages: the table, or the log and the table.
type sink interface {
	// sent ends messages that were published. It returns when that is written down, or cannot be any more.
	sent(ctx context.Context, ms []store.Outgoing)

	// calling says that the publisher is at work, or no longer.
	calling(bool)

	// owned reports whether a message may be published by this relay, now.
	owned(m *store.Outgoing) bool
}

// carrier publishes chunks of messages, one after another.
type carrier struct {
	*run
	suspected map[place]int64 // what has failed alone, and how many had got through then
	sink      sink
	cautious  bool // nothing got through in the last round: messages go alone, to find out which of them can
	turn      int  // where a cautious round begins, so that one message that breaks everything is not always the first
}

// maxFailures is how many calls of the publisher may fail one after another before a round is given up.
const maxFailures = 5

// outcome is what has become of a chunk. What is in none of its lists is as it was.
type outcome struct {
	failed  []store.Outgoing // alone, while others got through: with one attempt more, and a Reason
	behind  []store.Outgoing // of topics of which nothing gets through; these were not tried
	invalid []store.Outgoing // can never be published, with a Reason
	first   *store.Outgoing  // what failed first, if nothing got through and it was alone
	carried int              // how many got through
	refused bool             // something was tried, and nothing got through
}

// carry publishes what it can of a chunk, in batches with one message of an ordering key in each. It begins nothing new
// when ctx has ended, and ends what it has begun while working lasts.
func (c *carrier) carry(ctx, working context.Context, chunk []store.Outgoing) outcome {
	r := round{carrier: c, working: working, skip: make(map[string]bool), topics: make(map[string]int)}
	q := newQueue(chunk, c.Overtaking && !c.cautious)
	if c.cautious {
		q.mixTopics()
		q.rotate(c.turn)
	}
	for ctx.Err() == nil && r.failures < maxFailures {
		limit := c.Batch
		if c.cautious && r.carried == 0 {
			limit = 1
		}
		batch := q.next(limit, r.wants)
		if len(batch) == 0 {
			break
		}
		r.send(batch)
		if r.carried == 0 && r.failures > 0 && !c.cautious {
			break // probably it is the broker
		}
	}
	r.ending.Wait()
	r.sortOut(chunk)
	r.refused = r.carried == 0 && len(r.invalid) == 0 && r.failures > 0
	if c.cautious = r.refused; r.refused && len(r.suspects) > 0 {
		r.first = &r.suspects[0]
	}
	if c.turn += r.failures; !r.refused {
		c.turn = 0
	}
	return r.outcome
}

// round is the way of one chunk.
type round struct {
	*carrier
	working context.Context
	outcome
	failures int              // calls in which nothing got through, since something did
	skip     map[string]bool  // ordering keys with a message that failed
	topics   map[string]int   // how many messages have failed alone; negative: something got through
	suspects []store.Outgoing // failed alone, and not to blame yet
	ending   sync.WaitGroup   // the end of the last batch is written down while the next one is published
}

// wants reports whether a message may still go in this round. If it may not, nothing behind it may: it could be allowed
// again a moment later, and would come behind.
func (r *round) wants(m *store.Outgoing) bool {
	if r.skip[m.Message.OrderingKey] || !r.may(m) {
		r.skipKey(m)
		return false
	}
	return true
}

func (r *round) may(m *store.Outgoing) bool { return !r.hopeless(m) && r.sink.owned(m) }

// hopeless reports whether a message goes where two have failed, each alone, and none got through. A topic that the broker
// does not have is no reason to try each of a million messages.
func (r *round) hopeless(m *store.Outgoing) bool { return r.topics[m.Message.Topic] > 1 }

// sortOut finds what is behind those that are to blame, by its topic.
func (r *round) sortOut(chunk []store.Outgoing) {
	blamed, tried := make(map[string]bool), make(map[place]bool)
	for _, m := range r.failed {
		blamed[m.Message.Topic] = r.hopeless(&m)
	}
	if len(blamed) == 0 {
		return
	}
	for _, m := range slices.Concat(r.invalid, r.failed, r.suspects) {
		tried[placeOf(&m)] = true
	}
	for _, m := range chunk {
		if blamed[m.Message.Topic] && !tried[placeOf(&m)] {
			m.Reason = "nothing gets through to topic " + m.Message.Topic
			r.behind = append(r.behind, m)
		}
	}
}

// place tells a message from all others.
type place struct {
	lane     int
	seq      int64
	logPlace uint64
	id       string
}

func placeOf(m *store.Outgoing) place { return place{m.Lane, m.Seq, m.LogPlace, m.Message.ID} }

// send publishes a batch. Of what fails, each half is sent again, until a message has failed alone.
func (r *round) send(batch []store.Outgoing) {
	ok, failed, invalid := r.publish(batch)
	r.invalid = append(r.invalid, invalid...)
	for _, m := range invalid {
		r.skipKey(&m)
	}
	if len(ok) > 0 {
		r.gotThrough(ok)
	}
	switch {
	case len(failed) == 0:
	case len(batch) == 1:
		r.failures++
		r.suspect(&failed[0])
		r.skipKey(&failed[0])
		if n := r.topics[failed[0].Message.Topic]; n >= 0 {
			r.topics[failed[0].Message.Topic] = n + 1
		}
	case r.carried == 0:
		r.failures++
	default:
		for _, m := range failed {
			r.skipKey(&m) // until it gets through
		}
		half := (len(failed) + 1) / 2
		for _, part := range [][]store.Outgoing{failed[:half], failed[half:]} {
			part = slices.DeleteFunc(part, func(m store.Outgoing) bool { return !r.may(&m) })
			if len(part) > 0 && r.failures < maxFailures && r.working.Err() == nil {
				r.send(part)
			}
		}
	}
}

// suspect notes a message that has failed alone. It is to blame if it had failed before, and something has got through
// since: else it is the broker that was in trouble, once.
func (r *round) suspect(m *store.Outgoing) {
	through := r.through.Load()
	before, known := r.suspected[placeOf(m)]
	if known && through > before {
		r.failed = append(r.failed, *m)
		delete(r.suspected, placeOf(m))
		return
	}
	r.suspects = append(r.suspects, *m)
	if len(r.suspected) >= maxChunk || r.suspected == nil {
		r.suspected = make(map[place]int64) // most of them have got through by now
	}
	if !known {
		r.suspected[placeOf(m)] = through
	}
}

func (r *round) skipKey(m *store.Outgoing) {
	if key := m.Message.OrderingKey; key != "" {
		r.skip[key] = true
	}
}

// gotThrough ends what was confirmed.
func (r *round) gotThrough(ok []store.Outgoing) {
	r.failures = 0
	r.carried += len(ok)
	for _, m := range ok {
		r.topics[m.Message.Topic] = -1
		delete(r.skip, m.Message.OrderingKey)
	}
	r.Stats.Published.Add(int64(len(ok)))
	tellEach(r.working, r.Logger, observe.MessagePublished, ok)
	r.through.Add(int64(len(ok)))
	r.ending.Wait()
	r.ending.Add(1)
	go func() {
		defer r.ending.Done()
		r.sink.sent(r.working, ok)
	}()
}

// publish sends a batch and sorts what came of it. Those that failed have one attempt more, and the reason.
func (r *round) publish(batch []store.Outgoing) (ok, failed, invalid []store.Outgoing) {
	ms, batch, failed, invalid := r.open(batch)
	if len(ms) == 0 {
		r.tellRefused(failed)
		return nil, failed, invalid
	}
	ctx, cancel := r.limit(r.working)
	defer cancel()
	r.sink.calling(true)
	ctx, ended := r.watch(ctx, ms)
	errs := r.Publisher.Publish(ctx, ms)
	if errs != nil && len(errs) != len(ms) {
		wrong := fmt.Errorf("outbox: the publisher returned %d errors for %d messages", len(errs), len(ms))
		errs = slices.Repeat([]error{wrong}, len(ms))
	}
	if ended != nil {
		ended(errs)
	}
	r.sink.calling(false) // an observer may hang, too
	if errs == nil {
		return batch, failed, invalid
	}
	for i, m := range batch {
		err := errs[i]
		if err == nil {
			ok = append(ok, m)
			continue
		}
		m.Attempts++
		m.Reason = name.Reason(err.Error())
		if errors.Is(err, broker.ErrInvalid) {
			invalid = append(invalid, m)
		} else {
			failed = append(failed, m)
		}
	}
	if len(ok) == 0 {
		r.tellRefused(failed)
	}
	return ok, failed, invalid
}

// open returns a batch as it is published, without the messages that cannot be opened. Those whose secret is missing have
// failed, and are tried again; those that were changed, or are plain where that is refused, can never be published. What
// is behind either in its ordering key is left as it is.
func (r *round) open(batch []store.Outgoing) (ms []*broker.Message, opened, failed, invalid []store.Outgoing) {
	ms = make([]*broker.Message, 0, len(batch))
	var closed map[string]bool // ordering keys with a message that was not opened
	for i, m := range batch {
		key := m.Message.OrderingKey
		if closed[key] {
			continue
		}
		plain, err := store.OpenOutgoing(&r.Store.Options().Sealing, m.Message)
		if err == nil {
			ms, opened = append(ms, outbound(&batch[i], plain)), append(opened, m)
			continue
		}
		if key != "" {
			if closed == nil {
				closed = make(map[string]bool)
			}
			closed[key] = true
		}
		m.Attempts++
		m.Reason = name.Reason(err.Error())
		if store.IsSealKeyMissing(err) {
			failed = append(failed, m)
		} else {
			invalid = append(invalid, m)
		}
	}
	return ms, opened, failed, invalid
}

func (r *round) tellRefused(failed []store.Outgoing) {
	if len(failed) == 0 {
		return
	}
	r.Stats.Refused.Add(1)
	r.Logger.WarnContext(r.working, "outbox: nothing of a batch got through", logs.Spaced(""), "messages", len(failed),
		"first", failed[0].Message.ID, "topic", failed[0].Message.Topic, "error", failed[0].Reason)
}

// SeqHeader is the name of the header that holds a number. It rises from
// message to message of an ordering key, and stays the same when a message is
// republished.
const SeqHeader = "once-seq"

// outbound is a message as it is published, with what was sealed in it.
func outbound(m *store.Outgoing, out broker.Message) *broker.Message {
	out.Attempt = 0
	own := out.Header
	out.Header = make(map[string]string, len(own)+1)
	maps.Copy(out.Header, own)
	if out.Header[SeqHeader] == "" { // else it was set aside, and has the number that it was first published with
		out.Header[SeqHeader] = number(m)
	}
	return &out
}

func number(m *store.Outgoing) string {
	if m.Seq > 0 {
		return strconv.FormatInt(m.Seq, 10)
	}
	return strconv.FormatUint(m.LogPlace, 10)
}

// queue gives out a chunk in batches.
type queue struct {
	runs       [][]store.Outgoing // of one ordering key each, or of everything
	later      [][]store.Outgoing // those that had their turn in this batch
	overtaking bool
}

func newQueue(chunk []store.Outgoing, overtaking bool) *queue {
	if overtaking && len(chunk) > 0 {
		return &queue{runs: [][]store.Outgoing{chunk}, overtaking: true}
	}
	q := &queue{runs: make([][]store.Outgoing, 0, len(chunk))}
	at := make(map[string]int)
	for i, m := range chunk {
		key := m.Message.OrderingKey
		if k, known := at[key]; known && key != "" {
			q.runs[k] = append(q.runs[k], m)
			continue
		}
		at[key] = len(q.runs)
		q.runs = append(q.runs, chunk[i:i+1:i+1])
	}
	return q
}

// mixTopics puts messages of different topics next to each other: what is wrong is often one of them.
func (q *queue) mixTopics() {
	nth := make(map[string]int)
	var rounds [][][]store.Outgoing
	for _, run := range q.runs {
		n := nth[run[0].Message.Topic]
		nth[run[0].Message.Topic]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], run)
	}
	q.runs = slices.Concat(rounds...)
}

// rotate lets the queue begin elsewhere.
func (q *queue) rotate(n int) {
	if len(q.runs) > 0 {
		n %= len(q.runs)
		q.runs = append(q.runs[n:len(q.runs):len(q.runs)], q.runs[:n]...)
	}
}

// next is a batch of at most so many messages, of those that are wanted.
func (q *queue) next(limit int, wanted func(*store.Outgoing) bool) (batch []store.Outgoing) {
	for len(batch) < limit && len(q.runs) > 0 {
		run := q.runs[0]
		m := run[0]
		rest := run[1:]
		switch {
		case q.overtaking && len(rest) > 0:
			q.runs[0] = rest
		case q.overtaking:
			q.runs = nil
		default:
			q.runs = q.runs[1:]
		}
		if !wanted(&m) {
			continue // and nothing behind it either, which is of its key
		}
		batch = append(batch, m)
		if !q.overtaking && len(rest) > 0 {
			q.later = append(q.later, rest)
		}
	}
	if len(q.later) > 0 {
		q.runs, q.later = append(q.runs, q.later...), nil
	}
	return batch
}

// tableSink is the sink of messages that were read from the table.
type tableSink struct{ *run }

// calling lets the leases end of a relay whose publisher does not come back, although its context has ended.
func (s tableSink) calling(begins bool) {
	since := int64(0)
	if begins {
		since = time.Now().UnixNano()
	}
	s.run.calling.Store(since)
}

func (s tableSink) owned(m *store.Outgoing) bool { return s.lanes.owned(m.Lane) }

// sent tries until it has an answer: what it gave up would be published again.
func (s tableSink) sent(ctx context.Context, ms []store.Outgoing) {
	s.persist(ctx, "outbox: what was published could not be written down", func(ctx context.Context) error {
		n, err := s.Store.Sent(ctx, s.me, ms, s.Then)
		if err == nil && n < len(ms) {
			s.Stats.Repeated.Add(int64(len(ms) - n))
			s.Logger.WarnContext(ctx, "outbox: messages that were published were changed by somebody else meanwhile",
				"messages", len(ms)-n)
			s.lanes.doubt(ms)
		}
		return err
	})
}

// limit is the context of one call: neither the broker nor the database may hold up everything for ever.
func (r *run) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.PublishTime)
}

// persist does something until it succeeds, or working ends.
func (r *run) persist(working context.Context, trouble string, do func(context.Context) error) {
	wait := backoffOf(firstPause, r.PublishTime)
	for {
		ctx, cancel := r.limit(working)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		r.Logger.WarnContext(working, trouble, logs.Spaced(""), "error", err)
		if sleep(working, wait.Next()) != nil {
			return
		}
	}
}
