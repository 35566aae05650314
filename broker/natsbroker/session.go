package natsbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/turn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	silenceLimit = 30 * time.Second       // how long the server may be silent before the session fails
	idleLimit    = 5 * time.Second        // after an idle time this long, the consumer is looked up again
	retryDelay   = 500 * time.Millisecond // before another attempt, if the server reports trouble
)

// session is a session of a consumer. It requests as many messages as Receive
// asks for within the window, and keeps those that arrive after Receive has
// returned.
type session struct {
	*consumer
	nc        *nats.Conn
	requester *requester
	sub       *nats.Subscription
	status    chan nats.Status
	wake      chan struct{} // wakes Receive
	done      chan struct{} // closed when the session fails or is closed

	checking turn.Turn // held while the consumer is looked up

	mu        sync.Mutex
	is        identity // of the consumer, when it was last looked up
	unsettled *unsettled
	pull      *pullRequests
	pausing   time.Time // no request before this time
	heard     time.Time // when the server was last heard
	trouble   string    // the last error of the server
	doubts    int       // how often the identity of the consumer became doubtful
	dispelled int       // how many of these doubts a later look-up has resolved
	broken    error
	closed    bool
}

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
)

// open subscribes to messages of the consumer.
func (c *consumer) open(is identity, window int) (*session, error) {
	nc := c.js.Conn()
	inbox := nc.NewInbox() + "."
	s := &session{
		consumer:  c,
		nc:        nc,
		requester: newRequester(nc, c.options.ReplyWait),
		wake:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		is:        is,
		unsettled: newUnsettled(window),
		pull:      newPullRequests(c.js, c.stream, c.durable, inbox),
	}
	var err error
	if s.sub, err = nc.Subscribe(inbox+"*", s.take); err != nil {
		return nil, err
	}
	// The window limits the pending messages. The client must drop none,
	// because they would be delivered again only after AckWait.
	if err := s.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(err, s.sub.Unsubscribe())
	}
	s.status = nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	go s.keepAlive(time.NewTicker(max(is.config.AckWait/6, time.Millisecond)))
	return s, nil
}

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if limit < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least 1", broker.ErrInvalid, limit)
	}
	s.mu.Lock()
	s.heard = time.Now() // between calls, the server may be silent
	s.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, wait, err := s.step(ctx, limit)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		timer.Reset(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// step returns the available messages. If there are none, it requests some and
// returns how long to wait.
func (s *session) step(ctx context.Context, limit int) ([]broker.Delivery, time.Duration, error) {
	if err := s.identify(ctx); err != nil {
		return nil, retryDelay, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	room := s.unsettled.room()
	switch {
	case s.broken != nil:
		return nil, 0, s.broken
	case room <= 0:
		s.heard = now
		return nil, time.Hour, nil // until a delivery is settled
	case s.isInDoubt():
		return nil, 0, nil
	case s.unsettled.waitingCount() > 0:
		return s.deliver(min(limit, room)), 0, nil
	case s.pull.isOpen() && s.pull.sinceHeard(now) > s.pull.silenceLimit():
		// The server or the leader is gone, and with it the request.
		s.pull.end()
		s.doubt()
		return nil, 0, nil
	case s.pull.isOpen():
		return nil, s.pull.silenceLimit(), nil
	case now.Before(s.pausing):
		return nil, s.pausing.Sub(now), nil
	case s.pull.sinceHeard(now) > idleLimit:
		// Without a request, the server has not reported a deleted consumer.
		s.doubt()
		s.pull.hear(now)
		return nil, 0, nil
	}
	if err := s.pull.start(min(limit, room), &s.is.config); err != nil {
		s.noteTrouble("pull: " + err.Error())
	}
	return nil, s.pull.silenceLimit(), nil
}

// deliver returns up to n messages that have arrived.
func (s *session) deliver(n int) []broker.Delivery {
	as := s.unsettled.take(n)
	ds := make([]broker.Delivery, len(as))
	for i, a := range as {
		m := decode(a.msg, a.meta.Timestamp)
		m.Attempt = int(a.meta.NumDelivered)
		ds[i] = broker.Delivery{
			Message:     m,
			Redelivered: a.redelivered || a.seq() <= s.is.doubt,
			Origin:      s.origin(a),
			Tag:         a,
		}
	}
	return ds
}

func (s *session) origin(a *arrival) string {
	return s.stream + "@" + strconv.FormatUint(a.seq(), 10)
}

// take handles a message of the consumer, or a status of a request.
func (s *session) take(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Reply == "" {
		s.handleStatus(m)
		return
	}
	meta, err := m.Metadata()
	if err != nil {
		return // not from JetStream, so there is nothing to settle
	}
	now := time.Now()
	s.pull.arrived(now)
	s.heard = now
	if !s.unsettled.add(m, meta, now) {
		s.doubt()
	}
	s.wakeReceive()
}

// handleStatus handles a status of a request. If it reports trouble, the
// consumer is looked up.
func (s *session) handleStatus(m *nats.Msg) {
	now := time.Now()
	switch trouble, ok := s.pull.handleStatus(m, now); {
	case !ok:
		return // an earlier request
	case trouble == "":
		s.heard = now
	default:
		s.noteTrouble(trouble)
	}
	s.wakeReceive()
}

// noteTrouble delays the next request and has the consumer looked up.
func (s *session) noteTrouble(why string) {
	s.trouble, s.pausing = why, time.Now().Add(retryDelay)
	s.doubt()
}

// doubt has the consumer looked up. Until then, the server may have been silent
// because nothing was asked of it.
func (s *session) doubt() {
	if !s.isInDoubt() {
		s.heard = time.Now()
	}
	s.doubts++
}

// isInDoubt reports whether the consumer must be looked up.
func (s *session) isInDoubt() bool { return s.dispelled < s.doubts }

// identify looks the consumer up if it is in doubt. The session fails if the
// consumer was deleted or recreated, or if the server is silent for long.
// An error means that the look-up failed and is to be repeated.
func (s *session) identify(ctx context.Context) error {
	if err := s.checking.Take(ctx); err != nil {
		return err
	}
	defer s.checking.Give()
	s.mu.Lock()
	skip, doubts := !s.isInDoubt() || s.broken != nil, s.doubts
	s.mu.Unlock()
	if skip {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	is, err := s.identity(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound),
		errors.Is(err, broker.ErrInvalid):
		s.fail(err)
	case err != nil && time.Since(s.heard) > silenceLimit:
		s.fail(fmt.Errorf("natsbroker: %s: the server was silent for %v: check that the servers run (their last error: %q): %w",
			s.Name(), silenceLimit, s.trouble, err))
	case err != nil:
		return err
	case !is.stream.Equal(s.is.stream) || !is.created.Equal(s.is.created):
		s.fail(fmt.Errorf("natsbroker: %s: it was recreated: open another session", s.Name()))
	default:
		s.is, s.heard, s.dispelled = is, time.Now(), doubts
	}
	return nil
}

// keepAlive extends the deadlines of deliveries and watches the connection.
func (s *session) keepAlive(tick *time.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.extendDeadlines()
		case status := <-s.status:
			s.connectionChanged(status)
		}
	}
}

// extendDeadlines extends the AckWait of deliveries that are not released. The
// mutex orders it with settlements, because an extension after a delayed return
// would change the delay.
func (s *session) extendDeadlines() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.unsettled.dropReleased(now, s.is.config.AckWait) {
		s.wakeReceive() // there is room
	}
	if !s.nc.IsConnected() || s.broken != nil {
		return
	}
	for _, a := range s.unsettled.sorted() {
		if a.released || now.Sub(a.extended) < s.is.config.AckWait/3 {
			continue
		}
		if s.nc.Publish(a.reply, []byte("+WPI")) == nil {
			a.extended = now
		}
	}
}

// connectionChanged handles a new status of the connection.
func (s *session) connectionChanged(status nats.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch status {
	case nats.CLOSED:
		s.fail(fmt.Errorf("natsbroker: %s: %w", s.Name(), nats.ErrConnectionClosed))
	default:
		s.pull.end()
		s.doubt()
		s.wakeReceive()
	}
}

// fail ends the session with the error of the first call.
func (s *session) fail(err error) {
	if s.broken != nil {
		return
	}
	s.broken = err
	close(s.done)
	s.wakeReceive()
}

// wakeReceive wakes Receive.
func (s *session) wakeReceive() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close returns all unsettled deliveries, which are then delivered again at once.
// If the server cannot be reached, they are delivered again after AckWait.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.fail(errClosed)
	s.mu.Unlock()

	s.nc.RemoveStatusListener(s.status)
	s.drain(ctx)
	s.mu.Lock()
	left := s.unsettled.clear()
	s.mu.Unlock()
	if s.nc.IsConnected() {
		s.sendSettlement(ctx, left, "-NAK")
	}
	s.requester.close()
	return nil
}

// drain waits for the messages that the server has sent, so that they are
// returned too.
func (s *session) drain(ctx context.Context) {
	defer s.sub.Unsubscribe()
	if !s.nc.IsConnected() {
		return
	}
	drained := make(chan struct{})
	s.sub.SetClosedHandler(func(string) { close(drained) })
	if s.sub.Drain() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// sendSettlement sends a command such as "+ACK" for arrivals to the server.
func (s *session) sendSettlement(ctx context.Context, as []*arrival, command string) error {
	ms := make([]*nats.Msg, len(as))
	for i, a := range as {
		ms[i] = &nats.Msg{Subject: a.reply, Data: []byte(command)}
	}
	if s.options.UnconfirmedAcks {
		var err error
		for _, m := range ms {
			err = errors.Join(err, s.nc.PublishMsg(m))
		}
		return err
	}
	got, errs := s.requester.request(ctx, ms)
	for i, m := range got {
		if m == nil {
			continue
		}
		if code, text, ok := statusOf(m); ok {
			errs[i] = fmt.Errorf("natsbroker: %s has no leader now, or is deleted: %s %s", s.Name(), code, text)
		}
	}
	return cmp.Or(errs...) // usually all errors are the same
}
