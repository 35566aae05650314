package demo

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
)

// Taps sit between a service and its broker and ask the demo what to do with
// each message. They ask the same for both services.

type tappedPublisher struct {
	broker.Publisher
	ask asker
}

func (p *tappedPublisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	for _, m := range ms {
		if o, err := read(m); err == nil {
			p.ask(atPublish, "", o, nil)
		}
	}
	errs := p.Publisher.Publish(ctx, ms)
	for i, m := range ms {
		if o, err := read(m); err == nil && (errs == nil || errs[i] == nil) {
			p.ask(atPublished, "", o, m)
		}
	}
	return errs
}

type tappedSource struct {
	broker.Source
	consumer string
	ask      asker
}

func (s *tappedSource) Open(ctx context.Context, window int) (broker.Session, error) {
	inner, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	t := &tappedSession{Session: inner, consumer: s.consumer, ask: s.ask, arrived: make(chan broker.Delivery), broken: make(chan struct{})}
	pumping, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	t.pumps.Go(func() { t.pump(pumping, window) })
	return t, nil
}

func (s *tappedSource) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	return s.Source.(broker.Horizon).RedeliveryHorizon(ctx)
}

// tappedSession lets a delivery wait for its answer without blocking the
// others.
type tappedSession struct {
	broker.Session
	consumer string
	ask      asker
	arrived  chan broker.Delivery
	pumps    sync.WaitGroup
	stop     context.CancelFunc
	broken   chan struct{} // closed when err is set
	err      error
}

func (s *tappedSession) pump(ctx context.Context, window int) {
	defer close(s.broken)
	for {
		ds, err := s.Session.Receive(ctx, window)
		for _, d := range ds {
			s.pumps.Go(func() { s.deliver(ctx, d) })
		}
		if err != nil {
			s.err = err
			return
		}
	}
}

func (s *tappedSession) deliver(ctx context.Context, d broker.Delivery) {
	if o, err := read(d.Message); err == nil {
		s.ask(atDelivery, s.consumer, o, nil)
	}
	select {
	case s.arrived <- d:
	case <-ctx.Done(): // it is not settled, so it is redelivered
	}
}

func (s *tappedSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	select {
	case d := <-s.arrived:
		return []broker.Delivery{d}, nil
	case <-s.broken:
		return nil, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *tappedSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	var kept []broker.Delivery
	for _, d := range ds {
		o, err := read(d.Message)
		if err != nil || !s.ask(atAck, s.consumer, o, nil) {
			kept = append(kept, d)
		} else if err := s.Session.Return(ctx, []broker.Delivery{d}, 0); err != nil { // the broker never learns of it
			return err
		}
	}
	return s.Session.Ack(ctx, kept)
}

func (s *tappedSession) Close(ctx context.Context) error {
	s.stop()
	s.pumps.Wait()
	return s.Session.Close(ctx)
}

func (s *tappedSession) LongestDelay() time.Duration {
	return s.Session.(broker.Delayer).LongestDelay()
}

func (s *tappedSession) KeepsRejected() bool { return s.Session.(broker.DeadLetterer).KeepsRejected() }
