package sqsbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// Visibility is how long the messages of a session stay its own after it was
	// last heard. A session renews it three times as often. Default: 30 seconds;
	// at least 2 seconds and at most an hour, in whole seconds.
	Visibility time.Duration

	// Wait is how long a request for messages waits for one. Close waits for the
	// last request, so this is also how long it may take. Default: 5 seconds; at
	// most 20 seconds, in whole seconds. It is shortened to a third of Visibility.
	Wait time.Duration

	// DeadLetter is the queue that rejected messages are sent to. Default: the
	// target of the redrive policy of their queue. If there is neither, rejected
	// messages are gone.
	DeadLetter string

	// Unordered lets messages with an OrderingKey be published to standard queues
	// and topics, which do not keep their order. Default: false, such a message is
	// [broker.ErrInvalid].
	Unordered bool
}

const (
	defaultVisibility  = 30 * time.Second
	shortestVisibility = 2 * time.Second
	longestVisibility  = time.Hour
	defaultWait        = 5 * time.Second
	longestWait        = 20 * time.Second // that SQS allows

	// fifoSuffix ends the names of FIFO queues and topics, and of no others.
	fifoSuffix = ".fifo"
)

// Broker creates publishers and sources of SQS. It is safe for concurrent use.
type Broker struct {
	client  *sqs.Client
	options Options
}

// New returns a Broker that sends its requests through client. It does not
// connect. A nil Options means the defaults.
func New(client *sqs.Client, o *Options) *Broker {
	b := &Broker{client: client}
	if o != nil {
		b.options = *o
	}
	if b.options.Visibility == 0 {
		b.options.Visibility = defaultVisibility
	}
	if b.options.Wait == 0 {
		b.options.Wait = defaultWait
	}
	return b
}

// Publisher returns a publisher. The Topic of a message is the name of its queue.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{unordered: b.options.Unordered, outlet: &queues{client: b.client}}
}

// NewSNSPublisher returns a publisher to topics of SNS. The Topic of a message is
// the ARN of its topic, or the name, which is appended to prefix, such as
// "arn:aws:sns:eu-north-1:123456789012:". Of the Options, it uses Unordered.
func NewSNSPublisher(client *sns.Client, prefix string, o *Options) broker.Publisher {
	return &publisher{unordered: o != nil && o.Unordered, outlet: &topics{client: client, prefix: prefix}}
}

// Queue returns the messages of a queue.
func (b *Broker) Queue(name string) broker.Source { return &source{broker: b, queue: name} }

// facts are what the service tells about a queue.
type facts struct {
	url, arn   string
	created    string // seconds; it changes if the queue is made anew
	fifo       bool
	deadLetter string // the ARN of the target of the redrive policy; empty: there is none
	retention  string // seconds
	waiting    []string
}

// lookUp asks the service for a queue.
func lookUp(ctx context.Context, client *sqs.Client, name string) (f facts, err error) {
	found, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return f, err
	}
	f.url = aws.ToString(found.QueueUrl)
	return f, f.read(ctx, client)
}

// read reads the attributes of the queue.
func (f *facts) read(ctx context.Context, client *sqs.Client) error {
	answer, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &f.url,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		return err
	}
	a := answer.Attributes
	f.arn, f.created, f.retention = a["QueueArn"], a["CreatedTimestamp"], a["MessageRetentionPeriod"]
	f.fifo = a["FifoQueue"] == "true"
	f.waiting = []string{a["ApproximateNumberOfMessages"], a["ApproximateNumberOfMessagesNotVisible"], a["ApproximateNumberOfMessagesDelayed"]}
	f.deadLetter = ""
	if policy := a["RedrivePolicy"]; policy != "" {
		var p struct{ DeadLetterTargetArn string }
		if err := json.Unmarshal([]byte(policy), &p); err != nil {
			return fmt.Errorf("the redrive policy %.200q: %w", policy, err)
		}
		f.deadLetter = p.DeadLetterTargetArn
	}
	return nil
}

// part returns a part of an ARN: 1 is the partition, 3 the region, 4 the account
// and 5 the name.
func part(arn string, i int) string {
	parts := strings.SplitN(arn, ":", 6)
	if i >= len(parts) {
		return ""
	}
	return parts[i]
}

// isGone reports whether an error says that a queue does not exist.
func isGone(err error) bool {
	var gone *types.QueueDoesNotExist
	return errors.As(err, &gone)
}
