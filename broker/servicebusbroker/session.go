package servicebusbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
)

const (
	creditLimit = 500         // messages of one receive
	relinkTime  = time.Second // within which a second link must not be gone
)

var (
	errClosed   = errors.New("the session is closed")
	errLinkGone = errors.New("the link was detached, and the client does not replace it")
)

// receiver is what the receivers of queues and of sessions have in common.
type receiver interface {
	ReceiveMessages(ctx context.Context, n int, o *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(ctx context.Context, m *azservicebus.ReceivedMessage, o *azservicebus.CompleteMessageOptions) error
	AbandonMessage(ctx context.Context, m *azservicebus.ReceivedMessage, o *azservicebus.AbandonMessageOptions) error
	DeadLetterMessage(ctx context.Context, m *azservicebus.ReceivedMessage, o *azservicebus.DeadLetterOptions) error
	Close(ctx context.Context) error
}

// arrival is a message that this session has locked. The Tag of a delivery points
// to it.
type arrival struct {
	raw         *azservicebus.ReceivedMessage
	from        receiver
	redelivered bool
	renewAt     time.Time // of its lock; zero: the lock is that of a held session
	held        *heldSession
}

// session receives from a queue, with one receiver, or from sessions of Service
// Bus, with a receiver for each.
type session struct {
	*source
	window int
	wake   chan struct{} // wakes Receive
	ctx    context.Context
	end    context.CancelFunc
	loops  sync.WaitGroup // that receive and renew
	queue  *azservicebus.Receiver

	mu       sync.Mutex
	change   sync.Cond // of the window, of held sessions, of broken
	all      map[*arrival]bool
	waiting  []*arrival // those that Receive has not returned yet
	reserved int        // places of the window that a receive from a queue may fill
	shared   int        // places of the window that held sessions share
	held     map[*heldSession]bool
	broken   error
	closed   bool
}

var _ broker.DeadLetterer = (*session)(nil)

func newSession(s *source, window int) *session {
	n := &session{source: s, window: window, wake: make(chan struct{}, 1), all: make(map[*arrival]bool), held: make(map[*heldSession]bool)}
	n.change.L = &n.mu
	n.ctx, n.end = context.WithCancel(context.Background())
	return n
}

// startQueue connects a receiver of a queue.
func (s *session) startQueue(ctx context.Context) (broker.Session, error) {
	var err error
	if s.queue, err = s.receiver(); err == nil {
		_, err = s.queue.PeekMessages(ctx, 1, nil)
	}
	if err != nil {
		s.end()
		if s.queue != nil {
			_ = s.queue.Close(ctx) // the first error is returned
		}
		return nil, s.explain("open", err)
	}
	s.loops.Go(s.receiveFromQueue)
	s.loops.Go(s.renew)
	if s.subscription != "" || s.dead || s.broker.options.Sessions {
		return s, nil
	}
	return &delayingSession{session: s}, nil
}

// receiveFromQueue receives as many messages as fit into the window. The client
// connects again if it has to, and the locks of messages stay. But after some errors,
// such as that of a busy server, it keeps the link that is gone, and returns nothing
// at once and without an error, however often it is called.
func (s *session) receiveFromQueue() {
	var highest int64  // sequence number
	var gone time.Time // when a link was last found gone
	for {
		n := s.reserve(creditLimit)
		if n == 0 {
			return
		}
		raws, err := s.queue.ReceiveMessages(s.ctx, n, nil)
		as := make([]*arrival, len(raws))
		for i, raw := range raws {
			// The client returns messages that come between two receives, so that
			// they are late.
			late := sequence(raw) < highest
			highest = max(highest, sequence(raw))
			as[i] = &arrival{raw: raw, from: s.queue, renewAt: renewal(lockTime(raw)),
				redelivered: late || s.dead || raw.DeliveryCount > 1 || replaced(raw) > 0}
		}
		s.add(as, n)
		if err == nil && len(raws) == 0 {
			if time.Since(gone) < relinkTime {
				err = errLinkGone
			}
			gone = time.Now()
		}
		if err != nil {
			s.fail(s.explain("receive", err))
			return
		}
	}
}

// reserve waits until the window has room, and reserves up to limit places. It
// returns 0 when the session ends.
func (s *session) reserve(limit int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.broken == nil {
		if room := s.window - len(s.all) - s.reserved; room > 0 {
			n := min(room, limit)
			s.reserved += n
			return n
		}
		s.change.Wait()
	}
	return 0
}

// add adds messages that have come for n reserved places. What comes after the end
// of the session is returned by its Close.
func (s *session) add(as []*arrival, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= n
	for _, a := range as {
		s.all[a] = true
		if a.held != nil {
			a.held.unsettled++
			a.held.reserved = false
			s.watch(a.held)
		}
	}
	s.waiting = append(s.waiting, as...)
	s.change.Broadcast()
	wake.Signal(s.wake)
}

// drop removes messages from the window, because they are settled or their locks
// are lost. The mutex is held.
func (s *session) drop(as ...*arrival) {
	for _, a := range as {
		if !s.all[a] {
			continue
		}
		delete(s.all, a)
		if a.held != nil {
			a.held.unsettled--
			s.watch(a.held)
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool { return !s.all[a] })
	s.change.Broadcast()
}

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return wake.Receive(ctx, limit, s.wake, s.take)
}

// take returns up to n messages that have arrived.
func (s *session) take(n int) ([]broker.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	n = min(n, len(s.waiting))
	ds := make([]broker.Delivery, n)
	for i, a := range s.waiting[:n] {
		m := decode(a.raw, s.entity)
		if a.held != nil && m.Attempt == 1 {
			m.Attempt = 0 // a holder of the session that died was not counted
		}
		ds[i] = broker.Delivery{Message: m, Redelivered: a.redelivered, Origin: s.origin(a), Tag: a}
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	return ds, nil
}

func (s *session) origin(a *arrival) string {
	if a.held != nil {
		return fmt.Sprintf("%s session %s@%d", s.Name(), a.held.id, sequence(a.raw))
	}
	return fmt.Sprintf("%s@%d", s.Name(), sequence(a.raw))
}

// fail ends the session with the error of the first call.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return
	}
	s.broken = err
	s.end()
	s.change.Broadcast()
	wake.Signal(s.wake)
}

// Close ends the session and gives back its unsettled messages. It waits until
// nothing is received any more, because a message that comes to a receiver that
// is gone stays locked for the lock duration of the queue.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.fail(s.explain("receive", errClosed))
	ended := make(chan struct{})
	go func() {
		s.loops.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		return s.explain("close", ctx.Err())
	}
	if s.queue == nil {
		return nil // each held session was closed by its loop
	}
	err := s.queue.Close(ctx)
	if err := s.abandonAll(ctx); err != nil {
		return s.explain("return unsettled messages", err)
	}
	if err != nil {
		return s.explain("close", err)
	}
	return nil
}

// abandonAll gives back all unsettled messages by their lock tokens. Another
// receiver does that, because the one of the session would receive them again.
func (s *session) abandonAll(ctx context.Context) error {
	s.mu.Lock()
	var as []*arrival
	for a := range s.all {
		as = append(as, a)
	}
	s.all = make(map[*arrival]bool)
	s.mu.Unlock()
	if len(as) == 0 {
		return nil
	}
	other, err := s.receiver()
	if err != nil {
		return err
	}
	errs := each(as, func(a *arrival) error {
		err := other.AbandonMessage(ctx, &azservicebus.ReceivedMessage{LockToken: a.raw.LockToken}, nil)
		if isLost(err) {
			return nil // it comes again anyway
		}
		return err
	})
	return errors.Join(append(errs, other.Close(ctx))...)
}

// isLost reports whether the lock of a message or a session is gone.
func isLost(err error) bool {
	var e *azservicebus.Error
	return errors.As(err, &e) && e.Code == azservicebus.CodeLockLost
}

// isDisconnected reports whether the connection or the link of a call was lost.
func isDisconnected(err error) bool {
	var e *azservicebus.Error
	return errors.As(err, &e) && e.Code == azservicebus.CodeConnectionLost
}

// each calls do for all arrivals, several at a time, and returns the errors.
func each(as []*arrival, do func(*arrival) error) []error {
	const atOnce = 32
	errs := make([]error, len(as))
	var calls sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, a := range as {
		turns <- struct{}{}
		calls.Go(func() {
			defer func() { <-turns }()
			errs[i] = do(a)
		})
	}
	calls.Wait()
	return errs
}
