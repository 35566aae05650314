package servicebusbroker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	acceptTime = 30 * time.Second // how long one request for a session waits
	firstTime  = 30 * time.Second // how long the first message of a session may take
)

// heldSession is a session of Service Bus that this session has locked. The mutex
// of the session guards it, except for its receiver.
type heldSession struct {
	receiver  *azservicebus.SessionReceiver
	id        string
	until     time.Time     // after which it receives no more
	lockTime  time.Duration // of its lock
	renewAt   time.Time
	unsettled int            // messages that were received and are not settled
	reserved  bool           // a place of the window for the message that it waits for
	lost      bool           // its lock, and with it those of its messages
	highest   int64          // the highest sequence number that was received
	returned  map[int64]bool // the sequence numbers that were returned, and may come again

	idleTime    time.Duration // after which the receive ends
	timer       *time.Timer   // ends the receive; nil: there was none
	stopWaiting context.CancelFunc

	renewing sync.Mutex // held while the lock is renewed
}

// startSessions starts loops that each hold one session of Service Bus at a time.
// Each of these has a place of the window for itself. They share the others.
func (s *session) startSessions(o Options) {
	loops := min(o.MaxSessions, s.window)
	s.shared = s.window - loops
	for range loops {
		s.loops.Go(func() { s.holdSessions(o) })
	}
	s.loops.Go(s.renew)
}

// holdSessions holds one session of Service Bus after another.
func (s *session) holdSessions(o Options) {
	for s.ctx.Err() == nil {
		h, err := s.acceptNext()
		switch {
		case h != nil:
			h.until = time.Now().Add(o.SessionTime)
			s.receiveFrom(h, o)
			s.release(h)
		case err != nil:
			s.fail(s.explain("accept a session", err))
		}
	}
}

// acceptNext waits for a session of Service Bus that has messages. It returns
// nothing if there was none in time.
func (s *session) acceptNext() (*heldSession, error) {
	ctx, cancel := context.WithTimeout(s.ctx, acceptTime)
	defer cancel()
	r, err := s.accept(ctx)
	if isDisconnected(err) {
		// The connection may have been gone for long, because the client learns it
		// from the first call. It held nothing, so the next one may replace it.
		r, err = s.accept(ctx)
	}
	if err != nil {
		var e *azservicebus.Error
		if ctx.Err() != nil || errors.As(err, &e) && e.Code == azservicebus.CodeTimeout {
			return nil, nil
		}
		return nil, err
	}
	// The receiver changes these when it connects again.
	h := &heldSession{receiver: r, id: r.SessionID(), lockTime: time.Until(r.LockedUntil()), returned: make(map[int64]bool)}
	h.renewAt = renewal(h.lockTime)
	s.mu.Lock()
	s.held[h] = true
	s.mu.Unlock()
	return h, nil
}

// receiveFrom receives from a held session until it is idle, until its time is over
// or until its lock is lost, and until its messages are settled.
//
// It asks for one message at a time. If it asked for more than there are, the
// client would return those that come before the next call, and later messages
// would overtake them.
func (s *session) receiveFrom(h *heldSession, o Options) {
	for s.reserveFor(h) {
		ctx := s.awaitIdle(h, o.SessionIdle)
		raws, _ := h.receiver.ReceiveMessages(ctx, 1, nil) // after an error, the next accept fails too
		idle := ctx.Err() != nil
		s.endWait(h)
		switch {
		case len(raws) > 0:
			if !s.addHeld(h, raws[0]) {
				return
			}
		case idle:
			return
		default:
			// The link is gone, and with it the lock. The client would lock the
			// session again without a word, and so receive its messages twice.
			s.lose(h)
			return
		}
	}
}

// awaitIdle returns a context that ends once all messages of a held session have
// been settled for some time, or the session is lost. A session that was just
// accepted has a message, which may take long to come. If it were given up before,
// the message would never arrive.
func (s *session) awaitIdle(h *heldSession, idle time.Duration) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	h.idleTime, h.stopWaiting = idle, cancel
	if h.highest == 0 {
		h.idleTime = max(idle, firstTime)
	}
	h.timer = time.AfterFunc(h.idleTime, cancel)
	s.watch(h)
	return ctx
}

// endWait ends what watches a receive. Its place stays reserved.
func (s *session) endWait(h *heldSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.stopWaiting()
	h.timer.Stop()
	h.timer = nil
}

// watch starts or stops the idle time of a held session, after its messages have
// changed. The mutex is held.
func (s *session) watch(h *heldSession) {
	switch {
	case h.timer == nil:
	case h.lost:
		h.stopWaiting()
	case h.unsettled > 0:
		h.timer.Stop()
	default:
		h.timer.Reset(h.idleTime)
	}
}

// addHeld adds a message of a held session. It reports false if more messages need
// another lock of the session.
func (s *session) addHeld(h *heldSession, raw *azservicebus.ReceivedMessage) bool {
	seq := sequence(raw)
	s.mu.Lock()
	again := seq <= h.highest && !h.returned[seq]
	delete(h.returned, seq)
	h.highest = max(h.highest, seq)
	s.mu.Unlock()
	if again { // the client has lost the lock, and has locked the session again
		s.lose(h)
		return false
	}
	// A session that is closed does not count the deliveries of its messages, so
	// that the first delivery cannot be told from a later one.
	s.add([]*arrival{{raw: raw, from: h.receiver, held: h, redelivered: true}}, 0)
	if key, ok := raw.ApplicationProperties[keyProperty]; ok && key == "" {
		s.awaitSettled(h) // the only message of its session
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(h.returned) > 0 && !h.lost
	}
	return true
}

// reserveFor waits until the window has room for the next message of a held
// session. It reports false if no more are to be received.
func (s *session) reserveFor(h *heldSession) bool {
	if time.Now().After(h.until) {
		s.awaitSettled(h)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !h.lost && s.broken == nil {
		if h.unsettled == 0 || s.inShared() < s.shared {
			h.reserved = true
			return true
		}
		s.change.Wait()
	}
	return false
}

// inShared returns how many shared places of the window are taken. The mutex is
// held.
func (s *session) inShared() (n int) {
	for h := range s.held {
		taken := h.unsettled
		if h.reserved {
			taken++
		}
		n += max(taken-1, 0)
	}
	return n
}

// awaitSettled waits until no message of a held session is in flight.
func (s *session) awaitSettled(h *heldSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h.unsettled > 0 && !h.lost && s.broken == nil {
		s.change.Wait()
	}
}

// lose marks a held session as lost. Its messages come again, and are not settled.
func (s *session) lose(h *heldSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.lost = true
	s.watch(h)
	for a := range s.all {
		if a.held == h {
			s.drop(a)
		}
	}
	s.change.Broadcast()
}

// release gives a session back, with its unsettled messages. They come again in
// their order, to whoever accepts the session next.
func (s *session) release(h *heldSession) {
	s.lose(h)
	s.mu.Lock()
	delete(s.held, h)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = h.receiver.Close(ctx) // the lock ends in time anyway
}
