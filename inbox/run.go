package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
)

// consumerRun is one Run of a consumer.
type consumerRun struct {
	*env
	registration *registration
	processor    processor
}

func newConsumerRun(e *env, p processor) *consumerRun {
	return &consumerRun{env: e, registration: newRegistration(e), processor: p}
}

// run registers the consumer, and consumes until ctx ends or a person must act.
func (r *consumerRun) run(ctx context.Context) error {
	if registered, err := r.registration.registerUntil(ctx); err != nil || !registered {
		return err
	}
	if err := r.registration.checkHorizon(ctx); err != nil {
		return err
	}
	return r.consume(ctx)
}

// fatalError is the cause of a run's end if a person must act.
type fatalError struct{ err error }

func (f *fatalError) Error() string { return f.err.Error() }

// consume handles messages from the source and from the shelf.
func (r *consumerRun) consume(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r.fatal = func(err error) { end(&fatalError{err}) }
	r.processor.prepare()

	// Handlers may run for StopTime longer than ctx.
	work, stop := outlive(ctx, r.StopTime)
	defer stop()

	var beside sync.WaitGroup
	for _, do := range []func(){
		func() { r.registration.stayAlive(ctx) },
		func() { r.reportOutages(ctx) },
		func() { newShelfWorker(r.env, r.processor).run(ctx, work) },
	} {
		beside.Add(1)
		go func() {
			defer beside.Done()
			do()
		}()
	}
	defer beside.Wait()
	defer end(nil) // also after a panic
	return r.connect(ctx, work)
}

// connect consumes in one session after another.
func (r *consumerRun) connect(ctx, work context.Context) error {
	pause := &backoff.Backoff{First: reconnectFirst, Limit: reconnectLimit}
	for ctx.Err() == nil {
		received, err := r.session(ctx, work)
		err = errtree.Tame(err)
		if received {
			pause = &backoff.Backoff{First: reconnectFirst, Limit: reconnectLimit}
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, broker.ErrInvalid) { // trying again would not help
			return fmt.Errorf("inbox: consumer %q: %w", r.Name, err)
		}
		r.logger.WarnContext(ctx, "inbox: nothing can be received; trying again", logs.Spaced(""), "source", r.Source.Name(), "error", err)
		_ = backoff.Sleep(ctx, pause.Next())
	}
	var f *fatalError
	if errors.As(context.Cause(ctx), &f) {
		return f.err
	}
	return nil
}

// session consumes in one session.
func (r *consumerRun) session(ctx, work context.Context) (received bool, err error) {
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if err := r.registration.confirm(opening); err != nil {
		if errors.Is(err, once.ErrInvalid) {
			r.fatal(err)
		}
		return false, err
	}
	s, err := openSession(opening, r.env, r.processor)
	cancel()
	if err != nil || s == nil {
		return false, err
	}
	return s.receive(ctx, work)
}
