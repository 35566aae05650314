package pubsubbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	pullLimit = 1000             // messages of one pull, which is a limit of the service
	pullTime  = 60 * time.Second // how long the service may wait for a message
)

var errClosed = errors.New("pubsubbroker: the session is closed")

// arrival is a message whose lease this session has. The Tag of a delivery points
// to it.
type arrival struct {
	number   uint64 // the order in which it came
	received *pubsubpb.ReceivedMessage
	message  *broker.Message
	leased   time.Time // when its lease was last extended; other sessions may have it after the deadline
	tried    bool      // it was to be settled: its lease is no longer extended, so that it comes again if that failed
	dead     bool      // its dead letter is stored
}

func (a *arrival) ackID() string { return a.received.GetAckId() }

// session pulls messages of a subscription.
type session struct {
	*source
	opened   *pubsubpb.Subscription // its settings when the session was opened
	topic    string                 // as the Topic of its messages
	dead     string                 // the topic for dead letters; empty: none
	deadline time.Duration
	window   int
	wake     chan struct{} // wakes Receive
	demand   chan struct{} // wakes the pump
	pumped   chan struct{} // closed when the pump has ended
	kept     chan struct{} // closed when leases are no longer extended
	ending   context.Context
	end      context.CancelFunc // ends the pump and the keeper

	extending sync.Mutex // held while leases are extended

	mu       sync.Mutex
	all      map[*arrival]bool // unsettled, with those that wait
	waiting  []*arrival        // those that Receive has not returned yet
	wanted   int               // how many a waiting Receive asks for
	arrivals uint64
	broken   error
	closed   bool
}

var (
	_ broker.DeadLetterer = (*session)(nil)
	_ broker.Delayer      = (*session)(nil)
)

func newSession(c *source, settings *pubsubpb.Subscription, window int) *session {
	s := &session{
		source: c, opened: settings, window: window,
		topic:    c.broker.short(settings.GetTopic()),
		dead:     c.deadTopic(settings),
		deadline: time.Duration(settings.GetAckDeadlineSeconds()) * time.Second,
		wake:     make(chan struct{}, 1),
		demand:   make(chan struct{}, 1),
		pumped:   make(chan struct{}),
		kept:     make(chan struct{}),
		all:      make(map[*arrival]bool),
	}
	if s.deadline == 0 {
		s.deadline = serviceDeadline
	}
	s.ending, s.end = context.WithCancel(context.Background())
	go s.pump()
	go s.keep()
	return s
}

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
func (s *session) take(n int) ([]broker.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	s.dropExpired()
	if len(s.waiting) == 0 {
		s.wanted = n
		wake.Signal(s.demand)
		return nil, nil
	}
	n = min(n, len(s.waiting))
	ds := make([]broker.Delivery, n)
	for i, a := range s.waiting[:n] {
		ds[i] = broker.Delivery{Message: a.message, Redelivered: true, Origin: origin(s.topic, a.received.GetMessage()), Tag: a}
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	s.wanted = 0 // before the pump sees that nothing waits any more
	return ds, nil
}

// dropExpired drops waiting messages that other sessions may have, because this
// process was stalled or could not extend their leases, and those that could not
// be settled. The mutex is held.
func (s *session) dropExpired() {
	expired := func(a *arrival) bool { return time.Since(a.leased) >= s.deadline }
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool {
		if expired(a) {
			delete(s.all, a)
		}
		return expired(a)
	})
	maps.DeleteFunc(s.all, func(a *arrival, _ bool) bool { return a.tried && expired(a) })
	wake.Signal(s.demand)
}

// pump pulls messages until the session ends.
func (s *session) pump() {
	defer close(s.pumped)
	for {
		n := s.awaitDemand()
		if n == 0 {
			return
		}
		if err := s.pull(n); err != nil {
			s.fail(s.explain(err))
			return
		}
	}
}

// awaitDemand waits until Receive waits for messages and the window has room for
// them, and returns how many. It returns 0 when the session is closed.
func (s *session) awaitDemand() int {
	return wake.Await(s.ending.Done(), s.demand, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken != nil || len(s.waiting) > 0 {
			return 0
		}
		return min(s.wanted, s.window-len(s.all), pullLimit)
	})
}

// pull gets up to n messages. The service waits for the first one.
func (s *session) pull(n int) error {
	ctx, cancel := context.WithTimeout(s.ending, pullTime)
	defer cancel()
	reply, err := s.broker.client.SubscriptionAdminClient.Pull(ctx,
		&pubsubpb.PullRequest{Subscription: s.name, MaxMessages: int32(n)}, once)
	if status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) {
		return nil // there was no message
	}
	if err != nil {
		return err
	}
	s.add(reply.GetReceivedMessages())
	return nil
}

// add adds messages that have come.
func (s *session) add(received []*pubsubpb.ReceivedMessage) {
	if len(received) == 0 {
		return
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range received {
		s.arrivals++
		a := &arrival{number: s.arrivals, received: r, message: decode(s.topic, r), leased: now}
		s.all[a] = true
		s.waiting = append(s.waiting, a)
	}
	wake.Signal(s.wake)
}

// keep extends leases and checks the subscription until the session is closed.
func (s *session) keep() {
	defer close(s.kept)
	tick, check := time.NewTicker(s.deadline/6), time.NewTicker(s.broker.options.CheckEvery)
	defer tick.Stop()
	defer check.Stop()
	for {
		select {
		case <-s.ending.Done():
			return
		case <-tick.C:
			s.extend()
		case <-check.C:
			s.checkAgain()
		}
	}
}

// extend extends the leases that have run for a third of the deadline. If the
// service does not answer, the next tick tries again, and there are three before
// a lease ends.
func (s *session) extend() {
	s.extending.Lock()
	defer s.extending.Unlock()
	ctx, cancel := context.WithTimeout(s.ending, s.deadline/6)
	defer cancel()
	var due []*arrival
	s.mu.Lock()
	s.dropExpired()
	for a := range s.all {
		if !a.tried && time.Since(a.leased) >= s.deadline/3 {
			due = append(due, a)
		}
	}
	s.mu.Unlock()
	if len(due) > 0 {
		s.lease(ctx, due)
	}
}

// checkAgain ends the session if the subscription gets no messages any more, or
// is another one than at first. If the service does not answer, the next check
// tries again.
func (s *session) checkAgain() {
	ctx, cancel := context.WithTimeout(s.ending, min(openTime, s.deadline/6)) // leases wait for it
	defer cancel()
	settings, err := s.settings(ctx)
	switch {
	case status.Code(err) == codes.NotFound:
		s.fail(err)
	case err != nil:
	case gone(settings) != nil:
		s.fail(s.explain(gone(settings)))
	case settings.GetTopic() != s.opened.GetTopic() || settings.GetLabels()[createdLabel] != s.opened.GetLabels()[createdLabel]:
		s.fail(s.explain(errors.New("it was deleted and created again. Messages that were not handled before are lost: send them again")))
	case settings.GetAckDeadlineSeconds() != s.opened.GetAckDeadlineSeconds():
		s.fail(s.explain(errors.New("its AckDeadlineSeconds was changed, which a session reads when it is opened")))
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

// Close returns all unsettled messages. If the service cannot be reached, they
// come again after the deadline.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.fail(errClosed)
	s.end()
	<-s.pumped
	<-s.kept
	s.mu.Lock()
	left := inOrder(s.all)
	s.mu.Unlock()
	results, err := s.modify(ctx, left, 0)
	if err != nil && len(results) < len(left) && status.Code(err) != codes.NotFound { // others have those that are lost
		return fmt.Errorf("pubsubbroker: %s: return unsettled messages: %w", s.Name(), err)
	}
	return nil
}
