package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// pubsubView is the examined part of Pub/Sub.
type pubsubView struct {
	client  *pubsub.Client
	project string
	all     []*pubsubpb.Subscription // of the project
	listed  bool
}

func dialPubSub(ctx context.Context, a address) (*Broker, error) {
	endpoint := a.take("endpoint")
	if err := a.rest(); err != nil {
		return nil, err
	}
	if len(a.hosts) != 1 || a.signed || strings.Trim(a.path, "/") != "" {
		return nil, refuse("it is not of the form pubsub://project?endpoint=host:port")
	}
	client, err := target.NewPubSub(ctx, a.hosts[0], endpoint)
	if err != nil {
		return nil, err
	}
	v := &pubsubView{client: client, project: "projects/" + a.hosts[0]}
	if err := v.list(ctx); err != nil && status.Code(err) != codes.PermissionDenied {
		return nil, errors.Join(err, client.Close())
	}
	return &Broker{name: a.String(), kind: "pubsub", close: func() { _ = client.Close() }, checks: []brokerCheck{
		{"pubsub-subscriptions", v.look}, {"pubsub-topics", v.topics}, {"pubsub-sources", v.sources},
	}}, nil
}

// list reads all subscriptions of the project.
func (v *pubsubView) list(ctx context.Context) error {
	v.all = nil
	found := v.client.SubscriptionAdminClient.ListSubscriptions(ctx, &pubsubpb.ListSubscriptionsRequest{Project: v.project})
	for {
		switch sub, err := found.Next(); {
		case errors.Is(err, iterator.Done):
			return nil
		case err != nil:
			return err
		default:
			v.all = append(v.all, sub)
		}
	}
}

// look examines the subscriptions. A pattern is one of names without the project.
func (v *pubsubView) look(ctx context.Context, s *survey) error {
	if err := v.list(ctx); err != nil {
		return err
	}
	v.listed = true
	for _, sub := range v.all {
		if s.only == "" && s.wanted(sub.GetName()) || s.only != "" && s.wanted(path.Base(sub.GetName())) {
			pubsubLoses(s, sub, v.all)
		}
	}
	return nil
}

// serviceExpires is after how long the service deletes a subscription that says
// nothing about that.
const serviceExpires = 31 * 24 * time.Hour

// pubsubLoses reports settings by which a subscription loses messages or their
// order.
func pubsubLoses(s *survey, sub *pubsubpb.Subscription, all []*pubsubpb.Subscription) {
	name := "Subscription " + show.Line(path.Base(sub.GetName()))
	if sub.GetTopic() == "_deleted-topic_" || sub.GetDetached() {
		s.found("pubsub-cut-off", Unsafe, name+" has no topic: that was deleted, or the subscription was detached.",
			"It gets no messages, also if the topic is created again. What is published meanwhile is lost to its consumer.",
			"Delete the subscription, create it again, and have the producers send again what was published since then.")
		return
	}
	expires := serviceExpires
	if policy := sub.GetExpirationPolicy(); policy != nil {
		expires = policy.GetTtl().AsDuration() // 0: never
	}
	if expires > 0 {
		s.found("pubsub-expires", Warning, fmt.Sprintf("%s expires after %s without a consumer.", name, span(expires)),
			"It is then deleted with all its messages, and later ones are lost to it.", "Set its expiration policy to never.")
	}
	if !sub.GetEnableMessageOrdering() {
		s.found("pubsub-unordered", Warning, name+" does not keep the order of ordering keys.",
			"Messages of one key come in any order. pubsubbroker refuses it, unless Options.Unordered is set.",
			"Where order matters, create another subscription with EnableMessageOrdering: the setting cannot be changed.")
	}
	policy := sub.GetDeadLetterPolicy()
	if policy == nil {
		return
	}
	if !slices.ContainsFunc(all, func(other *pubsubpb.Subscription) bool { return other.GetTopic() == policy.GetDeadLetterTopic() }) {
		s.found("pubsub-dead-letters-lost", Unsafe, fmt.Sprintf("%s sends dead letters to topic %s, which has no subscription in this project.", name,
			show.Line(path.Base(policy.GetDeadLetterTopic()))), "Dead letters are lost, unless a subscription of another project gets them.",
			"Create a subscription of that topic.")
	}
	s.found("pubsub-delivery-limit", Warning, fmt.Sprintf("%s gives messages up after %d deliveries.", name, policy.GetMaxDeliveryAttempts()),
		"It removes messages that a consumer is still retrying. Their effects do not happen, or happen after they became dead letters.",
		"Remove the dead-letter policy, and set Options.DeadLetter of pubsubbroker.")
}

// topics finds topics that nobody subscribes to.
func (v *pubsubView) topics(ctx context.Context, s *survey) error {
	if len(s.readers) > 0 && s.only == "" {
		return nil // consumers do not say where the relays of the store publish
	}
	found := v.client.TopicAdminClient.ListTopics(ctx, &pubsubpb.ListTopicsRequest{Project: v.project})
	for {
		topic, err := found.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Base(topic.GetName())
		if s.only != "" && !s.wanted(name) {
			continue
		}
		read := v.client.TopicAdminClient.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{Topic: topic.GetName()})
		if _, err := read.Next(); errors.Is(err, iterator.Done) {
			s.found("pubsub-nobody-subscribes", Unsafe, "Topic "+show.Line(name)+" has no subscription.",
				"Messages that are published to it are confirmed and lost.", "Create the subscription before anything is published, or delete the topic.")
		} else if err != nil {
			return err
		}
	}
}

// sources checks that what registered consumers read exists, and how long it may
// come.
func (v *pubsubView) sources(_ context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errNotListed
	}
	for _, r := range s.readers {
		if s.only != "" && !s.wanted(path.Base(r.of[0])) || !strings.HasPrefix(r.of[0], v.project+"/") {
			continue
		}
		at := slices.IndexFunc(v.all, func(sub *pubsubpb.Subscription) bool { return sub.GetName() == r.of[0] })
		if at < 0 {
			s.missing(r, "such subscription")
			continue
		}
		sub := v.all[at]
		s.outlived(r, max(sub.GetMessageRetentionDuration().AsDuration(), sub.GetTopicMessageRetentionDuration().AsDuration()))
	}
	return nil
}
