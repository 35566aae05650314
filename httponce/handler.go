package httponce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/errtree"
)

// Handler guards next. A request with a key is handled once, and its repeats
// get the recorded response. As in [once.Do], next should pass its key to other
// systems: [once.ClaimFrom] returns it, with the caller as its Scope.
//
// Handler panics if the options are invalid. If the client disconnects, a
// repeat stops waiting, but next continues once the key is claimed: its context
// ends only when the lease is lost.
func Handler(s once.Store, caller Caller, next http.Handler, o *Options) http.Handler {
	return &guard{settings: newSettings(s, caller, o), next: next}
}

// Middleware is [Handler] in the form that routers expect.
func Middleware(s once.Store, caller Caller, o *Options) func(http.Handler) http.Handler {
	set := newSettings(s, caller, o)
	return func(next http.Handler) http.Handler { return &guard{settings: set, next: next} }
}

type guard struct {
	*settings
	next http.Handler
}

// ServeHTTP handles a request.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.passes(r) {
		g.next.ServeHTTP(w, r)
		return
	}
	x := newExchange(g.settings, w, r)
	defer x.close()
	if !x.read(g.next) {
		return
	}
	ctx, stop := untilClaimed(r.Context())
	answer, err := g.attempt(ctx, stop, x)
	switch {
	case x.ran:
		x.finish(err)
	case hasAnswer(answer, err):
		x.replay(answer)
	default:
		x.refuse(err, g.next)
	}
}

// attempt makes the call of once. It repeats it with the marks of older secrets,
// while the mark is not the one that is recorded.
func (g *guard) attempt(ctx context.Context, stop func() bool, x *exchange) (answer *Response, err error) {
	defer stop()
	leave, err := x.enter()
	if err != nil {
		return nil, err
	}
	defer func() { leave(err) }()
	run := func(ctx context.Context, _ once.Key) (*Response, error) {
		x.owns = true
		if !stop() {
			return nil, once.NotDone(errGone)
		}
		x.ran = true
		x.begin(false)
		g.next.ServeHTTP(x.rec, x.request(ctx))
		x.rec.end()
		return x.decided()
	}
	for _, mark := range x.Ring.marks(x.mark) {
		if answer, err = once.Do(ctx, g.store, x.work(mark), run); !errors.Is(err, once.ErrMismatch) {
			break
		}
	}
	return answer, err
}

// decided is the end of a run of the handler, as once takes it.
func (x *exchange) decided() (*Response, error) {
	answer := x.rec.response(x.headers)
	answer.key = x.key.UUID()
	if x.rec.partial() && x.r.Method != http.MethodHead {
		answer.Body, answer.NoBody = nil, true
	}
	switch d := x.decide(x.r, x.rec.status); {
	case x.rec.nothing, d == Release:
		return answer, once.NotDone(errStatus)
	case d == Unknown:
		return answer, errStatus
	}
	return answer, nil
}

var (
	errGone   = errors.New("httponce: the client has left")
	errStatus = errors.New("httponce: the handler answered with a status that is not recorded")
)

// finish sends the response of the handler, which has run. If another attempt may have run as well, nobody knows
// which response it will be.
func (x *exchange) finish(err error) {
	if errors.Is(err, once.ErrLeaseLost) && !x.rec.through && !x.rec.hijacked {
		x.fail(problemOf(err))
		return
	}
	x.rec.deliver()
}

// hasAnswer reports whether there is an answer, which may be a no.
func hasAnswer(answer *Response, err error) bool {
	return answer != nil && (err == nil || errors.Is(err, once.ErrRejected))
}

// refuse answers where the handler did not run. It does so also when the context of the request has ended: that need not
// mean that the client has left, and saying nothing would be 200.
func (x *exchange) refuse(err error, next http.Handler) {
	switch {
	case errors.Is(err, errLimit):
		x.fail(problemLimit.retried(x.wait))
		return
	case errors.Is(err, errWaiting):
		x.fail(problemInProgress.retried(whenOpen))
		return
	}
	p, ended := problemOf(err), x.r.Context().Err() != nil
	if p.name == problemDown.name && !ended {
		x.log("the store cannot be used", "", err)
		if x.FailOpen && next != nil {
			next.ServeHTTP(x.w, x.request(x.r.Context()))
			return
		}
	}
	if p.status >= 500 && p.name != problemDown.name {
		x.log("a request could not be handled", x.key.String(), err)
	}
	x.fail(p)
}

// replay sends what is recorded.
func (x *exchange) replay(answer *Response) {
	switch {
	case answer.key != [16]byte{} && answer.key != x.key.UUID():
		x.log("the record of one key holds the answer of another", x.key.String(), nil)
		x.fail(problemDamaged)
	case answer.NoBody:
		p := problemNotKept
		p.answer = answer.Status
		if location := answer.Header.Get("Location"); location != "" {
			x.w.Header().Set("Location", location)
		}
		x.w.Header()[ReplayedHeader] = yes
		x.fail(p)
	default:
		answer.replay(x.w)
	}
}

// untilClaimed is a context that the caller's leaving ends, until stop is called. It reports false if it was too late.
func untilClaimed(parent context.Context) (ctx context.Context, stop func() bool) {
	if parent.Done() == nil {
		return parent, func() bool { return true }
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	left := context.AfterFunc(parent, func() { cancel(fmt.Errorf("%w: %w", errGone, context.Canceled)) })
	stopped := false
	return ctx, func() bool {
		stopped = stopped || left() && parent.Err() == nil
		return stopped
	}
}

// passes reports whether a request is not guarded.
func (g *settings) passes(r *http.Request) bool {
	if _, has := r.Header[KeyHeader]; !has && !g.Required {
		return true
	}
	return isSafe(r.Method)
}

// enterLimits counts a request in the limits of its caller, before anything is
// read of its body. leaveLimits, or else close, ends that.
func (x *exchange) enterLimits(ctx context.Context) error {
	if x.limiter == nil {
		return nil
	}
	how, wait := x.limiter.enter(x.key.Scope, x.key.ID, time.Now())
	switch how {
	case tooMany:
		return errWaiting
	case overLimit:
		if err := x.known(ctx, wait, func(rec once.Record) bool { return rec.Status != once.Absent }); err != nil {
			return err
		}
		if !x.limiter.enterKnown(x.key.Scope) {
			return errWaiting
		}
		x.exit = func(bool) { x.limiter.leaveKnown(x.key.Scope) }
	default:
		x.exit = func(unused bool) { x.limiter.leave(x.key.Scope, x.key.ID, how, unused) }
	}
	return nil
}

// leaveLimits ends what enterLimits began. unused says that nothing new has
// begun.
func (x *exchange) leaveLimits(unused bool) {
	if exit := x.exit; exit != nil {
		x.exit = nil
		exit(unused)
	}
}

// admit asks for room for the key, and refuses a new one if there is none.
// leave is called when the request is over.
func (x *exchange) admit(ctx context.Context) (leave func(error), err error) {
	if x.Admit == nil {
		return func(error) {}, nil
	}
	admitted, wait := x.Admit(x.key)
	if wait <= 0 {
		return func(err error) { admitted(x.left(err)) }, nil
	}
	err = x.known(ctx, wait, func(rec once.Record) bool { return rec.Attempt > 0 })
	return func(error) {}, err
}

// known refuses a key unless the store knows it: whoever is over the limits of
// new keys gets the answers of known ones.
func (x *exchange) known(ctx context.Context, wait time.Duration, is func(once.Record) bool) error {
	rec, err := x.store.Get(ctx, x.key)
	if err == nil && !is(rec) {
		x.wait, err = wait, errLimit
	}
	return err
}

// left reports whether the request, which ended with err, may have left a record that was not there before. A client that
// leaves while its key is claimed may have left one although nothing ran: else who does so again and again would fill the
// store for nothing.
func (x *exchange) left(err error) bool {
	switch {
	case x.rep.Replayed || x.rep.Attempt > 1:
		return false
	case x.inTx:
		return x.owns && (err == nil || errors.Is(err, once.ErrRejected) || errors.Is(err, once.ErrOutcomeUnknown))
	}
	return x.owns || x.r.Context().Err() != nil && err != nil && !met(err)
}

// unused reports whether the request, which ended with err, has begun nothing new.
func (x *exchange) unused(err error) bool { return !x.ran && !x.left(err) }

// met reports whether err is about the record of another request.
func met(err error) bool {
	return errtree.HasAny(err, once.ErrInProgress, once.ErrMismatch, once.ErrExpired, once.ErrOutcomeUnavailable,
		once.ErrOutcomeUnknown, once.ErrParked, once.ErrLeaseLost, once.ErrCorrupt)
}

var (
	errLimit   = errors.New("httponce: the caller is over its limits")
	errWaiting = errors.New("httponce: too many repeats of the caller wait")
)
