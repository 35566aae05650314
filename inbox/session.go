package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/lazyctx"
	"github.com/effectively-once/once/internal/logs"
)

const (
	openTime  = 30 * time.Second
	closeTime = 10 * time.Second
	firstWait = 100 * time.Millisecond
	lastWait  = 30 * time.Second
)

// run works until ctx ends, or something has happened that needs a person.
func (s *consumerRun) run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.fatal = func(err error) { end(&fatal{err}) }
	s.shape.prepare()

	// Handlers outlive ctx by StopTime: what has begun is ended in order.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var beside workerGroup
	beside.start(func() { s.stayAlive(ctx) })
	beside.start(func() { s.attendShelf(ctx, work) })
	defer beside.Wait()
	defer end(nil) // also when something panics
	unhurried := context.AfterFunc(ctx, func() { time.AfterFunc(s.StopTime, stop) })
	defer unhurried()

	pause := &backoff.Backoff{First: firstWait, Limit: lastWait}
	for ctx.Err() == nil {
		received, err := s.session(ctx, work)
		if received {
			pause = &backoff.Backoff{First: firstWait, Limit: lastWait}
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, broker.ErrInvalid) { // settings, which no other try changes
			return fmt.Errorf("inbox: consumer %q: %w", s.Name, err)
		}
		s.logger.WarnContext(ctx, "inbox: nothing can be received; trying again", logs.Spaced(""), "source", s.Source.Name(), "error", err)
		_ = backoff.Sleep(ctx, pause.Next())
	}
	var f *fatal
	if errors.As(context.Cause(ctx), &f) {
		return f.err
	}
	return nil
}

// workerGroup is goroutines that are waited for.
type workerGroup struct{ sync.WaitGroup }

func (c *workerGroup) start(f func()) {
	c.Add(1)
	go func() {
		defer c.Done()
		f()
	}()
}

// fatal ends a run.
type fatal struct{ err error }

func (f *fatal) Error() string { return f.err.Error() }

// session consumes through one session, until it breaks or ctx ends. It returns when nothing of it is at work.
func (s *consumerRun) session(ctx, work context.Context) (received bool, err error) {
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if err := s.confirm(opening); err != nil {
		if errors.Is(err, once.ErrInvalid) {
			s.fatal(err)
		}
		return false, err
	}
	session, err := s.Source.Open(opening, s.Window)
	cancel()
	if err != nil {
		return false, err
	}
	if err := s.checkPlace(session); err != nil {
		s.fatal(err)
		return false, s.leave(session)
	}
	l, sought := newLanes(), newSeeks(session)
	s.shape.newSession(sought)
	var workers sync.WaitGroup
	alive, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	c := &laneWorker{consumerRun: s, session: session, lanes: l, workers: &workers, broken: broken}
	for range s.Concurrency {
		c.start(work)
	}
	for {
		ds, err := sought.receive(alive, session, s.Window)
		if err == nil {
			ds, err = sought.seek(ctx, ds, l.drop)
		}
		if err != nil {
			left := l.close()
			s.giveBack(work, session, left)
			workers.Wait()
			return received, errors.Join(cmp.Or(context.Cause(alive), err), s.leave(session))
		}
		if len(ds) > 0 {
			received = true
			items := s.take(ds)
			sought.date(items)
			l.put(items)
		}
	}
}

func (s *consumerRun) leave(session broker.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return session.Close(ctx)
}

// take turns deliveries into items.
func (s *consumerRun) take(ds []broker.Delivery) []*item {
	s.Stats.Received.Add(int64(len(ds)))
	items := make([]*item, len(ds))
	for i, d := range ds {
		if s.Checkpoint && d.Position == nil {
			s.fatal(invalid("consumer %q: %s delivers messages without a position: take a source that is a log, or leave Checkpoint out", s.Name, s.Source.Name()))
			return nil
		}
		items[i] = s.newItem(d)
	}
	return items
}

// laneWorker is where the items of one session are handled.
type laneWorker struct {
	*consumerRun
	session broker.Session
	lanes   *lanes
	workers *sync.WaitGroup
	broken  context.CancelCauseFunc // ends the session
	unheard atomic.Int64            // deliveries that the broker may believe to be at work still
}

// start has a goroutine attend.
func (c *laneWorker) start(ctx context.Context) {
	c.workers.Add(1)
	go c.attend(ctx)
}

// attend handles items until the lanes are closed. A handler that ends its goroutine leaves its items to another one, as
// one that ends its process does.
func (c *laneWorker) attend(ctx context.Context) {
	defer c.workers.Done()
	var items []*item
	var from []*lane
	defer func() {
		if items == nil {
			return
		}
		for _, it := range items {
			it.counted, it.prepaid, it.deadly = false, false, true
		}
		c.giveBack(ctx, c.session, c.lanes.release(from, items, nil))
		c.start(ctx)
	}()
	for {
		if items, from = c.lanes.take(c.BatchSize, c.Checkpoint); items == nil {
			return
		}
		c.serve(ctx, items, from)
	}
}

func (c *laneWorker) serve(ctx context.Context, items []*item, from []*lane) {
	begun, seen := c.watch(ctx, items, false)
	defer seen.end() // also of a handler that ends its goroutine
	fates := c.handle(begun, items)
	var back []*item
	after := make(map[*item]time.Duration)
	settled := settlement{reasons: make(map[string][]broker.Delivery)}
	for i, it := range items {
		f := c.resolve(begun, it, fates[i])
		c.tell(f)
		seen.tell(i, f)
		if !settled.add(it, f) {
			back = append(back, it)
			after[it] = f.after
		} else if f.kind != shelved { // its attempts are of no interest any more
			it.prepaid, it.debt = false, 0
		}
		if !it.ran {
			it.excuse()
		}
	}
	seen.end()
	c.payDebts(ctx, items)
	c.settle(ctx, settled)
	c.giveBack(ctx, c.session, c.lanes.release(from, back, after))
}

// handle parks what is too old to be told from new, and has the rest handled.
func (s *consumerRun) handle(ctx context.Context, items []*item) []result {
	var young []*item
	fates := make([]result, len(items))
	for i, it := range items {
		if !s.Checkpoint && it.wrong == nil && s.tooOld(it) {
			fates[i] = s.old(ctx, it)
			continue
		}
		young = append(young, it)
	}
	if len(young) == 0 {
		return fates
	}
	spread(fates, items, young, s.shape.handle(ctx, young))
	return fates
}

// old is the result of a message that may have been handled so long ago that its key is forgotten.
func (s *consumerRun) old(ctx context.Context, it *item) result {
	rec, err := s.store.Get(ctx, it.key)
	switch {
	case err != nil:
		return s.troubled(ctx, it, err)
	case rec.Status == once.Done || rec.Status == once.Expired:
		return s.met(ctx, it, rec)
	}
	return result{kind: hopeless, reason: tooOldReason}
}

const tooOldReason = "older than keys are remembered: it may have been handled before. Replay it if it was not"

// settlement is what is said to the broker about items.
type settlement struct {
	acked   []broker.Delivery
	reasons map[string][]broker.Delivery // rejected, by reason
}

// add reports whether the item is dealt with.
func (b *settlement) add(it *item, f result) bool {
	switch f.kind {
	case handled, prevented, duplicate, shelved:
		b.acked = append(b.acked, it.Delivery)
	case parked:
		b.reasons[f.reason] = append(b.reasons[f.reason], it.Delivery)
	case sought:
	default:
		return false
	}
	return true
}

const settleTries = 3

// settle tells the broker. That it does not hear it does no harm, since what comes again is known; but when it believes
// too much of the window to be at work still, the session is given up.
func (c *laneWorker) settle(ctx context.Context, b settlement) {
	pause := &backoff.Backoff{First: firstWait, Limit: time.Second}
	for tries := 1; ; tries++ {
		err := c.tellBroker(ctx, b)
		if err == nil {
			return
		}
		c.logger.WarnContext(ctx, "inbox: the broker was not told, and messages may come again", logs.Spaced(""), "error", err)
		if tries == settleTries || backoff.Sleep(ctx, pause.Next()) != nil {
			if c.unheard.Add(int64(b.size())) >= int64(c.Window+1)/2 {
				c.broken(fmt.Errorf("inbox: the broker could not be told of what was dealt with: %w", err))
			}
			return
		}
	}
}

func (b settlement) size() int {
	n := len(b.acked)
	for _, ds := range b.reasons {
		n += len(ds)
	}
	return n
}

func (c *laneWorker) tellBroker(ctx context.Context, b settlement) error {
	limited := lazyctx.Detach(ctx, storeTime)
	defer limited.Stop()
	ctx = limited
	var errs []error
	if len(b.acked) > 0 {
		errs = append(errs, c.session.Ack(ctx, b.acked))
	}
	keeper, _ := c.session.(broker.DeadLetterer)
	for reason, ds := range b.reasons {
		if c.shelf != nil && (keeper == nil || !keeper.KeepsRejected()) {
			errs = append(errs, c.session.Ack(ctx, ds)) // it is safe on the shelf
			continue
		}
		errs = append(errs, c.session.Reject(ctx, ds, reason))
	}
	return errors.Join(errs...)
}

// giveBack returns what was not begun, or not ended, and has no order: others can go on with it at once. What has an order
// comes again when the session has ended, and so after what is still at work here.
func (s *consumerRun) giveBack(ctx context.Context, session broker.Session, items []*item) {
	var ds []broker.Delivery
	for _, it := range items {
		if it.order == "" && !s.Checkpoint {
			ds = append(ds, it.Delivery)
		}
	}
	if len(ds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	if err := session.Return(ctx, ds, 0); err != nil {
		s.logger.DebugContext(ctx, "inbox: messages could not be given back, and come again when the session has ended", "error", err)
	}
}

// tell counts a result.
func (s *consumerRun) tell(f result) {
	switch f.kind {
	case handled:
		s.Stats.Handled.Add(1)
	case prevented:
		s.Stats.Prevented.Add(1)
	case duplicate:
		s.Stats.Duplicates.Add(1)
	case shelved:
		s.Stats.Shelved.Add(1)
	case parked:
		s.Stats.Parked.Add(1)
	}
}

// checkPlace refuses a consumer whose messages would be lost when they fail for good.
func (s *consumerRun) checkPlace(session broker.Session) error {
	keeper, ok := session.(broker.DeadLetterer)
	if s.shelf != nil || ok && keeper.KeepsRejected() {
		return nil
	}
	return fmt.Errorf("%w: messages of consumer %q that fail for good would be lost: %T has no shelf, and %s no dead letters",
		once.ErrInvalid, s.Name, s.store, s.Source.Name())
}
