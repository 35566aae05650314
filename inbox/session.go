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

	reconnectFirst = 100 * time.Millisecond
	reconnectLimit = 30 * time.Second

	settleTries = 3
)

// session is one session with the broker.
type session struct {
	*env
	processor processor
	broker    broker.Session
	lanes     *lanes
	rereads   *rereads
	workers   sync.WaitGroup
	fail      context.CancelCauseFunc // ends the session
	unsettled atomic.Int64            // deliveries that the broker may still take for unsettled
}

// openSession opens a session with the source.
func openSession(ctx context.Context, e *env, p processor) (*session, error) {
	opened, err := e.Source.Open(ctx, e.Window)
	if err != nil {
		return nil, err
	}
	s := &session{env: e, processor: p, broker: opened, lanes: newLanes(), rereads: newRereads(opened)}
	if err := s.checkShelf(); err != nil {
		e.fatal(err)
		return nil, s.close()
	}
	p.newSession(s.rereads)
	return s, nil
}

// checkShelf refuses a consumer whose messages would be lost when they fail for
// good.
func (s *session) checkShelf() error {
	if s.shelf != nil || s.keepsRejected() {
		return nil
	}
	return fmt.Errorf("%w: messages of consumer %q that fail for good would be lost: %T has no shelf, and %s no dead letters",
		once.ErrInvalid, s.Name, s.store, s.Source.Name())
}

func (s *session) keepsRejected() bool {
	keeper, ok := s.broker.(broker.DeadLetterer)
	return ok && keeper.KeepsRejected()
}

func (s *session) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return s.broker.Close(ctx)
}

// receive consumes until the session breaks or ctx ends, and returns when all
// its workers have returned. Handlers get the context work.
func (s *session) receive(ctx, work context.Context) (received bool, err error) {
	alive, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.fail = fail
	for range s.Concurrency {
		s.startWorker(work)
	}
	for {
		ds, err := s.rereads.next(alive, s.broker, s.Window, s.lanes.drop)
		if err != nil {
			s.giveBack(work, s.lanes.close())
			s.workers.Wait()
			return received, errors.Join(cmp.Or(context.Cause(alive), err), s.close())
		}
		if len(ds) > 0 {
			received = true
			s.lanes.put(s.itemsOf(ds))
		}
	}
}

// itemsOf turns deliveries into items.
func (s *session) itemsOf(ds []broker.Delivery) []*item {
	s.Stats.Received.Add(int64(len(ds)))
	items := make([]*item, len(ds))
	for i, d := range ds {
		if s.Checkpoint && d.Position == nil {
			s.fatal(invalid("consumer %q: %s delivers messages without a position: use a source that is a log, or leave Checkpoint out", s.Name, s.Source.Name()))
			return nil
		}
		items[i] = s.newItem(d)
	}
	s.rereads.stamp(items)
	return items
}

func (s *session) startWorker(ctx context.Context) {
	s.workers.Add(1)
	go s.work(ctx)
}

// work handles items until the lanes are closed. If a handler ends the
// goroutine, another one continues, and the items are treated as if their
// process had ended.
func (s *session) work(ctx context.Context) {
	defer s.workers.Done()
	var items []*item
	var from []*laneQueue
	defer func() {
		if items == nil {
			return
		}
		for _, it := range items {
			it.counting, it.abandoned = countBefore, true
		}
		s.giveBack(ctx, s.lanes.release(from, items, nil))
		s.startWorker(ctx)
	}()
	for {
		if items, from = s.lanes.take(s.BatchSize, s.Checkpoint); items == nil {
			return
		}
		s.serve(ctx, items, from)
	}
}

// serve passes items to the processor and settles their deliveries.
func (s *session) serve(ctx context.Context, items []*item, from []*laneQueue) {
	handling, observed := s.observe(ctx, items, false)
	defer observed.end() // also if the handler ends the goroutine
	results, young := s.parkOld(handling, items)
	if len(young) > 0 {
		merge(results, items, young, s.processor.handle(handling, young))
	}
	var back []*item
	after := make(map[*item]time.Duration)
	settled := settlement{rejected: make(map[string][]broker.Delivery)}
	for i, it := range items {
		r := s.resolve(handling, it, results[i])
		s.Stats.count(r)
		observed.set(i, r)
		if !settled.add(it, r) {
			back = append(back, it)
			after[it] = r.after
		} else if r.kind != shelved { // its attempts no longer matter
			it.keepCount()
			it.debt = 0
		}
		if !it.ran {
			it.excuse()
		}
	}
	observed.end()
	s.payDebts(ctx, items)
	s.settle(ctx, settled)
	s.giveBack(ctx, s.lanes.release(from, back, after))
}

// settlement has the deliveries to settle with the broker.
type settlement struct {
	acked    []broker.Delivery
	rejected map[string][]broker.Delivery // by reason
}

// add reports whether the item is settled.
func (b *settlement) add(it *item, r result) bool {
	switch r.kind {
	case handled, prevented, duplicate, shelved:
		b.acked = append(b.acked, it.Delivery)
	case parked:
		b.rejected[r.reason] = append(b.rejected[r.reason], it.Delivery)
	case reread:
	default:
		return false
	}
	return true
}

func (b settlement) size() int {
	n := len(b.acked)
	for _, ds := range b.rejected {
		n += len(ds)
	}
	return n
}

// settle settles deliveries with the broker. A failure does no harm, because
// redelivered messages are recognised. But if the broker may take half of the
// window for unsettled, the session ends.
func (s *session) settle(ctx context.Context, b settlement) {
	pause := &backoff.Backoff{First: reconnectFirst, Limit: time.Second}
	for tries := 1; ; tries++ {
		err := s.settleOnce(ctx, b)
		if err == nil {
			return
		}
		s.logger.WarnContext(ctx, "inbox: deliveries could not be settled, and messages may come again", logs.Spaced(""), "error", err)
		if tries == settleTries || backoff.Sleep(ctx, pause.Next()) != nil {
			if s.unsettled.Add(int64(b.size())) >= int64(s.Window+1)/2 {
				s.fail(fmt.Errorf("inbox: too many deliveries could not be settled: %w", err))
			}
			return
		}
	}
}

func (s *session) settleOnce(ctx context.Context, b settlement) error {
	limited := lazyctx.Detach(ctx, time.Now().Add(storeTime))
	defer limited.Stop()
	ctx = limited
	var errs []error
	if len(b.acked) > 0 {
		errs = append(errs, s.broker.Ack(ctx, b.acked))
	}
	for reason, ds := range b.rejected {
		if s.shelf != nil && !s.keepsRejected() {
			errs = append(errs, s.broker.Ack(ctx, ds)) // the shelf has them
			continue
		}
		errs = append(errs, s.broker.Reject(ctx, ds, reason))
	}
	return errors.Join(errs...)
}

// giveBack returns unsettled items without an order to the broker, so that
// others can handle them at once. Items with an order are redelivered after the
// session, and so after those that are still being handled here.
func (s *session) giveBack(ctx context.Context, items []*item) {
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
	if err := s.broker.Return(ctx, ds, 0); err != nil {
		s.logger.DebugContext(ctx, "inbox: messages could not be given back, and are redelivered after the session", "error", err)
	}
}
