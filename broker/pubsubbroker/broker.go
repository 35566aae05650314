package pubsubbroker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// DeadLetter is the topic that rejected messages are published to, with their
	// attributes and with once-reason, once-topic and once-origin. If it is empty,
	// it is the topic of the subscription's dead-letter policy. If there is none,
	// rejected messages are gone.
	DeadLetter string

	// Unordered accepts subscriptions that do not keep the order of messages with
	// an equal ordering key.
	Unordered bool

	// CheckEvery is how often a session reads its subscription, to notice that the
	// subscription was recreated or its topic deleted. Default: 10 seconds; at
	// least 100 milliseconds.
	CheckEvery time.Duration
}

const (
	defaultCheckEvery  = 10 * time.Second
	shortestCheckEvery = 100 * time.Millisecond
)

// Broker creates publishers and sources of a project. It is safe for concurrent
// use.
type Broker struct {
	client  *pubsub.Client
	options Options
}

// New returns a Broker that uses client. The client remains the caller's, who
// keeps it open while publishers and sessions are used. A nil Options means the
// defaults.
func New(client *pubsub.Client, o *Options) *Broker {
	b := &Broker{client: client}
	if o != nil {
		b.options = *o
	}
	if b.options.CheckEvery == 0 {
		b.options.CheckEvery = defaultCheckEvery
	}
	return b
}

// Publisher returns a publisher. The Topic of a message is the name of its topic,
// with or without "projects/<project>/topics/" before it.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{broker: b, slots: make(chan struct{}, publishLimit)}
}

// Subscription returns the messages of a subscription, which must exist when a
// session is opened: see [Broker.DeclareSubscription]. The name may begin with
// "projects/<project>/subscriptions/".
func (b *Broker) Subscription(name string) broker.Source {
	return &source{broker: b, name: b.full(name, subscriptions)}
}

// SubscriptionOptions configures a subscription that is created.
type SubscriptionOptions struct {
	// AckDeadline is how long it takes until messages come again after their
	// process has died. Default: 30 seconds; 10 seconds to 10 minutes.
	AckDeadline time.Duration

	// Retention is how long messages wait that are not acknowledged. Default: that
	// of the service, 7 days; 10 minutes to 31 days.
	Retention time.Duration

	// ExactlyOnce sets EnableExactlyOnceDelivery.
	ExactlyOnce bool
}

const defaultAckDeadline = 30 * time.Second

// DeclareSubscription creates a subscription, and its topic if that does not
// exist. The subscription keeps the order of ordering keys, unless
// [Options.Unordered] is set, and does not expire. It gets the messages that are
// published from then on. An existing one is not changed. A nil
// SubscriptionOptions means the defaults.
func (b *Broker) DeclareSubscription(ctx context.Context, topic, subscription string, o *SubscriptionOptions) error {
	if topic == "" || subscription == "" {
		return fmt.Errorf("%w: a topic and a subscription need names; these are %q and %q", broker.ErrInvalid, topic, subscription)
	}
	var options SubscriptionOptions
	if o != nil {
		options = *o
	}
	if options.AckDeadline == 0 {
		options.AckDeadline = defaultAckDeadline
	}
	topic, subscription = b.full(topic, topics), b.full(subscription, subscriptions)
	_, err := b.client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topic})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("pubsubbroker: create the topic %q: %w", topic, err)
	}
	created := &pubsubpb.Subscription{
		Name: subscription, Topic: topic,
		EnableMessageOrdering:     !b.options.Unordered,
		EnableExactlyOnceDelivery: options.ExactlyOnce,
		AckDeadlineSeconds:        int32(options.AckDeadline / time.Second),
		ExpirationPolicy:          &pubsubpb.ExpirationPolicy{}, // never; otherwise after 31 days without a consumer
		Labels:                    map[string]string{createdLabel: strings.ToLower(rand.Text())},
	}
	if options.Retention > 0 {
		created.MessageRetentionDuration = durationpb.New(options.Retention)
	}
	_, err = b.client.SubscriptionAdminClient.CreateSubscription(ctx, created)
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("pubsubbroker: create the subscription %q: %w", subscription, err)
	}
	return nil
}

// createdLabel is the label of a subscription that tells it from others that had
// its name before.
const createdLabel = "once-created"

// The kinds of names.
const (
	topics        = "topics"
	subscriptions = "subscriptions"
)

// full returns the full name of a topic or a subscription.
func (b *Broker) full(name, kind string) string {
	if strings.HasPrefix(name, "projects/") {
		return name
	}
	return b.prefix(kind) + name
}

func (b *Broker) prefix(kind string) string {
	return "projects/" + b.client.Project() + "/" + kind + "/"
}

// short returns the name of a topic without its project, if that is the own one.
func (b *Broker) short(topic string) string {
	return strings.TrimPrefix(topic, b.prefix(topics))
}

// once is the option of a call that is not repeated.
var once = gax.WithRetry(func() gax.Retryer { return nil })

// errGone explains codes.NotFound.
var errGone = errors.New("it does not exist. If it was deleted, its messages are lost, and those that were not handled must be sent again")
