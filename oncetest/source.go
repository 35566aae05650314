package oncetest

import (
	"context"
	"net/http"
	"time"

	"github.com/effectively-once/once/broker"
)

// queue is the name of the queue of the case.
const queue = "oncetest"

// Source returns the queue that delivers the messages of the case. All
// processes of the service share it. Its sessions are a [broker.Delayer] and a
// [broker.DeadLetterer].
func (p *Process) Source() broker.Source { return &source{p} }

type source struct{ process *Process }

func (s *source) Name() string { return s.process.trial.source.Name() }

func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if s.process.refuse() {
		return nil, errDead
	}
	inner, err := s.process.trial.source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	t := s.process.trial
	t.mu.Lock()
	defer t.mu.Unlock()
	s.process.sessions = append(s.process.sessions, inner)
	return &session{process: s.process, inner: inner}, nil
}

type session struct {
	process *Process
	inner   broker.Session
}

var (
	_ broker.Delayer      = (*session)(nil)
	_ broker.DeadLetterer = (*session)(nil)
)

// Receive is a step if it returns messages. A process can crash only after it.
func (s *session) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	p := s.process
	if p.refuse() {
		return nil, errDead
	}
	p.wait(1)
	ds, err := s.inner.Receive(ctx, max)
	defer p.wait(-1)
	if p.refuse() {
		return nil, errDead
	}
	if err != nil {
		return ds, err
	}
	if _, dead := p.reach(p.name("receive"), after); dead {
		return nil, errDead
	}
	return ds, nil
}

// wait counts the calls that wait for messages.
func (p *Process) wait(change int) {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	p.waiting += change
	p.trial.notify()
}

func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	t := s.process.trial
	return s.process.cross("ack", func() error {
		lost, kept := t.loseFirst(ds)
		if len(lost) > 0 { // the caller gets no error
			_ = s.inner.Return(ctx, lost, 0)
		}
		if len(kept) == 0 {
			return nil
		}
		err := s.inner.Ack(ctx, kept)
		t.settle(kept, err)
		return err
	})
}

func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	return s.process.cross("return", func() error { return s.inner.Return(ctx, ds, after) })
}

func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.process.cross("reject", func() error {
		err := s.inner.Reject(ctx, ds, reason)
		s.process.trial.settle(ds, err)
		return err
	})
}

func (s *session) Close(ctx context.Context) error { return s.inner.Close(ctx) }

func (s *session) LongestDelay() time.Duration { return s.inner.(broker.Delayer).LongestDelay() }

func (s *session) KeepsRejected() bool { return s.inner.(broker.DeadLetterer).KeepsRejected() }

// Publisher returns a publisher for this process that uses pub. Its step is
// "publish". Its Close does not close pub, because the next process uses it.
func (p *Process) Publisher(pub broker.Publisher) broker.Publisher {
	outer := &publisher{p, pub}
	if d, ok := pub.(broker.Deduplicator); ok {
		return struct {
			*publisher
			broker.Deduplicator
		}{outer, d}
	}
	return outer
}

type publisher struct {
	process *Process
	inner   broker.Publisher
}

func (o *publisher) Publish(ctx context.Context, ms []*broker.Message) (errs []error) {
	o.process.sends("publish")
	err := o.process.cross("publish", func() error {
		errs = o.inner.Publish(ctx, ms)
		return nil
	})
	if err != nil && errs == nil {
		for range ms {
			errs = append(errs, err)
		}
	}
	return errs
}

func (o *publisher) Close() error { return nil }

// Transport returns a transport for this process that uses rt. Each request is
// a step, such as "POST /charges". If rt is nil, it uses http.DefaultTransport.
// A process crashes after a request only when the request was answered. Some
// schedules lose only the response, and the caller gets an error.
func (p *Process) Transport(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	return &transport{p, rt}
}

type transport struct {
	process *Process
	inner   http.RoundTripper
}

func (o *transport) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	step, heard := r.Method+" "+r.URL.Path, false
	o.process.sends(step)
	defer func() {
		if !heard && answer != nil {
			answer.Body.Close()
		}
	}()
	err = o.process.cross(step, func() error {
		answer, err = o.inner.RoundTrip(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	heard = true
	return answer, nil
}

// sends records that a step reaches another system, which cannot be rolled
// back.
func (p *Process) sends(step string) {
	p.trial.mu.Lock()
	defer p.trial.mu.Unlock()
	p.trial.outside[step] = true
}
