//go:build linux

package brokers_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unavailable fails the requests of a method.
func unavailable(method string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if strings.HasSuffix(info.FullMethod, "/"+method) {
			return nil, status.Error(codes.Unavailable, "as the test wants it")
		}
		return handler(ctx, req)
	}
}

// A message that could not be settled comes again, and holds up its key no longer
// than its lease lasts.
func TestPubSubMessageThatCouldNotBeSettledComesAgain(t *testing.T) {
	t.Parallel() // most of it is waiting
	for name, c := range map[string]struct {
		method string
		settle func(broker.Session, context.Context, []broker.Delivery) error
	}{
		"ack": {"Acknowledge", func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Ack(ctx, ds) }},
		"return": {"ModifyAckDeadline", func(s broker.Session, ctx context.Context, ds []broker.Delivery) error {
			return s.Return(ctx, ds, 0)
		}},
		"reject": {"Publish", func(s broker.Session, ctx context.Context, ds []broker.Delivery) error {
			return s.Reject(ctx, ds, "no use")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startPubSub(t)
			p := r.place(t, pubsubbroker.Options{}, nil)
			ms := p.messages(2, "key")
			publish(t, p.publisher, ms...)
			s := openSession(t, p.source, 2)
			ds := receive(t, s, 1)
			r.Intercept(unavailable(c.method))
			if err := c.settle(s, proof.Soon(t), ds); err == nil {
				t.Error("the message counts as settled")
			}
			r.Intercept(nil)
			for i := range ms {
				ds := receiveSoon(t, s, 1)
				wantOrder(t, ds, ms[i:i+1])
				proof.Must(t, s.Ack(proof.Soon(t), ds))
			}
		})
	}
}

// Messages that go back with an earlier one of their key leave the window, also if
// the service does not answer.
func TestPubSubReturnWithoutAnAnswerLeavesRoom(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, longLease)
	s := openSession(t, p.source, 3)
	receiveNothing(t, s, 100*time.Millisecond) // its pull of several goes on
	ms := p.messages(3, "key")
	publish(t, p.publisher, ms...)
	ds := receive(t, s, 1)
	r.Intercept(unavailable("ModifyAckDeadline"))
	if err := s.Return(proof.Soon(t), ds, 0); err == nil {
		t.Error("the messages count as returned")
	}
	r.Intercept(nil)
	proof.Must(t, s.Return(proof.Soon(t), ds, 0))
	wantOrder(t, receiveSoon(t, s, 3), ms)
}

// An extension that is on its way does not change the delay of a message that is
// returned.
func TestPubSubExtensionDoesNotShortenADelay(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, func(settings *pubsubpb.Subscription) { settings.AckDeadlineSeconds = 6 })
	publish(t, p.publisher, p.messages(1, "")...)
	s := openSession(t, p.source, 1)
	ds := receive(t, s, 1)
	extending, returned, extended := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
	var once sync.Once
	var mu sync.Mutex
	var last int32 // seconds
	r.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		modify, ok := req.(*pubsubpb.ModifyAckDeadlineRequest)
		if !ok {
			return handler(ctx, req)
		}
		if modify.GetAckDeadlineSeconds() == 6 {
			once.Do(func() { close(extending) })
			defer func() { extended <- struct{}{} }()
			select {
			case <-returned:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		last = modify.GetAckDeadlineSeconds()
		return handler(ctx, req)
	})
	<-extending
	proof.Must(t, s.Return(proof.Soon(t), ds, 10*time.Minute))
	close(returned)
	<-extended
	r.Intercept(nil)
	mu.Lock()
	defer mu.Unlock()
	if last != 600 {
		t.Errorf("the message comes after %d seconds", last)
	}
}

// The check of the subscription does not keep leases from being extended.
func TestPubSubCheckHoldsUpNoExtension(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{CheckEvery: 300 * time.Millisecond}, nil)
	publish(t, p.publisher, p.messages(1, "")...)
	holder := openSession(t, p.source, 1)
	ds := receive(t, holder, 1)
	other := openSession(t, pubsubbroker.New(r.client, nil).Subscription(p.subscription), 10)
	r.Intercept(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if strings.HasSuffix(info.FullMethod, "/GetSubscription") {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return handler(ctx, req)
	})
	receiveNothing(t, other, 3*time.Second) // three times the deadline
	proof.Must(t, holder.Ack(proof.Soon(t), ds))
}

// If the dead letter is stored and the message could not be acknowledged, only the
// acknowledgement is tried again.
func TestPubSubRejectAgainPublishesNoSecondDeadLetter(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, longLease)
	publish(t, p.publisher, p.messages(1, "")...)
	s := openSession(t, p.source, 1)
	ds := receive(t, s, 1)
	r.Intercept(unavailable("Acknowledge"))
	if err := s.Reject(proof.Soon(t), ds, "no use"); err == nil {
		t.Error("the message counts as rejected")
	}
	r.Intercept(nil)
	proof.Must(t, s.Reject(proof.Soon(t), ds, "no use"))
	if dead := p.letters(t); len(dead) != 1 || r.Unsettled(p.subscription) != 0 {
		t.Errorf("there are %d dead letters and %d messages", len(dead), r.Unsettled(p.subscription))
	}
}
