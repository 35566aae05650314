// Package fakesqs imitates SQS and SNS over HTTP, in memory, as far as this
// repository uses them: standard and FIFO queues, visibility, receipt handles,
// batches whose entries fail one by one, deduplication that outlives deletion,
// redrive to dead-letter queues and back, topics that deliver to queues, and what
// tells of their settings.
//
// It is stricter than the service where the service leaves room: a standard
// queue delivers in order, unless DeliverTwice is called. Signatures and
// permissions are not checked. Requests it does not know are refused.
package fakesqs

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Region and Account are in the ARNs of queues and topics.
const (
	Region  = "eu-north-1"
	Account = "123456789012"
)

const (
	deduplicationTime = 5 * time.Minute
	longestVisibility = 12 * time.Hour
	maxMessageSize    = 1 << 20
	maxNotification   = 256 << 10
	maxEntries        = 10
	maxAttributes     = 10
)

// Server is a fake. The zero value has no queues.
type Server struct {
	// Clock is the time of the service. It is set before the server serves.
	// Default: time.Now.
	Clock func() time.Time

	// PollSecond is how long a request for messages waits for each second that it
	// may. It is set before the server serves. Default: a second.
	PollSecond time.Duration

	mu       sync.Mutex
	queues   map[string]*queue
	topics   map[string]*topic
	changed  chan struct{} // closed when a message may have become available
	faults   map[string][]Fault
	requests map[string]int
	sequence int
}

// Fault is what happens to one request of an action. One field is set, and Sender
// beside Code or Entries.
type Fault struct {
	Code      string         // the whole request fails with it
	Entries   map[int]string // the codes of entries of a batch that fail, by their places
	Sender    bool           // it, or those entries, fail by a fault of the sender, and not of the service
	LoseReply bool           // it is carried out, and the connection is cut before the reply
	Hold      chan struct{}  // it waits until this is closed, or until the client is gone
}

// AddFault has the next request of an action fail that has no fault yet.
func (s *Server) AddFault(action string, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == nil {
		s.faults = make(map[string][]Fault)
	}
	s.faults[action] = append(s.faults[action], f)
}

// Requests returns how many requests of an action have come.
func (s *Server) Requests(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[action]
}

// takeFault counts a request and returns its fault.
func (s *Server) takeFault(action string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == nil {
		s.requests = make(map[string]int)
	}
	s.requests[action]++
	waiting := s.faults[action]
	if len(waiting) == 0 {
		return Fault{}
	}
	s.faults[action] = waiting[1:]
	return waiting[0]
}

func (s *Server) now() time.Time {
	if s.Clock == nil {
		return time.Now()
	}
	return s.Clock()
}

// wake lets requests that wait look again. The mutex is held.
func (s *Server) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Wake lets requests that wait look again, after Clock has moved.
func (s *Server) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

// changes returns what is closed at the next change. The mutex is held.
func (s *Server) changes() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// failure is an error of the service.
type failure struct {
	code, text string
	fault      bool // of the service
}

func (f *failure) Error() string { return f.code + ": " + f.text }

func refuse(code, format string, args ...any) error {
	return &failure{code: code, text: fmt.Sprintf(format, args...)}
}

// ServeHTTP answers a request of SQS, which is JSON, or of SNS, which is a form.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	if action, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."); ok {
		s.serveQueues(w, r, action, body)
		return
	}
	s.serveTopics(w, r, body)
}

func (s *Server) serveQueues(w http.ResponseWriter, r *http.Request, action string, body []byte) {
	fault := s.takeFault(action)
	if fault.Hold != nil {
		select {
		case <-fault.Hold:
		case <-r.Context().Done():
			return
		}
	}
	var answer any
	err := error(&failure{code: fault.Code, text: "as the test wants it", fault: !fault.Sender})
	if fault.Code == "" {
		answer, err = s.do(r, action, body, fault)
	}
	if fault.LoseReply {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	var failed *failure
	switch {
	case errors.As(err, &failed):
		status := http.StatusBadRequest
		if failed.fault {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("X-Amzn-Query-Error", queryCode(failed.code)+";Sender")
		w.WriteHeader(status)
		answer = map[string]string{"__type": "com.amazonaws.sqs#" + failed.code, "message": failed.text}
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		answer = map[string]string{"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// queryCode is what the older protocol calls an error.
func queryCode(code string) string {
	switch code {
	case "QueueDoesNotExist":
		return "AWS.SimpleQueueService.NonExistentQueue"
	case "BatchRequestTooLong":
		return "AWS.SimpleQueueService." + code
	}
	return code
}

// do carries out a request of SQS.
func (s *Server) do(r *http.Request, action string, body []byte, fault Fault) (any, error) {
	in := &request{r: r, host: "http://" + r.Host, fault: fault}
	if err := json.Unmarshal(body, in); err != nil {
		return nil, err
	}
	switch action {
	case "ReceiveMessage":
		return s.receive(in)
	case "CreateQueue":
		return s.locked(in, s.createQueue)
	case "DeleteQueue":
		return s.locked(in, s.deleteQueue)
	case "GetQueueUrl":
		return s.locked(in, s.queueURL)
	case "ListQueues":
		return s.locked(in, s.listQueues)
	case "GetQueueAttributes":
		return s.locked(in, s.queueAttributes)
	case "SendMessageBatch":
		return s.locked(in, s.sendBatch)
	case "DeleteMessageBatch":
		return s.locked(in, s.deleteBatch)
	case "ChangeMessageVisibilityBatch":
		return s.locked(in, s.changeVisibilityBatch)
	case "StartMessageMoveTask":
		return s.locked(in, s.move)
	}
	return nil, refuse("InvalidAction", "%s is not imitated", action)
}

func (s *Server) locked(in *request, do func(*request) (any, error)) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return do(in)
}

// request has the parameters of all actions.
type request struct {
	r     *http.Request
	host  string
	fault Fault

	QueueUrl, QueueName                string
	SourceArn, DestinationArn          string
	Attributes                         map[string]string
	Entries                            []entry
	MaxNumberOfMessages                int
	MaxResults                         int
	NextToken                          string
	VisibilityTimeout, WaitTimeSeconds *int
	ReceiveRequestAttemptId            string
	MessageAttributeNames              []string
	MessageSystemAttributeNames        []string
}

// entry has the parameters of an entry of any batch.
type entry struct {
	Id                     string
	MessageBody            string
	MessageAttributes      map[string]Attribute
	MessageGroupId         string
	MessageDeduplicationId string
	DelaySeconds           *int
	ReceiptHandle          string
	VisibilityTimeout      int
}

// Attribute is an attribute of a message.
type Attribute struct {
	DataType    string
	StringValue string `json:",omitempty"`
	BinaryValue []byte `json:",omitempty"`
}

// unique returns a text that nothing else has.
func unique() string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// batch carries out the entries of a batch, each for itself.
func batch(in *request, do func(entry) (map[string]any, error)) (any, error) {
	if len(in.Entries) == 0 {
		return nil, refuse("EmptyBatchRequest", "There should be at least one entry in the request.")
	}
	if len(in.Entries) > maxEntries {
		return nil, refuse("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10.")
	}
	seen := make(map[string]bool)
	for _, e := range in.Entries {
		if seen[e.Id] {
			return nil, refuse("BatchEntryIdsNotDistinct", "Id %s repeated", e.Id)
		}
		seen[e.Id] = true
	}
	done, failed := []map[string]any{}, []map[string]any{}
	for i, e := range in.Entries {
		if code := in.fault.Entries[i]; code != "" {
			failed = append(failed, map[string]any{"Id": e.Id, "Code": code, "SenderFault": in.fault.Sender, "Message": "as the test wants it"})
			continue
		}
		answer, err := do(e)
		var f *failure
		switch {
		case errors.As(err, &f):
			failed = append(failed, map[string]any{"Id": e.Id, "Code": f.code, "SenderFault": !f.fault, "Message": f.text})
		case err != nil:
			return nil, err
		default:
			answer["Id"] = e.Id
			done = append(done, answer)
		}
	}
	return map[string]any{"Successful": done, "Failed": failed}, nil
}
