package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/scope"
)

var errDuplicate = errors.New("inbox: the work was done before")

// Duplicate wraps the error of a handler that found its work already done, for
// example by a unique constraint of the business data. The transaction is
// rolled back, and the message counts as handled.
func Duplicate(err error) error { return errors.Join(errDuplicate, once.ErrRejected, err) }

// Unavailable wraps the error of a handler that could not reach something it
// needs, such as another service. The attempt does not count, however often that
// happens, and the messages of the topic are tried one at a time until one gets
// through:
//
//	if once.IsDialError(err) {
//		return inbox.Unavailable(err)
//	}
//
// [once.RetryAfter] sets a longer delay until the next one. Unavailable does not
// imply [once.NotDone], which a [Do] handler adds if nothing happened. Without
// Unavailable, the consumer notices an outage when no message gets through: see
// [Retry]. It returns a non-nil error even if err is nil.
func Unavailable(err error) error { return &unavailableError{err} }

type unavailableError struct{ err error }

func (u *unavailableError) Error() string {
	if u.err == nil {
		return "inbox: unavailable"
	}
	return "inbox: unavailable: " + u.err.Error()
}

func (u *unavailableError) Unwrap() error { return u.err }

// Failed wraps the error of a [Batch] handler to report which of its messages
// failed. The batch is rolled back. The messages before m are handled again
// without it, then m alone, then the messages after it. If an error names no
// message, the consumer finds the one that fails by halving the batch.
func Failed(m *broker.Message, err error) error { return &messageError{m, err} }

// messageError is an error about one message of a batch.
type messageError struct {
	message *broker.Message
	err     error
}

func (b *messageError) Error() string { return b.err.Error() }
func (b *messageError) Unwrap() error { return b.err }

// WithoutEffects returns a context in which once.Do fails with
// [once.ErrNoEffects]. It is for code that handles messages again to refill a
// projection. Handlers of a Consumer with a Rebuild already have this context.
func WithoutEffects(ctx context.Context) context.Context { return scope.NoEffects(ctx) }

// ErrLogChanged is returned when a log does not match the consumer's position,
// because the log was recreated or has different messages.
var ErrLogChanged = errors.New("inbox: the log is not the one that was read before")

// errBlocked rolls back the work on a message that has to wait for another one.
var errBlocked = errors.New("inbox: an earlier message with the same ordering key is on the shelf")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
}

// handlerError is an error or a panic of the user's handler. Any other error
// comes from the store.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// rejects reports whether the error is a final answer. As in once.Do and
// once.DoTx, an ErrRejected that is NotDone is an error like any other.
func (e *handlerError) rejects() bool {
	return errors.Is(e.err, once.ErrRejected) && (errors.Is(e.err, errDuplicate) || !errors.Is(e.err, errtree.ErrNotDone))
}

// handlerErrorOf returns nil if err did not come from the handler.
func handlerErrorOf(err error) *handlerError {
	var failed *handlerError
	errors.As(err, &failed)
	return failed
}

// whyOf returns the text of an error as a reason. It begins with what the handler
// said. What once adds to that is in the record of the key, except that the
// lease was lost.
func whyOf(err error) string {
	if failed := handlerErrorOf(err); failed != nil && !errors.Is(err, once.ErrLeaseLost) {
		return failed.Error()
	}
	return err.Error()
}

// asHandlerError marks an error of the user's.
func asHandlerError(err error) error {
	if err == nil {
		return nil
	}
	return &handlerError{errtree.Tame(err)}
}

// blamed returns the index of the item that a handler's error is about, or -1.
func blamed(failed *handlerError, items []*item) int {
	var m *messageError
	if !errors.As(failed, &m) {
		return -1
	}
	return slices.IndexFunc(items, func(it *item) bool { return it.Message == m.message })
}
