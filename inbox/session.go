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
	held      atomic.Int64            // items in lanes whose topic is down
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
	defer s.outages.whenUp(s.lanes.wake)()
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
	for _, d := range ds {
		if s.Checkpoint && d.Position == nil {
			s.fatal(invalid("consumer %q: %s delivers messages without a position: use a source that is a log, or leave Checkpoint out", s.Name, s.Source.Name()))
			return nil
		}
	}
	items := make([]*item, len(ds))
	for i, n := range s.namesOf(ds) {
		items[i] = s.newItem(ds[i], n)
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
	turn := &turn{session: s, after: make(map[*item]time.Duration)}
	if free := s.admit(ctx, items, turn); len(free) > 0 {
		s.try(ctx, free, turn)
	}
	s.payDebts(ctx, items)
	s.settle(turn.settled)
	s.giveBack(ctx, s.lanes.release(from, append(turn.back, turn.held...), turn.after))
}

// turn collects what becomes of the items that a worker has taken.
type turn struct {
	*session
	settled settlement
	back    []*item // to be tried again
	held    []*item // the same, because their topics are down; in a lane, they are after those of back
	after   map[*item]time.Duration
}

// set carries out the result of an item, and returns what has become of it.
func (t *turn) set(ctx context.Context, it *item, r result) result {
	r = t.resolve(ctx, it, r)
	if r.kind == again && it.waitsUp {
		t.session.held.Add(1)
	}
	t.Stats.count(r)
	if !t.settled.add(it, r) {
		t.back = append(t.back, it)
		t.after[it] = r.after
	} else if r.kind != shelved { // its attempts no longer matter
		it.endCount()
	}
	if !it.ran {
		it.excuse()
	}
	return r
}

// try passes items to the processor.
func (s *session) try(ctx context.Context, items []*item, t *turn) {
	handling, observed := s.observe(ctx, items, false)
	defer observed.end() // also if the handler ends the goroutine
	results, young := s.parkOld(handling, items)
	if len(young) > 0 {
		of := s.processor.handle(handling, young)
		merge(results, items, young, of)
	}
	s.tellOutages(handling, items, results) // a probe that is too old has shown nothing
	stays := make(map[string]bool)          // lanes with an item that is tried again
	for i, it := range items {
		r := results[i]
		if stays[it.lane] && r.needsShelf() { // where it would be before that one
			r = result{kind: again}
		}
		r = t.set(handling, it, r)
		stays[it.lane] = it.lane != "" && (stays[it.lane] || r.kind == again)
		observed.set(i, r)
	}
}

// admit returns the items that may be tried now, in order. Those whose topic is
// down, and later ones of their lanes, are held.
func (s *session) admit(ctx context.Context, items []*item, t *turn) (free []*item) {
	lanes := make(map[string]bool)  // with an item that is held
	before := make(map[string]bool) // lanes with an item that is tried now
	probed := false                 // an item is tried as a probe, alone
	for _, it := range items {
		if it.waitsUp {
			it.waitsUp = false
			s.held.Add(-1)
		}
		it.probe = false
		how, wait := held, time.Duration(0)
		if !lanes[it.lane] && !probed {
			how, wait = s.outages.admit(it.Message.Topic)
		}
		switch {
		case how == asProbe && len(free) > 0: // with the next items
			s.outages.unused(it.Message.Topic, false)
			how = held
		case how == asProbe:
			it.probe, probed = true, true
		}
		if how != held {
			free = append(free, it)
			before[it.lane] = it.lane != ""
			continue
		}
		r := s.hold(ctx, it, wait, before[it.lane])
		if it.lane != "" && r.holdsUp() {
			lanes[it.lane] = true
		}
		if r.kind != again {
			t.set(ctx, it, r)
			continue
		}
		if it.waitsUp {
			s.held.Add(1)
		}
		t.held = append(t.held, it)
		t.after[it] = r.after
	}
	return free
}

// hold is the result of an item that is not tried, because its topic is down. It
// stays in its lane, so that the broker delivers no more than the window. But it
// does not stay for longer than a broker may wait, and does not keep other topics
// from the window: then it goes to the shelf. While an earlier one of its lane is
// tried, it stays: on the shelf, it would be before that one.
func (s *session) hold(ctx context.Context, it *item, wait time.Duration, stays bool) result {
	if it.heldSince.IsZero() {
		it.heldSince = time.Now()
	}
	limit := heldLimit
	if s.held.Load() >= int64(s.Window+1)/2 {
		if limit = heldCrowded; s.outages.hasOther(it.Message.Topic) {
			limit = 0
		}
	}
	if wait > 0 && !stays && s.shelf != nil && s.mode != inOrder && time.Since(it.heldSince) >= limit {
		return s.shelve(ctx, it, wait, "nothing of its topic gets through")
	}
	it.waitsUp = wait > 0
	return result{kind: again, after: wait}
}

// tellOutages tells the outages what has become of items that were tried.
func (s *session) tellOutages(ctx context.Context, items []*item, results []result) {
	for i, it := range items {
		switch r := results[i]; {
		case it.ran && (r.kind == handled || r.kind == prevented):
			s.outages.passed(ctx, it)
		case it.probe && !it.waitsUp:
			s.outages.unused(it.Message.Topic, it.ran || r.kind == again || r.kind == failing)
		}
		it.probe = false
	}
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
