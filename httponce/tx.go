package httponce

import (
	"context"
	"errors"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission"
	"github.com/effectively-once/once/internal/errtree"
)

// HandlerTx guards a handler that writes through a transaction. The key, the
// rows and the response are one commit, and the response is sent after it. A
// response that is not recorded, an error or a panic rolls everything back, and
// the key is free again. A recorded response of 400 or more rolls back the rows
// but keeps the response.
//
// The handler must return the errors of its statements, as in [once.DoTx]:
// after a deadlock it is called again, with a new response. Any other error is
// logged and answered with 500, or with 503 if once.RetryAfter sets a delay.
// Nothing can be flushed or hijacked before the commit, and informational
// responses are not sent. Every request needs a key, whatever its method.
// HandlerTx panics if the options are invalid.
func HandlerTx[Tx any](s once.TxStore[Tx], caller Caller, run func(http.ResponseWriter, *http.Request, Tx) error, o *Options) http.Handler {
	if o != nil && o.FailOpen {
		panic("httponce: FailOpen is not for HandlerTx: without the store there is no transaction")
	}
	if s == nil {
		panic("httponce: the store and the function that says who calls are mandatory")
	}
	return &guardTx[Tx]{settings: newSettings(s, caller, o), store: s, run: run}
}

type guardTx[Tx any] struct {
	*settings
	store once.TxStore[Tx]
	run   func(http.ResponseWriter, *http.Request, Tx) error
}

func (g *guardTx[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.checkMount()
	x := &exchange{settings: g.settings, w: w, r: r}
	x.progress.InTx = true
	defer x.close()
	defer x.watchForMore()
	if err := x.read(); err != nil {
		x.refuse(err, nil)
		return
	}
	answer, err := g.attempt(x)
	var failed *handlerError
	switch {
	case errors.Is(err, errAround):
		x.failMount(aroundText)
	case hasAnswer(answer, err) && x.progress.Report.Replayed:
		x.replay(answer)
	case hasAnswer(answer, err), errors.Is(err, errNotRecorded):
		x.run.rec.deliver()
	case errors.As(err, &failed) && !errors.Is(err, once.ErrConflict):
		x.log("the handler failed, and everything was rolled back", x.key.String(), failed.err)
		x.fail(failedWith(failed.err))
	default:
		x.refuse(err, nil)
	}
}

// attempt runs the handler in a transaction with the claim of the key. If the
// recorded mark is another one, it tries the marks that older secrets and builds have made.
func (g *guardTx[Tx]) attempt(x *exchange) (answer *recording, err error) {
	ctx, detach := admission.UntilDetached(x.r.Context())
	defer detach()
	if err := x.admit(); err != nil {
		return nil, err
	}
	defer func() { x.leave(err) }()
	run := func(ctx context.Context, tx Tx) (*recording, error) {
		if !detach() {
			return nil, admission.ErrClientGone
		}
		x.progress.Phase = admission.Entered
		x.enterHandler()
		x.run.start(x.w, x.MaxResponse, true)
		err := errtree.Tame(g.run(x.run.rec, x.run.request(x.enter(ctx), x.r, &x.body), tx))
		around := x.wentAround()
		x.run.rec.end()
		if around {
			return nil, &handlerError{errAround}
		}
		if err != nil {
			// An ErrRejected is that of a step. Only a status can reject a
			// request.
			return nil, &handlerError{errtree.Hide(err, once.ErrRejected)}
		}
		answer, err := x.decided()
		switch {
		case err != nil:
			return nil, errNotRecorded // and not once.NotDone: everything is rolled back
		case answer.status >= http.StatusBadRequest:
			return answer, once.ErrRejected
		}
		return answer, nil
	}
	for mark := range x.marks() {
		if answer, err = once.DoTx(ctx, g.store, x.work(mark), run); !isAnotherMark(err) {
			break
		}
	}
	return answer, err
}

// handlerError is an error of a handler. It rolls its transaction back.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

func (e *handlerError) Unwrap() error { return e.err }
