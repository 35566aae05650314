package pubsubbroker

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
)

const (
	openTime = 10 * time.Second // how long Open may take at most

	// serviceDeadline is the AckDeadlineSeconds of a subscription that has none.
	serviceDeadline = 10 * time.Second

	// serviceRetention is the MessageRetentionDuration of a subscription that has
	// none.
	serviceRetention = 7 * 24 * time.Hour
)

// source is a subscription.
type source struct {
	broker *Broker
	name   string // with its project
}

var _ broker.Horizon = (*source)(nil)

// Name returns the name of the subscription with its project.
func (c *source) Name() string { return "pubsub subscription " + c.name }

// RedeliveryHorizon returns how long the subscription keeps messages, or its
// topic, from which they may be delivered again by a seek.
func (c *source) RedeliveryHorizon(ctx context.Context) (time.Duration, error) {
	settings, err := c.settings(ctx)
	if err != nil {
		return 0, err
	}
	return max(retentionOf(settings), settings.GetTopicMessageRetentionDuration().AsDuration()), nil
}

func retentionOf(settings *pubsubpb.Subscription) time.Duration {
	if d := settings.GetMessageRetentionDuration(); d != nil {
		return d.AsDuration()
	}
	return serviceRetention
}

// settings reads the subscription.
func (c *source) settings(ctx context.Context) (*pubsubpb.Subscription, error) {
	settings, err := c.broker.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: c.name}, once)
	if err != nil {
		return nil, c.explain(err)
	}
	return settings, nil
}

// explain adds the name of the source to an error.
func (c *source) explain(err error) error {
	return fmt.Errorf("pubsubbroker: %s: %w", c.Name(), explain(err))
}

// deletedTopic is the topic of a subscription whose topic was deleted.
const deletedTopic = "_deleted-topic_"

// gone returns an error if a subscription gets no messages any more.
func gone(settings *pubsubpb.Subscription) error {
	switch {
	case settings.GetTopic() == deletedTopic:
		return fmt.Errorf("its topic was deleted. It gets no more messages, also if the topic is created again: delete and create it")
	case settings.GetDetached():
		return fmt.Errorf("it was detached from its topic, and its messages are lost: delete and create it, and send them again")
	}
	return nil
}

// check returns an error if the subscription can never be used.
func (c *source) check(settings *pubsubpb.Subscription) error {
	switch {
	case gone(settings) != nil:
		return c.explain(gone(settings))
	case settings.GetPushConfig().GetPushEndpoint() != "":
		return fmt.Errorf("%w: %s pushes its messages to %q: use one that is pulled", broker.ErrInvalid, c.Name(), settings.GetPushConfig().GetPushEndpoint())
	case settings.GetBigqueryConfig() != nil || settings.GetCloudStorageConfig() != nil:
		return fmt.Errorf("%w: %s exports its messages: use one that is pulled", broker.ErrInvalid, c.Name())
	case !settings.GetEnableMessageOrdering() && !c.broker.options.Unordered:
		return fmt.Errorf("%w: %s does not keep the order of ordering keys: create it with EnableMessageOrdering, or set Unordered if no order is needed",
			broker.ErrInvalid, c.Name())
	case c.deadTopic(settings) == settings.GetTopic():
		return fmt.Errorf("%w: the dead letters of %s would go back to its topic: give them another one", broker.ErrInvalid, c.Name())
	}
	return nil
}

// deadTopic returns the topic for dead letters, or nothing.
func (c *source) deadTopic(settings *pubsubpb.Subscription) string {
	if dead := c.broker.options.DeadLetter; dead != "" {
		return c.broker.full(dead, topics)
	}
	return settings.GetDeadLetterPolicy().GetDeadLetterTopic()
}

// Open reads the settings of the subscription. It creates nothing.
func (c *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if window < 1 {
		return nil, fmt.Errorf("%w: a session with a window of %d: give at least 1", broker.ErrInvalid, window)
	}
	if every := c.broker.options.CheckEvery; every < shortestCheckEvery {
		return nil, fmt.Errorf("%w: CheckEvery is %v: give at least %v", broker.ErrInvalid, every, shortestCheckEvery)
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	settings, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.check(settings); err != nil {
		return nil, err
	}
	return newSession(c, settings, window), nil
}
