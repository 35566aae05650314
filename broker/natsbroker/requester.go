package natsbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	errDisconnected = errors.New("natsbroker: the connection to the server was lost before it answered")
	errNoReply      = errors.New("the server did not answer in time")
)

// errClosed is returned after Close.
var errClosed = errors.New("natsbroker: closed")

// requester sends requests to a NATS server and waits for the replies. It is safe
// for concurrent use. It replaces PublishMsgAsync of the library, which keeps
// abandoned messages pending and retries them, and so breaks the order.
type requester struct {
	nc   *nats.Conn
	wait time.Duration

	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	next    uint64
	pending map[string]pendingReply
	closed  bool
}

// pendingReply is a reply that a request waits for.
type pendingReply struct {
	index   int
	replies chan<- reply
}

type reply struct {
	index int
	msg   *nats.Msg
}

// newRequester returns a requester that waits for a reply no longer than wait.
func newRequester(nc *nats.Conn, wait time.Duration) *requester {
	return &requester{nc: nc, wait: wait, pending: make(map[string]pendingReply)}
}

// request sends messages in order and returns the reply to each, or its error. It
// sets their Reply.
func (r *requester) request(ctx context.Context, ms []*nats.Msg) ([]*nats.Msg, []error) {
	got, errs := make([]*nats.Msg, len(ms)), make([]error, len(ms))
	if ctx.Err() != nil {
		return got, slices.Repeat([]error{requestEnded(ctx)}, len(ms))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.wait, errNoReply)
	defer cancel()
	// Register before sending, to miss no lost connection. A connection that
	// was lost earlier does no harm: the client keeps the messages until it is
	// connected again.
	lost := r.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer r.nc.RemoveStatusListener(lost)
	replies, err := r.register(ms)
	if err != nil {
		return got, slices.Repeat([]error{err}, len(ms))
	}
	defer r.forget(ms)

	left := 0
	for i, m := range ms {
		if errs[i] = r.nc.PublishMsg(m); errs[i] == nil {
			left++
		}
	}
	for ; left > 0 && err == nil; left-- {
		select {
		case a := <-replies:
			got[a.index] = a.msg
		case <-lost:
			err = errDisconnected
		case <-ctx.Done():
			err = requestEnded(ctx)
		}
	}
	for i := range ms {
		if got[i] == nil && errs[i] == nil {
			errs[i] = err
		}
	}
	return got, errs
}

func requestEnded(ctx context.Context) error { return fmt.Errorf("natsbroker: %w", context.Cause(ctx)) }

// register sets a reply subject for each message.
func (r *requester) register(ms []*nats.Msg) (<-chan reply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	if r.sub == nil {
		prefix := r.nc.NewInbox() + "."
		sub, err := r.nc.Subscribe(prefix+"*", r.take)
		if err != nil {
			return nil, fmt.Errorf("natsbroker: subscribe to replies: %w", err)
		}
		r.sub, r.prefix = sub, prefix
	}
	replies := make(chan reply, len(ms)) // one reply for each message, so sending never blocks
	for i, m := range ms {
		r.next++
		m.Reply = r.prefix + strconv.FormatUint(r.next, 36)
		r.pending[m.Reply] = pendingReply{i, replies}
	}
	return replies, nil
}

// forget removes the pending replies to messages.
func (r *requester) forget(ms []*nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range ms {
		delete(r.pending, m.Reply)
	}
}

// take passes a reply to its request.
func (r *requester) take(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q, ok := r.pending[m.Subject]; ok {
		delete(r.pending, m.Subject)
		q.replies <- reply{q.index, m}
	}
}

// close ends the use of the requester. Requests in progress time out.
func (r *requester) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.sub != nil {
		r.sub.Unsubscribe()
		r.sub = nil
	}
}

// The limits of one request. A stream buffers 10,000 messages and 128 MiB, and
// rejects more.
const (
	maxMessages = 128
	maxBytes    = 4 << 20
)

// publish publishes messages and waits for the streams to confirm them. It
// returns an error for each, which is nil if the message was confirmed.
func (r *requester) publish(ctx context.Context, ms []*nats.Msg) []error {
	errs := make([]error, 0, len(ms))
	for len(errs) < len(ms) {
		part := nextBatch(ms[len(errs):])
		got, failed := r.request(ctx, part)
		for i, err := range failed {
			if err == nil {
				err = confirmation(part[i].Subject, got[i])
			}
			errs = append(errs, err)
		}
		// The rest is not sent, because it would overtake the lost message.
		if i := slices.IndexFunc(failed, func(err error) bool { return err != nil && !isTooLarge(err) }); i >= 0 {
			return append(errs, slices.Repeat(failed[i:i+1], len(ms)-len(errs))...)
		}
	}
	return errs
}

// nextBatch returns the messages to send in one request, at least one.
func nextBatch(ms []*nats.Msg) []*nats.Msg {
	ms, size := ms[:min(len(ms), maxMessages)], 0
	for i, m := range ms {
		if size += m.Size(); size > maxBytes && i > 0 {
			return ms[:i]
		}
	}
	return ms
}

// confirmation returns the error in the reply to a published message.
func confirmation(subject string, m *nats.Msg) error {
	if code, text, ok := statusOf(m); ok {
		if code == "503" {
			return fmt.Errorf("natsbroker: no stream takes the subject %q, or it has no leader now: create a stream "+
				"for it, or correct the topic", subject)
		}
		return fmt.Errorf("natsbroker: the server answered %s %s", code, text)
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err == nil && ack.Error != nil:
		return fmt.Errorf("natsbroker: %w", ack.Error)
	case err != nil || ack.Stream == "":
		return fmt.Errorf("natsbroker: the subject %q was answered by something other than a stream: correct the topic", subject)
	}
	return nil
}

// codeHeaderTooLarge is an error code that package jetstream does not define.
const codeHeaderTooLarge = jetstream.ErrorCode(10097)

// isTooLarge reports whether a message was rejected because of its size.
func isTooLarge(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge
	}
	return errors.Is(err, nats.ErrMaxPayload)
}

// statusOf returns the status that a message from the server itself has.
func statusOf(m *nats.Msg) (code, text string, ok bool) {
	code = m.Header.Get("Status")
	return code, m.Header.Get("Description"), len(m.Data) == 0 && code != ""
}
