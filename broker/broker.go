// Package broker defines the contract between once and systems that carry
// messages. An adapter translates the contract to one system and adds nothing.
// Retries, order, duplicates, backoff and reconnecting are implemented above it,
// in package inbox and in publishers.
//
// # Promise
//
// A broker delivers at least once. An adapter promises to lose nothing: a message
// is gone only after its [Session.Ack] or [Session.Reject], and Publish returns
// nil only for messages that the broker has confirmed. Package brokertest tests
// these rules.
//
// # Writing an adapter
//
// Implement [Publisher] and [Source], and the optional interfaces that the system
// supports.
//
//	interface       of         implemented by                           without it
//	[Delayer]       Session    Kafka, NATS, SQS, Pub/Sub, Service Bus   Return redelivers at once
//	[DeadLetterer]  Session    all                                      rejected messages count as gone
//	[Seeker]        Session    all logs                                 a consumer cannot restore its position
//	[Subscriber]    Source     the store itself                         consumers of one source share its messages
//	[Placeless]     Source     NATS logs, Event Hubs                    the broker keeps the position of a consumer
//	[Located]       Source     Kafka, NATS, RabbitMQ, SQS, Event Hubs   sources with the same name are the same
//	[Varying]       Source     webhooks                                 copies of a message with other bodies are parked
//	[Horizon]       Source     Kafka, NATS, SQS, Pub/Sub                a message may come at any time
//	[Lagger]        Source     all but Pub/Sub and those of LogLagger   the lag is unknown
//	[LogLagger]     Source     NATS logs, Event Hubs                    the lag is unknown, if the source is Placeless
//	[Deduplicator]  Publisher  NATS                                     the broker drops no duplicates
//
// Package membroker implements all but Placeless and Varying. A source of Service
// Bus is a Lagger if its Broker has a management client.
//
// # Compatibility
//
// As package once. Interfaces get no new methods. New capabilities are new
// optional interfaces.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/effectively-once/once/internal/name"
)

// Message is a message. Its ID is the same from the transaction of its producer
// to every consumer, however often it is sent.
type Message struct {
	ID          string            // mandatory; 1 to 255 printable bytes; identifies the message for ever
	Topic       string            // mandatory; its destination or origin: a routing key, a subject, a topic
	OrderingKey string            // messages with an equal key keep their order; empty: no order; up to 255 bytes
	Body        []byte            // read-only after delivery
	Header      map[string]string // names are lower case; those that begin with "once-" are reserved: see headers.go
	Time        time.Time         // when it was produced; zero: unknown
	Attempt     int               // of a delivery: its number, from 1 on, as the broker counts; 0: unknown; not published
}

// ErrInvalid is returned for a message or an argument that can never be accepted.
// The text says what to change.
var ErrInvalid = errors.New("broker: invalid")

// ErrNotYet is returned by a publisher that works, for a message that it cannot take
// before something else has changed: nothing takes its topic, or its queue is full.
// Neither the message nor the broker is at fault. A relay keeps the message, and
// tries it again without counting attempts.
var ErrNotYet = errors.New("broker: not yet")

// ErrSettled is returned by a session for a delivery that is not, or no longer, its
// own to settle. Nothing is left to do: the message is settled, or comes again.
var ErrSettled = errors.New("the delivery was settled already, or its time with this session is over")

// Check returns an [ErrInvalid] if a message cannot be published.
func (m *Message) Check() error {
	if m == nil {
		return fmt.Errorf("%w: the message is nil", ErrInvalid)
	}
	if m.ID == "" || m.Topic == "" {
		return fmt.Errorf("%w: a message needs an ID and a Topic; this one has %.40q and %.40q", ErrInvalid, m.ID, m.Topic)
	}
	if err := cmp.Or(name.Check("ID", m.ID), name.Check("Topic", m.Topic), name.Check("OrderingKey", m.OrderingKey)); err != nil {
		return fmt.Errorf("%w: message %.40q: %w", ErrInvalid, m.ID, err)
	}
	for header, value := range m.Header {
		if !headerName(header) || strings.ContainsFunc(value, unicode.IsControl) || !utf8.ValidString(value) {
			return fmt.Errorf("%w: the header %.40q of message %q: names are lower-case letters, digits, dots, dashes and "+
				"underscores, values have no control characters", ErrInvalid, header, m.ID)
		}
		if IsField(header) {
			return fmt.Errorf("%w: the header %.40q of message %q: adapters use this name for what is no header. Choose a name that "+
				"does not begin with once-", ErrInvalid, header, m.ID)
		}
	}
	return nil
}

// Publisher sends messages to a broker. It is safe for concurrent use.
type Publisher interface {
	// Publish sends messages and waits until the broker has confirmed each,
	// with the durability of the broker's settings. It returns nil if all were
	// confirmed, and otherwise one error for each message, which is nil if that
	// message was confirmed. After an error, the message may have been stored.
	// The caller publishes it again with its ID, and consumers detect the
	// duplicate. A message with an [ErrInvalid] will never be accepted.
	// Messages with an equal OrderingKey arrive in the order of the slice,
	// except those with errors. The caller owns the slice and the messages.
	// Publish neither keeps nor changes them.
	//
	// A message that no queue takes is an error if the broker can detect that.
	// When ctx ends, Publish returns errors for the unconfirmed messages. The
	// adapter does not retry, but it may reconnect.
	Publish(ctx context.Context, ms []*Message) []error

	// Close closes connections. Messages that are being published may fail.
	Close() error
}

// Source is where messages come from: a queue, a subscription, topics of a log.
// It is a description. [Source.Open] connects.
type Source interface {
	// Open starts to consume. The window is the maximum number of deliveries in
	// flight, which are received and not settled. All sessions of a source, in
	// all processes, share its messages. The context limits the opening only. A
	// queue or a log whose kind or settings break this contract is an
	// [ErrInvalid], as far as the broker tells.
	Open(ctx context.Context, window int) (Session, error)

	// Name returns the name of the source, which identifies it to consumers: the
	// kind of broker, the queue or topic, and the group, such as "rabbitmq queue
	// orders". It never changes and contains no secret. [Located] identifies the
	// cluster.
	Name() string
}

// Subscriber is a [Source] that gives all its messages to each consumer: each has a
// queue of its own, which the sessions of its processes share.
type Subscriber interface {
	// For returns the source of a consumer, with the same Name. keys is the name in
	// the keys of the consumer, which stays when the consumer is renamed.
	For(keys string) Source
}

// Session receives messages. When it breaks, its unsettled deliveries are
// delivered again, through another session of the source.
//
// Receive has one caller at a time. Ack, Return and Reject may be called
// concurrently with it and with each other, and in any order of deliveries. Each
// delivery is settled once, by one of them.
type Session interface {
	// Receive waits for a message and returns the available ones, up to max. An
	// error other than the context's means that the session is broken: Close it
	// and open another. Messages of one ordering key come in order, except
	// redelivered ones.
	Receive(ctx context.Context, max int) ([]Delivery, error)

	// Ack settles messages that were handled. It returns once the broker has
	// confirmed that, or once it is sent if the broker does not confirm acks.
	// After an error, any of the messages may be redelivered. To settle a delivery
	// twice is an [ErrSettled]. So is to settle it after another session has taken
	// it over, if the adapter can tell. The other deliveries of the slice are
	// settled nevertheless. This is also true of Return and Reject.
	Ack(ctx context.Context, ds []Delivery) error

	// Return lets messages be delivered again, by any session. A [Delayer]
	// delivers them after the delay, other sessions at once. If the broker
	// counts attempts, it counts one more.
	Return(ctx context.Context, ds []Delivery, after time.Duration) error

	// Reject removes messages for good. They become dead letters, with the reason
	// if the broker supports that (see [DeadLetterer]). If there is no place for
	// dead letters, they are gone.
	Reject(ctx context.Context, ds []Delivery, reason string) error

	// Close ends the session. Unsettled deliveries are delivered again. ctx
	// limits Close. It may be called twice, but not during Receive.
	Close(ctx context.Context) error
}

// Delivery is one delivery of a message. The session that it came from settles
// it.
type Delivery struct {
	Message *Message

	// Redelivered is true if the message may have been delivered before, to any
	// session. False is a promise that this is the first delivery. It is not
	// about the ID: a message that was published twice is two messages to a
	// broker. An adapter that cannot know sets it to true.
	Redelivered bool

	Position *Position // its position in a log; nil if the source is not a log
	Origin   string    // where it came from, for people: "orders/3@1042"
	Tag      any       // for the adapter
}

// Position is a position in a log. A log is a source that always keeps the
// order of messages in each partition. If a message is neither settled nor
// returned, no later message comes before it is delivered again. A source that
// cannot keep this rule has no positions, because a consumer would take the
// message for handled.
type Position struct {
	Log       string // identifies the log; changes if it is recreated under the same name, if the broker reports that
	Partition string // of the log; unique among all logs of its source; messages are in order within it
	Offset    int64  // increases with each message
}

// Delayer is a [Session] that can delay returned messages.
type Delayer interface {
	// LongestDelay returns the longest delay of Return. A delay may have a
	// cost: a log is not acknowledged past a returned message.
	LongestDelay() time.Duration
}

// DeadLetterer is a [Session] that knows what happens to rejected messages.
type DeadLetterer interface {
	// KeepsRejected reports whether rejected messages are kept as dead letters.
	KeepsRejected() bool
}

// Seeker is a [Session] of a log that can move its position.
type Seeker interface {
	// Seek makes this and later sessions continue with the first message after p;
	// an Offset of -1 is before all messages. It is not called during Receive.
	// Deliveries of the partition in flight need not be settled any more. Seek
	// fails if the session does not own the partition, if the log is another one,
	// or if messages after p are deleted.
	Seek(ctx context.Context, p Position) error
}

// Placeless is a [Source] that does not keep the position of its consumer. Each
// session starts at the oldest message, and its acks are forgotten when it ends.
// Its sessions are [Seeker]s. It is for consumers that keep their own positions.
type Placeless interface {
	// KeepsNoPlace marks the source. It does nothing.
	KeepsNoPlace()
}

// Located is a [Source] that can ask its broker where it is, so that sources with
// the same name at different brokers are different.
type Located interface {
	// Location returns facts by name, such as "cluster" and "vhost". A fact
	// never changes while the source exists, whichever address, node or user is
	// used, and also after a failover or a restart. So hosts and ports are not
	// facts, and neither is anything that the broker tells only some users. An
	// empty map is not an error. An error means that the broker did not answer.
	Location(ctx context.Context) (map[string]string, error)
}

// Varying is a [Source] whose sender may change a message between the attempts to
// deliver it.
type Varying interface {
	// Input returns what all deliveries of a message have in common. Two messages
	// with one ID and different inputs are two messages. A nil input is not
	// compared. The message may also come from a shelf.
	Input(*Message) []byte
}

// Deduplicator is a [Publisher] whose broker drops messages with an ID that it
// has seen recently.
type Deduplicator interface {
	// DeduplicationWindow returns how long the broker remembers an ID; 0 means
	// that it does not.
	DeduplicationWindow() time.Duration
}

// Horizon is a [Source] that knows until when a message may be delivered.
type Horizon interface {
	// RedeliveryHorizon returns how long after it was stored a message may be
	// delivered, for the first time or again; 0 means for ever.
	RedeliveryHorizon(ctx context.Context) (time.Duration, error)
}

// Lagger is a [Source] that knows how much it still has for its consumer. A source
// that is [Placeless] is a [LogLagger] instead.
type Lagger interface {
	// Lag returns the lag of all sessions of the source together, as the broker
	// reports it. It needs no session and affects none.
	Lag(ctx context.Context) (Lag, error)
}

// LaggerOf returns a source as a [Lagger]. A [Placeless] one is none, also if it has the
// method: its broker does not know how far the consumer has come.
func LaggerOf(s Source) (Lagger, bool) {
	l, ok := s.(Lagger)
	_, placeless := s.(Placeless)
	return l, ok && !placeless
}

// LogLagger is a [Source] of a log that knows how much it has after positions. It
// is for consumers that keep their own positions.
type LogLagger interface {
	// LagFrom returns the number of messages after positions, which are by
	// partition, in all partitions together. A partition without a position counts
	// from the first message that it has, which is where a [Placeless] source
	// starts. Messages that the log has deleted do not count. Positions in
	// partitions of other logs are ignored. It needs no session and affects none.
	//
	// It returns an error, and no number, if a position is one of an earlier log
	// with the same name, or if the log ends before it: the offsets of later
	// messages then do not tell whether they were handled.
	LagFrom(ctx context.Context, at map[string]Position) (Lag, error)
}

// Lag is what a source still has for its consumer.
type Lag struct {
	Messages int64         // number of unsettled messages, as far as the broker counts them
	Oldest   time.Duration // age of the first of them; 0 if there is none or it is unknown
}

// headerName reports whether name is a valid name of a header.
func headerName(name string) bool {
	if name == "" || len(name) > 255 {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
