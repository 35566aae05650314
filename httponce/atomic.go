package httponce

import (
	"context"
	"errors"
	"net/http"

	"github.com/effectively-once/once"
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

// ServeHTTP handles a request.
func (g *guardTx[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(g.settings, w, r)
	defer x.close()
	if !x.read(nil) {
		return
	}
	ctx, stop := untilClaimed(r.Context())
	answer, err := g.attempt(ctx, stop, x)
	failed := new(notRecorded)
	switch {
	case hasAnswer(answer, err) && x.rep.Replayed:
		x.replay(answer)
	case hasAnswer(answer, err):
		x.rec.deliver()
	case errors.As(err, &failed) && failed.err == nil:
		x.rec.deliver()
	case errors.As(err, &failed) && !errors.Is(err, once.ErrConflict):
		x.log("the handler failed, and everything was rolled back", x.key.String(), failed.err)
		x.fail(failedWith(failed.err))
	default:
		x.refuse(err, nil)
	}
}

func (g *guardTx[Tx]) attempt(ctx context.Context, stop func() bool, x *exchange) (answer *Response, err error) {
	defer stop()
	x.inTx = true
	leave, err := x.enter()
	if err != nil {
		return nil, err
	}
	defer func() { leave(err) }()
	run := func(ctx context.Context, tx Tx) (*Response, error) {
		if !stop() {
			return nil, errGone
		}
		x.ran, x.owns = true, true
		x.begin(true)
		err := g.run(x.rec, x.request(ctx), tx)
		x.rec.end()
		if errors.Is(err, once.ErrRejected) { // of a step: here only the status of a response says no
			err = errtree.Hide(err, once.ErrRejected)
		}
		if err != nil {
			return nil, &notRecorded{err}
		}
		answer, err := x.decided()
		switch {
		case err != nil:
			return nil, new(notRecorded)
		case answer.Status >= http.StatusBadRequest:
			return answer, once.ErrRejected
		}
		return answer, nil
	}
	for _, mark := range x.Ring.marks(x.mark) {
		if answer, err = once.DoTx(ctx, g.store, x.work(mark), run); !errors.Is(err, once.ErrMismatch) {
			break
		}
	}
	return answer, err
}

// notRecorded is how a transaction is rolled back: because of an error, or because of the status of its response.
type notRecorded struct{ err error }

func (n *notRecorded) Error() string {
	if n.err == nil {
		return errStatus.Error()
	}
	return n.err.Error()
}

func (n *notRecorded) Unwrap() error { return n.err }
