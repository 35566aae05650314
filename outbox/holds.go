package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
)

// holdsPoll is how often messages that others have held are looked for.
const holdsPoll = 5 * time.Second

// earlyPoll is how often messages are tried that cannot be published yet.
const earlyPoll = 2 * time.Second

// holds are the ordering keys with a message that waits for a retry or for a
// person, and the messages without an ordering key that do.
type holds struct {
	*env
	byKey   map[string]*hold
	keyless map[place]*hold
	aside   map[place]bool // messages without an ordering key that became Stuck since those at work were read
	looked  time.Time      // when the holds of all lanes were last read
	rows    int            // how many messages were read for that
	took    time.Duration  // how long it took
	soonest time.Time      // when the first hold is due
}

// hold is an ordering key whose messages wait, or one message without a key.
type hold struct {
	at      place
	lane    int
	key     string
	topic   string
	after   int64 // a message without a key is the next one after this Seq
	stuck   int64 // the Seq of the first Stuck message, which waits for a person; 0: there is none
	next    time.Time
	pause   *backoff.Backoff
	early   bool  // its first message cannot be published yet: a matter of the topic, whose end nothing tells
	through int64 // the value of env.through when it was last tried
}

func newHolds(e *env) *holds {
	return &holds{env: e, byKey: make(map[string]*hold), keyless: make(map[place]*hold), aside: make(map[place]bool)}
}

// of returns the hold of a message. It adds it if there is none.
func (h *holds) of(m *store.Outgoing) *hold {
	key := m.Message.OrderingKey
	known := h.byKey[key]
	if key == "" {
		known = h.keyless[placeOf(m)]
	}
	if known != nil {
		return known
	}
	made := &hold{at: placeOf(m), lane: m.Lane, key: key, topic: m.Message.Topic, after: m.Seq - 1,
		pause: &backoff.Backoff{First: h.Retry.First, Limit: h.Retry.Limit}, through: h.through.Load()}
	for range min(m.Attempts, 20) {
		h.wait(made)
	}
	h.expect(made)
	if key == "" {
		h.keyless[placeOf(m)] = made
	} else {
		h.byKey[key] = made
	}
	return made
}

// wait delays the next attempt.
func (h *holds) wait(o *hold) {
	pause := earlyPoll
	if !o.early {
		pause = o.pause.Next()
	}
	o.next = time.Now().Add(pause)
	h.expect(o)
}

// expect updates soonest.
func (h *holds) expect(o *hold) {
	if o.next.Before(h.soonest) {
		h.soonest = o.next
	}
}

// stuckBy stores the first Stuck message of a key. Messages before it may be
// published.
func (o *hold) stuckBy(seq int64) {
	if o.stuck == 0 || seq < o.stuck {
		o.stuck = seq
	}
}

func (h *holds) drop(o *hold) {
	if o.key != "" {
		delete(h.byKey, o.key)
		return
	}
	delete(h.keyless, o.at)
}

// forget drops the holds of a lane that this relay no longer has.
func (h *holds) forget(lane int) {
	for _, o := range h.each() {
		if o.lane == lane {
			h.drop(o)
		}
	}
}

func (h *holds) each() []*hold {
	all := make([]*hold, 0, len(h.byKey)+len(h.keyless))
	for _, o := range h.byKey {
		all = append(all, o)
	}
	for _, o := range h.keyless {
		all = append(all, o)
	}
	return all
}

// learn reads the holds of lanes.
func (h *holds) learn(ctx context.Context, lanes []int) error {
	held := func() error {
		return h.heads(ctx, lanes, store.Held, func(m *store.Outgoing) { h.of(m) })
	}
	if err := held(); err != nil || h.OnStuck == Pass {
		return err
	}
	err := h.heads(ctx, lanes, store.Stuck, func(m *store.Outgoing) {
		if m.Message.OrderingKey != "" {
			h.of(m).stuckBy(m.Seq)
		}
	})
	if err != nil {
		return err
	}
	return held() // again: a person may have replayed a message in between, so that it was neither Held before nor Stuck after
}

// look reads what people have decided lately about messages in these lanes. What
// was read before may be published after it only if the result says so.
func (h *holds) look(ctx context.Context, mine func(lane int) bool, onlyStuck bool) error {
	ms, err := h.Store.DecidedOutgoing(ctx, onlyStuck)
	if err != nil {
		return err
	}
	for i := range ms {
		m := &ms[i]
		switch {
		case !mine(m.Lane):
		case m.Message.OrderingKey == "":
			h.aside[placeOf(m)] = m.State == store.Stuck
		case m.State == store.Held:
			h.of(m)
		case m.State == store.Stuck && h.OnStuck == HoldOrder:
			h.of(m).stuckBy(m.Seq)
		}
	}
	return nil
}

// parked reports whether a message, or an earlier one of its ordering key, is
// Stuck.
func (h *holds) parked(m *store.Outgoing) bool {
	if m.Message.OrderingKey == "" {
		return h.aside[placeOf(m)]
	}
	o := h.byKey[m.Message.OrderingKey]
	return o != nil && o.stuck > 0 && m.Seq >= o.stuck
}

// every is how often the holds of all lanes are read. It rises with their number.
func (h *holds) every() time.Duration {
	return max(holdsPoll, min(max(20*h.took, time.Duration(h.rows)*2*time.Millisecond), 5*time.Minute))
}

// heads reads the first message of each ordering key, in pages. There are few, so
// those of other lanes are read too and skipped.
func (h *holds) heads(ctx context.Context, lanes []int, state store.OutgoingState, do func(*store.Outgoing)) error {
	q := store.OutgoingQuery{State: state, Heads: true, Bodiless: true, Limit: maxChunk}
	for {
		page, err := h.read(ctx, q)
		if err != nil {
			return err
		}
		for i := range page {
			if slices.Contains(lanes, page[i].Lane) {
				do(&page[i])
			}
		}
		h.rows += len(page)
		if len(page) < q.Limit {
			return nil
		}
		q.After = page[len(page)-1].Seq
	}
}

// split divides messages into those that may be published and those that wait for
// an earlier one.
func (h *holds) split(chunk []store.Outgoing) (free, held []store.Outgoing) {
	if len(h.byKey) == 0 {
		return chunk, nil
	}
	for _, m := range chunk {
		o := h.byKey[m.Message.OrderingKey]
		switch {
		case o == nil:
			free = append(free, m)
		default:
			m.Reason = heldReason
			held = append(held, m)
		}
	}
	return free, held
}

// settle stores the messages that a round did not publish.
func (h *holds) settle(ctx context.Context, out outcome) error {
	for i := range out.early {
		h.of(&out.early[i]).early = true
	}
	retry, stuck := h.undelivered(out)
	if err := h.put(ctx, stuck, store.Stuck); err != nil {
		return err
	}
	return h.put(ctx, retry, store.Held)
}

// put changes the state of messages, and writes their Attempts and Reason. Their
// holds are added first, because a change whose reply is lost has happened.
func (h *holds) put(ctx context.Context, ms []store.Outgoing, to store.OutgoingState) error {
	for i := range ms {
		m := &ms[i]
		switch {
		case to == store.Held:
			if o := h.of(m); o.next.IsZero() {
				h.wait(o)
			}
		case m.Message.OrderingKey != "" && h.OnStuck == HoldOrder:
			h.of(m).stuckBy(m.Seq)
		}
	}
	if _, err := h.move(ctx, ms, to); err != nil {
		return err
	}
	if to == store.Held {
		h.Stats.Held.Add(int64(len(ms)))
		return nil
	}
	for i := range ms {
		h.stuck(ctx, &ms[i])
	}
	return nil
}

// recount computes soonest.
func (h *holds) recount() {
	h.soonest = time.Now().Add(holdsPoll)
	for _, o := range h.byKey {
		h.expect(o)
	}
	for _, o := range h.keyless {
		h.expect(o)
	}
}
