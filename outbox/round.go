package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// source is where messages come from: the table, or the database's log.
type source interface {
	// sent settles messages that were published. It returns when that is stored,
	// or can no longer be stored.
	sent(ctx context.Context, ms []store.Outgoing)

	// calling is called before each call of the publisher, and after it.
	calling(callPhase)

	// call calls the publisher with messages, as they are in as. A message whose error
	// is errTaken is no longer this relay's.
	call(ctx context.Context, ms []store.Outgoing, as []*broker.Message) []error

	// during returns the context of a call of the publisher with messages, which ends
	// when this relay may no longer publish them.
	during(ctx context.Context, ms []store.Outgoing) (context.Context, context.CancelFunc)

	// look reads what people have decided lately.
	look(ctx context.Context) error

	// may reports whether this relay may publish a message now: its lane is leased,
	// and no person has parked it, or an earlier one of its ordering key.
	may(m *store.Outgoing) bool
}

type callPhase int

const (
	callBegins callPhase = iota
	callEnded
)

// carrier publishes chunks of messages, one after another.
type carrier struct {
	*env
	suspected map[place]int64 // messages that failed alone, with the value of through at that time
	source    source
	pace      pace
	looked    time.Time // when source last looked
	readAt    time.Time // when the chunk began to be read
	turn      int       // where a cautious round begins, so that a message that breaks everything is not always first
}

// pace is how many messages a carrier publishes together.
type pace int

const (
	normal   pace = iota // whole batches
	cautious             // one at a time until one gets through, because none did in the last round
)

// maxFailures is how many calls of the publisher may fail in a row before a round
// ends.
const maxFailures = 5

// outcome is what happened to a chunk. Messages in none of its lists are
// unchanged.
type outcome struct {
	failed  []store.Outgoing // failed alone while others got through; Attempts and Reason are updated
	skipped []store.Outgoing // to be held with those that failed, without blame
	invalid []store.Outgoing // can never be published; Reason is set
	early   []store.Outgoing // cannot be published yet; Reason is set
	first   *store.Outgoing  // the first that failed, if nothing got through and it was alone
	carried int              // how many got through
	refused bool             // messages were tried, and none got through
}

// undelivered divides the messages that a round did not publish into those to
// retry and those that are Stuck.
func (e *env) undelivered(out outcome) (retry, stuck []store.Outgoing) {
	for _, m := range out.failed {
		e.Stats.Failed.Add(1)
		if m.Attempts >= e.Retry.Attempts {
			stuck = append(stuck, m)
		} else {
			retry = append(retry, m)
		}
	}
	return slices.Concat(retry, out.skipped, out.early), append(stuck, out.invalid...)
}

// carry publishes the messages of a chunk in batches. It starts no batch after
// ctx has ended, and finishes a batch while working lasts.
func (c *carrier) carry(ctx, working context.Context, chunk []store.Outgoing) outcome {
	r := round{carrier: c, working: working, skip: make(map[string]bool), topics: make(map[string]int)}
	q := newQueue(chunk, c.order())
	if c.pace == cautious {
		q.mixTopics()
		q.rotate(c.turn)
	}
	for ctx.Err() == nil && r.failures < maxFailures {
		if err := c.look(working, chunk); err != nil {
			c.Logger.WarnContext(ctx, "outbox: the store failed, and the rest of the messages is read again",
				logs.Spaced(""), "error", err)
			break
		}
		limit := c.Batch
		if c.pace == cautious && r.carried == 0 {
			limit = 1
		}
		batch := q.next(limit, r.wants)
		if len(batch) == 0 {
			break
		}
		r.send(batch)
		if r.carried == 0 && r.failures > 0 && c.pace == normal {
			break // it is probably the broker
		}
	}
	r.ending.Wait()
	r.skipOthers(chunk)
	r.refused = r.carried == 0 && len(r.invalid) == 0 && r.failures > 0
	if !r.refused {
		c.pace, c.turn = normal, 0
		return r.outcome
	}
	c.pace = cautious
	c.turn += r.failures
	if len(r.suspects) > 0 {
		r.first = &r.suspects[0]
	}
	return r.outcome
}

// lookEvery is how often a chunk that takes long is checked for decisions of
// people, and lookKeyless if none of its messages has an ordering key: then a
// decision is about one message, and nothing can overtake it.
const (
	lookEvery   = 100 * time.Millisecond
	lookKeyless = time.Second
)

// look reads what people have decided, unless it has just been read.
func (c *carrier) look(ctx context.Context, chunk []store.Outgoing) error {
	known, every := c.looked, lookEvery
	if !slices.ContainsFunc(chunk, hasOrder) {
		every = lookKeyless
		if c.readAt.After(known) {
			known = c.readAt
		}
	}
	if time.Since(known) < every {
		return nil
	}
	begun := time.Now()
	ctx, cancel := c.limit(ctx)
	defer cancel()
	if err := c.source.look(ctx); err != nil {
		return err
	}
	c.looked = begun
	return nil
}

func hasOrder(m store.Outgoing) bool { return m.Message.OrderingKey != "" }

// order is whether a batch may have several messages of an ordering key.
func (c *carrier) order() queueOrder {
	if c.Overtaking && c.pace == normal {
		return overtaking
	}
	return oncePerKey
}

// round publishes one chunk.
type round struct {
	*carrier
	working context.Context
	outcome
	failures int                // calls in a row in which nothing got through
	skip     map[string]bool    // ordering keys with a message that failed
	topics   map[string]int     // how many messages of a topic failed alone; negative: one got through
	suspects []store.Outgoing   // failed alone, and may not be at fault
	sent     [][]store.Outgoing // got through
	taken    []store.Outgoing   // no longer this relay's
	ending   sync.WaitGroup     // the last batch is settled while the next one is published
}

// wants reports whether a message may still be published in this round. If not,
// later messages of its ordering key may not either: if they were allowed a
// moment later, they would overtake it.
func (r *round) wants(m *store.Outgoing) bool {
	if r.skip[m.Message.OrderingKey] || !r.may(m) {
		r.skipKey(m)
		return false
	}
	return true
}

func (r *round) may(m *store.Outgoing) bool { return !r.isTopicDown(m) && r.source.may(m) }

// isTopicDown reports whether two messages of the topic failed alone, and none
// got through. If the broker does not have a topic, not all of its messages are
// tried.
func (r *round) isTopicDown(m *store.Outgoing) bool { return r.topics[m.Message.Topic] > 1 }

// skipOthers collects the messages that have to be held with those that failed:
// those of topics that are down, and those before a failed one of their ordering
// key. A message stays as it is if an earlier one of its ordering key does, so that
// it cannot be held before that one.
func (r *round) skipOthers(chunk []store.Outgoing) {
	if len(r.failed)+len(r.invalid) == 0 {
		return
	}
	settled, down := make(map[place]bool), make(map[string]bool)
	failed := make(map[string]place) // the last message of each ordering key that failed
	for _, m := range slices.Concat(r.failed, r.invalid) {
		settled[placeOf(&m)] = true
		failed[m.Message.OrderingKey] = placeOf(&m)
	}
	delete(failed, "")
	for _, m := range r.failed {
		down[m.Message.Topic] = r.isTopicDown(&m)
	}
	for _, batch := range r.sent {
		for i := range batch {
			settled[placeOf(&batch[i])] = true
		}
	}
	stays := make(map[string]bool) // ordering keys
	taken := make(map[place]bool)
	for i := range r.taken {
		taken[placeOf(&r.taken[i])] = true
	}
	for _, m := range chunk {
		key := m.Message.OrderingKey
		_, before := failed[key]
		switch {
		case settled[placeOf(&m)]:
			if failed[key] == placeOf(&m) {
				delete(failed, key)
			}
		case taken[placeOf(&m)]:
			stays[key] = key != ""
		case stays[key]:
		case before:
			m.Reason = heldReason
			r.skipped = append(r.skipped, m)
		case down[m.Message.Topic]:
			m.Reason = "no message gets through to topic " + m.Message.Topic
			r.skipped = append(r.skipped, m)
		case key != "":
			stays[key] = true
		}
	}
}

// place identifies a message.
type place struct {
	lane     int
	seq      int64
	logPlace uint64
	id       string
}

func placeOf(m *store.Outgoing) place { return place{m.Lane, m.Seq, m.LogPlace, m.Message.ID} }

// send publishes a batch. It sends each half of the messages that fail again,
// until a message fails alone.
func (r *round) send(batch []store.Outgoing) {
	ok, failed := r.publish(batch)
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

// suspect stores a message that failed alone. The message is at fault if it
// failed before and others got through since. Otherwise the broker may have
// failed once.
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
		r.suspected = make(map[place]int64) // most of them got through
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

// gotThrough settles confirmed messages.
func (r *round) gotThrough(ok []store.Outgoing) {
	r.failures = 0
	r.carried += len(ok)
	r.sent = append(r.sent, ok)
	for i := range ok {
		r.topics[ok[i].Message.Topic] = -1
		delete(r.skip, ok[i].Message.OrderingKey)
	}
	for i := range r.taken { // later ones of their keys wait, even if an earlier one got through
		r.skipKey(&r.taken[i])
	}
	r.Stats.Published.Add(int64(len(ok)))
	logEach(r.working, r.Logger, observe.MessagePublished, ok)
	r.through.Add(int64(len(ok)))
	r.ending.Wait()
	r.ending.Add(1)
	go func() {
		defer r.ending.Done()
		r.source.sent(r.working, ok)
	}()
}

// publish calls the publisher with a batch, and divides the messages by result.
// Attempts and Reason of those that failed are updated.
func (r *round) publish(batch []store.Outgoing) (ok, failed []store.Outgoing) {
	alone := len(batch) == 1
	ms, batch, failed, invalid := r.open(batch)
	var early []store.Outgoing
	defer func() {
		r.invalid, r.early = append(r.invalid, invalid...), append(r.early, early...)
		for _, m := range slices.Concat(invalid, early) {
			r.skipKey(&m)
		}
		r.logEarly(early)
	}()
	if len(ms) == 0 {
		r.logRefused(failed)
		return nil, failed
	}
	ctx, cancel := r.limit(r.working)
	defer cancel()
	ctx, ends := r.source.during(ctx, batch)
	defer ends()
	r.source.calling(callBegins)
	ctx, ended := r.observe(ctx, ms)
	errs := r.call(ctx, batch, ms)
	if errs != nil && len(errs) != len(ms) {
		wrong := fmt.Errorf("outbox: the publisher returned %d errors for %d messages", len(errs), len(ms))
		errs = slices.Repeat([]error{wrong}, len(ms))
	}
	if ended != nil {
		ended(errs)
	}
	r.source.calling(callEnded) // after the observer, which may hang too
	if errs == nil {
		return batch, failed
	}
	for i, m := range batch {
		err := errtree.Tame(errs[i])
		if err == nil {
			ok = append(ok, m)
			continue
		}
		if errors.Is(err, errTaken) {
			r.taken = append(r.taken, m)
			r.skipKey(&m)
			continue
		}
		m.Reason = name.Reason(err.Error())
		if errors.Is(err, broker.ErrNotYet) {
			early = append(early, m)
			continue
		}
		isInvalid := errors.Is(err, broker.ErrInvalid)
		if isInvalid || alone { // with others, it may not have been at fault: it is tried again at once
			m.Attempts++
		}
		if isInvalid {
			invalid = append(invalid, m)
		} else {
			failed = append(failed, m)
		}
	}
	if len(ok) == 0 {
		r.logRefused(failed)
	}
	return ok, failed
}

// call calls the publisher. If that panics, or ends its goroutine, every message of
// the batch has failed, as far as is known: the next calls find out which of them
// does it.
func (r *round) call(ctx context.Context, batch []store.Outgoing, ms []*broker.Message) (errs []error) {
	ended := contain.Logged(ctx, r.Logger, "the Publisher", func() error {
		errs = r.source.call(ctx, batch, ms)
		return nil
	})
	if ended != nil {
		return slices.Repeat([]error{ended}, len(ms))
	}
	return errs
}

// open returns a batch as it is published, without the messages that cannot be
// opened. Those whose secret is missing have failed, and are retried. Those that
// were changed, or that are not sealed although they have to be, are invalid, and
// so are those whose row is damaged.
// Later messages of their ordering keys are left unchanged.
func (r *round) open(batch []store.Outgoing) (ms []*broker.Message, opened, failed, invalid []store.Outgoing) {
	ms, opened = make([]*broker.Message, 0, len(batch)), make([]store.Outgoing, 0, len(batch))
	var closed map[string]bool // ordering keys with a message that was not opened
	for i, m := range batch {
		key := m.Message.OrderingKey
		if closed[key] {
			continue
		}
		plain, err := m.Message, m.Unopened // set by the store if the row is damaged
		if err == nil {
			plain, err = store.OpenOutgoing(&r.Store.Options().Sealing, m.Message)
		}
		if err == nil && r.logged && isForeignPlace(&m) {
			err = errForeignPlace
		}
		if err == nil {
			ms, opened = append(ms, r.outbound(&batch[i], plain)), append(opened, m)
			continue
		}
		if key != "" {
			if closed == nil {
				closed = make(map[string]bool)
			}
			closed[key] = true
		}
		isMissing := store.IsSealKeyMissing(err)
		if !isMissing || len(batch) == 1 { // as in publish
			m.Attempts++
		}
		m.Reason = name.Reason(err.Error())
		if isMissing {
			failed = append(failed, m)
		} else {
			invalid = append(invalid, m)
		}
	}
	return ms, opened, failed, invalid
}

func (r *round) logEarly(early []store.Outgoing) {
	if len(early) == 0 {
		return
	}
	first := &early[0]
	r.Logger.WarnContext(r.working, "outbox: messages cannot be published yet, and are kept", logs.Spaced(first.Message.Topic), "messages", len(early),
		"first", first.Message.ID, "topic", first.Message.Topic, "reason", first.Reason)
}

func (r *round) logRefused(failed []store.Outgoing) {
	if len(failed) == 0 {
		return
	}
	r.Stats.Refused.Add(1)
	r.Logger.WarnContext(r.working, "outbox: no message of a batch got through", logs.Spaced(""), "messages", len(failed),
		"first", failed[0].Message.ID, "topic", failed[0].Message.Topic, "error", failed[0].Reason)
}
