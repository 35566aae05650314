package outbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// recheck is how often the table is asked whether an ordering key is still held there.
const recheck = 200 * time.Millisecond

// relearn is how often the keys that are held are read anew.
const relearn = time.Minute

// tail publishes what comes out of the database's log, if the store is set to that. One relay at a time does.
func (r *run) tail(ctx, working context.Context) {
	log, ok := once.As[store.OutboxLog](r.Store)
	if !ok {
		return
	}
	pause := backoffOf(firstPause, longestWait)
	for ctx.Err() == nil {
		t, err := log.TailOutbox(ctx)
		switch {
		case errors.Is(err, once.ErrConflict):
			_ = sleep(ctx, max(r.Lease/20, firstPause)) // standing by
			continue
		case err == nil && t == nil:
			_ = sleep(ctx, max(r.Lease/6, firstPause)) // other processes may have it read from now on
			continue
		case err == nil:
			err = r.follow(ctx, working, t, func() { pause = backoffOf(firstPause, longestWait) })
		}
		if ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "outbox: the log of the database cannot be read, and is tried again", logs.Spaced(""), "error", err)
			_ = sleep(ctx, pause.Next())
		}
	}
}

// follow publishes from a tail until it breaks, or ctx ends.
func (r *run) follow(ctx, working context.Context, t store.OutboxTail, progress func()) error {
	f := &follower{run: r, tail: t, blocked: make(map[string]time.Time), trouble: backoffOf(firstPause, longestWait)}
	f.carrier = carrier{run: r, sink: f}
	defer func() {
		ctx, cancel := r.limit(context.WithoutCancel(working))
		defer cancel()
		if err := t.Close(ctx); err != nil {
			r.Logger.WarnContext(ctx, "outbox: the reader of the log did not close well", logs.Spaced(""), "error", err)
		}
	}()
	if err := f.learn(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil && f.broken == nil {
		limited, cancel := context.WithTimeout(ctx, relearn)
		ms, err := t.Receive(limited, max(f.room(), 1))
		idle := err != nil && limited.Err() != nil
		cancel()
		if err != nil && !idle {
			return err
		}
		f.rest = append(f.rest, ms...)
		f.deliver(ctx, working)
		progress()
	}
	f.finish(working)
	return f.broken
}

// follower is the reader of a tail, and the sink of what comes from it.
type follower struct {
	*run
	tail    store.OutboxTail
	carrier carrier
	trouble *backoff.Backoff
	rest    []store.Outgoing     // received, and neither sent nor set aside
	owed    int                  // how many of rest are before the latest that is done, or of its transaction
	open    bool                 // and more of that transaction is still in the log
	done    map[place]bool       // what was sent in this round
	blocked map[string]time.Time // ordering keys that are held in the table, and when that was last seen
	learned time.Time
	broken  error
	over    atomic.Bool // it is broken, as the carrier sees it
}

// limit is how many more messages are taken; 0: there is no room.
func (f *follower) room() int {
	size := 0
	for i := range f.rest {
		size += len(f.rest[i].Message.Body)
	}
	if size >= f.MaxBytes {
		return 0
	}
	return max(min(20*f.Batch, maxChunk)-len(f.rest), 0)
}

// learn reads which ordering keys are held.
func (f *follower) learn(ctx context.Context) error {
	h := newHolds(f.run)
	all := make([]int, store.Lanes)
	for i := range all {
		all[i] = i
	}
	err := h.learn(ctx, all)
	f.learned = time.Now()
	clear(f.blocked) // of keys that are free by now, and of which nothing may ever come again
	for key := range h.all {
		f.blocked[key] = time.Time{}
	}
	return err
}

// deliver publishes what there is. While nothing gets through it takes in more, which may.
func (f *follower) deliver(ctx, working context.Context) {
	if time.Since(f.learned) > relearn && len(f.blocked) > 0 {
		if f.broken = f.learn(ctx); f.broken != nil {
			return
		}
	}
	for len(f.rest) > 0 && ctx.Err() == nil && f.broken == nil {
		refused := f.round(ctx, working)
		if !refused {
			f.trouble = backoffOf(firstPause, longestWait)
			continue
		}
		if err := f.takeMore(ctx); err != nil {
			f.broken = cmp.Or(f.broken, err)
		}
	}
}

// round publishes once what may be, and reports whether the broker has refused all of it.
func (f *follower) round(ctx, working context.Context) (refused bool) {
	free, held, err := f.split(working)
	if err != nil {
		f.broken = err
		return false
	}
	f.done = make(map[place]bool, len(f.rest))
	f.aside(working, held, store.Held)
	out := f.carrier.carry(ctx, working, free)
	f.settle(working, out)
	f.forget()
	return out.refused
}

// forget drops what was dealt with.
func (f *follower) forget() {
	reach := f.owed
	if f.open && reach < len(f.rest) {
		reach++
	}
	for i := range f.rest {
		if f.done[placeOf(&f.rest[i])] {
			reach = max(reach, i+1)
		}
	}
	for reach > 0 && reach < len(f.rest) && f.rest[reach-1].LogMore {
		reach++
	}
	if reach > 0 && len(f.rest) > 0 {
		f.open = reach == len(f.rest) && f.rest[reach-1].LogMore
	}
	f.owed = 0
	var left []store.Outgoing
	for i, m := range f.rest {
		if f.done[placeOf(&m)] {
			continue
		}
		if left = append(left, m); i < reach {
			f.owed++
		}
	}
	f.rest = left
}

// finish publishes what would have the next reader begin before something that was published: the log is confirmed by
// one position, of the end of a transaction. What was received and is behind that is left to the next reader.
func (f *follower) finish(working context.Context) {
	f.forget() // what was received since the last round may be of the open transaction
	for working.Err() == nil && f.broken == nil && (f.owed > 0 || f.open) {
		f.rest = f.rest[:f.owed]
		if f.open {
			limited, cancel := context.WithTimeout(working, time.Second) // it is on its way
			ms, err := f.tail.Receive(limited, max(f.room(), 1))
			cancel()
			if err != nil {
				return
			}
			if last := slices.IndexFunc(ms, func(m store.Outgoing) bool { return !m.LogMore }); last >= 0 {
				ms = ms[:last+1]
			}
			f.rest = append(f.rest, ms...)
		}
		if f.round(working, working) {
			return
		}
	}
}

// takeMore waits, and takes what comes meanwhile: it may get through where nothing else does, and then shows that the
// broker works.
func (f *follower) takeMore(ctx context.Context) error {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, f.trouble.Next())
	defer cancel()
	limit := f.room()
	if limit == 0 {
		<-limited.Done()
		return nil
	}
	ms, err := f.tail.Receive(limited, limit)
	f.rest = append(f.rest, ms...)
	if err != nil && limited.Err() != nil {
		return nil
	}
	if err == nil {
		_ = sleep(limited, leastPause-time.Since(begun))
	}
	return err
}

// split tells what may be published from what is behind a message in the table.
func (f *follower) split(ctx context.Context) (free, held []store.Outgoing, err error) {
	for _, m := range f.rest {
		behind, err := f.isHeld(ctx, &m)
		switch {
		case err != nil:
			return nil, nil, err
		case behind:
			m.Reason = "behind another message of its ordering key"
			held = append(held, m)
		default:
			free = append(free, m)
		}
	}
	return free, held, nil
}

func (f *follower) isHeld(ctx context.Context, m *store.Outgoing) (bool, error) {
	key := m.Message.OrderingKey
	seen, blocked := f.blocked[key]
	if !blocked || key == "" {
		return false, nil
	}
	if time.Since(seen) < recheck {
		return true, nil
	}
	// Held once more: a person may just have had one tried again, which was not Held before and is not Stuck now.
	for _, state := range []store.OutgoingState{store.Held, store.Stuck, store.Held} {
		if state == store.Stuck && f.OnStuck == Pass {
			continue
		}
		ms, err := f.read(ctx, store.OutgoingQuery{State: state, Lanes: []int{m.Lane}, OrderingKey: key, Limit: 1, Bodiless: true})
		if err != nil {
			return false, err
		}
		if len(ms) > 0 {
			f.blocked[key] = time.Now()
			return true, nil
		}
	}
	delete(f.blocked, key)
	return false, nil
}

// settle puts into the table what did not get through.
func (f *follower) settle(ctx context.Context, out outcome) {
	var again, stuck []store.Outgoing
	for _, m := range out.failed {
		f.Stats.Failed.Add(1)
		if m.Attempts >= f.Retry.Attempts {
			stuck = append(stuck, m)
		} else {
			again = append(again, m)
		}
	}
	f.aside(ctx, append(stuck, out.invalid...), store.Stuck)
	f.aside(ctx, append(again, out.behind...), store.Held)
}

// aside sets messages aside. If that fails, the tail is given up, and they come again.
func (f *follower) aside(ctx context.Context, ms []store.Outgoing, to store.OutgoingState) {
	if len(ms) == 0 || f.broken != nil {
		return
	}
	for i := range ms {
		ms[i].State = to
		ms[i].Message.Header = numbered(ms[i].Message.Header, &ms[i])
	}
	limited, cancel := f.limit(ctx)
	defer cancel()
	if f.broken = f.tail.SetAside(limited, ms); f.broken != nil {
		return
	}
	for i := range ms {
		m := &ms[i]
		f.done[placeOf(m)] = true
		if key := m.Message.OrderingKey; key != "" && (to == store.Held || f.OnStuck == HoldOrder) {
			f.blocked[key] = time.Now()
		}
		if to == store.Held {
			f.Stats.Held.Add(1)
			continue
		}
		f.Stats.Stuck.Add(1)
		f.Logger.ErrorContext(ctx, "outbox: a message is stuck", "id", m.Message.ID, "topic", m.Message.Topic,
			"cause", causeOf(m),
			"attempts", m.Attempts, "reason", m.Reason)
	}
}

// numbered adds where a message stands in the log.
func numbered(header map[string]string, m *store.Outgoing) map[string]string {
	all := maps.Clone(header)
	if all == nil {
		all = make(map[string]string, 1)
	}
	all[SeqHeader] = number(m)
	return all
}

// calling is of no interest: another reader takes over when the connection ends.
func (f *follower) calling(bool) {}

// mine is true as long as the tail is not broken: what it hands out is nobody else's.
func (f *follower) owned(*store.Outgoing) bool { return !f.over.Load() }

// sent ends messages that were published. An end of the waiting breaks no tail, and it is tried again.
func (f *follower) sent(working context.Context, ms []store.Outgoing) {
	err := errors.New("outbox: not yet")
	for wait := backoffOf(firstPause, f.PublishTime); err != nil; {
		ctx, cancel := f.limit(working)
		err = f.tail.Sent(ctx, ms, f.Then)
		late := err != nil && ctx.Err() != nil
		cancel()
		if err != nil && (!late || sleep(working, wait.Next()) != nil) {
			f.broken = err // the carrier waits for this before anybody looks
			f.over.Store(true)
			return
		}
	}
	for i := range ms {
		f.done[placeOf(&ms[i])] = true
	}
}
