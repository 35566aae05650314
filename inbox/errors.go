package inbox

import (
	"context"
	"errors"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/scope"
)

var errDuplicate = errors.New("inbox: a duplicate, by a rule of the business")

// Duplicate wraps the error of a handler that found its work already done, for
// example by a unique constraint of the business data. The transaction is
// rolled back, and the message counts as handled.
func Duplicate(err error) error { return errors.Join(errDuplicate, once.ErrRejected, err) }

// Failed wraps the error of a [Batch] handler to report which of its messages
// failed. The batch is rolled back. The messages before m are handled again
// without it, then m alone, then the messages after it. If an error names no
// message, the consumer finds the one that fails by halving the batch.
func Failed(m *broker.Message, err error) error { return &blame{m, err} }

type blame struct {
	message *broker.Message
	err     error
}

func (b *blame) Error() string { return b.err.Error() }
func (b *blame) Unwrap() error { return b.err }

// WithoutEffects returns a context in which once.Do fails with
// [once.ErrNoEffects]. It is for code that handles messages again to refill a
// projection. Handlers of a Consumer with a Rebuild already have such a
// context.
func WithoutEffects(ctx context.Context) context.Context { return scope.NoEffects(ctx) }

// ErrLogChanged is returned when a log does not match the consumer's position,
// because the log was recreated or has different messages.
var ErrLogChanged = errors.New("inbox: the log is not the one that was read before")

// errHeld rolls back the work on a message that has to wait behind another.
var errHeld = errors.New("inbox: behind another message of its ordering key, which waits")
