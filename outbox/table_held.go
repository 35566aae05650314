package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
)

// retrier publishes the held messages of the table.
type retrier struct {
	*env
	holds *holds
	table *tableRelay
}

// heldSource is the source of held messages. They wait for Stuck ones only, so it
// does not read what a person has replayed, which may be much.
type heldSource struct{ *tableRelay }

func (s heldSource) look(ctx context.Context) error {
	return s.holds.look(ctx, s.owned, true)
}

// retry tries the holds that are due, for a limited time. It reports whether more
// may be due.
func (r *retrier) retry(ctx, working context.Context) (busy bool, err error) {
	if time.Now().Before(r.holds.soonest) {
		return false, nil
	}
	due := r.holds.each()
	slices.SortFunc(due, func(a, b *hold) int { return a.next.Compare(b.next) })
	failed := make(map[string]int) // by topic; negative: a message got through
	early := make(map[string]bool) // topics of messages that cannot be published yet
	defer r.holds.recount()
	for end := time.Now().Add(r.PublishTime / 2); len(due) > 0; due = due[1:] {
		o := due[0]
		if ctx.Err() != nil || time.Now().Before(o.next) {
			return busy, nil
		}
		if time.Now().After(end) {
			return true, nil
		}
		if !r.table.owned(o.lane) {
			continue
		}
		if failed[o.topic] > 1 && o.stuck == 0 {
			o.early = early[o.topic]
			r.holds.wait(o) // the topic is down, so this message is not at fault
			continue
		}
		again, err := r.tryHold(ctx, working, o)
		if err != nil {
			return busy, err
		}
		early[o.topic] = o.early
		if busy = busy || again; again {
			failed[o.topic] = -len(due)
		} else if o.stuck == 0 {
			failed[o.topic]++
		}
	}
	return busy, nil
}

// tryHold publishes the messages of a hold.
func (r *retrier) tryHold(ctx, working context.Context, o *hold) (busy bool, err error) {
	c := carrier{env: r.env, source: heldSource{r.table}, pace: cautious}
	ms, waits, err := r.readHold(ctx, working, o, &c)
	if err != nil {
		return false, err
	}
	if waits {
		o.next = time.Now().Add(earlyPoll)
		r.holds.expect(o)
		return true, nil // nothing has failed
	}
	if o.stuck > 0 && slices.ContainsFunc(ms, func(m store.Outgoing) bool { return m.Seq == o.stuck }) {
		return false, r.checkStuck(ctx, o) // it was replayed, or has just been parked
	}
	if o.stuck > 0 { // later ones wait for a person
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Seq > o.stuck })
		if len(ms) == 0 {
			return false, r.checkStuck(ctx, o)
		}
	}
	if len(ms) == 0 || o.key == "" && ms[0].Seq != o.after+1 {
		r.holds.drop(o)
		return true, nil
	}
	return r.carryHeld(ctx, working, o, &c, ms)
}

// readHold reads the messages of a hold, and then what people have decided. It
// returns none that has an earlier Pending one of its key: a person may have
// parked a Pending message and replayed it. The earlier ones become Held. waits
// reports that there are some which cannot.
func (r *retrier) readHold(ctx, working context.Context, o *hold, c *carrier) (ms []store.Outgoing, waits bool, err error) {
	q := store.OutgoingQuery{State: store.Held, Lanes: []int{o.lane}, OrderingKey: o.key, Limit: r.Batch, MaxBytes: r.MaxBytes,
		HeldBy: r.heldBy()}
	if o.key == "" {
		q.After, q.Limit = o.after, 1
	}
	clear(r.holds.aside)
	for {
		if ms, err = r.read(ctx, q); err != nil {
			return nil, false, err
		}
		free := ms
		if o.key != "" && len(ms) > 0 { // before the look, which shows those that a person parks after this
			if free, err = r.beforePending(ctx, o, ms); err != nil {
				return nil, false, err
			}
		}
		c.looked = time.Time{}
		if err := c.look(ctx, ms); err != nil { // a person may have parked a message that was among these
			return nil, false, err
		}
		if o.key == "" || len(ms) == 0 {
			return ms, false, nil
		}
		// An earlier message that was Stuck when these were read, and was replayed before
		// the look, is in neither answer. It is Held now.
		first, err := r.read(ctx, store.OutgoingQuery{State: store.Held, Lanes: q.Lanes, OrderingKey: o.key, Limit: 1, Bodiless: true})
		if err != nil {
			return nil, false, err
		}
		if len(first) > 0 && first[0].Seq < ms[0].Seq {
			continue
		}
		// One that was Stuck, Held and Stuck again at these three reads is in no answer.
		c.looked = time.Time{}
		if err := c.look(ctx, ms); err != nil {
			return nil, false, err
		}
		if len(free) > 0 {
			return free, false, nil
		}
		if moved, err := r.holdPending(ctx, working, o, ms[0].Seq); err != nil || moved == 0 {
			return nil, true, err
		}
	}
}

// beforePending returns the Held messages of a key that are before its first
// Pending one.
func (r *retrier) beforePending(ctx context.Context, o *hold, ms []store.Outgoing) ([]store.Outgoing, error) {
	q := store.OutgoingQuery{State: store.Pending, Lanes: []int{o.lane}, Limit: 1, Bodiless: true}
	last := ms[len(ms)-1].Seq
	first, err := r.read(ctx, q) // of the lane: nearly always after the Held ones, and cheaper to find than that of the key
	if err != nil || len(first) == 0 || first[0].Seq > last {
		return ms, err
	}
	q.OrderingKey = o.key
	if first, err = r.read(ctx, q); err != nil || len(first) == 0 {
		return ms, err
	}
	later := slices.IndexFunc(ms, func(m store.Outgoing) bool { return m.Seq > first[0].Seq })
	if later < 0 {
		return ms, nil
	}
	return ms[:later], nil
}

// holdPending makes the first Pending messages of a key Held that are before a
// Seq, and returns how many. There are none while the rows are published from the
// log, whose reader sets them aside or publishes them.
func (r *retrier) holdPending(ctx, working context.Context, o *hold, before int64) (moved int, err error) {
	ms, err := r.read(ctx, store.OutgoingQuery{State: store.Pending, Lanes: []int{o.lane}, OrderingKey: o.key, Limit: r.Batch,
		Bodiless: true, Unlogged: true})
	if err != nil {
		return 0, err
	}
	ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Seq >= before })
	for i := range ms {
		ms[i].Reason = heldReason
	}
	moved, err = r.move(working, ms, store.Held)
	r.Stats.Held.Add(int64(moved))
	return moved, err
}

// checkStuck checks whether a person has decided about a Stuck message.
func (r *retrier) checkStuck(ctx context.Context, o *hold) error {
	ms, err := r.read(ctx, store.OutgoingQuery{State: store.Stuck, Lanes: []int{o.lane}, OrderingKey: o.key,
		Limit: 1, Bodiless: true})
	if err != nil {
		return err
	}
	o.next, o.stuck = time.Time{}, 0
	if len(ms) > 0 {
		o.next, o.stuck = time.Now().Add(holdsPoll), ms[0].Seq
	}
	r.holds.expect(o)
	return nil
}

// carryHeld publishes held messages of one key. An attempt that fails counts if
// other messages got through since the one before.
func (r *retrier) carryHeld(ctx, working context.Context, o *hold, c *carrier, ms []store.Outgoing) (busy bool, err error) {
	through := r.through.Load()
	out := c.carry(ctx, working, ms)
	o.early = len(out.early) > 0
	if out.first != nil && o.through < through {
		out.failed = append(out.failed, *out.first)
	}
	if out.carried > 0 {
		o.pause = &backoff.Backoff{First: r.Retry.First, Limit: r.Retry.Limit}
	}
	if err := r.holds.settle(working, out); err != nil {
		return false, err
	}
	if out.refused || len(out.failed)+len(out.early) > 0 {
		o.through = through
		r.holds.wait(o)
	}
	return out.carried > 0, nil
}
