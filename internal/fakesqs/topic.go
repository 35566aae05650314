package fakesqs

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// topic delivers to the queues that are subscribed.
type topic struct {
	name          string
	attributes    map[string]string
	sent          map[string]time.Time
	subscriptions []subscription
}

type subscription struct {
	queue      string
	raw        bool
	attributes map[string]string
}

func (t *topic) fifo() bool { return strings.HasSuffix(t.name, ".fifo") }

// CreateTopic creates a topic and returns its ARN.
func (s *Server) CreateTopic(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics == nil {
		s.topics = make(map[string]*topic)
	}
	if s.topics[name] == nil {
		s.topics[name] = &topic{name: name, sent: make(map[string]time.Time)}
	}
	return arnOf("sns", name)
}

// Subscribe has a topic deliver to a queue: the messages as they are, or in
// envelopes.
func (s *Server) Subscribe(name, queue string, raw bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[name]
	t.subscriptions = append(t.subscriptions, subscription{queue: queue, raw: raw})
}

// SetTopicAttributes adds attributes that the service tells of a topic. They have
// no effect.
func (s *Server) SetTopicAttributes(name string, attributes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[name].attributes = attributes
}

// SetSubscriptionAttributes adds attributes that the service tells of the
// subscriptions of a queue to a topic. They have no effect.
func (s *Server) SetSubscriptionAttributes(name, queue string, attributes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.topics[name].subscriptions {
		if to := &s.topics[name].subscriptions[i]; to.queue == queue {
			to.attributes = attributes
		}
	}
}

type batchError struct {
	Id, Code, Message string
	SenderFault       bool
}

type batchDone struct {
	Id, MessageId string
}

func (s *Server) serveTopics(w http.ResponseWriter, r *http.Request, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fault := s.takeFault(form.Get("Action"))
	w.Header().Set("Content-Type", "text/xml")
	var answer any
	err = error(&failure{code: fault.Code, text: "as the test wants it", fault: !fault.Sender})
	if fault.Code == "" {
		answer, err = s.doTopic(r, form, fault)
	}
	if fault.LoseReply {
		panic(http.ErrAbortHandler)
	}
	var failed *failure
	if errors.As(err, &failed) {
		status := http.StatusBadRequest
		if failed.fault {
			status = http.StatusServiceUnavailable
		} else if failed.code == "NotFound" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>", failed.code, failed.text)
		return
	}
	_ = xml.NewEncoder(w).Encode(answer) // the client may be gone
}

// doTopic carries out a request of SNS.
func (s *Server) doTopic(r *http.Request, form url.Values, fault Fault) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch form.Get("Action") {
	case "PublishBatch":
		return s.publish(r, form, fault)
	case "ListTopics":
		return s.listTopics(), nil
	case "GetTopicAttributes":
		return s.topicAttributes(form)
	case "ListSubscriptionsByTopic":
		return s.listSubscriptions(form)
	case "GetSubscriptionAttributes":
		return s.subscriptionAttributes(form)
	}
	return nil, refuse("InvalidAction", "%s is not imitated", form.Get("Action"))
}

// findTopic returns a topic by the TopicArn of a request. The mutex is held.
func (s *Server) findTopic(form url.Values) (*topic, error) {
	arn := strings.Split(form.Get("TopicArn"), ":")
	if len(arn) != 6 || arn[3] != Region {
		return nil, refuse("InvalidParameter", "Invalid parameter: TopicArn")
	}
	t := s.topics[arn[5]]
	if t == nil {
		return nil, refuse("NotFound", "Topic does not exist")
	}
	return t, nil
}

// publish carries out PublishBatch. The mutex is held.
func (s *Server) publish(r *http.Request, form url.Values, fault Fault) (any, error) {
	t, err := s.findTopic(form)
	if err != nil {
		return nil, err
	}
	in := &request{r: r, fault: fault}
	total := 0
	for i := 1; ; i++ {
		prefix := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", i)
		if !form.Has(prefix + "Id") {
			break
		}
		e := entry{Id: form.Get(prefix + "Id"), MessageBody: form.Get(prefix + "Message"), MessageGroupId: form.Get(prefix + "MessageGroupId"),
			MessageDeduplicationId: form.Get(prefix + "MessageDeduplicationId"), MessageAttributes: make(map[string]Attribute)}
		for j := 1; ; j++ {
			attribute := fmt.Sprintf("%sMessageAttributes.entry.%d.", prefix, j)
			if !form.Has(attribute + "Name") {
				break
			}
			binary, err := base64.StdEncoding.DecodeString(form.Get(attribute + "Value.BinaryValue"))
			if err != nil {
				return nil, refuse("ParameterValueInvalid", "%v", err)
			}
			e.MessageAttributes[form.Get(attribute+"Name")] = Attribute{form.Get(attribute + "Value.DataType"), form.Get(attribute + "Value.StringValue"), binary}
		}
		total += sizeOf(e.MessageBody, e.MessageAttributes)
		in.Entries = append(in.Entries, e)
	}
	if total > maxNotification {
		return nil, refuse("BatchRequestTooLong", "The length of all the batch messages put together is more than the limit.")
	}
	outcome, err := batch(in, func(e entry) (map[string]any, error) { return s.notify(t, e) })
	if err != nil {
		return nil, err
	}
	return answerOf(outcome), nil
}

// answerOf is the XML of the outcome of a batch.
func answerOf(outcome any) any {
	type result struct {
		Successful []batchDone  `xml:"Successful>member"`
		Failed     []batchError `xml:"Failed>member"`
	}
	var out struct {
		XMLName xml.Name `xml:"PublishBatchResponse"`
		Result  result   `xml:"PublishBatchResult"`
	}
	parts := outcome.(map[string]any)
	for _, done := range parts["Successful"].([]map[string]any) {
		out.Result.Successful = append(out.Result.Successful, batchDone{done["Id"].(string), done["MessageId"].(string)})
	}
	for _, f := range parts["Failed"].([]map[string]any) {
		out.Result.Failed = append(out.Result.Failed, batchError{f["Id"].(string), f["Code"].(string), f["Message"].(string), f["SenderFault"].(bool)})
	}
	return out
}

// notify delivers a message to the queues that are subscribed. The mutex is held.
func (s *Server) notify(t *topic, e entry) (map[string]any, error) {
	if e.MessageBody == "" || !allowed(e.MessageBody) {
		return nil, refuse("InvalidParameter", "Invalid parameter: Empty message, or invalid characters")
	}
	if err := checkAttributes(e.MessageAttributes); err != nil {
		return nil, refuse("InvalidParameter", "%v", err)
	}
	now, id := s.now(), unique()
	if t.fifo() {
		if !fifoID(e.MessageGroupId) || !fifoID(e.MessageDeduplicationId) {
			return nil, refuse("InvalidParameter", "Invalid parameter: The MessageGroupId and MessageDeduplicationId parameters are required for FIFO topics")
		}
		if now.Before(t.sent[e.MessageDeduplicationId]) {
			return map[string]any{"MessageId": id}, nil
		}
		t.sent[e.MessageDeduplicationId] = now.Add(deduplicationTime)
	}
	for _, to := range t.subscriptions {
		q := s.queues[to.queue]
		if q == nil {
			continue
		}
		sent := e
		if !to.raw {
			sent.MessageBody, sent.MessageAttributes = envelope(t, id, now, e), nil
		}
		if _, err := s.send(q, sent); err != nil {
			return nil, &failure{code: "InternalFailure", text: err.Error(), fault: true} // the service would retry, and a test is to see it
		}
	}
	return map[string]any{"MessageId": id}, nil
}

func envelope(t *topic, id string, now time.Time, e entry) string {
	type attribute struct{ Type, Value string }
	attributes := make(map[string]attribute)
	for name, a := range e.MessageAttributes {
		value := a.StringValue
		if len(a.BinaryValue) > 0 {
			value = base64.StdEncoding.EncodeToString(a.BinaryValue)
		}
		attributes[name] = attribute{a.DataType, value}
	}
	text, err := json.Marshal(map[string]any{"Type": "Notification", "MessageId": id, "TopicArn": arnOf("sns", t.name), "Message": e.MessageBody,
		"Timestamp": now.UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "1", "Signature": "none", "SigningCertURL": "none",
		"UnsubscribeURL": "none", "MessageAttributes": attributes})
	if err != nil {
		panic(err) // texts can be marshalled
	}
	return string(text)
}
