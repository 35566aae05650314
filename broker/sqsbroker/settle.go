package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
)

var (
	errSettled = fmt.Errorf("sqsbroker: %w", broker.ErrSettled)
	errLost    = errors.New("the receipt handle is of no use any more: the time of the message was over, or another session has it. It comes again")
)

// Ack deletes messages, and waits for the answer. A message whose time is over is
// not deleted, because another session may have it.
func (s *session) Ack(ctx context.Context, ds []broker.Delivery) error {
	as, err := s.find(ds)
	return errors.Join(err, s.remove(ctx, as))
}

// LongestDelay returns 11 hours. SQS hides a message for 12 hours in all after it
// was received, so a message that was handled for longer than an hour comes again
// earlier.
func (s *session) LongestDelay() time.Duration { return longestDelay }

// Return lets messages come again after a delay, which is rounded up to seconds.
// Later messages of a group of a FIFO queue, which wait in this session, come
// again after it. If the service does not answer, the messages come again when
// their time is over.
func (s *session) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	as, err := s.find(ds)
	var later []*arrival
	s.mu.Lock()
	for _, a := range as {
		later = append(later, s.followers(a)...)
	}
	for _, a := range slices.Concat(as, later) {
		s.drop(a)
	}
	s.mu.Unlock()
	err = errors.Join(err, s.show(ctx, later))
	for page := range slices.Chunk(as, maxEntries) {
		now := time.Now()
		failed, hideErr := s.giveBack(ctx, page, func(a *arrival) time.Duration {
			return max(min(after, longestDelay, a.latest().Sub(now).Truncate(time.Second)), 0)
		})
		err = errors.Join(err, s.explainAll(failed, hideErr))
	}
	return err
}

// Reject deletes messages. If there is a queue for dead letters, it sends them
// there first.
func (s *session) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	as, err := s.find(ds)
	if s.deadURL == "" {
		return errors.Join(err, s.remove(ctx, as))
	}
	s.mu.Lock()
	var stored []*arrival // dead letters of an earlier try
	as = slices.DeleteFunc(as, func(a *arrival) bool {
		if a.dead {
			stored = append(stored, a)
		}
		return a.dead
	})
	s.mu.Unlock()
	err = errors.Join(err, s.remove(ctx, stored))
	for page := range slices.Chunk(as, maxEntries) {
		kept, renewErr := s.renewPage(ctx, page) // what another session has is no dead letter yet
		if renewErr != nil {
			err = errors.Join(err, s.explain(renewErr))
			continue
		}
		if len(kept) < len(page) {
			err = errors.Join(err, s.explain(errLost))
		}
		sent, sendErr := s.sendDeadLetters(ctx, kept, reason)
		err = errors.Join(err, sendErr, s.remove(ctx, sent))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range as { // what is left comes again, and holds up its group no longer
		a.rejected = true
	}
	return err
}

// KeepsRejected reports whether there is a queue for dead letters.
func (s *session) KeepsRejected() bool { return s.deadURL != "" }

// find returns the messages of unsettled deliveries whose time is not over.
func (s *session) find(ds []broker.Delivery) (as []*arrival, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, fmt.Errorf("sqsbroker: the session has ended, and its deliveries come again: %w", s.broken)
	}
	s.dropExpired(time.Now())
	for _, d := range ds {
		if a, ok := d.Tag.(*arrival); ok && s.all[a] && !slices.Contains(as, a) {
			as = append(as, a)
		} else {
			err = errSettled
		}
	}
	return as, err
}

// removals is how many requests of one call delete messages at a time.
const removals = 16

// remove deletes messages. After an error of the service they stay in the window
// and may be settled again, until their time is over. Those that were lost leave
// it.
func (s *session) remove(ctx context.Context, as []*arrival) error {
	pages := slices.Collect(slices.Chunk(as, maxEntries))
	errs := make([]error, len(pages))
	turns := make(chan struct{}, removals)
	var requests sync.WaitGroup
	for i, page := range pages {
		turns <- struct{}{}
		requests.Go(func() {
			defer func() { <-turns }()
			errs[i] = s.removePage(ctx, page)
		})
	}
	requests.Wait()
	return errors.Join(errs...)
}

func (s *session) removePage(ctx context.Context, page []*arrival) error {
	failed, err := s.delete(ctx, page)
	if err != nil {
		return s.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range page {
		switch {
		case failed[a] == nil:
			s.drop(a)
		case isLost(failed[a]):
			s.lose(a)
		}
	}
	return s.explainAll(failed, nil)
}

// delete deletes up to ten messages, and returns the errors of single ones. It
// gives up when the time of the first one is over.
func (s *session) delete(ctx context.Context, page []*arrival) (map[*arrival]error, error) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &s.is.url}
	s.mu.Lock()
	first := page[0].until
	for i, a := range page {
		a.settling = true
		if a.until.Before(first) {
			first = a.until
		}
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: a.handle()})
	}
	s.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, first)
	defer cancel()
	out, err := s.client.DeleteMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	var done []*string
	for _, e := range out.Successful {
		done = append(done, e.Id)
	}
	return outcomes(page, done, out.Failed), nil
}

// explainAll returns one error for those of a batch.
func (s *session) explainAll(failed map[*arrival]error, err error) error {
	if err != nil {
		return s.explain(err)
	}
	for _, one := range failed {
		if isLost(one) {
			return s.explain(fmt.Errorf("%d messages could not be settled: %w (%w)", len(failed), errLost, one))
		}
		err = s.explain(fmt.Errorf("%d messages could not be settled: %w", len(failed), one))
	}
	return err
}

// The headers of a dead letter.
const (
	reasonHeader = broker.ReasonHeader
	topicHeader  = broker.TopicHeader
	originHeader = broker.OriginHeader // the queue, and the ID that SQS gave the message
)

// longestReason is the maximum length of a reason in a header, in bytes.
const longestReason = 1000

// sendDeadLetters sends the dead letters of messages, and returns the messages
// whose dead letters are stored.
func (s *session) sendDeadLetters(ctx context.Context, as []*arrival, reason string) (sent []*arrival, err error) {
	most := maxEntries // of a batch
	for len(as) > 0 {
		in := &sqs.SendMessageBatchInput{QueueUrl: &s.deadURL}
		size, n := 0, 0
		for ; n < min(len(as), most); n++ {
			e, entrySize := s.deadLetter(n, as[n], reason)
			if size += entrySize; n > 0 && size > maxQueueSize {
				break
			}
			in.Entries = append(in.Entries, e)
		}
		errs, sendErr := sendEntries(ctx, s.client, in, unanswered(make([]*wire, n)))
		if n > 1 && isInvalid(codeOf(sendErr)) {
			most = 1 // one of them is to blame, and does not hold up the others
			continue
		}
		for i, a := range as[:n] {
			switch {
			case sendErr != nil:
				err = fmt.Errorf("sqsbroker: %s: send a dead letter: %w", s.Name(), sendErr)
			case errs[i] != nil:
				err = fmt.Errorf("%s: send a dead letter: %w", s.Name(), errs[i])
			default:
				sent = append(sent, a)
			}
		}
		as = as[n:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range sent {
		a.dead = true
	}
	return sent, err
}

// deadLetter returns the dead letter of a message, and its size. It is the
// message as it was, with the reason if there is room for it. Its deduplication
// ID is not that of the message: a message that is sent back and rejected again
// must not be dropped.
func (s *session) deadLetter(i int, a *arrival, reason string) (types.SendMessageBatchRequestEntry, int) {
	e := types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: a.message.Body, MessageAttributes: s.explained(a, reason)}
	if s.is.fifo {
		stored := aws.ToString(a.message.MessageId) + "@" + a.message.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)]
		e.MessageGroupId, e.MessageDeduplicationId = &a.group, aws.String(fifoID(stored))
	}
	return e, len(*e.MessageBody) + attributesSize(e.MessageAttributes)
}

// explained returns the attributes of a message with the reason of its rejection.
func (s *session) explained(a *arrival, reason string) map[string]types.MessageAttributeValue {
	reason = name.Line(strings.Join(strings.Fields(reason), " "), longestReason)
	more := map[string]string{topicHeader: decode(s.queue, &a.message).Topic, originHeader: s.queue + "@" + aws.ToString(a.message.MessageId)}
	if reason != "" {
		more[reasonHeader] = reason
	}
	room := maxQueueSize - len(aws.ToString(a.message.Body))
	whole := maps.Clone(a.message.MessageAttributes)
	if whole == nil {
		whole = make(map[string]types.MessageAttributeValue)
	}
	if own, ok := withHeaders(whole, more); ok && attributesSize(own) <= room {
		return own
	}
	for _, header := range []string{reasonHeader, originHeader, topicHeader} {
		if value := more[header]; value != "" && len(whole) < maxAttributes {
			whole[header] = textAttribute(value)
			if attributesSize(whole) > room {
				delete(whole, header)
			}
		}
	}
	return whole
}

// withHeaders adds headers to the attributes of a message of this package, which
// may have to share an attribute then. It reports whether it is one.
func withHeaders(attributes map[string]types.MessageAttributeValue, more map[string]string) (map[string]types.MessageAttributeValue, bool) {
	texts := textsOf(attributes)
	for _, a := range attributes {
		if aws.ToString(a.DataType) != stringType { // another program has added it
			return nil, false
		}
	}
	if texts[attributeID] == "" {
		return nil, false
	}
	header := decode("", &types.Message{MessageAttributes: attributes}).Header
	if header == nil {
		header = make(map[string]string)
	}
	maps.Copy(header, more)
	w := &wire{attributes: make(map[string]string)}
	for _, own := range []string{attributeID, attributeKey, attributeTime, attributeTopic, attributeEncoding} {
		if texts[own] != "" {
			w.attributes[own] = texts[own]
		}
	}
	if w.setHeaders(header) != nil {
		return nil, false
	}
	all := make(map[string]types.MessageAttributeValue, len(w.attributes))
	for name, value := range w.attributes {
		all[name] = textAttribute(value)
	}
	return all, true
}

func attributesSize(attributes map[string]types.MessageAttributeValue) (n int) {
	for name, a := range attributes {
		n += len(name) + len(aws.ToString(a.DataType)) + len(aws.ToString(a.StringValue)) + len(a.BinaryValue)
	}
	return n
}
