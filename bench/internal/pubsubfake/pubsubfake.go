// Package pubsubfake imitates Pub/Sub for measurements: it does next to nothing
// for a message, so that clients are measured. It has StreamingPull and Pull, no
// order, and no deadlines. It counts deliveries, as the service does for a
// subscription with a dead-letter policy. That of the tests has what is missing
// here.
package pubsubfake

import (
	"context"
	"path"
	"strconv"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// streamLimit is how many messages an answer of a stream has.
const streamLimit = 100

// Server is a fake. Each topic has one subscription, whose name ends as its own.
type Server struct {
	pubsubpb.UnimplementedPublisherServer
	pubsubpb.UnimplementedSubscriberServer

	mu     sync.Mutex
	queues map[string]*queue
	number int
}

// New returns a server without topics.
func New() *Server { return &Server{queues: make(map[string]*queue)} }

// queue has the messages of a topic.
type queue struct {
	settings *pubsubpb.Subscription

	mu      sync.Mutex
	ready   []*pubsubpb.ReceivedMessage
	out     map[string]*pubsubpb.ReceivedMessage
	changed chan struct{} // closed and replaced when messages are ready, or settled
}

func (q *queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// find returns the queue of a topic or a subscription.
func (s *Server) find(name string) (*queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[path.Base(name)]; q != nil {
		return q, nil
	}
	return nil, status.Errorf(codes.NotFound, "%q", name)
}

// Drop forgets a topic.
func (s *Server) Drop(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, topic)
}

// CreateTopic creates a topic.
func (s *Server) CreateTopic(_ context.Context, t *pubsubpb.Topic) (*pubsubpb.Topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[path.Base(t.GetName())] = &queue{out: make(map[string]*pubsubpb.ReceivedMessage), changed: make(chan struct{})}
	return t, nil
}

// CreateSubscription creates the subscription of a topic.
func (s *Server) CreateSubscription(_ context.Context, c *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	q, err := s.find(c.GetName())
	if err != nil {
		return nil, err
	}
	q.settings = c
	return c, nil
}

// GetSubscription returns the settings of a subscription.
func (s *Server) GetSubscription(_ context.Context, r *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	q, err := s.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	return q.settings, nil
}

// Publish stores messages.
func (s *Server) Publish(_ context.Context, r *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	q, err := s.find(r.GetTopic())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	from := s.number
	s.number += len(r.GetMessages())
	s.mu.Unlock()
	reply := new(pubsubpb.PublishResponse)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, m := range r.GetMessages() {
		m.MessageId, m.PublishTime = strconv.Itoa(from+i), timestamppb.Now()
		reply.MessageIds = append(reply.MessageIds, m.MessageId)
		q.ready = append(q.ready, &pubsubpb.ReceivedMessage{AckId: "ack-" + m.MessageId, Message: m})
	}
	q.wake()
	return reply, nil
}

// take waits until room is more than 0 and messages are ready, and takes up to that
// many.
func (q *queue) take(ctx context.Context, room func() int) (got []*pubsubpb.ReceivedMessage, err error) {
	for {
		q.mu.Lock()
		if n := min(room(), len(q.ready)); n > 0 {
			got, q.ready = q.ready[:n:n], q.ready[n:]
			for _, m := range got {
				m.DeliveryAttempt++
				q.out[m.AckId] = m
			}
		}
		changed := q.changed
		q.mu.Unlock()
		if len(got) > 0 {
			return got, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// Pull waits for messages.
func (s *Server) Pull(ctx context.Context, r *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	q, err := s.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	got, err := q.take(ctx, func() int { return int(r.GetMaxMessages()) })
	if err != nil {
		return nil, err
	}
	return &pubsubpb.PullResponse{ReceivedMessages: got}, nil
}

// StreamingPull sends messages as long as fewer are out than the client allows.
func (s *Server) StreamingPull(stream pubsubpb.Subscriber_StreamingPullServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	q, err := s.find(first.GetSubscription())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		defer cancel()
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			q.settle(r.GetAckIds(), false)
		}
	}()
	for {
		got, err := q.take(ctx, func() int { return min(int(first.GetMaxOutstandingMessages())-len(q.out), streamLimit) })
		if err != nil {
			return err
		}
		if err := stream.Send(&pubsubpb.StreamingPullResponse{ReceivedMessages: got}); err != nil {
			return err
		}
	}
}

// settle removes messages, or makes them ready again.
func (q *queue) settle(ackIDs []string, again bool) {
	if len(ackIDs) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ackIDs {
		if m := q.out[id]; m != nil && again {
			q.ready = append(q.ready, m)
		}
		delete(q.out, id)
	}
	q.wake()
}

// Acknowledge removes messages.
func (s *Server) Acknowledge(_ context.Context, r *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	q, err := s.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	q.settle(r.GetAckIds(), false)
	return &emptypb.Empty{}, nil
}

// ModifyAckDeadline returns messages if the deadline is 0, and otherwise does
// nothing.
func (s *Server) ModifyAckDeadline(_ context.Context, r *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	q, err := s.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if r.GetAckDeadlineSeconds() == 0 {
		q.settle(r.GetAckIds(), true)
	}
	return &emptypb.Empty{}, nil
}
