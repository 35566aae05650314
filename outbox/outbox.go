package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/store"
)

// Options configures an Outbox. The zero value is valid.
type Options struct {
	// Header returns headers to add to each message that lacks them, such as the
	// trace that ctx belongs to.
	Header func(ctx context.Context) map[string]string

	// MaxBody is the maximum size of a body in bytes. Default: 1 MiB. Brokers have
	// limits of their own. Store large content elsewhere, and send a reference to
	// it.
	MaxBody int
}

const defaultMaxBody = 1 << 20

// Outbox writes messages into transactions of a store. Tx is the store's
// transaction type. It is safe for concurrent use.
type Outbox[Tx any] struct {
	store   store.Outbox[Tx]
	options Options
}

// New returns the outbox of a store. A nil o means the defaults.
func New[Tx any](s store.Outbox[Tx], o *Options) *Outbox[Tx] {
	b := &Outbox[Tx]{store: s}
	if o != nil {
		b.options = *o
	}
	if b.options.MaxBody <= 0 {
		b.options.MaxBody = defaultMaxBody
	}
	return b
}

// Put writes messages in tx, which is a transaction of once.DoTx, once.InTx, a
// handler of package inbox, or the caller. They are published if it commits.
// Put gives a message without an ID one that rises with time (a version 7
// UUID), and a message without a Time the current time. It changes nothing
// else, and keeps no reference to the messages.
//
// If ctx belongs to a unit of work, Put records its key as the cause of the
// messages. The header once-key carries the key in the form of Key.String. Its
// readable parts stay in the store.
//
// Put returns [once.ErrInvalid] for a message that can never be published, for
// a body over MaxBody, and for a nil transaction. After any error, roll back.
// In a rebuild (inbox.Consumer.Rebuild) it returns [once.ErrNoEffects], because
// the readers of the messages already have them.
func (b *Outbox[Tx]) Put(ctx context.Context, tx Tx, ms ...*broker.Message) error {
	return b.PutAfter(ctx, tx, 0, ms...)
}

// PutAfter is like Put, but the messages are published no earlier than delay
// from now.
func (b *Outbox[Tx]) PutAfter(ctx context.Context, tx Tx, delay time.Duration, ms ...*broker.Message) error {
	if scope.RefusesEffects(ctx) {
		return fmt.Errorf("outbox: %w: the messages were put when this was first handled", once.ErrNoEffects)
	}
	if len(ms) == 0 {
		return nil
	}
	sealing := &b.store.Options().Sealing
	if err := sealing.Validate(); err != nil {
		return err
	}
	var added map[string]string
	if b.options.Header != nil {
		added = b.options.Header(ctx)
	}
	cause := scope.Work[once.Key](ctx)
	var text string
	if cause != (once.Key{}) {
		text = store.FormatCause(cause)
	}
	out := make([]store.Outgoing, len(ms))
	for i, m := range ms {
		if err := b.check(m); err != nil {
			return err
		}
		out[i] = store.Outgoing{Message: *m, Delay: max(delay, 0)}
		out[i].Cause = text
		out[i].Message.Header = withHeaders(m.Header, added)
		if text != "" {
			out[i].Message.Header = causedBy(out[i].Message.Header, cause)
		}
		out[i].Message = store.SealOutgoing(sealing, out[i].Message)
	}
	if err := b.store.PutTx(ctx, tx, out); err != nil {
		return err
	}
	logEach(ctx, b.store.Options().Logger, observe.MessagePut, out)
	return nil
}

// check fills in what a message lacks, and rejects a message that no broker would
// accept.
func (b *Outbox[Tx]) check(m *broker.Message) error {
	if m != nil && m.ID == "" {
		m.ID = name.Ordered(time.Now())
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: outbox: %w", once.ErrInvalid, err)
	}
	if len(m.Body) > b.options.MaxBody {
		return fmt.Errorf("%w: outbox: the body of message %q has %d bytes, the limit is %d: raise Options.MaxBody, or store it "+
			"elsewhere and send a reference", once.ErrInvalid, m.ID, len(m.Body), b.options.MaxBody)
	}
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	return nil
}
