package httponce

import (
	"context"
	"errors"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission"
)

// Handler guards next. A request with a key is handled once, and its repeats
// get the recorded response. As in [once.Do], next should pass its key to other
// systems: [once.ClaimFrom] returns it, with the caller as its Scope.
//
// Handler panics if the options are invalid. If the client disconnects, a
// repeat stops waiting, but next continues once the key is claimed: its context
// ends only when the lease is lost.
func Handler(s once.Store, caller Caller, next http.Handler, o *Options) http.Handler {
	return newGuard(newSettings(s, caller, o), next)
}

// Middleware is [Handler] in the form that routers expect.
func Middleware(s once.Store, caller Caller, o *Options) func(http.Handler) http.Handler {
	set := newSettings(s, caller, o)
	return func(next http.Handler) http.Handler { return newGuard(set, next) }
}

type guard struct {
	*settings
	next http.Handler
	mux  *http.ServeMux // next, if it is one
}

func newGuard(set *settings, next http.Handler) *guard {
	mux, _ := next.(*http.ServeMux)
	return &guard{settings: set, next: next, mux: mux}
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.passes(r) {
		g.next.ServeHTTP(w, r)
		return
	}
	g.checkMount()
	x := &exchange{settings: g.settings, w: w, r: r, mux: g.mux}
	defer x.close()
	defer x.watchForMore()
	if err := x.read(); err != nil {
		if p, ok := err.(problem); ok && p.name == problemMissing.name && !g.Required { // see Options.Key
			g.next.ServeHTTP(w, x.run.request(r.Context(), r, &x.body))
			return
		}
		x.refuse(err, g.next)
		return
	}
	answer, err := g.attempt(x)
	switch {
	case errors.Is(err, errAround):
		x.failMount(aroundText)
	case x.progress.Phase == admission.Entered:
		x.finish(err)
	case hasAnswer(answer, err):
		x.replay(answer)
	default:
		x.refuse(err, g.next)
	}
}

// passes reports whether a request is not guarded.
func (g *guard) passes(r *http.Request) bool {
	if _, has := r.Header[KeyHeader]; !has && !g.Required && g.Key == nil {
		return true
	}
	return isSafe(r.Method)
}

// attempt runs the handler under the claim of the key. If the recorded mark is
// another one, it tries the marks that older secrets and builds have made.
func (g *guard) attempt(x *exchange) (answer *recording, err error) {
	ctx, detach := admission.UntilDetached(x.r.Context())
	defer detach()
	if err := x.admit(); err != nil {
		return nil, err
	}
	defer func() { x.leave(err) }()
	run := func(ctx context.Context, _ once.Key) (*recording, error) {
		x.progress.Phase = admission.Claimed
		if !detach() {
			return nil, once.NotDone(admission.ErrClientGone)
		}
		x.progress.Phase = admission.Entered
		x.enterHandler()
		x.run.start(x.w, x.MaxResponse, false)
		g.next.ServeHTTP(x.run.rec, x.run.request(x.enter(ctx), x.r, &x.body))
		if x.wentAround() {
			x.run.rec.end()
			return nil, errAround
		}
		x.run.rec.end()
		return x.decided()
	}
	for mark := range x.marks() {
		if answer, err = once.Do(ctx, g.store, x.work(mark), run); !isAnotherMark(err) {
			break
		}
	}
	return answer, err
}

// finish sends the response of the handler. If the lease was lost, another
// attempt may have run as well, and it is unknown which response is recorded.
func (x *exchange) finish(err error) {
	if errors.Is(err, once.ErrLeaseLost) && x.run.rec.delivery == buffered {
		x.fail(problemOf(err))
		return
	}
	x.run.rec.deliver()
}
