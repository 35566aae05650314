package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

const (
	backoffAfterNews = time.Second           // least delay while nothing gets through, when new messages come
	firstPoll        = time.Millisecond      // delay after messages were found, or notified of
	notifiedPoll     = 50 * time.Millisecond // longest delay of that kind, if the relay is notified of all messages
	eagerReads       = 4                     // a notice may come just before its commit, and timers wait for a millisecond at least
	eagerGap         = 10 * time.Millisecond // between notices that cause such reads, so that many notices do not
	gatherTime       = 10 * time.Millisecond // longest delay between reads that find few messages
	delayedPoll      = time.Second           // how often delayed messages are asked for
)

// tableRelay publishes the messages in the table, in the lanes of this relay. It
// is the source of its carrier.
type tableRelay struct {
	*env
	lanes   *lanes
	carrier carrier
	holds   *holds
	retrier *retrier
	adopted [store.Lanes]uint64 // the term in which the holds of a lane were read; 0: it is not this relay's
	backoff *backoff.Backoff
	log     store.OutboxLog // nil: the store has none
	rows    rowsReader

	idle    time.Duration // from one read that finds nothing to the next
	readDue time.Time     // when the next read is due; zero: at once, or it has just been
	eager   int           // how many reads that find nothing are repeated at once
	eagerAt time.Time     // when the last of these were caused
	delayed time.Time     // when delayed messages are to be asked for
	readAt  time.Time     // when the last chunk was read
	gather  time.Duration // rises while chunks are small
	most    int           // how many messages a read may ask for: less while the store does not answer larger ones in time

	search searchPhase
	probe  int64 // the Seq after which the search continues; 0: at the beginning
	outage outage
}

// rowsReader says who publishes the rows of the table.
type rowsReader int

const (
	rowsOfTable rowsReader = iota // this reader
	rowsOfLog                     // the reader of the database's log
)

// searchPhase says which messages are read next.
type searchPhase int

const (
	firstChunk searchPhase = iota // the first of all
	laterHeads                    // the first of each ordering key after the last chunk, of which none got through
)

func newTableRelay(e *env, l *lanes) *tableRelay {
	t := &tableRelay{env: e, lanes: l, holds: newHolds(e), most: maxChunk, backoff: backoffOf(firstBackoff, backoffLimit)}
	t.carrier = carrier{env: e, source: t}
	t.retrier = &retrier{e, t.holds, t}
	t.log, _ = once.As[store.OutboxLog](e.Store)
	return t
}

func (t *tableRelay) run(ctx, working context.Context) {
	for ctx.Err() == nil {
		t.lanes.giveUp(working) // none of this reader's messages is in progress
		usable := t.lanes.usable()
		if len(usable) == 0 {
			t.await(ctx, t.Lease/20, t.lanes.changed)
			continue
		}
		t.pass(ctx, working, usable)
	}
}

// pass does everything once, and then waits.
func (t *tableRelay) pass(ctx, working context.Context, lanes []int) {
	busy, err := t.work(ctx, working, lanes)
	switch {
	case err != nil && ctx.Err() == nil:
		t.Logger.WarnContext(ctx, "outbox: the store failed, and nothing is published", logs.Spaced(""), "error", err)
		_ = sleep(ctx, t.backoff.Next())
	case err != nil:
	case t.carrier.pace == cautious:
		begun := time.Now()
		if t.await(ctx, t.backoff.Next(), t.notified) { // a new message may get through, which shows that the broker works
			_ = sleep(ctx, backoffAfterNews-time.Since(begun))
		}
	default:
		t.backoff = backoffOf(firstBackoff, backoffLimit)
		t.rest(ctx, busy)
	}
}

// work does everything once. It reports whether there may be more to do at once.
func (t *tableRelay) work(ctx, working context.Context, lanes []int) (busy bool, err error) {
	if err := t.adopt(ctx, lanes); err != nil {
		return false, err
	}
	t.checkRows()
	if err := t.wake(ctx); err != nil {
		return false, err
	}
	if busy, err = t.publish(ctx, working, lanes); err != nil {
		return busy, err
	}
	again, err := t.retrier.retry(ctx, working)
	return busy || again, err
}

// checkRows sets rows, which may change while relays run.
func (t *tableRelay) checkRows() {
	t.rows = rowsOfTable
	if t.log != nil && t.log.LogsRows() {
		t.rows = rowsOfLog
	}
}

// adopt reads the holds of lanes that are new to this relay, and now and then of
// all its lanes, because people and readers of the log hold messages too.
func (t *tableRelay) adopt(ctx context.Context, lanes []int) error {
	var fresh []int
	terms := t.lanes.terms()
	for lane := range t.adopted {
		ours := slices.Contains(lanes, lane)
		if t.adopted[lane] != 0 && (!ours || t.adopted[lane] != terms[lane]) {
			t.adopted[lane] = 0
			t.holds.forget(lane)
		}
		if ours && t.adopted[lane] == 0 {
			fresh = append(fresh, lane)
		}
	}
	if time.Since(t.holds.looked) >= t.holds.every() {
		fresh = lanes
	}
	if len(fresh) == 0 {
		return nil
	}
	begun := time.Now()
	t.holds.rows = 0
	if err := t.holds.learn(ctx, fresh); err != nil {
		return err
	}
	t.holds.took = time.Since(begun)
	for _, lane := range fresh {
		if t.adopted[lane] == 0 {
			t.delayed, t.readDue = time.Time{}, time.Time{}
		}
		t.adopted[lane] = terms[lane]
	}
	if len(fresh) == len(lanes) {
		t.holds.looked = time.Now()
	}
	return nil
}

// wake makes delayed messages Pending when they are due, or Held if the rows are
// published from the log.
func (t *tableRelay) wake(ctx context.Context) error {
	if time.Now().Before(t.delayed) {
		return nil
	}
	to := store.Pending
	if t.rows == rowsOfLog {
		to = store.Held
	}
	ctx, cancel := t.limit(ctx)
	defer cancel()
	begun := time.Now()
	woken, next, err := t.Store.WakeDelayed(ctx, t.me(), to, t.most)
	if err != nil {
		t.adapt(t.most, begun, err)
		return err
	}
	if woken > 0 {
		t.readDue = time.Time{}
		if t.rows == rowsOfLog {
			t.holds.looked = time.Time{}
		}
	}
	t.delayed = time.Now().Add(min(max(next, 0), t.delayedPoll()))
	return nil
}

// adapt changes how many messages are asked for to what the store answers in time.
// A read that takes too long would take too long again.
func (t *tableRelay) adapt(asked int, begun time.Time, err error) {
	switch took := time.Since(begun); {
	case err == nil && took < t.PublishTime/4:
		t.most = min(max(t.most, 2*asked), maxChunk)
	case err != nil && took >= t.PublishTime:
		t.most = max(asked/4, 1)
	}
}

// delayedPoll is how often delayed messages are asked for. A relay that is
// notified of them asks as seldom as it reads.
func (t *tableRelay) delayedPoll() time.Duration {
	if t.hearsAll.Load() {
		return max(delayedPoll, t.poll())
	}
	return delayedPoll
}

// poll is the longest time between two reads.
func (t *tableRelay) poll() time.Duration {
	switch {
	case t.Poll > 0:
		return t.Poll
	case t.hearsAll.Load():
		return time.Second
	}
	return 200 * time.Millisecond
}

// publish reads a chunk, in one snapshot, and publishes it. If nothing of a chunk
// gets through, the next one has the first messages of the ordering keys after
// it, so that none overtakes another.
func (t *tableRelay) publish(ctx, working context.Context, lanes []int) (busy bool, err error) {
	if time.Now().Before(t.readDue) {
		return false, nil
	}
	t.readDue = time.Time{}
	q := store.OutgoingQuery{State: store.Pending, Limit: min(20*t.Batch, maxChunk), MaxBytes: t.MaxBytes, Lanes: lanes,
		Unlogged: true, HeldBy: t.heldBy()}
	search := t.search
	if search == laterHeads {
		q.Lanes, q.Heads, q.After, q.Limit = nil, true, t.probe, maxChunk
	}
	q.Limit = min(q.Limit, t.most)
	t.readAt = time.Now()
	chunk, err := t.read(ctx, q)
	t.adapt(q.Limit, t.readAt, err)
	if t.checkRows(); err != nil || t.rows == rowsOfLog {
		return false, err
	}
	if len(chunk) < t.Batch/8 {
		t.gather += 2 * time.Millisecond
	} else {
		t.gather = 0
	}
	t.search = firstChunk
	if search == laterHeads {
		t.probe = 0
		if len(chunk) > 0 {
			t.probe = chunk[len(chunk)-1].Seq
		}
	}
	if len(chunk) == 0 {
		if search == firstChunk {
			t.carrier.pace = normal
		}
		return false, nil
	}
	t.carrier.looked = time.Time{} // what people decided before the chunk was read has to be known
	t.carrier.readAt = t.readAt
	clear(t.holds.aside)
	if err := t.carrier.look(ctx, chunk); err != nil {
		return false, err
	}
	free, held := t.holds.split(chunk)
	moved, err := t.move(working, held, store.Held)
	if t.Stats.Held.Add(int64(moved)); err != nil {
		return true, err
	}
	var head store.Outgoing
	if len(free) > 0 {
		head = free[0]
	}
	out := t.carrier.carry(ctx, working, free)
	t.noteOutage(working, head, out, search)
	if out.refused && search == firstChunk { // MaxBytes or the limit may have cut off others that get through
		t.search = laterHeads
	}
	if err := t.holds.settle(working, out); err != nil {
		return true, err
	}
	return out.carried+len(held)+len(out.failed)+len(out.invalid) > 0, nil
}

// rest waits before the next read. After messages were found, more are expected
// soon. If they were few several times in a row, it waits for some to gather,
// because a read costs as much as some messages.
func (t *tableRelay) rest(ctx context.Context, busy bool) {
	if busy {
		t.eager, t.readDue = 0, time.Time{}
		if t.idle = 0; t.gather > 0 {
			_ = sleep(ctx, min(t.gather, gatherTime)-time.Since(t.readAt))
		}
		return
	}
	if t.eager > 0 {
		t.eager--
		return
	}
	t.gather = 0
	if t.readDue.IsZero() {
		poll := t.poll()
		t.idle = min(max(2*t.idle, firstPoll), poll)
		if t.hearsAll.Load() && t.idle > notifiedPoll {
			t.idle = poll // the next commit notifies
		}
		t.readDue = time.Now().Add(t.idle)
	}
	wait := time.Until(t.readDue)
	wait = min(wait, max(time.Until(t.holds.soonest), firstPoll))
	wait = min(wait, max(time.Until(t.delayed), firstPoll))
	if t.await(ctx, wait, t.notified, t.lanes.changed) {
		t.idle, t.readDue = 0, time.Time{}
		if soon := time.Now().Add(delayedPoll); soon.Before(t.delayed) {
			t.delayed = soon // it may be a delayed message
		}
		if time.Since(t.eagerAt) >= eagerGap {
			t.eager, t.eagerAt = eagerReads, time.Now()
		}
	}
}

// await waits for d, and reports whether one of up to two signals came. It takes
// both if both are there, because one look is enough for them.
func (t *tableRelay) await(ctx context.Context, d time.Duration, signals ...chan struct{}) bool {
	signals = append(signals, nil, nil)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return false
	case <-signals[0]:
	case <-signals[1]:
	}
	for _, other := range signals[:2] {
		select {
		case <-other:
		default:
		}
	}
	return true
}

// calling sets when the current call of the publisher began. If the call does not
// return although its context has ended, the leases are not renewed.
func (t *tableRelay) calling(p callPhase) {
	since := int64(0)
	if p == callBegins {
		since = time.Now().UnixNano()
	}
	t.env.calling.Store(since)
}

func (t *tableRelay) during(ctx context.Context, ms []store.Outgoing) (context.Context, context.CancelFunc) {
	return t.lanes.during(ctx, ms)
}

func (t *tableRelay) may(m *store.Outgoing) bool { return t.owned(m.Lane) && !t.holds.parked(m) }

func (t *tableRelay) look(ctx context.Context) error { return t.holds.look(ctx, t.owned, false) }

// owned reports whether a lane has been this relay's since its holds were read.
func (t *tableRelay) owned(lane int) bool { return t.lanes.owned(lane, t.adopted[lane]) }

// sent tries until the store answers, because messages that are not settled are
// published again.
func (t *tableRelay) sent(ctx context.Context, ms []store.Outgoing) {
	if t.handOver != nil {
		return // they were ended when they were published
	}
	t.persist(ctx, "outbox: published messages could not be settled", func(ctx context.Context) error {
		n, err := t.Store.Sent(ctx, t.me(), ms, t.Then)
		if err == nil && n < len(ms) {
			t.Stats.Repeated.Add(int64(len(ms) - n))
			t.Logger.WarnContext(ctx, "outbox: published messages were changed concurrently", "messages", len(ms)-n)
			t.lanes.doubt(ms)
		}
		return err
	})
}
