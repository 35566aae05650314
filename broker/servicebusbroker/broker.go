package servicebusbroker

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/effectively-once/once/broker"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// Sessions states that the queues and subscriptions of this Broker require
	// sessions. A message belongs to the session of its OrderingKey, and one
	// without a key has a session of its own.
	Sessions bool

	// MaxSessions is how many sessions of Service Bus a session of a source has
	// at a time. Default: 8.
	MaxSessions int

	// SessionIdle is how long a session of Service Bus is kept when all its
	// messages are settled. Default: 250 milliseconds.
	SessionIdle time.Duration

	// SessionTime is how long a session of Service Bus is kept at most while it
	// has messages, so that others have their turn. Messages in flight are
	// settled first. Default: one minute.
	SessionTime time.Duration

	// Management counts the messages of sources, which are [broker.Lagger]s then. It
	// needs the right Manage, or the role Azure Service Bus Data Owner. Nothing else
	// uses it. Default: the lag of sources is not known.
	Management *admin.Client
}

// Broker creates publishers and sources of a namespace. It is safe for concurrent
// use.
type Broker struct {
	client  *azservicebus.Client
	options Options
}

// New returns a Broker that uses a client. It does not connect. The client remains
// the caller's, who keeps it open while publishers and sessions are used. Its
// RetryOptions say how long they wait for a connection. A nil Options means the
// defaults.
func New(client *azservicebus.Client, o *Options) *Broker {
	b := &Broker{client: client}
	if o != nil {
		b.options = *o
	}
	b.options.MaxSessions = cmp.Or(b.options.MaxSessions, 8)
	b.options.SessionIdle = cmp.Or(b.options.SessionIdle, 250*time.Millisecond)
	b.options.SessionTime = cmp.Or(b.options.SessionTime, time.Minute)
	return b
}

// Publisher returns a publisher. The Topic of a message is the name of a queue or a
// topic, which must exist.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{client: b.client, senders: make(map[string]*azservicebus.Sender)}
}

// Queue returns a queue as a source.
func (b *Broker) Queue(name string) broker.Source {
	return b.counted(&source{broker: b, entity: name})
}

// Subscription returns a subscription of a topic as a source.
func (b *Broker) Subscription(topic, name string) broker.Source {
	return b.counted(&source{broker: b, entity: topic, subscription: name})
}

// counted makes a source a Lagger, if there is somebody to ask.
func (b *Broker) counted(s *source) broker.Source {
	if b.options.Management == nil {
		return s
	}
	return &countedSource{s, b.options.Management}
}

// sourceOf returns a source of this package, or nil.
func sourceOf(s broker.Source) *source {
	switch s := s.(type) {
	case *source:
		return s
	case *countedSource:
		return s.source
	}
	return nil
}

// DeadLetters returns the dead letters of a queue or a subscription of this package
// as a source. Its messages have the headers once-reason and once-description.
// Dead letters of dead letters do not exist: Reject removes them.
func (b *Broker) DeadLetters(of broker.Source) broker.Source {
	s := sourceOf(of)
	if s == nil {
		return &source{broker: b}
	}
	return b.counted(&source{broker: b, entity: s.entity, subscription: s.subscription, dead: true})
}

// source is a queue, a subscription, or the dead letters of one.
type source struct {
	broker       *Broker
	entity       string // a queue or a topic
	subscription string // empty: entity is a queue
	dead         bool
}

// Name returns "servicebus queue" and the name of the queue, or "servicebus
// subscription" and those of the topic and the subscription.
func (s *source) Name() string {
	name := "servicebus queue " + s.entity
	if s.subscription != "" {
		name = "servicebus subscription " + s.entity + "/" + s.subscription
	}
	if s.dead {
		name += " dead letters"
	}
	return name
}

// inSessions reports whether receivers of the source need a session. Dead letters
// have none.
func (s *source) inSessions() bool { return s.broker.options.Sessions && !s.dead }

// receiver returns a receiver that is not for sessions. It does not connect.
func (s *source) receiver() (*azservicebus.Receiver, error) {
	o := new(azservicebus.ReceiverOptions)
	if s.dead {
		o.SubQueue = azservicebus.SubQueueDeadLetter
	}
	if s.subscription != "" {
		return s.broker.client.NewReceiverForSubscription(s.entity, s.subscription, o)
	}
	return s.broker.client.NewReceiverForQueue(s.entity, o)
}

// accept waits for a session that has messages and no receiver.
func (s *source) accept(ctx context.Context) (*azservicebus.SessionReceiver, error) {
	if s.subscription != "" {
		return s.broker.client.AcceptNextSessionForSubscription(ctx, s.entity, s.subscription, nil)
	}
	return s.broker.client.AcceptNextSessionForQueue(ctx, s.entity, nil)
}

// explain adds the name of the source to an error.
func (s *source) explain(doing string, err error) error {
	return fmt.Errorf("servicebusbroker: %s: %s: %w", s.Name(), doing, err)
}

// Open connects and checks that the entity exists. With Options.Sessions, the first
// Receive returns the error if it does not.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	o := s.broker.options
	switch {
	case window < 1:
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	case s.entity == "":
		return nil, fmt.Errorf("%w: the source has no name, or is not of this package", broker.ErrInvalid)
	case o.MaxSessions < 1 || o.SessionIdle < 0 || o.SessionTime < 0:
		return nil, fmt.Errorf("%w: MaxSessions is %d, SessionIdle %v and SessionTime %v: they must be positive",
			broker.ErrInvalid, o.MaxSessions, o.SessionIdle, o.SessionTime)
	}
	n := newSession(s, window)
	if s.inSessions() {
		n.startSessions(o)
		return n, nil
	}
	return n.startQueue(ctx)
}
