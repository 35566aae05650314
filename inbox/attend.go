package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

const (
	lookEvery     = time.Second      // at the shelf
	shelfLease    = 2 * time.Minute  // how long an attempt at a message of the shelf is left alone
	tidyEvery     = 10 * time.Minute // and how often the shelf is tidied
	tidyAtOnce    = 1000
	unopenedAfter = time.Minute         // until a message whose secret is missing is looked at again
	shelfRetired  = 90 * 24 * time.Hour // how long what people have dealt with stays there
)

// attendShelf handles the messages on the shelf whose time has come, several at once, until ctx ends.
func (s *consumerRun) attendShelf(ctx, work context.Context) {
	if s.shelf == nil {
		return
	}
	a := &attendant{consumerRun: s, busy: make(map[int64]bool), free: make(chan struct{}, 1)}
	defer a.running.Wait()
	tidied := time.Time{}
	for ctx.Err() == nil {
		q := store.ShelfQuery{Consumer: s.keys, Ready: true, BehindParked: s.OnParked == HoldOrder, Limit: 4 * s.Concurrency}
		ready, err := s.shelf.Shelved(ctx, q)
		if err != nil && ctx.Err() == nil {
			s.logger.WarnContext(ctx, "inbox: the shelf could not be read", logs.Spaced(""), "error", err)
		}
		if time.Since(tidied) > tidyEvery {
			tidied = time.Now()
			if _, err := s.shelf.ForgetShelved(ctx, shelfRetired, tidyAtOnce); err != nil && ctx.Err() == nil {
				s.logger.WarnContext(ctx, "inbox: the shelf could not be tidied", logs.Spaced(""), "error", err)
			}
		}
		a.start(work, ready)
		a.wait(ctx)
	}
}

// attendant is who handles the messages of the shelf.
type attendant struct {
	*consumerRun
	running workerGroup
	free    chan struct{} // something was dealt with: look again

	mu   sync.Mutex
	busy map[int64]bool // by Seq
}

// start begins with as many messages as there are places.
func (a *attendant) start(work context.Context, ready []store.Shelved) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range ready {
		if a.busy[m.Seq] || len(a.busy) >= a.Concurrency {
			continue
		}
		a.busy[m.Seq] = true
		a.running.start(func() {
			changed := false
			defer func() {
				a.mu.Lock()
				delete(a.busy, m.Seq)
				a.mu.Unlock()
				if changed {
					select {
					case a.free <- struct{}{}:
					default:
					}
				}
			}()
			changed = a.handleShelved(work, m)
		})
	}
}

// wait waits until there may be something to do.
func (a *attendant) wait(ctx context.Context) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-a.free:
	}
}

// handleShelved makes one attempt, and reports whether it could. It is counted before it begins, and whoever counts it has
// the message for a while.
func (s *consumerRun) handleShelved(ctx context.Context, m store.Shelved) bool {
	if m.Unopened != nil {
		s.holdUnopened(ctx, m)
		return false
	}
	before, unended := strings.CutPrefix(m.Reason, begun)
	m.Attempts, m.Due = m.Attempts+1, 2*s.Policy.Lease
	leave, err := s.floor.enter(ctx, unended && m.Attempts >= s.Retry.Attempts)
	if err != nil {
		return false
	}
	defer leave()
	m.Reason = begun + before
	if !s.change(ctx, &m) {
		return false
	}
	message := original(m.Message)
	it := s.newItem(broker.Delivery{Message: &message, Redelivered: true, Origin: m.Origin})
	it.counted = true
	if it.wrong != nil && !s.keyed { // by its place in the log it was told apart from others, and here by its name on the shelf
		it.key.ID, it.wrong = m.Message.ID, nil
	}
	ctx, seen := s.watch(ctx, []*item{it}, true)
	defer seen.end() // also of a handler that ends its goroutine
	m.Reason = before
	seen.tell(0, s.tryShelved(ctx, it, m))
	return true
}

// holdUnopened deals with a message that cannot be opened: one whose secret is missing waits for it, and one that was
// changed, or is plain where that is refused, waits for a person. Nothing is counted, and nothing is lost. The key is left
// alone: the true message may still come.
func (s *consumerRun) holdUnopened(ctx context.Context, m store.Shelved) {
	if store.IsSealKeyMissing(m.Unopened) {
		m.Due = unopenedAfter
		s.logger.WarnContext(ctx, "inbox: a message on the shelf cannot be opened, and waits for its secret", logs.Spaced(""), "message", m.Message.ID,
			"origin", m.Origin, "error", m.Unopened)
		s.change(ctx, &m)
		return
	}
	m.State, m.Due, m.Reason = store.Parked, 0, name.Reason(m.Unopened.Error())
	if s.change(ctx, &m) {
		s.Stats.Parked.Add(1)
		s.logger.ErrorContext(ctx, "inbox: parked", "message", m.Message.ID, "origin", m.Origin, "cause", m.Message.Header[store.KeyHeader],
			"reason", m.Reason)
	}
}

// begun begins the reason of a message on the shelf, while an attempt at it is made, or when that has never ended.
const begun = "begun, and not ended. Before that: "

// tryShelved makes an attempt that is counted.
func (s *consumerRun) tryShelved(ctx context.Context, it *item, m store.Shelved) result {
	if m.Attempts > s.Retry.Attempts {
		return s.parkShelved(ctx, it, m, fmt.Errorf("%w. Before that: %s", errDeadly, m.Reason))
	}
	tried := m
	tried.State = store.Handled
	var f result
	left, err := false, it.wrong
	if err == nil {
		f.kind, left, err = s.shape.handleShelved(ctx, it, tried)
	}
	var failed *failure
	handlers := errors.As(err, &failed)
	switch after, retry := once.MayRetry(err); {
	case err == nil:
		if left {
			m.State = store.Handled
			s.change(ctx, &m)
		}
		s.tell(f)
		return f
	case ctx.Err() != nil, retry && !handlers && (!s.effects || !errors.Is(err, once.ErrOutcomeUnknown)): // it was not the message's fault
		m.Attempts, m.Due = m.Attempts-1, trouble
		s.change(ctx, &m)
	case !retry, m.Attempts >= s.Retry.Attempts:
		s.Stats.Failed.Add(1)
		return s.parkShelved(ctx, it, m, err)
	default:
		s.Stats.Failed.Add(1)
		m.Due, m.Reason = max(after, s.Retry.wait(int64(m.Attempts))), name.Reason(err.Error())
		s.change(ctx, &m)
	}
	return result{kind: again, reason: err.Error()}
}

var errDeadly = errors.New("begun as often as it may be, and never ended: it may end its process")

func (s *consumerRun) parkShelved(ctx context.Context, it *item, m store.Shelved, err error) result {
	m.State, m.Reason = store.Parked, fmt.Sprintf("attempt %d: %v", m.Attempts, err)
	if s.effects && (errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked)) { // a transaction leaves nothing
		m.Reason = unknownOutcome + m.Reason
	}
	m.Reason = name.Reason(m.Reason)
	if !s.change(ctx, &m) {
		return result{kind: again, reason: m.Reason}
	}
	s.Stats.Parked.Add(1)
	s.logger.ErrorContext(ctx, "inbox: parked", "message", m.Message.ID, "origin", m.Origin, "cause", m.Message.Header[store.KeyHeader],
		"reason", m.Reason)
	if it.wrong == nil && s.keyed {
		if err := s.parkKey(context.WithoutCancel(ctx), it, m.Reason); err != nil {
			s.logger.WarnContext(ctx, "inbox: the key of a parked message could not be parked", "message", m.Message.ID, "error", err)
		}
	}
	return result{kind: parked, reason: m.Reason}
}

// change writes a message, and reports whether it was still as it was read. Its Reason is short, or was read: one that could
// not be opened then is longer, and would never open again if it were cut.
func (s *consumerRun) change(ctx context.Context, m *store.Shelved) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	err := s.shelf.Change(ctx, *m)
	m.Version++
	if err != nil && !errors.Is(err, once.ErrLeaseLost) {
		s.logger.WarnContext(ctx, "inbox: a message on the shelf could not be changed", logs.Spaced(""), "message", m.Message.ID, "error", err)
	}
	return err == nil
}
