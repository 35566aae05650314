package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/effectively-once/once/cmd/once/internal/show"
)

// snsTopic is a topic of SNS as the service describes it.
type snsTopic struct {
	name          string
	attributes    map[string]string
	subscriptions []snsSubscription
}

// snsSubscription is a subscription. Its attributes are nil if it is not confirmed.
type snsSubscription struct {
	protocol, endpoint string
	attributes         map[string]string
	gone               bool // its endpoint is a queue that does not exist
}

// lookAtTopics examines the topics whose ARNs begin with the prefix. A pattern is
// one of names.
func (v *sqsView) lookAtTopics(ctx context.Context, s *survey) error {
	pages := sns.NewListTopicsPaginator(v.topics, nil)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, listed := range page.Topics {
			arn := aws.ToString(listed.TopicArn)
			if !strings.HasPrefix(arn, v.prefix) || s.only != "" && !s.wanted(nameOf(arn)) {
				continue
			}
			t, err := v.topic(ctx, arn)
			if errors.As(err, new(*types.NotFoundException)) { // it was deleted just now
				continue
			}
			if err != nil {
				return fmt.Errorf("topic %s: %w", show.Line(nameOf(arn)), err)
			}
			snsLoses(s, t)
		}
	}
	return nil
}

// topic reads a topic and its subscriptions.
func (v *sqsView) topic(ctx context.Context, arn string) (*snsTopic, error) {
	out, err := v.topics.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &arn})
	if err != nil {
		return nil, err
	}
	t := &snsTopic{name: nameOf(arn), attributes: out.Attributes}
	pages := sns.NewListSubscriptionsByTopicPaginator(v.topics, &sns.ListSubscriptionsByTopicInput{TopicArn: &arn})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, listed := range page.Subscriptions {
			sub := snsSubscription{protocol: aws.ToString(listed.Protocol), endpoint: aws.ToString(listed.Endpoint)}
			if id := aws.ToString(listed.SubscriptionArn); strings.HasPrefix(id, "arn:") { // a word, if it is not confirmed or deleted
				out, err := v.topics.GetSubscriptionAttributes(ctx, &sns.GetSubscriptionAttributesInput{SubscriptionArn: &id})
				if err != nil {
					return nil, err
				}
				sub.attributes = out.Attributes
			}
			_, there := v.urls[nameOf(sub.endpoint)]
			sub.gone = v.listed && sub.protocol == "sqs" && near(sub.endpoint, arn) && !there
			t.subscriptions = append(t.subscriptions, sub)
		}
	}
	return t, nil
}

// String names the queue, but no other endpoint, because those may be secret.
func (sub *snsSubscription) String() string {
	if sub.protocol == "sqs" {
		return "queue " + show.Line(nameOf(sub.endpoint))
	}
	return "an endpoint of " + show.Line(sub.protocol)
}

// snsLoses reports settings by which messages of a topic are lost, or their order.
func snsLoses(s *survey, t *snsTopic) {
	name, fifo, confirmed := "Topic "+show.Line(t.name), strings.HasSuffix(t.name, ".fifo"), 0
	for i := range t.subscriptions {
		sub := &t.subscriptions[i]
		if sub.attributes == nil {
			s.found("sns-unconfirmed", Warning, fmt.Sprintf("%s: the subscription of %s is not confirmed.", name, sub),
				"What is published meanwhile is lost to it.", "Confirm or delete the subscription, and have the producers send again what it needs.")
			continue
		}
		confirmed++
		snsSubscribed(s, name, fifo, sub)
	}
	if confirmed == 0 {
		s.found("sns-nobody-subscribes", Unsafe, name+" has no confirmed subscription.",
			"Messages that are published to it are confirmed and lost.", "Subscribe the queues before anything is published, or delete the topic.")
	}
	if !fifo {
		s.found("sns-unordered", Note, name+" is a standard topic.",
			"Messages of one ordering key come in any order. sqsbroker refuses to publish such messages to it, unless Options.Unordered is set.",
			"Where order matters, use a FIFO topic and FIFO queues.")
	}
	if t.attributes["ContentBasedDeduplication"] == "true" {
		s.found("sns-content-deduplication", Warning, name+sameBodies, oneOfTwo, noContent)
	}
	if t.attributes["FifoThroughputScope"] == "MessageGroup" {
		s.found("sns-deduplication-scope", Note, name+" finds copies within a message group only.",
			"A copy that is sent in another group is delivered. sqsbroker sends a message again in the same group.",
			"Nothing, unless other programs send copies in other groups.")
	}
}

// snsSubscribed checks a confirmed subscription.
func snsSubscribed(s *survey, name string, fifo bool, sub *snsSubscription) {
	what := fmt.Sprintf("%s: the subscription of %s", name, sub)
	redrives := sub.attributes["RedrivePolicy"] != ""
	switch {
	case sub.gone && redrives:
		s.found("sns-queue-missing", Warning, what+" is for a queue that does not exist.",
			"Its messages become dead letters, and no consumer handles them.", "Create the queue and move the dead letters to it, or delete the subscription.")
	case sub.gone:
		s.found("sns-queue-missing", Unsafe, what+" is for a queue that does not exist, and has no redrive policy.",
			"Messages for it are confirmed and lost.", "Create the queue and have the producers send the messages again, or delete the subscription.")
	case !redrives:
		s.found("sns-no-redrive", Warning, what+" has no redrive policy.",
			"A message that cannot be delivered is lost, for example if the queue is deleted, or its policy or key does not let the topic in.",
			"Give the subscription a redrive policy.")
	}
	if fifo && sub.protocol == "sqs" && !strings.HasSuffix(sub.endpoint, ".fifo") {
		s.found("sns-order-lost", Warning, what+" is for a standard queue.",
			"Messages of one ordering key come to it in any order, and copies of them are delivered.", "Where order matters, subscribe a FIFO queue.")
	}
	if sub.protocol == "sqs" && sub.attributes["RawMessageDelivery"] != "true" {
		s.found("sns-envelope", Note, what+" delivers in the envelope of SNS.",
			"sqsbroker removes it. Other programs find JSON, with the message as a text in it.", "Nothing, or set RawMessageDelivery to true for other programs.")
	}
	if policy := sub.attributes["FilterPolicy"]; policy != "" && policy != "{}" {
		s.found("sns-filter", Note, what+" has a filter policy.",
			"It gets only messages that match.", "Nothing, if it is meant to.")
	}
}
