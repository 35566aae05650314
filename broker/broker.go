// Package broker is the contract between once and the systems that carry messages. An adapter translates it into the
// words of one system and adds nothing: retries, order, duplicates, back-off and reconnecting live above it, in package
// inbox, and in whoever publishes.
//
// # Promise
//
// A broker here delivers at least once. What an adapter promises is that it loses nothing: a message is gone only after
// its [Session.Ack] or [Session.Reject], and Publish says nil only for what the broker has confirmed. Package brokertest
// has the rules as tests.
//
// # Writing an adapter
//
// Implement [Publisher] and [Source], and of the optional interfaces those that the system can keep.
//
// # Compatibility
//
// That of package once: interfaces here get no new methods, more power comes as another optional interface.
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

// Message is what travels. Its ID is the same from the producer's transaction to every consumer, however often it is sent.
type Message struct {
	ID          string            // names the message for ever: 1 to 255 printable bytes, mandatory
	Topic       string            // where it goes, or came from: a routing key, a subject, a topic; mandatory
	OrderingKey string            // messages with an equal one keep their order; empty: no order; at most 255 bytes
	Body        []byte            // read only once it was delivered
	Header      map[string]string // names are lower case; those that begin with "once-" are the library's
	Time        time.Time         // when it was produced; zero: not known
	Attempt     int               // of a delivery: which one it is, from 1 on, as the broker counts; 0: not known. Not published
}

// ErrInvalid says that a message or an argument can never be accepted; the text says what to change.
var ErrInvalid = errors.New("broker: invalid")

// Check says what is wrong with a message that is to be published, as an [ErrInvalid].
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
	}
	return nil
}

// Publisher hands messages to a broker. All methods may be called concurrently.
type Publisher interface {
	// Publish sends messages and waits until the broker has confirmed each, as durable as the broker's settings make it.
	// It returns nil if all of them were, else one error for each, nil for those that were. An error means that the
	// message may have been stored or not: it is published again, with its ID, and consumers tell the copy. One that is
	// [ErrInvalid] will never be accepted. Messages with an equal OrderingKey arrive in the order of the slice, unless
	// they have errors. The caller owns the slice and the messages; nothing of them is kept or changed.
	//
	// A message that no queue takes is an error, where the broker can tell. The end of ctx ends the waiting, with an
	// error for what is not confirmed by then. The adapter does not retry, but it may connect anew.
	Publish(ctx context.Context, ms []*Message) []error

	// Close lets go of connections. What is being published meanwhile fails, or does not.
	Close() error
}

// Source is a place that messages come from: a queue, a subscription, topics of a log. It is only a description, and
// [Source.Open] connects.
type Source interface {
	// Open begins to consume. The window is how many deliveries may be out at once: received, and not yet settled.
	// Several sessions of one source, here or elsewhere, share its messages. The context bounds the opening only.
	Open(ctx context.Context, window int) (Session, error)

	// Name says where messages come from, as consumers are told apart by it: the broker's kind, the queue or the topic,
	// and the group that shares it. The same for ever, and without anything secret: "rabbitmq queue orders". Which
	// cluster it is in is told by [Located].
	Name() string
}

// Session is a connection that messages come through. When it breaks, what was delivered and not settled comes again,
// through this or another session of the source.
//
// Receive has one caller at a time. The settling methods may be called concurrently with it and with each other, and
// deliveries may be settled in any order. Each delivery is settled once, by one of Ack, Return and Reject.
type Session interface {
	// Receive waits for messages and returns at least one and at most max of them, without waiting for more than there
	// are. An error other than the context's means that the session is broken: Close it and open another.
	// Messages of one ordering key come in order, but for those that come again.
	Receive(ctx context.Context, max int) ([]Delivery, error)

	// Ack says that messages were dealt with, and returns when that was sent, or, where the broker confirms it, confirmed.
	// An error means that any of them may come again, and so it is for Return and Reject: a delivery was settled already,
	// or belongs to another session by now. The others of the slice are settled all the same.
	Ack(ctx context.Context, ds []Delivery) error

	// Return gives messages back, to be delivered again, here or elsewhere, no earlier than after the delay where the
	// session is a [Delayer], and at once elsewhere. The attempts count up where the broker counts.
	Return(ctx context.Context, ds []Delivery, after time.Duration) error

	// Reject gives messages up for good. They go to where the broker keeps such messages, with the reason where it takes
	// one, if there is such a place ([DeadLetterer]); else they are gone. An error means that they may come again.
	Reject(ctx context.Context, ds []Delivery, reason string) error

	// Close ends the session. What is not settled comes again. It is bounded by ctx, and may be called twice, but not while
	// Receive waits.
	Close(ctx context.Context) error
}

// Delivery is one arrival of a message. It is passed by value, back to the session that it came from.
type Delivery struct {
	Message *Message

	// Redelivered says that it may have been delivered before, to anyone. False is a promise: the broker knows that this
	// is the first time. It is about this arrival, not about the ID: what was published twice is two messages to a broker.
	// Adapters that cannot know say true.
	Redelivered bool

	Position *Position // where it stands in a log; nil: the source is no log
	Origin   string    // where exactly it came from, for people: "orders/3@1042"
	Tag      any       // the adapter's own
}

// Position is a place in a log: a source that keeps the order of messages in each partition, whatever happens. Nothing comes
// from behind a message that was not settled and was not returned, before that message comes again. A source that cannot
// keep this gives no positions: a consumer that counts on them would take the message for handled.
type Position struct {
	Log       string // names the log, and changes when it is made anew under the same name, where the broker tells
	Partition string // of the log, unique among all logs of its source; messages are in order within it
	Offset    int64  // rises by at least one from message to message
}

// Delayer is a [Session] that can hold back what is returned.
type Delayer interface {
	// LongestDelay is the longest delay that Return keeps to. It may cost: a log is not acknowledged past what is returned.
	LongestDelay() time.Duration
}

// DeadLetterer is a [Session] that knows what becomes of rejected messages.
type DeadLetterer interface {
	// KeepsRejected reports whether messages that are rejected go where people find them.
	KeepsRejected() bool
}

// Seeker is a [Session] of a log that can be read again.
type Seeker interface {
	// Seek lets what is received from now on, here or elsewhere, begin at the first message behind p; an Offset of -1
	// is in front of all. It is not called while Receive waits. Deliveries of its partition that are out need not be
	// settled any more. It is an error if the partition is not the session's, or the log another one, or if what is
	// behind p is gone.
	Seek(ctx context.Context, p Position) error
}

// Placeless is a [Source] that does not know how far its consumer has come: each session begins at the oldest message, and
// Ack says nothing that outlives it. Its sessions are [Seeker]s. It is for consumers that keep their own positions.
type Placeless interface {
	KeepsNoPlace()
}

// Located is a [Source] that can ask its broker where it is. It is told apart
// from a source with the same name at another broker.
type Located interface {
	// Location returns facts by their names, such as a "cluster" and a
	// "vhost". A fact stays the same as long as the source exists, whichever
	// address, node and user is asked, and after a failover or a restart.
	// Hosts and ports are not facts. What the broker tells only some users is
	// left out. An empty map is not an error. An error means that the broker
	// did not answer.
	Location(ctx context.Context) (map[string]string, error)
}

// Deduplicator is a [Publisher] whose broker drops a message with an ID that it has seen lately.
type Deduplicator interface {
	// DeduplicationWindow is how long it remembers an ID; 0: it does not.
	DeduplicationWindow() time.Duration
}

// Horizon is a [Source] that knows how long a message may still come.
type Horizon interface {
	// RedeliveryHorizon is the longest time after which a message can be delivered, first or again; 0: for ever.
	RedeliveryHorizon(ctx context.Context) (time.Duration, error)
}

// Lagger is a [Source] that knows how much its consumer has not dealt with.
type Lagger interface {
	// Lag asks the broker, for all sessions of the source together. It needs no session, and takes nothing from one.
	Lag(ctx context.Context) (Lag, error)
}

// Lag is how far a consumer is behind.
type Lag struct {
	Messages int64         // that are not settled, as far as the broker counts them
	Oldest   time.Duration // since the first of them was stored; 0: there is none, or it is not known
}

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
