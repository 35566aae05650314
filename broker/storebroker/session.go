package storebroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/turn"
	"github.com/effectively-once/once/store"
)

const (
	firstPoll     = 2 * time.Millisecond // between looks, after one that found messages
	readLimit     = 200                  // rows of one look
	oneByOne      = 8                    // rows of one look, if each is a call of its own
	lookTime      = 30 * time.Second
	registerEvery = time.Minute
	waitsEvery    = time.Second // how often an idle session looks for whom it waits

	longestDelay = 365 * 24 * time.Hour
	secretPause  = time.Minute // before a message whose secret is missing is tried again
)

// What the Reason of a row says while it is Waiting.
const (
	returned     = "returned, and not due yet"
	closedUnused = "returned by a session that was closed"
)

// arrival is a message that this session has. The Tag of a delivery points to it.
type arrival struct {
	session *session
	seq     int64
	message broker.Message // as it is delivered
	origin  string

	turn   turn.Turn     // of whoever changes the row; it guards the next fields
	row    store.Shelved // as it was last written
	unsure bool          // the reply to a renewal was lost, so the row may have the next version
	gone   bool          // settled, or lost

	until time.Time // when others may have it; guarded by the mutex of the session
}

// session takes rows of a queue, as many as Receive asks for, and renews its lease
// on them until they are settled.
type session struct {
	*source
	queue     string // the Consumer of the rows
	holder    string // the Reason of the rows that it has; no other session has this one
	window    int
	registers bool
	wake      chan struct{} // wakes Receive
	demand    chan struct{} // wakes the pump: Receive waits, or there is room
	news      chan struct{} // wakes the pump: there may be new messages
	work      sync.WaitGroup
	ending    context.Context
	end       context.CancelFunc

	// Only the pump uses these.
	after  int64     // where the next look begins, because others took the messages before
	waited time.Time // when it last looked for whom it waits

	mu      sync.Mutex
	all     map[*arrival]struct{} // unsettled, with those that wait
	waiting []*arrival            // those that Receive has not returned yet
	wanted  int                   // how many a waiting Receive asks for
	broken  error
	closed  bool
}

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
)

func newSession(c *source, window int, registers bool) *session {
	s := &session{source: c, queue: store.QueueOf(c.keys), holder: holderName(), window: window, registers: registers,
		wake: make(chan struct{}, 1), demand: make(chan struct{}, 1), news: make(chan struct{}, 1), all: make(map[*arrival]struct{})}
	s.ending, s.end = context.WithCancel(context.Background())
	return s
}

func (s *session) start() {
	for _, do := range []func(){s.pump, s.keep} {
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			do()
		}()
	}
}

// LongestDelay returns a year.
func (s *session) LongestDelay() time.Duration { return longestDelay }

// KeepsRejected returns true: rejected messages stay in the queue, Parked.
func (s *session) KeepsRejected() bool { return true }

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	defer s.wantNothing()
	return wake.Receive(ctx, limit, s.wake, s.take)
}

// wantNothing tells the pump that no Receive waits.
func (s *session) wantNothing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = 0
}

// take returns up to n messages that have come. If there are none, it tells the
// pump how many are wanted.
func (s *session) take(n int) (ds []broker.Delivery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool {
		late := !time.Now().Before(a.until)
		if late { // this process was stalled
			delete(s.all, a)
		}
		return late
	})
	if len(s.waiting) == 0 {
		s.wanted = n
		wake.Signal(s.demand)
		return nil, nil
	}
	n = min(n, len(s.waiting))
	for _, a := range s.waiting[:n] {
		ds = append(ds, a.delivery())
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	s.wanted = 0
	return ds, nil
}

func (s *session) newArrival(row store.Shelved) *arrival {
	a := &arrival{session: s, seq: row.Seq, message: store.Queued(row), row: row, origin: fmt.Sprintf("%s@%d", s.topic, row.Seq)}
	a.message.Attempt = row.Attempts
	a.row.Message.Body, a.row.Message.Header = nil, nil // changes do not write them
	return a
}

func (a *arrival) delivery() broker.Delivery {
	m := a.message
	return broker.Delivery{Message: &m, Redelivered: m.Attempt > 1, Origin: a.origin, Tag: a}
}

func bySeq(a, b *arrival) int { return cmp.Compare(a.seq, b.seq) }

// pump takes rows until the session ends.
func (s *session) pump() {
	idle := firstPoll
	for {
		n := s.awaitDemand()
		if n == 0 {
			return
		}
		found, err := s.look(min(n, readLimit))
		switch {
		case err != nil && s.ending.Err() == nil:
			s.fail(fmt.Errorf("storebroker: %s: %w", s.Name(), err))
			return
		case found:
			idle = firstPoll
			continue
		}
		s.tellWaits()
		timer := time.NewTimer(idle)
		select {
		case <-timer.C:
			idle = min(2*idle, s.broker.options.Poll)
		case <-s.news:
			idle = firstPoll
		case <-s.ending.Done():
		}
		timer.Stop()
	}
}

// awaitDemand waits until Receive waits for messages and the window has room for
// them, and returns how many. It returns 0 when the session ends.
func (s *session) awaitDemand() int {
	return wake.Await(s.ending.Done(), s.demand, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken != nil || len(s.waiting) > 0 {
			return 0
		}
		return min(s.wanted, s.window-len(s.all))
	})
}

// look takes up to n rows that are ready. It reports whether there may be more at
// once.
func (s *session) look(n int) (found bool, err error) {
	ctx, cancel := context.WithTimeout(s.ending, lookTime)
	defer cancel()
	if s.broker.many == nil { // they are taken one by one, and leases begin meanwhile
		n = min(n, oneByOne)
	}
	rows, err := s.broker.shelved(ctx, store.ShelfQuery{Consumer: s.queue, Ready: true, After: s.after, Limit: n})
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		again := s.after > 0
		s.after = 0
		return again, nil
	}
	last := rows[len(rows)-1].Seq
	rows = slices.DeleteFunc(rows, func(row store.Shelved) bool { return row.Unopened != nil && s.holdUnopened(ctx, row) })
	for i := range rows {
		rows[i].Attempts, rows[i].Due, rows[i].Reason = rows[i].Attempts+1, s.broker.options.Lease, s.holder
	}
	begun := time.Now()
	var taken []*arrival
	for i, failed := range s.broker.change(ctx, rows) {
		switch {
		case failed == nil:
			rows[i].Version++
			taken = append(taken, s.newArrival(rows[i]))
		case !isLost(failed) && !errors.Is(failed, once.ErrConflict):
			err = failed // if it was taken nevertheless, it comes again after the lease
		}
	}
	if s.after = 0; len(taken) < len(rows) { // another session takes the same ones
		s.after = last
	}
	s.add(taken, begun.Add(s.broker.options.Lease))
	if len(taken) > 0 { // what cannot be taken does not keep these from Receive
		err = nil
	}
	return len(rows) > 0, err
}

// limit returns the context of one call of the store. Leases are renewed in time
// even if some calls take this long.
func (s *session) limit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ending, s.broker.options.Lease/4)
}

// holdUnopened delays a message whose secret is missing, and makes a message that
// was changed, or that is not sealed although it has to be, a dead letter. One with
// an ordering key stays in the queue, because later ones would pass a dead letter.
func (s *session) holdUnopened(ctx context.Context, row store.Shelved) bool {
	why, forGood := row.Unopened, !store.IsSealKeyMissing(row.Unopened)
	holds := forGood && row.Message.OrderingKey != ""
	if row.Due, row.Reason = secretPause, name.Reason(why.Error()); forGood && !holds {
		row.Due, row.State = 0, store.Parked
	}
	logger := s.broker.options.Logger
	switch err := s.broker.change(ctx, []store.Shelved{row})[0]; {
	case err != nil: // another session has it, or the next look tries it again
	case holds:
		logger.ErrorContext(ctx, "storebroker: a message cannot be opened, and later ones of its ordering key wait behind it", logs.Spaced(row.Key),
			"topic", s.topic, "consumer", s.keys, "message", row.Key, "key", row.Message.OrderingKey, "error", why)
	default:
		logger.WarnContext(ctx, "storebroker: a message cannot be opened", "topic", s.topic, "consumer", s.keys,
			"message", row.Key, "state", row.State, "error", why)
	}
	return true
}

// add adds rows that were taken. If the session has ended meanwhile, Close returns
// them.
func (s *session) add(taken []*arrival, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range taken {
		a.until = until
		s.all[a] = struct{}{}
	}
	s.waiting = append(s.waiting, taken...)
	wake.Signal(s.wake)
}

// keep renews leases until the session is closed.
func (s *session) keep() {
	tick := time.NewTicker(s.broker.options.Lease / 3)
	defer tick.Stop()
	registered := time.Now()
	for {
		select {
		case <-s.ending.Done():
			return
		case <-tick.C:
		}
		s.renew()
		if s.registers && time.Since(registered) >= registerEvery {
			registered = time.Now()
			s.stayRegistered()
		}
	}
}

// stayRegistered updates the registration. It ends the session of a consumer that
// was retired.
func (s *session) stayRegistered() {
	ctx, cancel := s.limit()
	defer cancel()
	if _, err := s.register(ctx); err != nil {
		s.broker.options.Logger.WarnContext(ctx, "storebroker: the registration could not be updated", logs.Spaced(""), "consumer", s.keys, "error", err)
		if isInvalid(err) {
			s.fail(err)
		}
	}
}

// renew extends the leases. It leaves out the messages that are being settled.
func (s *session) renew() {
	ctx, cancel := s.limit()
	defer cancel()
	s.mu.Lock()
	all := slices.SortedFunc(maps.Keys(s.all), bySeq)
	s.mu.Unlock()
	atOnce := max(len(all), 1)
	if s.broker.many == nil { // settling one waits for one call, and not for those of all
		atOnce = 1
	}
	for as := range slices.Chunk(all, atOnce) {
		s.renewThese(ctx, as)
	}
}

// renewThese extends the leases of some messages, in one call of the store if it can
// do that.
func (s *session) renewThese(ctx context.Context, as []*arrival) {
	held := slices.DeleteFunc(slices.Clone(as), func(a *arrival) bool { return !a.tryTake() })
	begun := time.Now()
	errs := s.write(ctx, held, func(row *store.Shelved) { row.Due = s.broker.options.Lease })
	s.mu.Lock()
	for i, a := range held {
		if errs[i] == nil {
			a.until = begun.Add(s.broker.options.Lease)
		}
	}
	s.mu.Unlock()
	var lost []*arrival
	for i, a := range held {
		if a.gone = isLost(errs[i]); a.gone {
			lost = append(lost, a)
		}
		a.turn.Give()
		if errs[i] != nil {
			s.broker.options.Logger.WarnContext(ctx, "storebroker: the lease of a message could not be renewed", logs.Spaced(""),
				"topic", s.topic, "consumer", s.keys, "message", a.message.ID, "error", errs[i])
		}
	}
	s.drop(lost)
}

// tryTake takes the turn of an arrival that is not settled, and that nobody settles.
func (a *arrival) tryTake() bool {
	if !a.turn.TryTake() {
		return false
	}
	if a.gone { // it was settled, and is not dropped yet
		a.turn.Give()
		return false
	}
	return true
}

// write changes the rows of arrivals, whose turns the caller has. It returns an error
// for each.
func (s *session) write(ctx context.Context, as []*arrival, set func(*store.Shelved)) []error {
	rows := make([]store.Shelved, len(as))
	for i, a := range as {
		rows[i] = a.row
		set(&rows[i])
	}
	errs := s.broker.change(ctx, rows)
	for i, a := range as {
		if isLost(errs[i]) && a.unsure {
			errs[i] = s.writeAgain(ctx, a, set)
		}
		switch {
		case errs[i] == nil:
			rows[i].Version = a.row.Version + 1
			a.row, a.unsure = rows[i], false
		case !isLost(errs[i]):
			a.unsure = true
		}
	}
	return errs
}

// writeAgain changes a row after a change whose reply was lost, and which may have
// been made.
func (s *session) writeAgain(ctx context.Context, a *arrival, set func(*store.Shelved)) error {
	found, err := s.broker.shelved(ctx, store.ShelfQuery{Consumer: s.queue, IDs: []string{a.row.Message.ID}, Bodiless: true})
	switch {
	case err != nil:
		return err
	case len(found) == 0 || found[0].Reason != s.holder || found[0].State != store.Waiting:
		return errLost
	}
	a.row.Version = found[0].Version
	row := a.row
	set(&row)
	return s.broker.change(ctx, []store.Shelved{row})[0]
}

// drop ends the tracking of messages.
func (s *session) drop(as []*arrival) {
	if len(as) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range as {
		delete(s.all, a)
		if i := slices.Index(s.waiting, a); i >= 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
		}
	}
	wake.Signal(s.demand)
	wake.Signal(s.news) // the next message of an ordering key may be ready
}

// tellWaits says for whom an idle session waits: a process that has messages and
// has not renewed its lease, and so is probably dead.
func (s *session) tellWaits() {
	if time.Since(s.waited) < waitsEvery {
		return
	}
	s.waited = time.Now()
	ctx, cancel := s.limit()
	defer cancel()
	rows, err := s.broker.shelved(ctx, store.ShelfQuery{Consumer: s.queue, States: []store.ShelfState{store.Waiting}, Limit: readLimit, Bodiless: true})
	if err != nil {
		return // the next look fails, too
	}
	count, first := 0, store.Shelved{}
	for _, row := range rows {
		renewed := s.broker.options.Lease / 2 // what a lease has left at least if it is renewed
		if row.Due <= 0 || row.Due > renewed || row.Reason == s.holder || !strings.HasPrefix(row.Reason, store.DeliveredTo) {
			continue
		}
		if count++; count == 1 {
			first = row
		}
	}
	if count > 0 {
		s.broker.options.Logger.WarnContext(ctx, "storebroker: messages wait for a process that took them and no longer answers", logs.Spaced(first.Reason),
			"topic", s.topic, "consumer", s.keys, "messages", count, "first", first.Key,
			"holder", strings.TrimPrefix(first.Reason, store.DeliveredTo), "until", first.Due)
	}
}

// fail ends receiving with the error of the first call. Deliveries can still be
// settled until the session is closed.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
	wake.Signal(s.wake)
	wake.Signal(s.demand)
}
