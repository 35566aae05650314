package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

const (
	openTime  = 30 * time.Second
	closeTime = 10 * time.Second

	reconnectFirst = 100 * time.Millisecond
	reconnectLimit = 30 * time.Second
)

// session is one session with the broker.
type session struct {
	*env
	processor processor
	broker    broker.Session
	lanes     *lanes
	rereads   *rereads
	workers   sync.WaitGroup
	settler   *settler
	fail      context.CancelCauseFunc // ends the session
}

// openSession opens a session with the source.
func openSession(ctx context.Context, e *env, p processor) (*session, error) {
	source := e.Source
	if topic, ok := source.(broker.Subscriber); ok {
		source = topic.For(e.keys)
	}
	opened, err := source.Open(ctx, e.Window)
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
	s.fail, s.settler = fail, newSettler(work)
	for range s.Concurrency {
		s.startWorker(work)
	}
	for {
		ds, err := s.rereads.next(alive, s.broker, s.Window, s.lanes.drop)
		if err != nil {
			why := cmp.Or(context.Cause(alive), err) // not what fails because of it
			s.giveBack(work, s.lanes.close())
			s.workers.Wait()
			s.settler.finish(ctx.Err() != nil)
			return received, errors.Join(why, s.close())
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

// serve passes items to the processor, and has their deliveries settled.
func (s *session) serve(ctx context.Context, items []*item, from []*laneQueue) {
	handling, observed := s.observe(ctx, items, false)
	defer observed.end() // also if the handler ends the goroutine
	results, young := s.parkOld(handling, items)
	if len(young) > 0 {
		merge(results, items, young, s.processor.handle(handling, young))
	}
	var back []*item
	after := make(map[*item]time.Duration)
	var settled settlement
	for i, it := range items {
		r := s.resolve(handling, it, results[i])
		s.Stats.count(r)
		observed.set(i, r)
		if !settled.add(it, r) {
			back = append(back, it)
			after[it] = r.after
		} else if r.kind != shelved { // its attempts no longer matter
			it.endCount()
		}
		if !it.ran {
			it.excuse()
		}
	}
	observed.end()
	s.payDebts(ctx, items)
	s.settle(settled)
	s.giveBack(ctx, s.lanes.release(from, back, after))
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
