package inbox

import (
	"cmp"
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Consumer handles each message of a source once. Name, Source and Handler are
// required; the zero value of all other fields is valid. A Consumer is not
// changed by use, and may run several times concurrently, in any number of
// processes. It logs to the Logger of the store's Options.
type Consumer struct {
	// Name is part of the key of every message, so consumers with different names
	// each handle all messages. It contains no slash and no @. To change it, see
	// [Admin.Rename] or set RenamedFrom; otherwise all messages are handled again.
	Name    string
	Source  broker.Source
	Handler Handler

	// Key returns the ID of the unit of work that a message is about. An order ID
	// from the body, for example, detects a business duplicate that has another
	// message ID. Default: the message's ID. An error parks the message.
	Key func(*broker.Message) (string, error)

	// Input returns what messages with the same key must have in common. A message
	// with another input is parked, because a key that is too coarse would
	// silently drop work. A nil input is not compared. Default: what the source
	// says if it is a [broker.Varying], and otherwise the body.
	Input func(*broker.Message) []byte

	// OrderBy returns the ordering key of a message. Messages with the same key
	// are handled in order, one at a time; those with an empty key in any order.
	// Default: the message's OrderingKey.
	OrderBy func(*broker.Message) string

	// Checkpoint stores one position per partition instead of a key per message.
	// It is for Tx and Batch handlers of a log. The position is committed together
	// with what the handlers wrote. It detects redelivery by the log, but not a
	// message that a producer wrote twice, as a relay does when it loses a
	// confirmation. If that can happen, set Key too, and keys are stored as well.
	// The messages of a partition are handled in order, up to BatchSize in one
	// transaction. A message that fails moves to the shelf and is retried there,
	// so that messages with other ordering keys can pass it.
	Checkpoint bool

	BatchSize   int // messages per transaction of Batch handlers and Checkpoint; default 64
	Concurrency int // concurrent handlers or batches; default 8, for batches 2
	Window      int // messages received and not settled with the broker; default: twice what the handlers can hold

	Retry    Retry
	OnParked OnParked    // what happens to later messages of an ordering key
	Policy   once.Policy // of the keys, unless a Do handler's Operation has its own

	// Speculative is [once.Operation.Speculative] for Tx handlers without
	// Checkpoint: a copy of a message that another process is handling may enter
	// the handler, without effect. Redelivered messages are always looked up
	// first. Default: false, copies do not enter.
	Speculative bool

	// RenamedFrom is the previous name of this consumer. Its keys continue under
	// the first name that it ever had. It is not needed after [Admin.Rename].
	RenamedFrom string

	// SharedWith is another source of the same messages that uses this consumer's
	// name, such as the source before a move to another broker. Copy it from the
	// error of Run, for example "rabbitmq queue orders [cluster=old]". Without the
	// brackets, it is the source of that name at any broker. The two share keys,
	// so a message that was handled from one is a duplicate at the other.
	//
	// Without SharedWith, a name belongs to the source where it was first used,
	// and Run returns an error at any other source. Otherwise two services with
	// one name in one store would take each other's messages for duplicates.
	// Sources are distinguished by their Name and by what their brokers report:
	// see [broker.Located].
	SharedWith string

	// Rebuild names a rebuild, if it is not empty: all messages are handled again,
	// under the rebuild's own keys and positions, and calls of once.Do are
	// refused. Use it for handlers that fill a projection. It is the only way to
	// handle messages again; resetting the offsets of a log has no effect. A
	// [broker.Subscriber] has nothing from before, so it is refused.
	Rebuild string

	// StopTime is how long running handlers may continue after the context of Run
	// ends, before their own contexts are cancelled. Default: 20 seconds.
	StopTime time.Duration

	Stats    *Stats   // counts messages by result; optional
	Observer Observer // observes each message; optional
}

// Retry configures how often and when a failed message is retried.
//
// A message is parked after Attempts if others of its topic were handled
// meanwhile, or others of the consumer if it is the only one of its topic that
// fails. If nothing of a topic gets through, what the handler needs is probably
// down. Then its messages are tried one at a time, at most 10 seconds apart, no
// attempts are counted, and nothing is parked for them, until one gets through.
// That is also the case after an error of [Unavailable].
//
// A question that Lookup does not answer is no attempt. It is asked again and again,
// each time after a quarter of the time for which the outcome has been unknown, and
// not after more than Limit; once that has been Outage, questions count.
type Retry struct {
	// Attempts is how often a message is tried before it is parked. Default: 10.
	// It also limits how many processes a message can kill, not counting its first
	// delivery.
	Attempts int

	First time.Duration // delay after the first failure, doubled each time, with jitter; default 200 ms
	Limit time.Duration // longest delay, unless RetryAfter sets a longer one; default 5 minutes

	// Outage is how long nothing of a topic may get through before attempts are
	// counted again. A message that always fails, and of which nothing tells that
	// it is to blame, is parked after that. Default: 3 days. If it is negative, only Unavailable tells
	// of an outage, and all other failures count.
	Outage time.Duration
}

// OnParked says what happens to later messages with the ordering key of a
// parked message.
type OnParked int

const (
	HoldOrder OnParked = iota // they wait on the shelf until a person decides; without a shelf they pass
	Pass                      // they are handled; order is kept among messages that are not parked
)

// Handler handles messages. Create it with [Tx], [Do] or [Batch].
type Handler struct {
	newRun func(*Consumer) (runner, error)
}

// runner is a consumer whose settings are complete and valid.
type runner interface {
	run(context.Context) error
}

// Run consumes until ctx ends, and returns nil once everything in progress is
// settled or given back. It does not wait for long for a broker that does not
// answer: messages that it has not settled come again, and are recognised. Run
// reconnects whenever the connection is lost. If it returns an error, a person
// must act: the text says what to do.
func (c *Consumer) Run(ctx context.Context) error {
	set := c.withDefaults()
	if err := set.check(); err != nil {
		return err
	}
	r, err := set.Handler.newRun(set)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

const (
	defaultAttempts = 10
	defaultFirst    = 200 * time.Millisecond
	defaultLimit    = 5 * time.Minute
	defaultOutage   = 3 * 24 * time.Hour

	defaultBatchSize        = 64
	defaultConcurrency      = 8
	defaultBatchConcurrency = 2

	defaultStopTime = 20 * time.Second

	defaultLease       = 30 * time.Second
	defaultKeepOutcome = 3 * 24 * time.Hour
	defaultKeepKey     = 30 * 24 * time.Hour
)

// withDefaults returns a copy with the defaults that hold for all handlers.
func (c *Consumer) withDefaults() *Consumer {
	set := *c
	set.Retry.Attempts = cmp.Or(set.Retry.Attempts, defaultAttempts)
	set.Retry.First = cmp.Or(set.Retry.First, defaultFirst)
	set.Retry.Limit = cmp.Or(set.Retry.Limit, max(defaultLimit, set.Retry.First))
	set.Retry.Outage = cmp.Or(set.Retry.Outage, defaultOutage)
	set.BatchSize = cmp.Or(set.BatchSize, defaultBatchSize)
	set.StopTime = cmp.Or(set.StopTime, defaultStopTime)
	set.Policy.Lease = cmp.Or(set.Policy.Lease, defaultLease)
	set.Policy.KeepOutcome = cmp.Or(set.Policy.KeepOutcome, defaultKeepOutcome)
	set.Policy.KeepKey = cmp.Or(set.Policy.KeepKey, max(defaultKeepKey, set.Policy.KeepOutcome))
	if set.Stats == nil {
		set.Stats = new(Stats)
	}
	if set.OrderBy == nil {
		set.OrderBy = func(m *broker.Message) string { return m.OrderingKey }
	}
	if source, ok := set.Source.(broker.Varying); ok && set.Input == nil {
		set.Input = source.Input
	}
	if set.Input == nil {
		set.Input = func(m *broker.Message) []byte { return m.Body }
	}
	return &set
}

// check returns an error if the settings are invalid for any handler.
func (c *Consumer) check() error {
	switch {
	case c.Name == "":
		return invalid("a consumer has no Name: it is part of the key of every message")
	case !isPlain(c.Name) || !isPlain(c.Rebuild):
		return invalid("the Name %.40q or the Rebuild %.40q has a slash or an @: leave them out", c.Name, c.Rebuild)
	case name.Check("Name", c.Name+c.Rebuild) != nil:
		return invalid("%v", name.Check("Name", c.Name+c.Rebuild))
	case len(c.operationOf(c.Name)) > name.Limit-len(countSuffix):
		return invalid("consumer %.40q: the Name, with the Rebuild if there is one, has %d bytes: at most %d fit into the keys of its attempts",
			c.Name, len(c.operationOf(c.Name)), name.Limit-len(countSuffix))
	case c.Source == nil:
		return invalid("consumer %q has no Source", c.Name)
	case c.Handler.newRun == nil:
		return invalid("consumer %q has no Handler: create one with inbox.Tx, inbox.Do or inbox.Batch", c.Name)
	case c.Rebuild != "" && isSubscriber(c.Source):
		return invalid("consumer %q: a Rebuild gets nothing from %s that was published before it: consume from a log, or fill the tables "+
			"from the data itself", c.Name, c.Source.Name())
	case !c.Checkpoint && isPlaceless(c.Source):
		return invalid("consumer %q: %s does not remember what was consumed: set Checkpoint", c.Name, c.Source.Name())
	case c.Retry.Attempts < 1 || c.Retry.First < 0 || c.Retry.Limit < c.Retry.First:
		return invalid("consumer %q: Retry needs at least one attempt, and a Limit that is not below First", c.Name)
	case c.BatchSize < 0 || c.Concurrency < 0 || c.Window < 0 || c.StopTime < 0:
		return invalid("consumer %q: BatchSize, Concurrency, Window and StopTime must not be negative", c.Name)
	case c.OnParked < HoldOrder || c.OnParked > Pass:
		return invalid("consumer %q: OnParked is neither HoldOrder nor Pass", c.Name)
	case sharesWithAnyRetired(c.SharedWith):
		return invalid("consumer %q: SharedWith names no particular retirement: copy it from the error of Run", c.Name)
	case c.RenamedFrom == c.Name:
		return invalid("consumer %q is renamed from its own name", c.Name)
	}
	return nil
}

// sharesWithAnyRetired reports whether a source matches all retirements, so that a
// consumer which has it would come back from the next one by itself.
func sharesWithAnyRetired(source string) bool {
	at, _, _, ok := store.RetiredAt(source)
	return ok && at.IsZero()
}

// setMode fills in the defaults that depend on how messages are handled.
func (c *Consumer) setMode(m mode) {
	width := defaultConcurrency
	if m.together() {
		width = defaultBatchConcurrency
	} else {
		c.BatchSize = 1
	}
	c.Concurrency = cmp.Or(c.Concurrency, width)
	c.Window = max(cmp.Or(c.Window, 2*c.BatchSize*c.Concurrency), 1)
}

// mode is how the messages of a consumer are handled.
type mode int

const (
	oneByOne  mode = iota // each in a transaction
	inBatches             // several in a transaction
	inOrder               // several in the transaction that moves a position
	outside               // each by an effect outside the database
)

// together reports whether messages share transactions.
func (m mode) together() bool { return m == inBatches || m == inOrder }

// operationOf is the operation of the keys, and the name of the positions, of a
// consumer with that name.
func (c *Consumer) operationOf(consumer string) string {
	if c.Rebuild == "" {
		return consumer
	}
	return consumer + "@" + c.Rebuild
}

// countSuffix makes the operation of the keys that count attempts. No step of a
// handler and no other consumer can have it: steps come after a slash, and the
// name of a consumer or of its rebuild has no @.
const countSuffix = "@@attempts"

// isSubscriber reports whether a source has a queue for each consumer, that begins
// with it.
func isSubscriber(s broker.Source) bool {
	_, ok := s.(broker.Subscriber)
	return ok
}

func isPlaceless(s broker.Source) bool {
	_, ok := s.(broker.Placeless)
	return ok
}

// isPlain reports whether a name has none of the separators of operations.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] == '/' || s[i] == '@' {
			return false
		}
	}
	return true
}
