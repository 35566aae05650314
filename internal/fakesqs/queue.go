package fakesqs

import (
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// queue has messages in the order in which they were sent.
type queue struct {
	name       string
	created    time.Time
	attributes map[string]string
	messages   []*message
	sent       map[string]time.Time  // deduplication IDs, and until when they are remembered
	attempts   map[string][]*message // what a receive with an attempt ID has got
}

type message struct {
	id         string
	body       string
	attributes map[string]Attribute
	group      string
	dedup      string
	sequence   int
	sent       time.Time
	from       string // the queue that it was a dead letter of

	receives  int
	received  time.Time // the last time
	visible   time.Time // when it can be received
	receipt   string    // the last one
	twice     bool      // it is delivered once more while it is in flight
	firstSeen time.Time
}

func (q *queue) fifo() bool { return strings.HasSuffix(q.name, ".fifo") }

func (q *queue) arn() string { return arnOf("sqs", q.name) }

func arnOf(service, name string) string {
	return "arn:aws:" + service + ":" + Region + ":" + Account + ":" + name
}

// number returns an attribute of the queue.
func (q *queue) number(attribute string, otherwise int) int {
	if n, err := strconv.Atoi(q.attributes[attribute]); err == nil {
		return n
	}
	return otherwise
}

// remembered returns whether a deduplication ID was sent lately.
func (q *queue) remembered(dedup string, now time.Time) bool {
	until, ok := q.sent[dedup]
	return ok && now.Before(until)
}

var errNoQueue = &failure{code: "QueueDoesNotExist", text: "The specified queue does not exist."}

// find returns a queue by its URL. The mutex is held.
func (s *Server) find(url string) (*queue, error) {
	if q := s.queues[path.Base(url)]; q != nil {
		return q, nil
	}
	return nil, errNoQueue
}

// byARN returns a queue. The mutex is held.
func (s *Server) byARN(arn string) (*queue, error) {
	return s.find(arn[strings.LastIndex(arn, ":")+1:])
}

func urlOf(in *request, name string) map[string]string {
	return map[string]string{"QueueUrl": in.host + "/" + Account + "/" + name}
}

func (s *Server) createQueue(in *request) (any, error) {
	if old := s.queues[in.QueueName]; old != nil {
		if !maps.Equal(old.attributes, in.Attributes) {
			return nil, refuse("QueueNameExists", "A queue already exists with the same name and a different value for an attribute")
		}
		return urlOf(in, in.QueueName), nil
	}
	q := &queue{name: in.QueueName, created: s.now(), attributes: in.Attributes, sent: make(map[string]time.Time), attempts: make(map[string][]*message)}
	if q.fifo() != (in.Attributes["FifoQueue"] == "true") {
		return nil, refuse("InvalidParameterValue", "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix")
	}
	if s.queues == nil {
		s.queues = make(map[string]*queue)
	}
	s.queues[q.name] = q
	return urlOf(in, q.name), nil
}

func (s *Server) deleteQueue(in *request) (any, error) {
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	delete(s.queues, q.name)
	s.wake()
	return map[string]any{}, nil
}

func (s *Server) queueURL(in *request) (any, error) {
	if s.queues[in.QueueName] == nil {
		return nil, errNoQueue
	}
	return urlOf(in, in.QueueName), nil
}

// listQueues returns the queues by name, in pages of MaxResults.
func (s *Server) listQueues(in *request) (any, error) {
	names := slices.Sorted(maps.Keys(s.queues))
	at, _ := slices.BinarySearch(names, in.NextToken)
	end := len(names)
	if in.MaxResults > 0 {
		end = min(end, at+in.MaxResults)
	}
	answer, urls := map[string]any{}, []string{}
	for _, name := range names[at:end] {
		urls = append(urls, urlOf(in, name)["QueueUrl"])
	}
	answer["QueueUrls"] = urls
	if end < len(names) {
		answer["NextToken"] = names[end]
	}
	return answer, nil
}

func (s *Server) queueAttributes(in *request) (any, error) {
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	now := s.now()
	var waiting, inFlight int
	for _, m := range q.messages {
		if now.Before(m.visible) {
			inFlight++
		} else {
			waiting++
		}
	}
	a := map[string]string{"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "MaximumMessageSize": strconv.Itoa(maxMessageSize), "DelaySeconds": "0"}
	maps.Copy(a, q.attributes)
	maps.Copy(a, map[string]string{
		"QueueArn": q.arn(), "CreatedTimestamp": strconv.FormatInt(q.created.Unix(), 10),
		"ApproximateNumberOfMessages": strconv.Itoa(waiting), "ApproximateNumberOfMessagesNotVisible": strconv.Itoa(inFlight),
		"ApproximateNumberOfMessagesDelayed": "0",
	})
	return map[string]any{"Attributes": a}, nil
}

func sizeOf(body string, attributes map[string]Attribute) int {
	n := len(body)
	for name, a := range attributes {
		n += len(name) + len(a.DataType) + len(a.StringValue) + len(a.BinaryValue)
	}
	return n
}

// allowed reports whether a text has only characters that messages may have.
func allowed(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r > 0xFFFD && r < 0x10000
	})
}

func checkAttributes(attributes map[string]Attribute) error {
	if len(attributes) > maxAttributes {
		return refuse("InvalidParameterValue", "Number of message attributes [%d] exceeds the allowed maximum [10].", len(attributes))
	}
	for name, a := range attributes {
		if !attributeName(name) {
			return refuse("InvalidParameterValue", "The message attribute name %q is invalid", name)
		}
		switch {
		case strings.HasPrefix(a.DataType, "Binary"):
			if len(a.BinaryValue) == 0 {
				return refuse("InvalidParameterValue", "The message attribute '%s' must contain a non-empty message attribute value", name)
			}
		case strings.HasPrefix(a.DataType, "String"), strings.HasPrefix(a.DataType, "Number"):
			if a.StringValue == "" || !allowed(a.StringValue) {
				return refuse("InvalidParameterValue", "The message attribute '%s' must contain a valid non-empty message attribute value", name)
			}
		default:
			return refuse("InvalidParameterValue", "The type of message attribute '%s' is invalid", name)
		}
	}
	return nil
}

func attributeName(name string) bool {
	lower := strings.ToLower(name)
	return name != "" && len(name) <= 256 && name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		!strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.") &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
		})
}

// fifoID reports whether a text can be a group ID or a deduplication ID.
func fifoID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (s *Server) sendBatch(in *request) (any, error) {
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, e := range in.Entries {
		total += sizeOf(e.MessageBody, e.MessageAttributes)
	}
	if total > maxMessageSize {
		return nil, refuse("BatchRequestTooLong", "Batch requests cannot be longer than 1048576 bytes. You have sent %d bytes.", total)
	}
	return batch(in, func(e entry) (map[string]any, error) { return s.send(q, e) })
}

// send stores a message, unless its deduplication ID was sent lately. The mutex
// is held.
func (s *Server) send(q *queue, e entry) (map[string]any, error) {
	if e.MessageBody == "" || !allowed(e.MessageBody) {
		return nil, refuse("InvalidMessageContents", "The message body is empty, or has invalid characters.")
	}
	if limit := q.number("MaximumMessageSize", maxMessageSize); sizeOf(e.MessageBody, e.MessageAttributes) > limit {
		return nil, refuse("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", limit)
	}
	if err := checkAttributes(e.MessageAttributes); err != nil {
		return nil, err
	}
	now := s.now()
	if q.fifo() {
		switch {
		case !fifoID(e.MessageGroupId):
			return nil, refuse("MissingParameter", "The request must contain a valid parameter MessageGroupId.")
		case !fifoID(e.MessageDeduplicationId):
			return nil, refuse("InvalidParameterValue", "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")
		case e.DelaySeconds != nil:
			return nil, refuse("InvalidParameterValue", "Value %d for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.", *e.DelaySeconds)
		}
	}
	s.sequence++
	sum := md5.Sum([]byte(e.MessageBody))
	m := &message{id: unique(), body: e.MessageBody, attributes: e.MessageAttributes, group: e.MessageGroupId, dedup: e.MessageDeduplicationId,
		sequence: s.sequence, sent: now, visible: now}
	if !q.fifo() || !q.remembered(m.dedup, now) {
		q.sent[m.dedup] = now.Add(deduplicationTime)
		q.messages = append(q.messages, m)
		s.wake()
	}
	return map[string]any{"MessageId": m.id, "MD5OfMessageBody": hex.EncodeToString(sum[:])}, nil
}

// receive waits for messages.
func (s *Server) receive(in *request) (any, error) {
	var wait time.Duration
	if in.WaitTimeSeconds != nil {
		wait = time.Duration(*in.WaitTimeSeconds) * cmp.Or(s.PollSecond, time.Second)
	}
	if in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > maxEntries || in.WaitTimeSeconds != nil && *in.WaitTimeSeconds > 20 {
		return nil, refuse("InvalidParameterValue", "MaxNumberOfMessages must be between 1 and 10, and WaitTimeSeconds 20 at most")
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		s.mu.Lock()
		q, err := s.find(in.QueueUrl)
		if err != nil || in.r.Context().Err() != nil {
			s.mu.Unlock()
			return nil, err
		}
		got, next := s.take(q, in)
		changes := s.changes()
		s.mu.Unlock()
		if len(got) > 0 || wait == 0 {
			return map[string]any{"Messages": got}, nil
		}
		due := time.NewTimer(next)
		select {
		case <-changes:
		case <-due.C:
		case <-end.C:
			wait = 0
		case <-in.r.Context().Done():
		}
		due.Stop()
	}
}

// take receives the messages that are available, and returns when others will
// be. The mutex is held.
func (s *Server) take(q *queue, in *request) (got []map[string]any, next time.Duration) {
	now := s.now()
	hidden := time.Duration(q.number("VisibilityTimeout", 30)) * time.Second
	if in.VisibilityTimeout != nil {
		hidden = time.Duration(*in.VisibilityTimeout) * time.Second
	}
	if again := q.attempts[in.ReceiveRequestAttemptId]; in.ReceiveRequestAttemptId != "" && stillOut(again, now) {
		return describe(again), 0
	}
	next = time.Hour
	blocked := make(map[string]bool) // groups with a message in flight
	for _, m := range q.messages {
		if now.Before(m.visible) {
			blocked[m.group] = true
		}
	}
	var taken []*message
	for _, m := range slices.Clone(q.messages) {
		inFlight := now.Before(m.visible)
		switch {
		case inFlight && !q.fifo() && m.twice:
			m.twice = false // another server of the service does not know yet
		case inFlight:
			next = min(next, m.visible.Sub(now))
			continue
		case q.fifo() && blocked[m.group]:
			continue
		case s.redrive(q, m):
			continue
		}
		if len(taken) == in.MaxNumberOfMessages {
			break
		}
		m.receives++
		m.received, m.visible, m.receipt = now, now.Add(hidden), fmt.Sprintf("%s/%s", m.id, unique())
		if m.firstSeen.IsZero() {
			m.firstSeen = now
		}
		taken = append(taken, m)
	}
	if in.ReceiveRequestAttemptId != "" && len(taken) > 0 {
		q.attempts[in.ReceiveRequestAttemptId] = taken
	}
	return describe(taken), next
}

// stillOut reports whether the messages of an attempt have not changed.
func stillOut(ms []*message, now time.Time) bool {
	for _, m := range ms {
		if !now.Before(m.visible) {
			return false
		}
	}
	return len(ms) > 0
}

func describe(ms []*message) (got []map[string]any) {
	for _, m := range ms {
		sum := md5.Sum([]byte(m.body))
		system := map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.receives), "SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10),
			"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.firstSeen.UnixMilli(), 10)}
		if m.group != "" {
			maps.Copy(system, map[string]string{"MessageGroupId": m.group, "MessageDeduplicationId": m.dedup, "SequenceNumber": fmt.Sprintf("%020d", m.sequence)})
		}
		got = append(got, map[string]any{"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": hex.EncodeToString(sum[:]),
			"Attributes": system, "MessageAttributes": m.attributes})
	}
	return got
}

// redrive moves a message to the dead-letter queue if it was received too often.
// The mutex is held.
func (s *Server) redrive(q *queue, m *message) bool {
	var policy struct {
		DeadLetterTargetArn string      `json:"deadLetterTargetArn"`
		MaxReceiveCount     json.Number `json:"maxReceiveCount"`
	}
	if json.Unmarshal([]byte(q.attributes["RedrivePolicy"]), &policy) != nil {
		return false
	}
	if limit, err := policy.MaxReceiveCount.Int64(); err != nil || int64(m.receives) < limit {
		return false
	}
	dead, err := s.byARN(policy.DeadLetterTargetArn)
	if err != nil {
		return false
	}
	q.remove(m)
	m.from = q.name
	dead.messages = append(dead.messages, m)
	s.wake()
	return true
}

func (q *queue) remove(m *message) {
	q.messages = slices.DeleteFunc(q.messages, func(other *message) bool { return other == m })
}

// move puts all messages of a dead-letter queue into another queue, as new
// messages.
func (s *Server) move(in *request) (any, error) {
	dead, err := s.byARN(in.SourceArn)
	if err != nil {
		return nil, err
	}
	for _, m := range slices.Clone(dead.messages) {
		to, err := s.byARN(in.DestinationArn)
		if in.DestinationArn == "" {
			to, err = s.find(m.from)
		}
		if err != nil {
			return nil, err
		}
		dead.remove(m)
		m.id, m.sent, m.receives, m.visible, m.firstSeen = unique(), s.now(), 0, s.now(), time.Time{}
		to.messages = append(to.messages, m)
	}
	s.wake()
	return map[string]any{"TaskHandle": unique()}, nil
}

// held returns the message of a receipt handle, nil if it is deleted.
func (q *queue) held(receipt string) (*message, error) {
	id, _, ok := strings.Cut(receipt, "/")
	if !ok {
		return nil, refuse("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
	}
	for _, m := range q.messages {
		if m.id == id {
			return m, nil
		}
	}
	return nil, nil
}

// deleteBatch deletes messages. A standard queue answers that all is well for an
// old receipt handle, although it may keep the message.
func (s *Server) deleteBatch(in *request) (any, error) {
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	return batch(in, func(e entry) (map[string]any, error) {
		m, err := q.held(e.ReceiptHandle)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
		case q.fifo() && (m.receipt != e.ReceiptHandle || !s.now().Before(m.visible)):
			return nil, refuse("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", e.ReceiptHandle)
		case m.receipt == e.ReceiptHandle:
			q.remove(m)
			s.wake()
		}
		return map[string]any{}, nil
	})
}

func (s *Server) changeVisibilityBatch(in *request) (any, error) {
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	now := s.now()
	return batch(in, func(e entry) (map[string]any, error) {
		m, err := q.held(e.ReceiptHandle)
		timeout := time.Duration(e.VisibilityTimeout) * time.Second
		switch {
		case err != nil:
			return nil, err
		case m == nil || m.receipt != e.ReceiptHandle || !now.Before(m.visible):
			return nil, refuse("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", e.ReceiptHandle)
		case timeout > longestVisibility || now.Add(timeout).Sub(m.received) > longestVisibility:
			return nil, refuse("InvalidParameterValue", "Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].", e.VisibilityTimeout)
		}
		m.visible = now.Add(timeout)
		s.wake()
		return map[string]any{}, nil
	})
}

// DeliverTwice has a standard queue deliver each message that it has once more
// while it is in flight, as a service of many servers may.
func (s *Server) DeliverTwice(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[queue]; q != nil {
		for _, m := range q.messages {
			m.twice = true
		}
	}
	s.wake()
}

// Count returns how many messages a queue has, with those in flight.
func (s *Server) Count(queue string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[queue]; q != nil {
		return len(q.messages)
	}
	return 0
}
