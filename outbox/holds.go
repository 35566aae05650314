package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
)

// holds are what waits in the table behind a message that failed: an ordering key each, or a message without one.
type holds struct {
	*run
	all     map[string]*hold // by ordering key
	alone   map[place]*hold  // messages without one
	looked  time.Time        // when all lanes were last looked at
	rows    int              // that were read for it
	took    time.Duration    // how long that took
	soonest time.Time        // no hold is to be tried before
}

// hold is one of them.
type hold struct {
	lane  int
	key   string
	topic string
	after int64 // a message without a key is the one behind this Seq
	stuck int64 // the Seq of the first message that is Stuck: a person has to decide first; 0: none is
	at    place
	next  time.Time
	pause *backoff.Backoff
	seen  int64 // what had got through when it was last tried
}

func newHolds(r *run) *holds {
	return &holds{run: r, all: make(map[string]*hold), alone: make(map[place]*hold)}
}

// of finds the hold of a message, or makes it.
func (h *holds) of(m *store.Outgoing) *hold {
	key := m.Message.OrderingKey
	known := h.all[key]
	if key == "" {
		known = h.alone[placeOf(m)]
	}
	if known != nil {
		return known
	}
	made := &hold{at: placeOf(m), lane: m.Lane, key: key, topic: m.Message.Topic, after: m.Seq - 1,
		pause: &backoff.Backoff{First: h.Retry.First, Limit: h.Retry.Limit}, seen: h.through.Load()}
	for range min(m.Attempts, 20) {
		h.wait(made)
	}
	h.expect(made)
	if key == "" {
		h.alone[placeOf(m)] = made
	} else {
		h.all[key] = made
	}
	return made
}

// wait puts the next attempt off.
func (h *holds) wait(o *hold) {
	o.next = time.Now().Add(o.pause.Next())
	h.expect(o)
}

// expect notes when the first of all holds is to be tried.
func (h *holds) expect(o *hold) {
	if o.next.Before(h.soonest) {
		h.soonest = o.next
	}
}

// stuckBy notes the first message of a key that is Stuck. What is in front of it may go.
func (o *hold) stuckBy(seq int64) {
	if o.stuck == 0 || seq < o.stuck {
		o.stuck = seq
	}
}

func (h *holds) drop(o *hold) {
	if o.key != "" {
		delete(h.all, o.key)
		return
	}
	delete(h.alone, o.at)
}

// forget drops what is in a lane that is not ours any more.
func (h *holds) forget(lane int) {
	for _, o := range h.each() {
		if o.lane == lane {
			h.drop(o)
		}
	}
}

func (h *holds) each() []*hold {
	all := make([]*hold, 0, len(h.all)+len(h.alone))
	for _, o := range h.all {
		all = append(all, o)
	}
	for _, o := range h.alone {
		all = append(all, o)
	}
	return all
}

// learn reads what is held in lanes.
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
	return held() // once more: a person may just have had one tried again, which was not Held before and is not Stuck now
}

// every is how often all lanes are looked at: less often, the more there is.
func (h *holds) every() time.Duration {
	return max(holdsEvery, min(max(20*h.took, time.Duration(h.rows)*2*time.Millisecond), 5*time.Minute))
}

// heads reads the first message of each ordering key, in pages: they are few, and those of other lanes are passed over.
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

// split tells messages that may be published from those that are behind one that is held.
func (h *holds) split(chunk []store.Outgoing) (free, held []store.Outgoing) {
	if len(h.all) == 0 {
		return chunk, nil
	}
	for _, m := range chunk {
		o := h.all[m.Message.OrderingKey]
		switch {
		case o == nil:
			free = append(free, m)
		default:
			m.Reason = "behind another message of its ordering key"
			held = append(held, m)
		}
	}
	return free, held
}

// settle puts aside what a round did not get through.
func (h *holds) settle(ctx context.Context, out outcome) error {
	var again, stuck []store.Outgoing
	for _, m := range out.failed {
		h.Stats.Failed.Add(1)
		if m.Attempts >= h.Retry.Attempts {
			stuck = append(stuck, m)
		} else {
			again = append(again, m)
		}
	}
	stuck = append(stuck, out.invalid...)
	again = append(again, out.behind...)
	if err := h.put(ctx, stuck, store.Stuck); err != nil {
		return err
	}
	return h.put(ctx, again, store.Held)
}

// put moves messages, which are as they were read but for their Attempts and Reason. They are held before that is
// known to have succeeded: a move whose reply is lost has happened.
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
		h.Stats.Stuck.Add(1)
		h.Logger.ErrorContext(ctx, "outbox: a message is stuck", "id", ms[i].Message.ID, "topic", ms[i].Message.Topic,
			"cause", causeOf(&ms[i]),
			"attempts", ms[i].Attempts, "reason", ms[i].Reason)
	}
	return nil
}

// recount finds out when the first one is to be tried.
func (h *holds) recount() {
	h.soonest = time.Now().Add(holdsEvery)
	for _, o := range h.all {
		h.expect(o)
	}
	for _, o := range h.alone {
		h.expect(o)
	}
}

// retry tries what is due, for some time. It reports whether there may be more at once.
func (p *pump) retry(ctx, working context.Context) (busy bool, err error) {
	if time.Now().Before(p.holds.soonest) {
		return false, nil
	}
	due := p.holds.each()
	slices.SortFunc(due, func(a, b *hold) int { return a.next.Compare(b.next) })
	failed := make(map[string]int) // by topic; negative: something got through
	defer p.holds.recount()
	for end := time.Now().Add(p.PublishTime / 2); len(due) > 0; due = due[1:] {
		o := due[0]
		if ctx.Err() != nil || time.Now().Before(o.next) {
			return busy, nil
		}
		if time.Now().After(end) {
			return true, nil
		}
		if !p.lanes.owned(o.lane) {
			continue
		}
		if failed[o.topic] > 1 && o.stuck == 0 {
			p.holds.wait(o) // it is the topic: this one is not to blame
			continue
		}
		again, err := p.tryHold(ctx, working, o)
		if err != nil {
			return busy, err
		}
		if busy = busy || again; again {
			failed[o.topic] = -len(due)
		} else if o.stuck == 0 {
			failed[o.topic]++
		}
	}
	return busy, nil
}

// tryHold publishes what is held, from its head on.
func (p *pump) tryHold(ctx, working context.Context, o *hold) (busy bool, err error) {
	q := store.OutgoingQuery{State: store.Held, Lanes: []int{o.lane}, OrderingKey: o.key, Limit: p.Batch, MaxBytes: p.MaxBytes}
	if o.key == "" {
		q.After, q.Limit = o.after, 1
	}
	ms, err := p.read(ctx, q)
	if err != nil {
		return false, err
	}
	if o.stuck > 0 { // what is behind that waits for a person, and what is in front of it does not
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Seq > o.stuck })
		if len(ms) == 0 {
			return false, p.askPeople(ctx, o)
		}
	}
	if len(ms) == 0 || o.key == "" && ms[0].Seq != o.after+1 {
		p.holds.drop(o)
		return true, nil
	}
	return p.carryHeld(ctx, working, o, ms)
}

// askPeople looks whether a person has decided about a message that is stuck.
func (p *pump) askPeople(ctx context.Context, o *hold) error {
	ms, err := p.read(ctx, store.OutgoingQuery{State: store.Stuck, Lanes: []int{o.lane}, OrderingKey: o.key,
		Limit: 1, Bodiless: true})
	if err != nil {
		return err
	}
	o.next, o.stuck = time.Time{}, 0
	if len(ms) > 0 {
		o.next, o.stuck = time.Now().Add(holdsEvery), ms[0].Seq
	}
	p.holds.expect(o)
	return nil
}

// carryHeld publishes messages of one key that are held. An attempt that fails counts if the broker has taken others since
// the one before.
func (p *pump) carryHeld(ctx, working context.Context, o *hold, ms []store.Outgoing) (busy bool, err error) {
	c := carrier{run: p.run, sink: tableSink{p.run}, cautious: true}
	through := p.through.Load()
	out := c.carry(ctx, working, ms)
	if out.first != nil && o.seen < through {
		out.failed = append(out.failed, *out.first)
	}
	if out.carried > 0 {
		o.pause = &backoff.Backoff{First: p.Retry.First, Limit: p.Retry.Limit}
	}
	if err := p.holds.settle(working, out); err != nil {
		return false, err
	}
	if out.refused || len(out.failed) > 0 {
		o.seen = through
		p.holds.wait(o)
	}
	return out.carried > 0, nil
}
