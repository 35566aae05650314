package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/effectively-once/once/broker"
)

// publisher sends messages in batches. Those of one destination are sent one
// batch after another, so that they keep their order.
type publisher struct {
	unordered bool
	outlet    outlet

	mu     sync.Mutex
	closed bool
}

// outlet is where a publisher sends batches to.
type outlet interface {
	// topic reports whether it sends to topics, and not to queues.
	topic() bool

	// send sends a batch and returns the errors of its messages by their indexes,
	// or one for all of them.
	send(ctx context.Context, to string, batch []*wire) (map[int]error, error)
}

var (
	errPublisherClosed = errors.New("sqsbroker: the publisher is closed")
	errUnanswered      = errors.New("sqsbroker: the service has not answered for the message")
	errBlocked         = errors.New("sqsbroker: not sent, because an earlier message of its ordering key has failed")
)

// Publish sends messages and waits for the answers.
func (p *publisher) Publish(ctx context.Context, ms []*broker.Message) []error {
	if len(ms) == 0 {
		return nil
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	errs, wires := make([]error, len(ms)), make([]*wire, len(ms))
	byTopic := make(map[string][]int)
	for i, m := range ms {
		if closed {
			errs[i] = errPublisherClosed
			continue
		}
		fifo := m != nil && strings.HasSuffix(m.Topic, fifoSuffix)
		if wires[i], errs[i] = encode(m, fifo, p.unordered, p.outlet.topic()); errs[i] == nil {
			byTopic[m.Topic] = append(byTopic[m.Topic], i)
		}
	}
	for to, at := range byTopic {
		p.publish(ctx, to, wires, at, errs)
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return errs
}

// publish sends the messages with the indexes at to one destination. A batch has
// one message of a group, because the service may store a later one although an
// earlier one failed. After a failure, later batches leave out the group.
func (p *publisher) publish(ctx context.Context, to string, wires []*wire, at []int, errs []error) {
	failed := make(map[string]bool) // groups
	for len(at) > 0 {
		at = slices.DeleteFunc(at, func(i int) bool {
			if w := wires[i]; w.group != "" && failed[w.group] {
				errs[i] = errBlocked
			}
			return errs[i] != nil
		})
		batch, later := p.split(wires, at)
		p.sendBatch(ctx, to, wires, batch, errs)
		for _, i := range batch {
			if errs[i] != nil && !errors.Is(errs[i], broker.ErrInvalid) {
				failed[wires[i].group] = true
			}
		}
		at = later
	}
}

// split returns the messages of the next batch, and those of later ones.
func (p *publisher) split(wires []*wire, at []int) (batch, later []int) {
	room := maxQueueSize
	if p.outlet.topic() {
		room = maxTopicSize
	}
	groups := make(map[string]bool)
	for _, i := range at {
		w := wires[i]
		room -= w.size() // also of what does not fit, which ends the batch
		if len(batch) == maxEntries || room < 0 || groups[w.group] {
			later = append(later, i)
		} else {
			batch = append(batch, i)
		}
		groups[w.group] = w.group != ""
	}
	return batch, later
}

// sendBatch sends one batch. If the service refuses the batch because of one of
// its messages, each is sent alone, so that it does not hold up the others.
func (p *publisher) sendBatch(ctx context.Context, to string, wires []*wire, at []int, errs []error) {
	if len(at) == 0 {
		return
	}
	batch := make([]*wire, len(at))
	for j, i := range at {
		batch[j] = wires[i]
	}
	failed, err := p.outlet.send(ctx, to, batch)
	if err != nil && len(at) > 1 && isInvalid(codeOf(err)) {
		for j := range at {
			p.sendBatch(ctx, to, wires, at[j:j+1], errs)
		}
		return
	}
	for j, i := range at {
		switch {
		case err != nil && isInvalid(codeOf(err)):
			errs[i] = fmt.Errorf("%w: %q does not accept the message: %w", broker.ErrInvalid, to, err)
		case err != nil:
			errs[i] = fmt.Errorf("sqsbroker: publish to %q: %w", to, err)
		case failed[j] != nil:
			errs[i] = fmt.Errorf("publish to %q: %w", to, failed[j])
		}
	}
}

// Close ends publishing. There is no connection to close.
func (p *publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

// codeOf returns the code of an error of the service, or "".
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// isInvalid reports whether a code says that a message can never be accepted.
// Other errors that the sender causes, such as a key that it may not use, may end.
func isInvalid(code string) bool {
	switch strings.TrimPrefix(code, queryPrefix) {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "InvalidAttributeValue", "MissingParameter",
		"InvalidParameterCombination", "ParameterValueInvalid", "BatchRequestTooLong":
		return true
	}
	return false
}

// queryPrefix begins some codes of SQS, as its older protocol has them.
const queryPrefix = "AWS.SimpleQueueService."

// entryError is the error of one message of a batch.
func entryError(code, text *string, sender bool) error {
	err := fmt.Errorf("%s: %s", aws.ToString(code), aws.ToString(text))
	if sender && isInvalid(aws.ToString(code)) {
		return fmt.Errorf("%w: the service does not accept the message: %w", broker.ErrInvalid, err)
	}
	return fmt.Errorf("sqsbroker: %w", err)
}

// unanswered returns an error for each message of a batch. Those with an answer
// are removed from it.
func unanswered(batch []*wire) map[int]error {
	errs := make(map[int]error, len(batch))
	for i := range batch {
		errs[i] = errUnanswered
	}
	return errs
}

// answered notes the answer for an entry.
func answered(errs map[int]error, id *string, err error) {
	i, parseErr := strconv.Atoi(aws.ToString(id))
	switch {
	case parseErr != nil: // of no message
	case err == nil:
		delete(errs, i)
	default:
		errs[i] = err
	}
}

// queues sends to queues.
type queues struct {
	client *sqs.Client

	mu   sync.Mutex
	urls map[string]string // by name
}

func (q *queues) topic() bool { return false }

func (q *queues) send(ctx context.Context, to string, batch []*wire) (map[int]error, error) {
	url, err := q.url(ctx, to)
	if err != nil {
		return nil, err
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: &url}
	for i, w := range batch {
		in.Entries = append(in.Entries, w.entry(i))
	}
	errs, err := sendEntries(ctx, q.client, in, unanswered(batch))
	if isGone(err) {
		q.forget(to)
	}
	return errs, err
}

// sendEntries sends a batch, and notes the answers in errs.
func sendEntries(ctx context.Context, client *sqs.Client, in *sqs.SendMessageBatchInput, errs map[int]error) (map[int]error, error) {
	out, err := client.SendMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	for _, e := range out.Successful {
		answered(errs, e.Id, nil)
	}
	for _, e := range out.Failed {
		answered(errs, e.Id, entryError(e.Code, e.Message, e.SenderFault))
	}
	return errs, nil
}

func (w *wire) entry(i int) types.SendMessageBatchRequestEntry {
	e := types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: &w.body,
		MessageAttributes: make(map[string]types.MessageAttributeValue, len(w.attributes))}
	for name, value := range w.attributes {
		e.MessageAttributes[name] = textAttribute(value)
	}
	if w.group != "" {
		e.MessageGroupId, e.MessageDeduplicationId = &w.group, &w.dedup
	}
	return e
}

func textAttribute(value string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String(stringType), StringValue: &value}
}

// url returns the URL of a queue.
func (q *queues) url(ctx context.Context, name string) (string, error) {
	q.mu.Lock()
	url, ok := q.urls[name]
	q.mu.Unlock()
	if ok {
		return url, nil
	}
	found, err := q.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", lookUpError{err}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.urls == nil {
		q.urls = make(map[string]string)
	}
	q.urls[name] = aws.ToString(found.QueueUrl)
	return q.urls[name], nil
}

// lookUpError hides what the service calls an error, which is about the name of
// a queue or a topic and not about a message.
type lookUpError struct{ error }

func (q *queues) forget(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.urls, name)
}

// topics sends to topics of SNS.
type topics struct {
	client *sns.Client
	prefix string
}

func (t *topics) topic() bool { return true }

func (t *topics) send(ctx context.Context, to string, batch []*wire) (map[int]error, error) {
	arn := to
	if !strings.HasPrefix(to, "arn:") {
		arn = t.prefix + to
	}
	if part(arn, 2) != "sns" || part(arn, 5) == "" {
		return nil, fmt.Errorf("%q is no ARN of a topic: give NewSNSPublisher a prefix such as \"arn:aws:sns:eu-north-1:123456789012:\"", arn)
	}
	in := &sns.PublishBatchInput{TopicArn: &arn}
	for i, w := range batch {
		e := snstypes.PublishBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), Message: &w.body,
			MessageAttributes: make(map[string]snstypes.MessageAttributeValue, len(w.attributes))}
		for name, value := range w.attributes {
			e.MessageAttributes[name] = snstypes.MessageAttributeValue{DataType: aws.String(stringType), StringValue: &value}
		}
		if w.group != "" {
			e.MessageGroupId, e.MessageDeduplicationId = &w.group, &w.dedup
		}
		in.PublishBatchRequestEntries = append(in.PublishBatchRequestEntries, e)
	}
	out, err := t.client.PublishBatch(ctx, in)
	if err != nil && isInvalid(codeOf(err)) && strings.Contains(err.Error(), "TopicArn") { // the topic, and no message
		return nil, lookUpError{fmt.Errorf("is %q a topic in the region of the client? %w", arn, err)}
	}
	if err != nil {
		return nil, err
	}
	errs := unanswered(batch)
	for _, e := range out.Successful {
		answered(errs, e.Id, nil)
	}
	for _, e := range out.Failed {
		answered(errs, e.Id, entryError(e.Code, e.Message, e.SenderFault))
	}
	return errs, nil
}
