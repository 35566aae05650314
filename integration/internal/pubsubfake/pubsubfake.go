// Package pubsubfake imitates Google Cloud Pub/Sub where pstest, the server of its
// client library, does not do what the documentation says. It gives out one batch
// of an ordering key at a time, and after a failure the later messages of the key
// again, acknowledged or not. It ends leases, refuses late acknowledgements of
// exactly-once delivery by message, moves dead letters, and enforces the limits of
// a request. It knows nothing else: no filters, no snapshots, no push.
package pubsubfake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// longestPoll is how long Pull waits for a message.
const longestPoll = 5 * time.Second

// Server is a server in this process. What it has stored survives a restart.
type Server struct {
	pubsubpb.UnimplementedPublisherServer
	pubsubpb.UnimplementedSubscriberServer

	addr    string
	running *grpc.Server
	served  chan struct{}

	mu            sync.Mutex
	intercept     grpc.UnaryServerInterceptor
	topics        map[string]*pubsubpb.Topic
	subscriptions map[string]*subscription
	numbers       int64
	changed       chan struct{} // closed and replaced when something can be delivered
}

type subscription struct {
	*pubsubpb.Subscription
	messages []*message // in order; without those that are forgotten
}

type message struct {
	stored    *pubsubpb.PubsubMessage
	ackID     string    // of the latest delivery; empty: it cannot be settled
	until     time.Time // when its lease ends; zero: it has none
	delivered int
	acked     bool
}

// Start starts a server on a free port of this machine.
func Start() (*Server, error) {
	s := &Server{addr: "127.0.0.1:0", topics: make(map[string]*pubsubpb.Topic), subscriptions: make(map[string]*subscription),
		changed: make(chan struct{})}
	return s, s.Listen()
}

// Addr is the address of the server.
func (s *Server) Addr() string { return s.addr }

// Listen starts the server again with the address and the messages that it had.
func (s *Server) Listen() error {
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		return err
	}
	s.addr = listener.Addr().String()
	s.running, s.served = grpc.NewServer(grpc.UnaryInterceptor(s.unary), grpc.MaxRecvMsgSize(16<<20)), make(chan struct{})
	pubsubpb.RegisterPublisherServer(s.running, s)
	pubsubpb.RegisterSubscriberServer(s.running, s)
	go func() {
		defer close(s.served)
		_ = s.running.Serve(listener) // ends with Stop
	}()
	return nil
}

// Stop cuts all connections and closes the port.
func (s *Server) Stop() {
	s.running.Stop()
	<-s.served
}

// Intercept calls f in place of each request, which f may pass on. Nil ends that.
func (s *Server) Intercept(f grpc.UnaryServerInterceptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	f := s.intercept
	s.mu.Unlock()
	if f == nil {
		return handler(ctx, req)
	}
	return f(ctx, req, info, handler)
}

// Unsettled returns how many messages of a subscription are not acknowledged.
func (s *Server) Unsettled(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subscriptions[name]; sub != nil {
		for _, m := range sub.messages {
			if !m.acked {
				n++
			}
		}
	}
	return n
}

// Leased returns how many messages of a subscription are out.
func (s *Server) Leased(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subscriptions[name]; sub != nil {
		for _, m := range sub.messages {
			if !m.until.IsZero() {
				n++
			}
		}
	}
	return n
}

// Stored returns the messages of a subscription that are not acknowledged.
func (s *Server) Stored(name string) (ms []*pubsubpb.PubsubMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subscriptions[name]; sub != nil {
		for _, m := range sub.messages {
			if !m.acked {
				ms = append(ms, proto.CloneOf(m.stored))
			}
		}
	}
	return ms
}

// Expire ends the leases of all messages of a subscription.
func (s *Server) Expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscriptions[name]
	for _, m := range slices.Clone(sub.messages) {
		if !m.until.IsZero() {
			sub.release(m)
		}
	}
	s.wake()
}

// wake wakes calls of Pull. The mutex is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// CreateTopic creates a topic.
func (s *Server) CreateTopic(_ context.Context, t *pubsubpb.Topic) (*pubsubpb.Topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[t.GetName()] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "topic %q", t.GetName())
	}
	s.topics[t.GetName()] = proto.CloneOf(t)
	return t, nil
}

// GetTopic returns a topic.
func (s *Server) GetTopic(_ context.Context, r *pubsubpb.GetTopicRequest) (*pubsubpb.Topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[r.GetTopic()]; t != nil {
		return proto.CloneOf(t), nil
	}
	return nil, status.Errorf(codes.NotFound, "topic %q", r.GetTopic())
}

// DeleteTopic deletes a topic. Its subscriptions remain and get no more messages.
func (s *Server) DeleteTopic(_ context.Context, r *pubsubpb.DeleteTopicRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[r.GetTopic()] == nil {
		return nil, status.Errorf(codes.NotFound, "topic %q", r.GetTopic())
	}
	delete(s.topics, r.GetTopic())
	for _, sub := range s.subscriptions {
		if sub.GetTopic() == r.GetTopic() {
			sub.Topic = "_deleted-topic_"
		}
	}
	return &emptypb.Empty{}, nil
}

// CreateSubscription creates a subscription, which gets later messages.
func (s *Server) CreateSubscription(_ context.Context, created *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch deadline := created.GetAckDeadlineSeconds(); {
	case s.subscriptions[created.GetName()] != nil:
		return nil, status.Errorf(codes.AlreadyExists, "subscription %q", created.GetName())
	case s.topics[created.GetTopic()] == nil:
		return nil, status.Errorf(codes.NotFound, "topic %q", created.GetTopic())
	case deadline != 0 && (deadline < 1 || deadline > 600): // the service takes 10 and more
		return nil, status.Errorf(codes.InvalidArgument, "ack deadline %d", deadline)
	}
	s.subscriptions[created.GetName()] = &subscription{Subscription: proto.CloneOf(created)}
	return created, nil
}

// GetSubscription returns a subscription.
func (s *Server) GetSubscription(_ context.Context, r *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, err := s.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(sub.Subscription), nil
}

// DeleteSubscription deletes a subscription and its messages.
func (s *Server) DeleteSubscription(_ context.Context, r *pubsubpb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(r.GetSubscription()); err != nil {
		return nil, err
	}
	delete(s.subscriptions, r.GetSubscription())
	s.wake()
	return &emptypb.Empty{}, nil
}

// ListTopicSubscriptions returns the subscriptions of a topic.
func (s *Server) ListTopicSubscriptions(_ context.Context, r *pubsubpb.ListTopicSubscriptionsRequest) (*pubsubpb.ListTopicSubscriptionsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := new(pubsubpb.ListTopicSubscriptionsResponse)
	for _, name := range slices.Sorted(maps.Keys(s.subscriptions)) {
		if s.subscriptions[name].GetTopic() == r.GetTopic() {
			reply.Subscriptions = append(reply.Subscriptions, name)
		}
	}
	return reply, nil
}

// find returns a subscription. The mutex is held.
func (s *Server) find(name string) (*subscription, error) {
	if sub := s.subscriptions[name]; sub != nil {
		return sub, nil
	}
	return nil, status.Errorf(codes.NotFound, "subscription %q", name)
}

// Publish stores all messages of a request, or none.
func (s *Server) Publish(_ context.Context, r *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	if err := checkPublish(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[r.GetTopic()] == nil {
		return nil, status.Errorf(codes.NotFound, "topic %q", r.GetTopic())
	}
	reply := new(pubsubpb.PublishResponse)
	for _, m := range r.GetMessages() {
		reply.MessageIds = append(reply.MessageIds, s.store(r.GetTopic(), m))
	}
	s.wake()
	return reply, nil
}

// store adds a message to all subscriptions of a topic. The mutex is held.
func (s *Server) store(topic string, m *pubsubpb.PubsubMessage) (id string) {
	s.numbers++
	id = fmt.Sprint(1_000_000 + s.numbers)
	for _, sub := range s.subscriptions {
		if sub.GetTopic() != topic {
			continue
		}
		stored := proto.CloneOf(m)
		stored.MessageId, stored.PublishTime = id, timestamppb.Now()
		sub.messages = append(sub.messages, &message{stored: stored})
	}
	return id
}

// checkPublish enforces the limits of the service.
func checkPublish(r *pubsubpb.PublishRequest) error {
	invalid := func(format string, args ...any) error { return status.Errorf(codes.InvalidArgument, format, args...) }
	switch n := len(r.GetMessages()); {
	case n == 0 || n > 1000:
		return invalid("%d messages", n)
	case proto.Size(r) > 10_000_000:
		return invalid("a request of %d bytes", proto.Size(r))
	}
	for _, m := range r.GetMessages() {
		switch attributes := m.GetAttributes(); {
		case m.GetOrderingKey() != r.GetMessages()[0].GetOrderingKey():
			return invalid("the ordering keys %q and %q", m.GetOrderingKey(), r.GetMessages()[0].GetOrderingKey())
		case len(m.GetData()) == 0 && len(attributes) == 0:
			return invalid("an empty message")
		case len(attributes) > 100:
			return invalid("%d attributes", len(attributes))
		case len(m.GetOrderingKey()) > 1024:
			return invalid("an ordering key of %d bytes", len(m.GetOrderingKey()))
		}
		for name, value := range m.GetAttributes() {
			if name == "" || len(name) > 256 || strings.HasPrefix(name, "goog") || len(value) > 1024 {
				return invalid("the attribute %q of %d bytes", name, len(value))
			}
		}
	}
	return nil
}

// Pull waits for messages.
func (s *Server) Pull(ctx context.Context, r *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	end := time.Now().Add(longestPoll)
	for {
		s.mu.Lock()
		sub, err := s.find(r.GetSubscription())
		if err != nil || ctx.Err() != nil {
			s.mu.Unlock()
			return nil, cmpErr(err, ctx.Err())
		}
		next := sub.endLeases(end)
		received := s.deliver(sub, int(r.GetMaxMessages()))
		changed := s.changed
		s.mu.Unlock()
		if len(received) > 0 || !time.Now().Before(end) {
			return &pubsubpb.PullResponse{ReceivedMessages: received}, nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return status.FromContextError(other).Err()
}

// endLeases ends the leases that are over, and returns when the next one ends, or
// end if that is earlier. The mutex of the server is held.
func (sub *subscription) endLeases(end time.Time) (next time.Time) {
	next = end
	for _, m := range slices.Clone(sub.messages) {
		switch {
		case m.until.IsZero():
		case !time.Now().Before(m.until):
			sub.release(m)
		case m.until.Before(next):
			next = m.until
		}
	}
	return next
}

// release lets a message be delivered again, and in an ordered subscription the
// later ones of its key that were delivered. The mutex of the server is held.
func (sub *subscription) release(m *message) {
	m.until, m.ackID = time.Time{}, ""
	if !sub.ordered(m) {
		return
	}
	for _, later := range sub.messages[slices.Index(sub.messages, m)+1:] {
		if later.stored.GetOrderingKey() == m.stored.GetOrderingKey() {
			later.until, later.ackID, later.acked = time.Time{}, "", false
		}
	}
}

func (sub *subscription) ordered(m *message) bool {
	return sub.GetEnableMessageOrdering() && m.stored.GetOrderingKey() != ""
}

// deliver leases up to n messages. The mutex is held.
func (s *Server) deliver(sub *subscription, n int) (received []*pubsubpb.ReceivedMessage) {
	outstanding := make(map[string]bool)
	for _, m := range sub.messages {
		if sub.ordered(m) && !m.until.IsZero() {
			outstanding[m.stored.GetOrderingKey()] = true
		}
	}
	for _, m := range slices.Clone(sub.messages) {
		if len(received) == n {
			break
		}
		if m.acked || !m.until.IsZero() || outstanding[m.stored.GetOrderingKey()] && sub.ordered(m) {
			continue
		}
		policy := sub.GetDeadLetterPolicy()
		if policy != nil && m.delivered >= int(policy.GetMaxDeliveryAttempts()) {
			s.store(policy.GetDeadLetterTopic(), m.stored)
			sub.acknowledge(m)
			continue
		}
		s.numbers++
		m.delivered++
		m.ackID = fmt.Sprintf("%s-%d", m.stored.GetMessageId(), s.numbers)
		m.until = time.Now().Add(sub.deadline())
		r := &pubsubpb.ReceivedMessage{AckId: m.ackID, Message: proto.CloneOf(m.stored)}
		if policy != nil {
			r.DeliveryAttempt = int32(m.delivered)
		}
		received = append(received, r)
	}
	return received
}

func (sub *subscription) deadline() time.Duration {
	if sub.GetAckDeadlineSeconds() == 0 {
		return 10 * time.Second
	}
	return time.Duration(sub.GetAckDeadlineSeconds()) * time.Second
}

// acknowledge marks a message, and forgets acknowledged ones that cannot come
// again. The mutex of the server is held.
func (sub *subscription) acknowledge(m *message) {
	m.acked, m.until = true, time.Time{}
	blocked := make(map[string]bool)
	sub.messages = slices.DeleteFunc(sub.messages, func(m *message) bool {
		key := m.stored.GetOrderingKey()
		if !m.acked {
			blocked[key] = true
		}
		return m.acked && !(sub.ordered(m) && blocked[key])
	})
}

// Acknowledge acknowledges deliveries. Late ones are ignored without exactly-once
// delivery, and errors with it.
func (s *Server) Acknowledge(_ context.Context, r *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	return s.each(r.GetSubscription(), r.GetAckIds(), func(sub *subscription, m *message) string {
		if sub.GetEnableExactlyOnceDelivery() && sub.unordered(m) {
			return "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
		}
		sub.acknowledge(m)
		return ""
	})
}

// unordered reports whether an earlier message of the key is not acknowledged.
func (sub *subscription) unordered(m *message) bool {
	return sub.ordered(m) && slices.ContainsFunc(sub.messages[:slices.Index(sub.messages, m)], func(earlier *message) bool {
		return !earlier.acked && earlier.stored.GetOrderingKey() == m.stored.GetOrderingKey()
	})
}

// ModifyAckDeadline extends leases, or ends them.
func (s *Server) ModifyAckDeadline(_ context.Context, r *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	seconds := r.GetAckDeadlineSeconds()
	if seconds < 0 || seconds > 600 {
		return nil, status.Errorf(codes.InvalidArgument, "ack deadline %d", seconds)
	}
	return s.each(r.GetSubscription(), r.GetAckIds(), func(sub *subscription, m *message) string {
		if seconds == 0 {
			sub.release(m)
		} else {
			m.until = time.Now().Add(time.Duration(seconds) * time.Second)
		}
		return ""
	})
}

// each calls do for deliveries, which returns why it failed. With exactly-once
// delivery, failures are errors.
func (s *Server) each(name string, ackIDs []string, do func(*subscription, *message) string) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, err := s.find(name)
	if err != nil {
		return nil, err
	}
	sub.endLeases(time.Now())
	failures := make(map[string]string)
	for _, id := range ackIDs {
		i := slices.IndexFunc(sub.messages, func(m *message) bool { return m.ackID == id && !m.acked })
		if i < 0 {
			failures[id] = "PERMANENT_FAILURE_INVALID_ACK_ID"
		} else if reason := do(sub, sub.messages[i]); reason != "" {
			failures[id] = reason
		}
	}
	s.wake()
	if len(failures) == 0 || !sub.GetEnableExactlyOnceDelivery() {
		return &emptypb.Empty{}, nil
	}
	failed, err := status.New(codes.FailedPrecondition, "some acknowledgement ids could not be processed").
		WithDetails(&errdetails.ErrorInfo{Reason: "EXACTLY_ONCE_ACKID_FAILURE", Domain: "pubsub.googleapis.com", Metadata: failures})
	if err != nil {
		return nil, err
	}
	return nil, failed.Err()
}
