//go:build go1.25

package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
)

// buggySource is a source of membroker with one bug, or none.
type buggySource struct {
	*world
	inner broker.Source

	mu       sync.Mutex
	names    int
	sessions []*buggySession
}

func (src *buggySource) Name() string {
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.has("a name for each call") {
		src.names++
	}
	return fmt.Sprint(src.inner.Name(), src.names)
}

func (src *buggySource) Location(ctx context.Context) (map[string]string, error) {
	src.mu.Lock()
	defer src.mu.Unlock()
	facts := map[string]string{"cluster": "shop"}
	switch src.bug {
	case "a location for each call":
		src.names++
		facts["call"] = fmt.Sprint(src.names)
	case "the location is the connection":
		facts["connection"] = fmt.Sprint(src.restarts.Load())
	case "a fact without a name":
		facts[""] = "shop"
	}
	return facts, ctx.Err()
}

func (src *buggySource) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	if src.has("horizon below zero") {
		return -1, nil
	}
	return 0, ctx.Err()
}

func (src *buggySource) Lag(ctx context.Context) (broker.Lag, error) {
	lag, err := src.inner.(broker.Lagger).Lag(ctx)
	switch src.bug {
	case "no lag":
		lag = broker.Lag{}
	case "lag of what is settled":
		lag.Messages++
	}
	return lag, err
}

// buggyLog is a buggySource that reads a log.
type buggyLog struct{ *buggySource }

func (src *buggyLog) LagFrom(ctx context.Context, at map[string]broker.Position) (broker.Lag, error) {
	if src.has("no lag without positions") && len(at) == 0 {
		return broker.Lag{}, nil
	}
	if src.has("the message of a position counts") {
		at = maps.Clone(at)
		for partition, p := range at {
			p.Offset--
			at[partition] = p
		}
	}
	lag, err := src.inner.(broker.LogLagger).LagFrom(ctx, at)
	if src.has("an unknown lag is none") {
		return lag, nil
	}
	return lag, err
}

func (src *buggySource) Open(ctx context.Context, window int) (broker.Session, error) {
	wide := window
	switch src.bug {
	case "window ignored":
		wide = 100 * window
	case "window one too large":
		wide++
	}
	inner, err := src.inner.Open(ctx, wide)
	if err != nil {
		return nil, err
	}
	s := src.add(&buggySession{world: src.world, inner: inner, window: window,
		out: make(map[any]broker.Delivery), seen: make(map[string]bool)})
	if src.place.Log {
		return &buggyReader{s}, nil
	}
	return s, nil
}

func (src *buggySource) add(s *buggySession) *buggySession {
	src.opened.Add(1)
	src.mu.Lock()
	others := slices.Clone(src.sessions)
	src.sessions = append(src.sessions, s)
	src.mu.Unlock()
	for _, other := range others {
		other.meets()
	}
	return s
}

// settleAll settles all deliveries in flight.
func (src *buggySource) settleAll() {
	src.mu.Lock()
	defer src.mu.Unlock()
	for _, s := range src.sessions {
		s.settleAll()
	}
}

// buggySession is a session of membroker with one bug, or none.
type buggySession struct {
	*world
	inner  broker.Session
	window int

	mu     sync.Mutex
	out    map[any]broker.Delivery // by tag
	order  []any                   // the tags in out
	ahead  []broker.Delivery       // received, and not handed out
	stuck  int                     // room in the window that is lost
	closed bool
	seen   map[string]bool // by ID
	count  int
	held   time.Time // nothing is received before
}

func (s *buggySession) settleAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inner.Ack(context.Background(), s.named(s.order))
}

// meets handles the opening of another session.
func (s *buggySession) meets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has("delivered to all sessions") && !s.closed {
		for _, d := range s.out {
			s.inner.Return(context.Background(), []broker.Delivery{d}, 0)
		}
	}
}

func (s *buggySession) LongestDelay() time.Duration {
	if s.has("no longest delay") {
		return 0
	}
	return time.Hour
}

func (s *buggySession) KeepsRejected() bool { return !s.place.Log && !s.has("dead letters denied") }

func (s *buggySession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.receive(ctx, limit)
	if err != nil && ctx.Err() == nil && s.has("dies in silence") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ds {
		s.spoil(&ds[i])
		s.out[ds[i].Tag] = ds[i]
		s.order = append(s.order, ds[i].Tag)
	}
	return s.received(ds), err
}

func (s *buggySession) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// receive has the bugs of Receive.
func (s *buggySession) receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	switch s.bug {
	case "held back alone":
		s.wait(ctx)
	case "room lost by Reject", "room lost by Return", "Seek keeps what is out":
		if s.isStuck() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	case "more than asked for":
		return s.inner.Receive(ctx, limit+1)
	case "context ignored":
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
		defer cancel()
		return s.inner.Receive(late, limit)
	case "context's end is an error of its own":
		if ds, err := s.inner.Receive(ctx, limit); err == nil || ctx.Err() == nil {
			return ds, err
		}
		return nil, errBuggy
	case "context's end breaks the session":
		ds, err := s.inner.Receive(ctx, limit)
		if err != nil {
			s.inner.Close(context.Background())
		}
		return ds, err
	case "no message is an answer":
		soon, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if ds, err := s.inner.Receive(soon, limit); err == nil || soon.Err() == nil || ctx.Err() != nil {
			return ds, err
		}
		return nil, nil
	case "waits for a full batch":
		return s.full(ctx, limit)
	case "a request is left behind":
		return s.orphan(ctx, limit)
	case "what is too much is lost":
		ds, err := s.inner.Receive(ctx, s.window)
		return ds[:min(len(ds), limit)], err
	case "prefetched messages lost":
		return s.prefetched(ctx, limit)
	case "last first", "order kept within a batch only":
		return s.backwards(ctx, limit)
	}
	return s.inner.Receive(ctx, limit)
}

func (s *buggySession) isStuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stuck >= s.window
}

// wait delivers nothing before a delayed message.
func (s *buggySession) wait(ctx context.Context) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	select {
	case <-time.After(time.Until(held)):
	case <-ctx.Done():
	}
}

// full waits until the limit is reached, or for some time.
func (s *buggySession) full(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.inner.Receive(ctx, limit)
	if err != nil {
		return nil, err
	}
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for len(ds) < limit {
		more, err := s.inner.Receive(soon, limit-len(ds))
		if err != nil {
			break
		}
		ds = append(ds, more...)
	}
	return ds, nil
}

// orphan leaves a request at the broker when the context ends, and drops its
// reply.
func (s *buggySession) orphan(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.inner.Receive(ctx, limit)
	if err != nil && ctx.Err() != nil {
		later, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		go func() {
			defer cancel()
			s.inner.Receive(later, limit)
		}()
	}
	return ds, err
}

// prefetched settles messages that Receive has not returned when the session is
// closed.
func (s *buggySession) prefetched(ctx context.Context, limit int) ([]broker.Delivery, error) {
	s.mu.Lock()
	ahead := s.ahead
	s.mu.Unlock()
	if len(ahead) == 0 {
		ds, err := s.inner.Receive(ctx, s.window)
		if err != nil {
			return nil, err
		}
		ahead = ds
	}
	n := min(limit, len(ahead))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = ahead[n:]
	return ahead[:n], nil
}

func (s *buggySession) backwards(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if s.has("last first") && limit > 1 {
		ds, err := s.inner.Receive(ctx, limit)
		slices.Reverse(ds)
		return ds, err
	}
	s.mu.Lock()
	ahead := s.ahead
	s.ahead = nil
	s.mu.Unlock()
	if len(ahead) > 0 {
		return ahead, nil
	}
	if limit > 1 {
		return s.inner.Receive(ctx, limit)
	}
	ds, err := s.inner.Receive(ctx, 2)
	if len(ds) < 2 {
		return ds, err
	}
	s.mu.Lock()
	s.ahead = ds[:1]
	s.mu.Unlock()
	return ds[1:], nil
}

// spoil has the bugs of deliveries.
func (s *buggySession) spoil(d *broker.Delivery) {
	s.count++
	defer func(id string) { s.seen[id] = true }(d.Message.ID)
	switch s.bug {
	case "never redelivered":
		d.Redelivered = false
	case "redelivered by this session only":
		d.Redelivered = s.seen[d.Message.ID]
	case "attempts fall":
		d.Message.Attempt = max(20-d.Message.Attempt, 1)
	case "attempts from zero":
		d.Message.Attempt--
	case "no origin":
		d.Origin = ""
	case "no position":
		d.Position = nil
	}
	if d.Position == nil {
		return
	}
	switch s.bug {
	case "offsets of the session":
		d.Position.Offset = int64(s.count)
	case "offsets fall":
		d.Position.Offset = -d.Position.Offset
	case "no log":
		d.Position.Log = ""
	case "a log for each session":
		d.Position.Log = fmt.Sprintf("%p", s)
	case "a log for each message":
		d.Position.Log = d.Message.ID
	}
}

// received has the bugs that settle deliveries by themselves.
func (s *buggySession) received(ds []broker.Delivery) []broker.Delivery {
	switch s.bug {
	case "acknowledged when received":
		s.inner.Ack(context.Background(), ds)
	case "lost when shared":
		if s.opened.Load() > 2 && len(ds) > 1 {
			s.inner.Ack(context.Background(), ds[1:])
			return ds[:1]
		}
	}
	return ds
}

func (s *buggySession) Close(ctx context.Context) error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if !was {
		s.opened.Add(-1)
	}
	switch s.bug {
	case "closed twice":
		if was {
			return errBuggy
		}
	case "lost on close":
		s.settleAll()
	case "prefetched messages lost":
		s.inner.Ack(context.Background(), s.ahead)
	case "unsettled after Close":
		return nil
	}
	return s.inner.Close(ctx)
}

// buggyReader is a session of a log.
type buggyReader struct{ *buggySession }

var errSeek = errors.New("cannot go there")

func (r *buggyReader) Seek(ctx context.Context, p broker.Position) error {
	switch r.bug {
	case "Seek does nothing":
		return nil
	case "Seek to the position":
		p.Offset--
	case "Seek not before the first":
		p.Offset = max(p.Offset, 0)
	case "Seek keeps what is out":
		r.mu.Lock()
		r.stuck += len(r.out)
		r.mu.Unlock()
	case "Seek goes back only":
		if p.Offset > 2 {
			return errSeek
		}
	}
	return r.inner.(broker.Seeker).Seek(ctx, p)
}
