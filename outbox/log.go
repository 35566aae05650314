package outbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

// recheck is how often the table is read to find out whether an ordering key is
// still held there.
const recheck = 200 * time.Millisecond

// relearn is how often all held ordering keys are read.
const relearn = time.Minute

// logReader publishes messages from the database's log, if the store is
// configured for it. One relay at a time has the log.
type logReader struct{ *env }

func (r *logReader) run(ctx, working context.Context) {
	log, ok := once.As[store.OutboxLog](r.Store)
	if !ok {
		return
	}
	pause := backoffOf(firstBackoff, backoffLimit)
	for ctx.Err() == nil {
		t, err := log.TailOutbox(ctx)
		switch {
		case errors.Is(err, once.ErrConflict):
			_ = sleep(ctx, max(r.Lease/20, firstBackoff)) // another relay has it
			continue
		case err == nil && t == nil:
			_ = sleep(ctx, max(r.Lease/6, firstBackoff)) // the configuration may change while relays run
			continue
		case err == nil:
			err = r.follow(ctx, working, t, func() { pause = backoffOf(firstBackoff, backoffLimit) })
		}
		if ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "outbox: the log of the database cannot be read; trying again", logs.Spaced(""), "error", err)
			_ = sleep(ctx, pause.Next())
		}
	}
}

// follow publishes from a tail until it fails or ctx ends. It calls progress
// after each read.
func (r *logReader) follow(ctx, working context.Context, t store.OutboxTail, progress func()) error {
	f := &logRelay{env: r.env, tail: t, blocked: make(map[string]time.Time), backoff: backoffOf(firstBackoff, backoffLimit)}
	f.carrier = carrier{env: r.env, source: f}
	defer func() {
		ctx, cancel := r.limit(context.WithoutCancel(working))
		defer cancel()
		if err := t.Close(ctx); err != nil {
			r.Logger.WarnContext(ctx, "outbox: the reader of the log could not be closed", logs.Spaced(""), "error", err)
		}
	}()
	if err := f.learn(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil && f.failed == nil {
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
	return f.failed
}

// logRelay publishes the messages of a tail. It is the source of its carrier.
type logRelay struct {
	*env
	tail    store.OutboxTail
	carrier carrier
	backoff *backoff.Backoff
	rest    []store.Outgoing     // received, and neither sent nor set aside
	owed    int                  // how many of rest are before the last settled message, or in its transaction
	open    bool                 // the log has more messages of that transaction
	done    map[place]bool       // settled in this round
	blocked map[string]time.Time // ordering keys that are held in the table, and when that was last seen
	learned time.Time            // when blocked was last read
	failed  error                // why the tail has failed
	over    atomic.Bool          // the tail has failed; for the carrier, which runs concurrently
}

// room is how many more messages may be received.
func (f *logRelay) room() int {
	size := 0
	for i := range f.rest {
		size += len(f.rest[i].Message.Body)
	}
	if size >= f.MaxBytes {
		return 0
	}
	return max(min(20*f.Batch, maxChunk)-len(f.rest), 0)
}

// learn reads the held ordering keys.
func (f *logRelay) learn(ctx context.Context) error {
	h := newHolds(f.env)
	all := make([]int, store.Lanes)
	for i := range all {
		all[i] = i
	}
	err := h.learn(ctx, all)
	f.learned = time.Now()
	clear(f.blocked)
	for key := range h.byKey {
		f.blocked[key] = time.Time{}
	}
	return err
}

// deliver publishes the received messages. While none gets through, it receives
// more.
func (f *logRelay) deliver(ctx, working context.Context) {
	if time.Since(f.learned) > relearn {
		if f.failed = f.learn(ctx); f.failed != nil {
			return
		}
	}
	for len(f.rest) > 0 && ctx.Err() == nil && f.failed == nil {
		refused := f.round(ctx, working)
		if !refused {
			f.backoff = backoffOf(firstBackoff, backoffLimit)
			continue
		}
		if err := f.takeMore(ctx); err != nil {
			f.failed = cmp.Or(f.failed, err)
		}
	}
}

// round tries each message once, and reports whether the broker refused all.
func (f *logRelay) round(ctx, working context.Context) (refused bool) {
	f.carrier.looked = time.Time{} // what people decided before these were received has to be known
	if f.failed = f.carrier.look(working, f.rest); f.failed != nil {
		return false
	}
	free, held, err := f.split(working)
	if err != nil {
		f.failed = err
		return false
	}
	f.done = make(map[place]bool, len(f.rest))
	f.aside(working, inState(held, store.Held))
	out := f.carrier.carry(ctx, working, free)
	f.settle(working, out)
	f.forget()
	return out.refused
}

// forget drops settled messages.
func (f *logRelay) forget() {
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
	for i := range f.rest {
		if f.done[placeOf(&f.rest[i])] {
			continue
		}
		if left = append(left, f.rest[i]); i < reach {
			f.owed++
		}
	}
	f.rest = left
}

// finish publishes the messages that would make the next reader begin before a
// published one. The log is confirmed up to the end of a transaction, so these
// are the messages before the last settled one, and the rest of its
// transaction.
func (f *logRelay) finish(working context.Context) {
	f.forget() // messages received since the last round may belong to the open transaction
	for working.Err() == nil && f.failed == nil && (f.owed > 0 || f.open) {
		f.rest = f.rest[:f.owed]
		if f.open {
			limited, cancel := context.WithTimeout(working, time.Second) // it was committed, so it arrives soon
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

// takeMore waits, and receives messages meanwhile. If one of them gets through,
// the broker works.
func (f *logRelay) takeMore(ctx context.Context) error {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, f.backoff.Next())
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
		_ = sleep(limited, backoffAfterNews-time.Since(begun))
	}
	return err
}

// split divides messages into those that may be published and those that wait for
// a message in the table.
func (f *logRelay) split(ctx context.Context) (free, held []store.Outgoing, err error) {
	if len(f.blocked) == 0 {
		return f.rest, nil, nil
	}
	waiting := make(map[string]bool) // what an earlier message waits for may end meanwhile
	for _, m := range f.rest {
		key := m.Message.OrderingKey
		waits := waiting[key]
		if !waits {
			if waits, err = f.isHeld(ctx, &m); err != nil {
				return nil, nil, err
			}
		}
		switch {
		case waits:
			waiting[key] = true
			m.Reason = heldReason
			held = append(held, m)
		default:
			free = append(free, m)
		}
	}
	return free, held, nil
}

func (f *logRelay) isHeld(ctx context.Context, m *store.Outgoing) (bool, error) {
	key := m.Message.OrderingKey
	seen, blocked := f.blocked[key]
	if !blocked || key == "" {
		return false, nil
	}
	if time.Since(seen) < recheck {
		return true, nil
	}
	// Each is read twice: a person may replay a message in between, so that it was
	// neither Held before nor Stuck after, and park it again.
	for _, state := range []store.OutgoingState{store.Held, store.Stuck, store.Held, store.Stuck} {
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

// settle puts the messages that a round did not publish into the table, in the
// order in which they were received: that is the order of an ordering key there.
func (f *logRelay) settle(ctx context.Context, out outcome) {
	retry, stuck := f.undelivered(out)
	ms := slices.Concat(inState(retry, store.Held), inState(stuck, store.Stuck))
	if len(ms) == 0 {
		return
	}
	at := make(map[place]int, len(f.rest))
	for i := range f.rest {
		at[placeOf(&f.rest[i])] = i
	}
	slices.SortFunc(ms, func(a, b store.Outgoing) int { return cmp.Compare(at[placeOf(&a)], at[placeOf(&b)]) })
	f.aside(ctx, ms)
}

func inState(ms []store.Outgoing, state store.OutgoingState) []store.Outgoing {
	for i := range ms {
		ms[i].State = state
	}
	return ms
}

// aside puts messages into the table, in their State. If that fails, the tail
// ends, and they are received again.
func (f *logRelay) aside(ctx context.Context, ms []store.Outgoing) {
	if len(ms) == 0 || f.failed != nil {
		return
	}
	for i := range ms {
		ms[i].Message.Header = f.numbered(ms[i].Message.Header, &ms[i])
	}
	limited, cancel := f.limit(ctx)
	defer cancel()
	if f.failed = f.tail.SetAside(limited, ms); f.failed != nil {
		return
	}
	for i := range ms {
		m := &ms[i]
		f.done[placeOf(m)] = true
		if key := m.Message.OrderingKey; key != "" && (m.State == store.Held || f.OnStuck == HoldOrder) {
			f.blocked[key] = time.Now()
		}
		if m.State == store.Held {
			f.Stats.Held.Add(1)
			continue
		}
		f.stuck(ctx, m)
	}
}

func (f *logRelay) call(ctx context.Context, _ []store.Outgoing, as []*broker.Message) []error {
	return f.Publisher.Publish(ctx, as)
}

// calling does nothing: another reader takes over when the connection ends.
func (f *logRelay) calling(callPhase) {}

// during does nothing: another reader takes over when the connection ends.
func (f *logRelay) during(ctx context.Context, _ []store.Outgoing) (context.Context, context.CancelFunc) {
	return ctx, func() {}
}

// may reports whether the tail works, in which case no other reader gets its
// messages, and whether the message need not wait for one in the table. Those that
// must were left out when the round began, unless a person has decided since.
func (f *logRelay) may(m *store.Outgoing) bool {
	_, blocked := f.blocked[m.Message.OrderingKey]
	return !f.over.Load() && !blocked
}

// look adds the ordering keys about which people have decided lately.
func (f *logRelay) look(ctx context.Context) error {
	ms, err := f.Store.DecidedOutgoing(ctx, false)
	if err != nil {
		return err
	}
	for _, m := range ms {
		key := m.Message.OrderingKey
		if _, known := f.blocked[key]; !known && key != "" && (m.State == store.Held || f.OnStuck == HoldOrder) {
			f.blocked[key] = time.Time{}
		}
	}
	return nil
}

// sent settles published messages. It tries again after a timeout. Any other
// error ends the tail.
func (f *logRelay) sent(working context.Context, ms []store.Outgoing) {
	err := errors.New("outbox: not tried yet")
	for wait := backoffOf(firstBackoff, f.PublishTime); err != nil; {
		ctx, cancel := f.limit(working)
		err = f.tail.Sent(ctx, ms, f.Then)
		late := err != nil && ctx.Err() != nil
		cancel()
		if err != nil && (!late || sleep(working, wait.Next()) != nil) {
			f.failed = err // the carrier waits for this call before failed is read
			f.over.Store(true)
			return
		}
	}
	for i := range ms {
		f.done[placeOf(&ms[i])] = true
	}
}
