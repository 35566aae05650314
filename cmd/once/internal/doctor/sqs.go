package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// sqsView is the examined part of an account in a region.
type sqsView struct {
	queues *sqs.Client
	topics *sns.Client
	prefix string               // of the ARNs of topics to examine; empty: none
	urls   map[string]string    // of all queues, by name
	read   map[string]*sqsQueue // by name
	region string
	listed bool
}

// sqsQueue is a queue as the service describes it.
type sqsQueue struct {
	name       string
	arn        string
	attributes map[string]string
}

func dialSQS(ctx context.Context, a address) (*Broker, error) {
	loaded, prefix, err := awsOf(ctx, &a)
	if err != nil {
		return nil, err
	}
	v := &sqsView{queues: sqs.NewFromConfig(loaded), topics: sns.NewFromConfig(loaded), prefix: prefix, region: loaded.Region,
		read: make(map[string]*sqsQueue)}
	checks := []brokerCheck{{"sqs-queues", v.look}, {"sqs-sources", v.sources}}
	if prefix == "" {
		err = v.list(ctx)
	} else {
		_, err = v.topics.ListTopics(ctx, nil)
		checks = append(checks, brokerCheck{"sns-topics", v.lookAtTopics})
	}
	if err != nil && !denied(err) {
		return nil, err
	}
	return &Broker{name: a.scheme + "://" + loaded.Region, kind: "sqs", close: func() {}, checks: checks}, nil
}

// awsOf returns the configuration of an address, and what the ARNs of its topics
// begin with.
func awsOf(ctx context.Context, a *address) (loaded aws.Config, prefix string, err error) {
	endpoint := a.take("endpoint")
	prefix = a.take("topics")
	if err := a.rest(); err != nil {
		return loaded, "", err
	}
	if len(a.hosts) != 1 || a.signed || strings.Trim(a.path, "/") != "" || strings.Contains(a.hosts[0], ":") {
		return loaded, "", refuse("it is not of the form sqs://region?endpoint=URL&topics=PREFIX: credentials come from the environment, as for the AWS command line")
	}
	if prefix != "" && !target.IsTopicPrefix(prefix) {
		return loaded, "", refuse("topics is what the ARNs of topics begin with, such as arn:aws:sns:eu-north-1:123456789012: with the last colon")
	}
	if loaded, err = target.LoadAWS(ctx, a.hosts[0]); err != nil {
		return loaded, "", err
	}
	if loaded.Region == "" {
		return loaded, "", refuse("it has no region, and the environment has none: write sqs://eu-north-1")
	}
	if endpoint != "" {
		loaded.BaseEndpoint = &endpoint
	}
	return loaded, prefix, nil
}

// denied reports whether AWS knows the caller, who has no right to the answer.
func denied(err error) bool {
	var e smithy.APIError
	return errors.As(err, &e) && slices.Contains([]string{"AccessDenied", "AccessDeniedException", "AuthorizationError"}, e.ErrorCode())
}

// list reads the URLs of all queues.
func (v *sqsView) list(ctx context.Context) error {
	v.urls = make(map[string]string)
	pages := sqs.NewListQueuesPaginator(v.queues, &sqs.ListQueuesInput{MaxResults: aws.Int32(1000)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, url := range page.QueueUrls {
			v.urls[path.Base(url)] = url
		}
	}
	return nil
}

// queue returns a queue, or nil if it does not exist.
func (v *sqsView) queue(ctx context.Context, name string) (*sqsQueue, error) {
	url, there := v.urls[name]
	if q := v.read[name]; q != nil || !there {
		return q, nil
	}
	out, err := v.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if errors.As(err, new(*types.QueueDoesNotExist)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", show.Line(name), err)
	}
	v.read[name] = &sqsQueue{name: name, arn: out.Attributes["QueueArn"], attributes: out.Attributes}
	return v.read[name], nil
}

// look examines the queues.
func (v *sqsView) look(ctx context.Context, s *survey) error {
	if err := v.list(ctx); err != nil {
		return err
	}
	v.listed = true
	var wanted []*sqsQueue
	targets := make(map[string]bool) // the ARNs of queues for dead letters
	for _, name := range slices.Sorted(maps.Keys(v.urls)) {
		if !s.wanted(name) {
			continue
		}
		q, err := v.queue(ctx, name)
		if err != nil {
			return err
		}
		if q == nil {
			continue
		}
		wanted = append(wanted, q)
		policy, err := q.redrive()
		if err != nil {
			return err
		}
		targets[policy.Target] = true
	}
	for _, q := range wanted {
		policy, _ := q.redrive()
		dead, err := v.queue(ctx, nameOf(policy.Target))
		if err != nil {
			return err
		}
		sqsLoses(s, q, dead, targets[q.arn])
		sqsDeduplicates(s, q)
	}
	return nil
}

// redrive is a policy of a queue, or of a subscription.
type redrive struct {
	Target string      `json:"deadLetterTargetArn"` // empty: there is no policy
	Limit  json.Number `json:"maxReceiveCount"`
}

func (q *sqsQueue) redrive() (policy redrive, err error) {
	if text := q.attributes["RedrivePolicy"]; text != "" {
		if err = json.Unmarshal([]byte(text), &policy); err != nil {
			err = fmt.Errorf("queue %s: its redrive policy: %w", show.Line(q.name), err)
		}
	}
	return policy, err
}

func (q *sqsQueue) fifo() bool { return strings.HasSuffix(q.name, ".fifo") }

// seconds returns an attribute, or 0 if it is not told.
func (q *sqsQueue) seconds(attribute string) time.Duration {
	n, _ := strconv.ParseInt(q.attributes[attribute], 10, 64)
	return time.Duration(n) * time.Second
}

func (q *sqsQueue) retention() time.Duration { return q.seconds("MessageRetentionPeriod") }

// nameOf returns the name in an ARN.
func nameOf(arn string) string { return arn[strings.LastIndex(arn, ":")+1:] }

// near reports whether two ARNs are of one account and region.
func near(a, b string) bool {
	x, y := strings.Split(a, ":"), strings.Split(b, ":")
	return len(x) > 4 && len(y) > 4 && x[3] == y[3] && x[4] == y[4]
}

const (
	mostReceives     = 1000                // the largest maxReceiveCount
	longestRetention = 14 * 24 * time.Hour // of a queue
	shortRetention   = 24 * time.Hour
	longVisibility   = 15 * time.Minute
)

// sqsLoses reports settings by which a queue loses messages or their order. dead is
// the target of its redrive policy, or nil. A queue that is a target has no order to
// keep, and no dead letters of its own.
func sqsLoses(s *survey, q, dead *sqsQueue, isTarget bool) {
	name := "Queue " + show.Line(q.name)
	if keep := q.retention(); keep > 0 && keep < shortRetention {
		s.found("sqs-retention", Warning, fmt.Sprintf("%s deletes messages after %s.", name, span(keep)),
			"A consumer that does not run for that long loses messages.", "Raise MessageRetentionPeriod above the longest downtime of a consumer.")
	}
	switch hidden := q.seconds("VisibilityTimeout"); {
	case q.attributes["VisibilityTimeout"] == "0":
		s.found("sqs-visibility", Note, name+" has a visibility timeout of 0.",
			"sqsbroker sets its own. Other programs that set none receive a message again while they handle it.", "Set it to 30 seconds.")
	case hidden > longVisibility:
		s.found("sqs-visibility", Note, fmt.Sprintf("%s has a visibility timeout of %s.", name, span(hidden)),
			"sqsbroker sets its own. Whoever looks at messages in the console hides them for that long, and in a FIFO queue the later ones of their groups.",
			"Set it to 30 seconds, unless other programs need more.")
	}
	if !isTarget && !q.fifo() {
		s.found("sqs-unordered", Note, name+" is a standard queue.",
			"Messages of one ordering key come in any order. sqsbroker refuses to publish such messages to it, unless Options.Unordered is set.",
			"Where order matters, use a FIFO queue.")
	}
	policy, err := q.redrive()
	switch {
	case err != nil || policy.Target == "" && isTarget:
		return
	case policy.Target == "":
		s.found("sqs-no-dead-letters", Note, name+" has no redrive policy.",
			"Messages that a consumer rejects are deleted, unless Options.DeadLetter of sqsbroker names a queue.", "Give it a queue for dead letters.")
		return
	}
	if limit, err := policy.Limit.Int64(); err == nil && limit < mostReceives {
		s.found("sqs-receive-limit", Warning, fmt.Sprintf("%s gives messages up after %d receives.", name, limit),
			"Receives that ended with their process count. It removes messages that a consumer is still retrying. Their effects do not happen, or happen after they became dead letters.",
			"Set maxReceiveCount to 1000, and let the consumer bound the attempts.")
	}
	switch {
	case dead == nil && near(policy.Target, q.arn):
		s.found("sqs-dead-letters-lost", Unsafe, fmt.Sprintf("%s sends dead letters to queue %s, which does not exist.", name, show.Line(nameOf(policy.Target))),
			"A consumer does not start, unless Options.DeadLetter of sqsbroker names another queue, and the service has no place for dead letters.",
			"Create the queue.")
	case dead != nil && q.fifo() && dead.retention() < q.retention():
		s.found("sqs-dead-letters-expire", Warning, keepsLess(name, q, dead), "Dead letters are deleted earlier than messages that wait.", toTheEnd)
	case dead != nil && !q.fifo() && (dead.retention() < q.retention() || dead.retention() == q.retention() && q.retention() < longestRetention):
		s.found("sqs-dead-letters-expire", Warning, keepsLess(name, q, dead),
			"The age of a message counts from when it was sent, also after the service has moved it. A dead letter may be deleted soon after that.", toTheEnd)
	}
}

const toTheEnd = "Set MessageRetentionPeriod of the queue for dead letters to 14 days."

func keepsLess(name string, q, dead *sqsQueue) string {
	return fmt.Sprintf("%s keeps messages for %s, and %s keeps its dead letters for %s.", name, span(q.retention()), show.Line(dead.name), span(dead.retention()))
}

// sqsDeduplicates reports what a FIFO queue drops as a copy, and what not.
func sqsDeduplicates(s *survey, q *sqsQueue) {
	name := "Queue " + show.Line(q.name)
	if !q.fifo() {
		return
	}
	if q.attributes["ContentBasedDeduplication"] == "true" {
		s.found("sqs-content-deduplication", Warning, name+sameBodies, oneOfTwo, noContent)
	}
	if q.attributes["DeduplicationScope"] == "messageGroup" {
		s.found("sqs-deduplication-scope", Note, name+" finds copies within a message group only.",
			"A copy that is sent in another group is delivered. sqsbroker sends a message again in the same group.",
			"Nothing, unless other programs send copies in other groups.")
	}
	if q.attributes["FifoThroughputLimit"] == "perQueue" {
		s.found("sqs-throughput-limit", Note, name+" has one throughput limit for all its message groups.",
			"It takes 300 requests of a kind in a second. A relay or consumer above that is refused, and waits.",
			"If that is too few, set FifoThroughputLimit to perMessageGroupId and DeduplicationScope to messageGroup.")
	}
}

const (
	sameBodies = " takes a message without a deduplication ID for a copy of another one with the same body."
	oneOfTwo   = "If a program sends two such messages within five minutes, the second is confirmed and lost. sqsbroker sets a deduplication ID, which is the message ID."
	noContent  = "Switch ContentBasedDeduplication off, so that a message without an ID is refused."
)

// sources checks that what registered consumers read exists, and how long it may
// come.
func (v *sqsView) sources(ctx context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errNotListed
	}
	for _, r := range s.readers {
		if region := r.facts["region"]; !s.wanted(r.of[0]) || region != "" && region != v.region {
			continue
		}
		q, err := v.queue(ctx, r.of[0])
		if err != nil {
			return err
		}
		if q == nil {
			s.missing(r, "such queue")
			continue
		}
		if keep := q.retention(); keep > 0 { // imitations of the service may not tell it
			s.outlived(r, keep)
		}
	}
	return nil
}
