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
	maxChunk    = 10_000 // messages that are read at once, in one snapshot
	firstPause  = 100 * time.Millisecond
	longestWait = 10 * time.Second      // while the broker or the database is in trouble
	leastPause  = time.Second           // the same, when something new comes
	firstLook   = time.Millisecond      // after something was found, or heard of
	lastLook    = 50 * time.Millisecond // the same: then it is given up, if there is more to hear
	gatherTime  = 10 * time.Millisecond // at most, between looks that find little: each costs as much as some messages
	delayGrain  = time.Second           // how often delayed messages are asked for
	holdsEvery  = 5 * time.Second       // how often what others have put aside is looked for
)

func backoffOf(first, limit time.Duration) *backoff.Backoff {
	return &backoff.Backoff{First: first, Limit: limit}
}

func sleep(ctx context.Context, d time.Duration) error { return backoff.Sleep(ctx, d) }

// pump publishes what is in the table, in the lanes of this relay.
type pump struct {
	*run
	carrier carrier
	holds   *holds
	adopted [store.Lanes]bool // the lanes whose held messages are known
	trouble *backoff.Backoff
	idle    time.Duration   // until the next look
	due     time.Time       // when delayed messages are to be asked for
	probe   int64           // >0: a chunk does not get through, and this is how far the search after it has come
	full    bool            // nothing of the last chunk got through, and MaxBytes or its limit may have cut it off
	looked  time.Time       // when it was read
	little  time.Duration   // rises while chunks are small, one after another
	rows    bool            // Pending rows are for the table's reader, and not for the log's
	log     store.OutboxLog // which knows; nil: there is no log
}

func (r *run) pump(ctx, working context.Context) {
	p := &pump{run: r, holds: newHolds(r), trouble: backoffOf(firstPause, longestWait), rows: true}
	p.carrier = carrier{run: r, sink: tableSink{r}}
	p.log, _ = once.As[store.OutboxLog](r.Store)
	for ctx.Err() == nil {
		p.lanes.giveUp(working) // nothing is on its way here
		usable := p.lanes.usable()
		if len(usable) == 0 {
			p.await(ctx, p.Lease/20, p.lanes.changed)
			continue
		}
		p.look(ctx, working, usable)
	}
}

// look takes what there is, and then waits for more.
func (p *pump) look(ctx, working context.Context, lanes []int) {
	busy, err := p.once(ctx, working, lanes)
	switch {
	case err != nil && ctx.Err() == nil:
		p.Logger.WarnContext(ctx, "outbox: the store is in trouble, and nothing is published", logs.Spaced(""), "error", err)
		_ = sleep(ctx, p.trouble.Next())
	case err != nil:
	case p.carrier.cautious:
		begun := time.Now()
		if p.await(ctx, p.trouble.Next(), p.rung) { // what is new may get through, and then shows that the broker works
			_ = sleep(ctx, leastPause-time.Since(begun))
		}
	default:
		p.trouble = backoffOf(firstPause, longestWait)
		p.rest(ctx, busy)
	}
}

// once does each thing there is to do, once. It reports whether there may be more at once.
func (p *pump) once(ctx, working context.Context, lanes []int) (busy bool, err error) {
	if err := p.adopt(ctx, lanes); err != nil {
		return false, err
	}
	p.askLog()
	if err := p.wake(ctx); err != nil {
		return false, err
	}
	if busy, err = p.publish(ctx, working, lanes); err != nil {
		return busy, err
	}
	again, err := p.retry(ctx, working)
	return busy || again, err
}

// askLog notes whose the rows are: which may change while relays run.
func (p *pump) askLog() { p.rows = p.log == nil || !p.log.LogsRows() }

// adopt learns what is held in lanes that are new here, and now and again in all of them: people, and readers of the
// log, put messages aside too.
func (p *pump) adopt(ctx context.Context, lanes []int) error {
	var fresh []int
	for lane := range p.adopted {
		ours := slices.Contains(lanes, lane)
		if ours && !p.adopted[lane] {
			fresh = append(fresh, lane)
		}
		if !ours && p.adopted[lane] {
			p.adopted[lane] = false
			p.holds.forget(lane)
		}
	}
	if time.Since(p.holds.looked) >= p.holds.every() {
		fresh = lanes
	}
	if len(fresh) == 0 {
		return nil
	}
	begun := time.Now()
	p.holds.rows = 0
	if err := p.holds.learn(ctx, fresh); err != nil {
		return err
	}
	p.holds.took = time.Since(begun)
	for _, lane := range fresh {
		p.adopted[lane] = true
	}
	if len(fresh) == len(lanes) {
		p.holds.looked = time.Now()
	}
	return nil
}

// wake makes delayed messages that are due ones to publish.
func (p *pump) wake(ctx context.Context) error {
	if time.Now().Before(p.due) {
		return nil
	}
	to := store.Pending
	if !p.rows {
		to = store.Held
	}
	ctx, cancel := p.limit(ctx)
	defer cancel()
	woken, next, err := p.Store.WakeDelayed(ctx, p.me, to, maxChunk)
	if err != nil {
		return err
	}
	if woken > 0 && !p.rows {
		p.holds.looked = time.Time{}
	}
	p.due = time.Now().Add(min(max(next, 0), delayGrain))
	return nil
}

// publish reads a chunk, in one snapshot, and publishes it.
func (p *pump) publish(ctx, working context.Context, lanes []int) (busy bool, err error) {
	q := store.OutgoingQuery{State: store.Pending, Limit: min(20*p.Batch, maxChunk), MaxBytes: p.MaxBytes, Lanes: lanes,
		Unlogged: true}
	behind := p.full
	if behind {
		q.Lanes, q.Heads, q.After, q.Limit = nil, true, p.probe, maxChunk
	}
	p.looked = time.Now()
	chunk, err := p.read(ctx, q)
	if p.askLog(); err != nil || !p.rows {
		return false, err
	}
	if len(chunk) < p.Batch/8 {
		p.little += 2 * time.Millisecond
	} else {
		p.little = 0
	}
	p.full, p.probe = false, p.lookBehind(behind, chunk)
	if len(chunk) == 0 {
		p.carrier.cautious = p.carrier.cautious && behind
		return false, nil
	}
	free, held := p.holds.split(chunk)
	moved, err := p.move(working, held, store.Held)
	if p.Stats.Held.Add(int64(moved)); err != nil {
		return true, err
	}
	out := p.carrier.carry(ctx, working, free)
	p.full = out.refused && !behind
	if err := p.holds.settle(working, out); err != nil {
		return true, err
	}
	return out.carried+len(held)+len(out.failed)+len(out.invalid) > 0, nil
}

// lookBehind is where the next look behind a chunk begins that does not get through: at the end of this one, or again
// at the beginning. Only the first message of each ordering key is looked at there, so that none overtakes.
func (p *pump) lookBehind(behind bool, chunk []store.Outgoing) int64 {
	switch {
	case !behind:
		return p.probe
	case len(chunk) == 0:
		return 0
	}
	return chunk[len(chunk)-1].Seq
}

// read and move are the store's, with a limit of their own.
func (r *run) read(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	ctx, cancel := r.limit(ctx)
	defer cancel()
	return r.Store.Outgoing(ctx, q)
}

func (r *run) move(ctx context.Context, ms []store.Outgoing, to store.OutgoingState) (changed int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	ctx, cancel := r.limit(ctx)
	defer cancel()
	return r.Store.MoveOutgoing(ctx, r.me, ms, to)
}

// rest waits for more. Where something was found, more is expected soon. Where it was little again and again, it is
// gathered for a moment.
func (p *pump) rest(ctx context.Context, busy bool) {
	if busy {
		if p.idle = 0; p.little > 0 {
			_ = sleep(ctx, min(p.little, gatherTime)-time.Since(p.looked))
		}
		return
	}
	p.little = 0
	poll := p.Poll
	if poll == 0 && p.far.Load() {
		poll = time.Second
	} else if poll == 0 {
		poll = 200 * time.Millisecond
	}
	p.idle = min(max(5*p.idle, firstLook), poll)
	if p.far.Load() && p.idle > lastLook {
		p.idle = poll // what commits later rings again, or is found by the clock
	}
	wait := p.idle
	wait = min(wait, max(time.Until(p.holds.soonest), firstLook))
	wait = min(wait, max(time.Until(p.due), firstLook))
	if p.await(ctx, wait, p.rung, p.lanes.changed) {
		p.idle = 0
	}
}

// await waits, and reports whether one of the signals came.
func (p *pump) await(ctx context.Context, d time.Duration, signals ...chan struct{}) bool {
	signals = append(signals, nil, nil)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-signals[0]:
		return true
	case <-signals[1]:
		return true
	}
	return false
}

// listen hears of what was put, as long as the store tells.
func (r *run) listen(ctx context.Context) {
	bell, ok := once.As[store.Bell](r.Store)
	if !ok {
		return
	}
	pause := backoffOf(time.Second, time.Minute)
	for ctx.Err() == nil {
		err := r.hear(ctx, bell)
		r.far.Store(false)
		if ctx.Err() != nil {
			return
		}
		r.Logger.WarnContext(ctx, "outbox: what was put is not heard of, and looked for by the clock", logs.Spaced(""), "error", err)
		_ = sleep(ctx, pause.Next())
	}
}

func (r *run) hear(ctx context.Context, bell store.Bell) error {
	ear, err := bell.HearOutbox(ctx)
	if err != nil {
		return err
	}
	defer ear.Close()
	r.far.Store(ear.Far())
	for {
		if err := ear.Wait(ctx); err != nil {
			return err
		}
		signal(r.rung)
	}
}

// keep forgets what was kept for long enough.
func (r *run) keep(ctx context.Context) {
	for r.Then == store.Keep {
		for more := true; more; {
			limited, cancel := r.limit(ctx)
			n, err := r.Store.ForgetOutgoing(limited, r.KeepFor, keepLimit)
			cancel()
			if err != nil && ctx.Err() == nil {
				r.Logger.WarnContext(ctx, "outbox: kept messages could not be forgotten", logs.Spaced(""), "error", err)
			}
			more = n == keepLimit && sleep(ctx, time.Second/10) == nil
		}
		if sleep(ctx, min(time.Minute, max(r.KeepFor/10, time.Second))) != nil {
			return
		}
	}
}

const keepLimit = 1000
