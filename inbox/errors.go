package inbox

import (
	"context"
	"errors"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/scope"
)

var errDuplicate = errors.New("inbox: a duplicate, by a rule of the business")

// Duplicate is returned by a handler that has met a uniqueness rule of the business: the work was done by another message,
// or by no message at all. What a transaction wrote is rolled back, and the message counts as handled.
func Duplicate(err error) error { return errors.Join(errDuplicate, once.ErrRejected, err) }

// Failed is returned by a [Batch] handler to say which of its messages failed, and how. The batch is rolled back; the
// messages before it are handled again without it, then it alone, then those behind it. An error that blames none
// makes the consumer find out, by halves.
func Failed(m *broker.Message, err error) error { return &blame{m, err} }

type blame struct {
	message *broker.Message
	err     error
}

func (b *blame) Error() string { return b.err.Error() }
func (b *blame) Unwrap() error { return b.err }

// WithoutEffects returns a context in which once.Do refuses to run, with [once.ErrNoEffects]: for code that handles again
// what was handled before, to fill a projection anew. Handlers of a Consumer with a Rebuild have such a context.
func WithoutEffects(ctx context.Context) context.Context { return scope.NoEffects(ctx) }

// ErrLogChanged says that a log is not the one that the consumer's position is of: it was made anew, or its
// messages are not those that were there.
var ErrLogChanged = errors.New("inbox: the log is not the one that was read before")

// errHeld rolls back the work on a message that has to wait behind another.
var errHeld = errors.New("inbox: behind another message of its ordering key, which waits")
