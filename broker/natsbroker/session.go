package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/natsbroker/internal/answers"
	"github.com/effectively-once/once/broker/natsbroker/internal/held"
	"github.com/effectively-once/once/broker/natsbroker/internal/parcel"
	"github.com/effectively-once/once/broker/natsbroker/internal/pull"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	patience = 30 * time.Second       // how long nothing at all is heard before a session gives up
	absence  = 5 * time.Second        // how long nothing is asked for before the consumer is looked up
	pause    = 500 * time.Millisecond // before another attempt, when the server has trouble
)

// session keeps what was delivered and not settled. It asks for as many messages as Receive wants and the window lets,
// and puts by what comes when nobody receives any more.
type session struct {
	*source
	nc        *nats.Conn
	requester *answers.Requester
	sub       *nats.Subscription
	status    chan nats.Status
	wake      chan struct{} // Receive looks again
	done      chan struct{} // closed when the session breaks, or is closed

	checking sync.Mutex // is held while the consumer's identity is looked up

	mu        sync.Mutex
	is        identity // as it was when it was last looked up
	out       *held.Set
	pull      *pull.Requests
	pausing   time.Time // no pull before
	heard     time.Time // of the server
	trouble   string    // what it last complained of
	doubts    int       // reasons to ask whether this is still the consumer that was opened
	dispelled int       // how many of them are
	broken    error
	closed    bool
}

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
)

// open begins to listen for messages.
func (c *source) open(is identity, window int) (*session, error) {
	nc := c.js.Conn()
	inbox := nc.NewInbox() + "."
	s := &session{
		source:    c,
		nc:        nc,
		requester: answers.NewRequester(nc, c.options.ReplyWait),
		wake:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		is:        is,
		out:       held.New(window),
		pull:      pull.New(c.js, c.stream, c.durable, inbox),
	}
	var err error
	if s.sub, err = nc.Subscribe(inbox+"*", s.take); err != nil {
		return nil, err
	}
	// The window bounds what is pending, and what the client would drop came again only after AckWait.
	if err := s.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(err, s.sub.Unsubscribe())
	}
	s.status = nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	go s.attend(time.NewTicker(max(is.config.AckWait/6, time.Millisecond)))
	return s, nil
}

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if limit < 1 {
		return nil, fmt.Errorf("%w: Receive of %d messages: ask for at least one", broker.ErrInvalid, limit)
	}
	s.mu.Lock()
	s.heard = time.Now() // while nobody receives, nothing needs to be heard
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

// step returns what there is, or sees to it that more comes, and how long to wait for that.
func (s *session) step(ctx context.Context, limit int) ([]broker.Delivery, time.Duration, error) {
	if err := s.identify(ctx); err != nil {
		return nil, pause, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	room := s.out.Room()
	switch {
	case s.broken != nil:
		return nil, 0, s.broken
	case room <= 0:
		s.heard = now
		return nil, time.Hour, nil // settling wakes
	case s.unsure():
		return nil, 0, nil
	case s.out.Waiting() > 0:
		return s.hand(min(limit, room)), 0, nil
	case now.Sub(s.heard) > patience:
		err := fmt.Errorf("natsbroker: %s: nothing was heard for %v: see whether the servers run; the last they said: %q",
			s.Name(), patience, s.trouble)
		s.breakOff(err)
		return nil, 0, err
	case s.pull.Open() && s.pull.Quiet(now) > s.pull.Silence():
		// The server, or its leader, has gone, and the request with it.
		s.pull.End()
		s.doubts++
		return nil, 0, nil
	case s.pull.Open():
		return nil, s.pull.Silence(), nil
	case now.Before(s.pausing):
		return nil, s.pausing.Sub(now), nil
	case s.pull.Quiet(now) > absence:
		// Nothing was asked for in between, so the server would not have said that the consumer was deleted.
		s.doubts++
		s.pull.Hear(now)
		return nil, 0, nil
	}
	if err := s.pull.Ask(min(limit, room), &s.is.config); err != nil {
		s.stumble("pull: " + err.Error())
	}
	return nil, s.pull.Silence(), nil
}

// hand returns messages that have come.
func (s *session) hand(n int) []broker.Delivery {
	as := s.out.Take(n)
	ds := make([]broker.Delivery, len(as))
	for i, a := range as {
		m := parcel.Unpack(a.Msg, a.Meta.Timestamp)
		m.Attempt = int(a.Meta.NumDelivered)
		ds[i] = broker.Delivery{
			Message:     m,
			Redelivered: a.Again || a.Seq() <= s.is.doubt,
			Origin:      s.origin(a),
			Tag:         a,
		}
	}
	return ds
}

func (s *session) origin(a *held.Arrival) string {
	return s.stream + "@" + strconv.FormatUint(a.Seq(), 10)
}

// take keeps what comes: a message, or a word of the server on a request.
func (s *session) take(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Reply == "" {
		s.heed(m)
		return
	}
	meta, err := m.Metadata()
	if err != nil {
		return // none of JetStream's, so there is nothing to settle
	}
	now := time.Now()
	s.pull.Arrived(now)
	s.heard = now
	if !s.out.Add(m, meta, now) {
		s.doubts++
	}
	s.rouse()
}

// heed understands a status. What tells of trouble is not believed: the consumer is looked up.
func (s *session) heed(m *nats.Msg) {
	now := time.Now()
	switch trouble, ok := s.pull.Heed(m, now); {
	case !ok:
		return // of an earlier request
	case trouble == "":
		s.heard = now
	default:
		s.stumble(trouble)
	}
	s.rouse()
}

func (s *session) stumble(why string) {
	s.trouble, s.pausing = why, time.Now().Add(pause)
	s.doubts++
}

func (s *session) unsure() bool { return s.dispelled < s.doubts }

// identify finds out whether the consumer is the one that was opened, if there is doubt. An error says that it could
// not be found out; that it is another one, or gone, breaks the session.
func (s *session) identify(ctx context.Context) error {
	s.checking.Lock()
	defer s.checking.Unlock()
	s.mu.Lock()
	skip, doubts := !s.unsure() || s.broken != nil, s.doubts
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
		s.breakOff(err)
	case err != nil:
		s.trouble = err.Error()
		return err
	case !is.stream.Equal(s.is.stream) || !is.created.Equal(s.is.created):
		s.breakOff(fmt.Errorf("natsbroker: %s: it was made anew: open another session", s.Name()))
	default:
		s.is, s.heard, s.dispelled = is, time.Now(), doubts
	}
	return nil
}

// attend tells the server that deliveries are being worked on, and watches the connection.
func (s *session) attend(tick *time.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.signal()
		case status := <-s.status:
			s.observe(status)
		}
	}
}

// signal asks for more time for what has been held for long. The lock keeps it from passing a settlement: a signal
// behind a delayed return would change the delay.
func (s *session) signal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.nc.IsConnected() || s.broken != nil {
		return
	}
	now := time.Now()
	for _, a := range s.out.All() {
		if now.Sub(a.Signed) < s.is.config.AckWait/3 {
			continue
		}
		if s.nc.Publish(a.Reply, []byte("+WPI")) == nil {
			a.Signed = now
		}
	}
}

func (s *session) observe(status nats.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch status {
	case nats.CLOSED:
		s.breakOff(fmt.Errorf("natsbroker: %s: %w", s.Name(), nats.ErrConnectionClosed))
	default:
		s.pull.End()
		s.doubts++
		s.rouse()
	}
}

// breakOff ends the session with an error, the first time.
func (s *session) breakOff(err error) {
	if s.broken != nil {
		return
	}
	s.broken = err
	close(s.done)
	s.rouse()
}

func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close gives back what is not settled, to be delivered again at once. Where that does not reach the server, it comes
// again after AckWait.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.breakOff(answers.ErrClosed)
	s.mu.Unlock()

	s.nc.RemoveStatusListener(s.status)
	s.drain(ctx)
	s.mu.Lock()
	left := s.out.Clear()
	s.mu.Unlock()
	if s.nc.IsConnected() {
		s.tell(ctx, left, "-NAK")
	}
	s.requester.Close()
	return nil
}

// drain waits for what the server had sent already, to give it back too.
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
