package webhookbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/internal/name"
)

// ReceiverOptions configures a Receiver. The zero value is valid.
type ReceiverOptions struct {
	// AnswerWithin limits how long a request waits for its messages to be settled.
	// After it, the answer is 503 and the work continues: the sender's retry is a
	// duplicate. Choose less than the sender's own limit, which is 10 seconds at
	// GitHub, 15 at SNS and 30 at Event Grid. Default: 8 seconds.
	AnswerWithin time.Duration

	// Tolerance limits the difference between a signed time and the clock of this
	// machine, for formats that sign the time of sending. A captured request that
	// is sent again within it has the ID of the first one, so it is a duplicate.
	// Default: 5 minutes.
	Tolerance time.Duration

	MaxBody   int64 // bytes of a request body; default 1 MiB. GitHub sends up to 25 MiB
	MaxEvents int   // events of one request; default 100

	// Backlog limits the messages that wait for a consumer. Requests above it are
	// answered with 503. They hold up to Backlog times MaxBody bytes of memory.
	// Default: 256.
	Backlog int

	// Logger logs refused requests, without their contents. Default:
	// slog.Default().
	Logger *slog.Logger
}

const (
	defaultAnswerWithin = 8 * time.Second
	defaultMaxBody      = 1 << 20
	defaultMaxEvents    = 100
	defaultBacklog      = 256

	readTime = 10 * time.Second // for the body of a request
	restTime = 5 * time.Second  // the Retry-After of an answer that says nothing else
)

// Receiver receives the webhooks of one sender. It is an [http.Handler] that
// answers 2xx only after a consumer has settled the messages of a request, and
// the [broker.Source] of that consumer. It is safe for concurrent use.
//
// The answers are:
//
//   - 2xx: the messages are handled, are duplicates of handled ones, or are on
//     the shelf of the store.
//   - 400, 401, 405, 413, 415: the request is not what the format describes, or
//     is not verified. The messages are not handled.
//   - 503 with Retry-After: no consumer is running, too many messages wait, or
//     the messages were not settled within AnswerWithin. The sender must retry.
//
// Messages that were accepted are handled even if their sender no longer waits
// for the answer. If a request has several messages and one of them fails, the
// answer is 503 after all are settled. The sender then repeats all, and the
// finished ones are duplicates.
//
// Deliveries are always Redelivered, because senders do not tell. Requests have
// no order among each other; the messages of one request keep theirs.
type Receiver struct {
	name    string
	format  Format
	options ReceiverOptions

	mu       inflight.Cond
	buffer   *inflight.Buffer[arrival] // accepted and not settled
	sessions map[*receiving]struct{}   // open ones
}

// arrival is an accepted message.
type arrival struct {
	message *broker.Message
	request *request
}

// request is a request that waits for its messages to be settled. The mutex of
// the receiver guards it.
type request struct {
	unsettled int
	failed    bool          // a message must be sent again
	after     time.Duration // the longest delay that was asked for
	settled   chan struct{} // closed with the last message
}

// NewReceiver returns a receiver of the webhooks of one sender. The name
// identifies the source to consumers, and never changes. An error is a
// [broker.ErrInvalid] that says what to change.
func NewReceiver(sender string, f Format, o *ReceiverOptions) (*Receiver, error) {
	if o == nil {
		o = new(ReceiverOptions)
	}
	set := *o
	set.AnswerWithin = cmp.Or(set.AnswerWithin, defaultAnswerWithin)
	set.Tolerance = cmp.Or(set.Tolerance, defaultTolerance)
	set.MaxBody = cmp.Or(set.MaxBody, defaultMaxBody)
	set.Backlog = cmp.Or(set.Backlog, max(defaultBacklog, set.MaxEvents))
	set.MaxEvents = cmp.Or(set.MaxEvents, min(defaultMaxEvents, set.Backlog))
	if set.Logger == nil {
		set.Logger = slog.Default()
	}
	switch {
	case sender == "" || name.Check("name", sender) != nil:
		return nil, invalid("the name %.40q of a receiver is empty or not printable: name the sender, like stripe", sender)
	case f.parse == nil && f.wrong == nil:
		return nil, invalid("the Format is empty: use one of the functions that return a Format")
	case f.wrong != nil:
		return nil, f.wrong
	case set.AnswerWithin < 0 || set.Tolerance < 0 || set.MaxBody < 0 || set.MaxEvents < 0 || set.Backlog < 0:
		return nil, invalid("the options of a receiver must not be negative")
	case set.MaxEvents > set.Backlog:
		return nil, invalid("MaxEvents is %d, and only %d messages may wait: raise Backlog", set.MaxEvents, set.Backlog)
	}
	return &Receiver{
		name:     sender,
		format:   f,
		options:  set,
		buffer:   inflight.NewBuffer[arrival](0),
		sessions: make(map[*receiving]struct{}),
	}, nil
}

// refusal is the answer to a request whose messages are not handled.
type refusal struct {
	status int
	after  time.Duration // Retry-After; 0: none
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, text: fmt.Sprintf(format, args...)}
}

func unavailable(after time.Duration, text string) error {
	return &refusal{http.StatusServiceUnavailable, cmp.Or(after, restTime), text}
}

// ServeHTTP receives one request, and answers once its messages are settled.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got, err := rc.receive(w, r)
	if err == nil && got.answer != nil {
		got.answer(w)
		return
	}
	if err == nil {
		err = rc.handled(r.Context(), got.messages)
	}
	if err != nil {
		rc.refuse(w, r, err)
		return
	}
	w.WriteHeader(rc.format.success)
}

// receive reads and verifies a request.
func (rc *Receiver) receive(w http.ResponseWriter, r *http.Request) (received, error) {
	if r.Method == http.MethodOptions && rc.format.handshake != nil {
		answer, err := rc.format.handshake(r)
		return received{answer: answer}, err
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", rc.methods())
		return received{}, refuse(http.StatusMethodNotAllowed, "the method is %.20q", r.Method)
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return received{}, refuse(http.StatusUnsupportedMediaType, "the Content-Encoding is %.40q", coding)
	}
	body, err := rc.read(w, r)
	if err != nil {
		return received{}, err
	}
	got, err := rc.format.parse(&incoming{Request: r, body: body, now: time.Now(), options: rc.options})
	if err != nil || got.answer != nil {
		return got, err
	}
	if len(got.messages) > rc.options.MaxEvents {
		return got, refuse(http.StatusRequestEntityTooLarge, "the request has %d events, and MaxEvents is %d",
			len(got.messages), rc.options.MaxEvents)
	}
	for _, m := range got.messages {
		addTrace(m, r.Header)
		if err := m.Check(); err != nil {
			return got, err
		}
	}
	return got, nil
}

func (rc *Receiver) methods() string {
	if rc.format.handshake != nil {
		return "POST, OPTIONS"
	}
	return "POST"
}

// read reads a body within its limits of size and time.
func (rc *Receiver) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > rc.options.MaxBody {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body has %d bytes, and MaxBody is %d", r.ContentLength, rc.options.MaxBody)
	}
	connection := http.NewResponseController(w)
	limited := connection.SetReadDeadline(time.Now().Add(readTime)) == nil // an error: the server has its own limits
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rc.options.MaxBody))
	if limited && err == nil {
		_ = connection.SetReadDeadline(time.Time{}) // or the server would take the sender for gone while the work goes on
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body has more than %d bytes, which is MaxBody", large.Limit)
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "the body could not be read: %v", err)
	}
	return body, nil
}

// addTrace takes over the trace of the request if the message has none.
func addTrace(m *broker.Message, h http.Header) {
	parent := h.Get("traceparent")
	if parent == "" || !isPlain(parent) || m == nil || m.Header["traceparent"] != "" {
		return
	}
	header := maps.Clone(m.Header)
	if header == nil {
		header = make(map[string]string)
	}
	header["traceparent"] = parent
	if state := h.Get("tracestate"); state != "" && isPlain(state) {
		header["tracestate"] = state
	}
	m.Header = header
}

// handled waits until all messages are settled, and returns an error if the
// sender must send them again.
func (rc *Receiver) handled(ctx context.Context, ms []*broker.Message) error {
	if len(ms) == 0 {
		return nil
	}
	req, err := rc.accept(ms)
	if err != nil {
		return err
	}
	limit := time.NewTimer(rc.options.AnswerWithin)
	defer limit.Stop()
	select {
	case <-req.settled:
	case <-ctx.Done(): // nobody reads the answer, but the work continues
		return unavailable(0, "the sender has gone before its messages were settled")
	case <-limit.C:
		return unavailable(0, "the messages were not settled in time, and their handling continues")
	}
	if req.failed { // no longer changed
		return unavailable(req.after, "a message was not handled, and must be sent again")
	}
	return nil
}

// accept queues messages for the consumer.
func (rc *Receiver) accept(ms []*broker.Message) (*request, error) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	switch {
	case len(rc.sessions) == 0:
		return nil, unavailable(0, "no consumer is running")
	case rc.buffer.Unread()+rc.buffer.Returned()+len(ms) > rc.options.Backlog:
		return nil, unavailable(0, "too many messages wait for the consumer")
	}
	req := &request{unsettled: len(ms), settled: make(chan struct{})}
	for _, m := range ms {
		rc.buffer.Add(rc.buffer.Next(), arrival{m, req})
	}
	rc.mu.Broadcast()
	return req, nil
}

// refuse answers a request with an error, and logs it unless it is overload or
// the end of the consumer, which the sender repeats.
func (rc *Receiver) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var why *refusal
	switch {
	case errors.As(err, &why):
	case errors.Is(err, ErrUnverified):
		why = &refusal{status: http.StatusUnauthorized, text: err.Error()}
	case errors.Is(err, broker.ErrInvalid):
		why = &refusal{status: http.StatusBadRequest, text: err.Error()}
	default: // such as a certificate that could not be fetched
		why = &refusal{http.StatusServiceUnavailable, restTime, err.Error()}
	}
	about := []any{"receiver", rc.name, "status", why.status, "error", name.Line(why.text, 200)}
	if isTemporary(err) {
		rc.options.Logger.DebugContext(r.Context(), "webhookbroker: a request was put off", about...)
	} else {
		rc.options.Logger.WarnContext(r.Context(), "webhookbroker: a request was refused", about...)
	}
	if why.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((why.after+time.Second-1)/time.Second)))
	}
	// The sender learns the status and no more, because it may be a stranger.
	http.Error(w, http.StatusText(why.status), why.status)
}

// isTemporary reports whether the receiver itself asks for a repetition.
func isTemporary(err error) bool {
	var why *refusal
	return errors.As(err, &why) && why.status == http.StatusServiceUnavailable
}

// Name returns "webhook" and the name of the sender.
func (rc *Receiver) Name() string { return "webhook " + rc.name }

// Open starts to accept requests.
func (rc *Receiver) Open(ctx context.Context, window int) (broker.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tracker, err := inflight.NewTracker[arrival](&rc.mu, window)
	if err != nil {
		return nil, err
	}
	s := &receiving{receiver: rc, tracker: tracker}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.sessions[s] = struct{}{}
	return s, nil
}

// receiving is a session of a receiver.
type receiving struct {
	receiver *Receiver
	tracker  *inflight.Tracker[arrival]
}

// Receive waits for requests. While the window is full, they wait too.
func (s *receiving) Receive(ctx context.Context, max int) ([]broker.Delivery, error) {
	return s.tracker.Receive(ctx, max, s)
}

// Buffers returns the buffer of the receiver.
func (s *receiving) Buffers() []*inflight.Buffer[arrival] {
	return []*inflight.Buffer[arrival]{s.receiver.buffer}
}

// Fetch waits, because requests add the messages.
func (s *receiving) Fetch(ctx context.Context) { <-ctx.Done() }

// NewDelivery copies a message.
func (s *receiving) NewDelivery(_ *inflight.Buffer[arrival], it *inflight.Item[arrival]) broker.Delivery {
	m := *it.Value.message
	m.Header = maps.Clone(m.Header)
	return broker.Delivery{Message: &m, Redelivered: true, Origin: s.receiver.Name()}
}

// Ack settles messages. Their requests are answered with 2xx.
func (s *receiving) Ack(ctx context.Context, ds []broker.Delivery) error {
	return s.tracker.Settle(ctx, ds, func(it *inflight.Item[arrival]) { settle(it, false, 0) })
}

// Return lets the sender repeat messages. Their requests are answered with 503,
// and with the delay in Retry-After, which not every sender respects.
func (s *receiving) Return(ctx context.Context, ds []broker.Delivery, after time.Duration) error {
	return s.tracker.Settle(ctx, ds, func(it *inflight.Item[arrival]) { settle(it, true, after) })
}

// Reject settles messages for good. Their requests are answered with 2xx, because
// senders repeat requests with any other answer.
func (s *receiving) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	return s.tracker.Settle(ctx, ds, func(it *inflight.Item[arrival]) {
		s.receiver.options.Logger.WarnContext(ctx, "webhookbroker: a message was rejected, and is gone", "receiver", s.receiver.name,
			"id", it.Value.message.ID, "reason", reason)
		settle(it, false, 0)
	})
}

// settle removes a message. The last message of a request answers it. The mutex
// is held.
func settle(it *inflight.Item[arrival], failed bool, after time.Duration) {
	it.Settle()
	req := it.Value.request
	req.failed = req.failed || failed
	req.after = max(req.after, after)
	if req.unsettled--; req.unsettled == 0 {
		close(req.settled)
	}
}

// Close ends the session. Its unsettled messages go to the other sessions. If it
// was the last, the sender repeats all that were accepted and not settled.
func (s *receiving) Close(context.Context) error {
	rc := s.receiver
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if s.tracker.Close() {
		return nil
	}
	delete(rc.sessions, s)
	rc.buffer.Reclaim(s.tracker)
	if len(rc.sessions) == 0 {
		for _, it := range slices.Collect(rc.buffer.Items()) {
			settle(it, true, 0)
		}
	}
	rc.mu.Broadcast()
	return nil
}
