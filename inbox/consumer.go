package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
)

// Consumer handles the messages of a source, each once. Name, Source and Handler are mandatory; the zero value of all
// other fields works. It is not changed by use, and may run any number of times, here and elsewhere. What goes wrong is
// logged to the Logger of the store's Options.
type Consumer struct {
	// Name is part of the key of every message, so consumers with different names each handle all of what they get. It has
	// no slash and no @, at most 245 bytes, and is never changed without RenamedFrom: a new name would handle everything again.
	Name    string
	Source  broker.Source
	Handler Handler

	// Key names the unit of work that a message is about: an order id from the body, for example, so that a business
	// duplicate with another message id is recognised. Default: the message's ID. An error parks the message.
	Key func(*broker.Message) (string, error)

	// Input is what must be equal in messages of one key; one with another input is parked, because a key that is too
	// coarse would drop work in silence. Default: the body. Nil is never compared.
	Input func(*broker.Message) []byte

	// OrderBy groups messages that are handled in order, one after another; empty: in no order. Default: the OrderingKey.
	OrderBy func(*broker.Message) string

	// Checkpoint, for the Tx and Batch handlers of a log, keeps one position for each partition instead of a key for
	// each message: it moves in the commit of what the handlers wrote. It tells what the log delivers again, and not
	// what a producer has written to the log twice, as a relay does when a confirm is lost: where that can be, set Key
	// as well, and keys are kept besides. Messages of a partition are handled in order and together, up to BatchSize in
	// one transaction; one that fails is tried on the shelf, so that others pass it, but for those of its ordering key.
	Checkpoint bool

	BatchSize   int // of Batch handlers and Checkpoint: messages in a transaction; default 64
	Concurrency int // handlers, or batches, at once; default 8, and 2 for batches
	Window      int // messages that are received and not settled; default: twice what the handlers can hold

	Retry    Retry
	OnParked OnParked    // what becomes of messages behind a parked one of their ordering key
	Policy   once.Policy // of the keys; a Do handler's Operation may have its own

	// Speculative is [once.Operation.Speculative], for Tx handlers without Checkpoint: a copy of a message that another
	// process is handling may enter the handler, without effect. Messages that were delivered before are looked up first
	// all the same. Default false: a copy enters nothing.
	Speculative bool

	// RenamedFrom is the name that this consumer had before. Its keys go on under the first name that it ever had.
	RenamedFrom string

	// SharedWith is another source of the same messages that uses this
	// consumer's name: the one before a move to another broker or a renaming
	// of it, or one that is fed beside this one. It is the text in the error
	// of Run, such as "rabbitmq queue orders [cluster=old]". Without the
	// brackets it is the source of that name at any broker. The two share
	// keys, so what came from one is a duplicate from the other.
	//
	// Without SharedWith, a name belongs to the source that it was first used
	// at, and Run returns an error at any other: two services with one name in
	// one store would take each other's messages for duplicates. Sources
	// differ in their Name, or in what their brokers tell: see
	// [broker.Located].
	SharedWith string

	// Rebuild, if it is not empty, names a rebuild: messages are handled anew, under keys and positions of the rebuild's
	// own, and whatever goes through once.Do is refused. It is the only way to have messages handled again: resetting
	// the offsets of a log does nothing. For handlers that fill a projection.
	Rebuild string

	// StopTime is how long handlers may go on when Run is to end, before their contexts are cancelled. Default 20 seconds.
	StopTime time.Duration

	Stats    *Stats   // counts what becomes of messages, if it is not nil
	Observer Observer // sees each message, if it is not nil
}

// Retry says how often and when a message that failed is tried again.
type Retry struct {
	// Attempts is how often a message is tried before it is parked; default 10. It is also how many processes a message may
	// end, not counting its first delivery, which is not counted in advance.
	Attempts int

	First time.Duration // the wait after the first failure; it doubles from then on, with jitter; default 200 ms
	Limit time.Duration // no wait is longer, but for RetryAfter; default 5 minutes
}

// OnParked says what becomes of messages behind a parked one of their ordering key.
type OnParked int

const (
	HoldOrder OnParked = iota // they wait on the shelf until a person has decided about it. Without a shelf they pass
	Pass                      // they are handled: order is kept only among those that are not parked
)

const (
	defaultAttempts, defaultFirst, defaultLimit   = 10, 200 * time.Millisecond, 5 * time.Minute
	defaultBatch, defaultWidth, defaultBatchWidth = 64, 8, 2
	defaultStopTime                               = 20 * time.Second
)

// Run consumes until ctx ends, and returns nil when everything that had begun is settled or given back. It connects anew
// whenever the connection is lost. An error means that it cannot go on without a person: its text says what to do.
func (c *Consumer) Run(ctx context.Context) error {
	s, err := c.newShift()
	if err != nil {
		return err
	}
	pause := &backoff.Backoff{First: firstWait, Limit: lastWait}
	for err = s.register(ctx); err != nil; err = s.register(ctx) {
		if errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrClosed) || errors.Is(err, broker.ErrInvalid) {
			return err
		}
		s.logger.WarnContext(ctx, "inbox: the consumer could not be registered, and nothing is consumed", logs.Spaced(""), "error", err)
		if backoff.Sleep(ctx, pause.Next()) != nil {
			return nil
		}
	}
	if err := s.checkHorizon(ctx); err != nil {
		return err
	}
	return s.run(ctx)
}

// newShift checks everything that can be checked before anything is touched.
func (c *Consumer) newShift() (*consumerRun, error) {
	set := *c
	set.Retry.Attempts = cmp.Or(set.Retry.Attempts, defaultAttempts)
	set.Retry.First = cmp.Or(set.Retry.First, defaultFirst)
	set.Retry.Limit = cmp.Or(set.Retry.Limit, max(defaultLimit, set.Retry.First))
	set.BatchSize = cmp.Or(set.BatchSize, defaultBatch)
	set.StopTime = cmp.Or(set.StopTime, defaultStopTime)
	if set.Stats == nil {
		set.Stats = new(Stats)
	}
	switch {
	case c.Name == "":
		return nil, invalid("a consumer has no Name: it is part of the key of every message")
	case !plain(c.Name) || !plain(c.Rebuild):
		return nil, invalid("the Name %.40q or the Rebuild %.40q has a slash or an @: leave them out", c.Name, c.Rebuild)
	case name.Check("Name", c.Name+c.Rebuild) != nil:
		return nil, invalid("%v", name.Check("Name", c.Name+c.Rebuild))
	case len(c.named(c.Name)) > name.Limit-len(attemptsSuffix):
		return nil, invalid("consumer %.40q: the Name, with the Rebuild if there is one, has %d bytes: at most %d fit into the keys of its attempts",
			c.Name, len(c.named(c.Name)), name.Limit-len(attemptsSuffix))
	case c.Source == nil:
		return nil, invalid("consumer %q has no Source", c.Name)
	case c.Handler.engine == nil:
		return nil, invalid("consumer %q has no Handler: make one with inbox.Tx, inbox.Do or inbox.Batch", c.Name)
	case !c.Checkpoint && isPlaceless(c.Source):
		return nil, invalid("consumer %q: %s does not keep how far it has come: set Checkpoint", c.Name, c.Source.Name())
	case set.Retry.Attempts < 1 || set.Retry.First < 0 || set.Retry.Limit < set.Retry.First:
		return nil, invalid("consumer %q: Retry needs at least one attempt, and a Limit that is not below First", c.Name)
	case c.BatchSize < 0 || c.Concurrency < 0 || c.Window < 0 || c.StopTime < 0:
		return nil, invalid("consumer %q: BatchSize, Concurrency, Window and StopTime must not be negative", c.Name)
	case c.OnParked < HoldOrder || c.OnParked > Pass:
		return nil, invalid("consumer %q: OnParked is neither HoldOrder nor Pass", c.Name)
	case c.RenamedFrom == c.Name:
		return nil, invalid("consumer %q is renamed from its own name", c.Name)
	}
	return c.Handler.engine(&set)
}

// finish fills in what depends on whether messages are handled together.
func (c *Consumer) finish(together bool) {
	size, width := 1, defaultWidth
	if together {
		size, width = c.BatchSize, defaultBatchWidth
	} else {
		c.BatchSize = 1
	}
	c.Concurrency = cmp.Or(c.Concurrency, width)
	c.Window = max(cmp.Or(c.Window, 2*size*c.Concurrency), 1)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
}

func isPlaceless(s broker.Source) bool {
	_, ok := s.(broker.Placeless)
	return ok
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] == '/' || s[i] == '@' {
			return false
		}
	}
	return true
}
