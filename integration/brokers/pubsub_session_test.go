//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestPubSubSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel() // most of it is waiting
	for name, r := range map[string]*pubsubServer{"imitation": startPubSub(t), "pstest": startPstest(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := r.place(t, pubsubbroker.Options{}, nil)
			publish(t, p.publisher, p.messages(1, "key")...)
			holder := openSession(t, p.source, 1)
			ds := receive(t, holder, 1)
			other := openSession(t, p.source, 10)
			receiveNothing(t, other, 3*time.Second) // three times the deadline
			proof.Must(t, holder.Ack(proof.Soon(t), ds))
			receiveNothing(t, other, 1500*time.Millisecond)
		})
	}
}

// pull leaves n messages to a session of a process that has died.
func (p *pubsubPlace) pull(tb testing.TB, n int) (ackIDs []string) {
	tb.Helper()
	reply, err := p.server.client.SubscriptionAdminClient.Pull(proof.Soon(tb), &pubsubpb.PullRequest{Subscription: p.subscription, MaxMessages: int32(n)})
	proof.Must(tb, err)
	if len(reply.GetReceivedMessages()) != n {
		tb.Fatalf("the dead session has %d of %d messages", len(reply.GetReceivedMessages()), n)
	}
	for _, m := range reply.GetReceivedMessages() {
		ackIDs = append(ackIDs, m.GetAckId())
	}
	return ackIDs
}

// wantOrder fails unless the deliveries are those of the messages, in order.
func wantOrder(tb testing.TB, ds []broker.Delivery, ms []*broker.Message) {
	tb.Helper()
	for i, m := range ms {
		if i >= len(ds) || ds[i].Message.ID != m.ID {
			tb.Fatalf("message %d of %d is not %s: %v", i, len(ds), m.ID, ds)
		}
	}
}

func TestPubSubRedeliversWhatADeadSessionLeft(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startPubSub(t).place(t, pubsubbroker.Options{}, nil)
	ms := p.messages(5, "key")
	publish(t, p.publisher, ms...)
	p.pull(t, 3)
	s := openSession(t, p.source, 10)
	receiveNothing(t, s, 500*time.Millisecond) // the later ones of the key wait for those that are out
	ds := receive(t, s, len(ms))
	wantOrder(t, ds, ms)
	proof.Must(t, s.Ack(proof.Soon(t), ds))
}

// A late session learns from exactly-once delivery that it settles nothing.
func TestPubSubStalledSessionSettlesNothing(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	for name, settle := range map[string]func(broker.Session, context.Context, []broker.Delivery) error{
		"ack":    func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Ack(ctx, ds) },
		"return": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Return(ctx, ds, 0) },
		"reject": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error {
			return s.Reject(ctx, ds, "no use")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.place(t, pubsubbroker.Options{}, func(settings *pubsubpb.Subscription) {
				exactlyOnce(settings)
				longLease(settings)
			})
			ms := p.messages(3, "")
			publish(t, p.publisher, ms...)
			stalled := openSession(t, p.source, 4)
			ds := receive(t, stalled, 2)
			r.Expire(p.subscription)
			other := openSession(t, p.source, 10)
			taken := receive(t, other, 3)
			if err := settle(stalled, proof.Soon(t), ds); err == nil || !strings.Contains(err.Error(), "2 of 2") {
				t.Errorf("the deliveries of another session were settled: %v", err)
			}
			if n := r.Unsettled(p.subscription); n != 3 {
				t.Errorf("%d messages are unsettled", n)
			}
			if dead := p.letters(t); len(dead) != 0 {
				t.Errorf("there are %d dead letters", len(dead))
			}
			proof.Must(t, other.Ack(proof.Soon(t), taken))
			publish(t, p.publisher, p.messages(4, "")...)
			receiveSoon(t, stalled, 4) // its window has room again
		})
	}
}

// With exactly-once delivery, some of the acknowledgements of a request may fail.
func TestPubSubReportsEachLateAcknowledgement(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, func(settings *pubsubpb.Subscription) {
		exactlyOnce(settings)
		longLease(settings)
	})
	publish(t, p.publisher, p.messages(2, "")...)
	s := openSession(t, p.source, 10)
	late := receive(t, s, 2)
	r.Expire(p.subscription)
	onTime := receive(t, s, 2)
	err := s.Ack(proof.Soon(t), append(late[:1:1], onTime[1]))
	if err == nil || !strings.Contains(err.Error(), "1 of 2") || r.Unsettled(p.subscription) != 1 {
		t.Errorf("%d messages are unsettled: %v", r.Unsettled(p.subscription), err)
	}
	proof.Must(t, s.Ack(proof.Soon(t), onTime[:1]))
	if err := s.Ack(proof.Soon(t), onTime); err == nil {
		t.Error("deliveries were settled twice")
	}
}

// The service refuses to acknowledge before the earlier messages of a key are. What
// it refuses stays in the window and can be acknowledged again.
func TestPubSubAcknowledgesInOrder(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, exactlyOnce)
	publish(t, p.publisher, p.messages(3, "key")...)
	s := openSession(t, p.source, 10)
	ds := receive(t, s, 3)
	if err := s.Ack(proof.Soon(t), ds[2:]); err == nil {
		t.Error("the last message was acknowledged first")
	}
	proof.Must(t, s.Ack(proof.Soon(t), []broker.Delivery{ds[2], ds[0], ds[1]}))
	if n := r.Unsettled(p.subscription); n != 0 {
		t.Errorf("%d messages are unsettled", n)
	}
}

// A returned message comes again before those that follow it, which were pulled
// with it and not received.
func TestPubSubReturnKeepsOrder(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	s := openSession(t, p.source, 10)
	receiveNothing(t, s, 100*time.Millisecond) // its pull of several goes on
	ms := p.messages(4, "key")
	publish(t, p.publisher, ms...)
	ds := receive(t, s, 1)
	proof.Must(t, s.Return(proof.Soon(t), ds, 0))
	ds = receive(t, s, len(ms))
	wantOrder(t, ds, ms)
	proof.Must(t, s.Ack(proof.Soon(t), ds))
	if n := r.Unsettled(p.subscription); n != 0 {
		t.Errorf("%d messages are unsettled", n)
	}
}

// A session asks for no more than Receive waits for.
func TestPubSubLeavesToOthersWhatItDoesNotReceive(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, longLease)
	publish(t, p.publisher, p.messages(5, "")...)
	one := openSession(t, p.source, 100)
	receive(t, one, 1)
	if n := r.Leased(p.subscription); n != 1 {
		t.Fatalf("it has %d messages, and one was received", n)
	}
	receiveSoon(t, openSession(t, p.source, 100), 4)
}

// receiveSoon is receive, in less time than a lease of other sessions lasts.
func receiveSoon(tb testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), soonTime)
	defer cancel()
	for len(ds) < n {
		more, err := s.Receive(ctx, n-len(ds))
		if err != nil {
			tb.Fatalf("received %d of %d messages: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

const soonTime = 8 * time.Second

func longLease(settings *pubsubpb.Subscription) { settings.AckDeadlineSeconds = 600 }

func TestPubSubCloseReturnsAtOnce(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, longLease)
	ms := p.messages(3, "key")
	publish(t, p.publisher, ms...)
	s := openSession(t, p.source, 10)
	receive(t, s, 2)
	proof.Must(t, s.Close(proof.Soon(t)))
	if n := r.Leased(p.subscription); n != 0 {
		t.Fatalf("%d messages are out, and the session is closed", n)
	}
	wantOrder(t, receiveSoon(t, openSession(t, p.source, 10), 3), ms)
}

// A message whose dead letter could not be stored is not acknowledged.
func TestPubSubRejectKeepsWhatHasNoDeadLetter(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	publish(t, p.publisher, p.messages(2, "")...)
	s := openSession(t, p.source, 10)
	ds := receive(t, s, 2)
	proof.Must(t, r.client.TopicAdminClient.DeleteTopic(proof.Soon(t), &pubsubpb.DeleteTopicRequest{Topic: "projects/shop/topics/" + p.dead}))
	if err := s.Reject(proof.Soon(t), ds, "no use"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("Reject: %v", err)
	}
	if n := r.Unsettled(p.subscription); n != 2 {
		t.Errorf("%d messages are unsettled", n)
	}
	proof.Must(t, s.Ack(proof.Soon(t), ds)) // it can still settle them
}

func TestPubSubSessionEndsLoudly(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startPubSub(t)
	admin := r.client.SubscriptionAdminClient
	deleteIt := func(t *testing.T, p *pubsubPlace) {
		proof.Must(t, admin.DeleteSubscription(proof.Soon(t), &pubsubpb.DeleteSubscriptionRequest{Subscription: p.subscription}))
	}
	for name, c := range map[string]struct {
		do   func(*testing.T, *pubsubPlace)
		want string
	}{
		"the subscription is deleted": {deleteIt, "does not exist"},
		"the topic is deleted": {func(t *testing.T, p *pubsubPlace) {
			topic := "projects/shop/topics/" + p.topic
			proof.Must(t, r.client.TopicAdminClient.DeleteTopic(proof.Soon(t), &pubsubpb.DeleteTopicRequest{Topic: topic}))
			_, err := r.client.TopicAdminClient.CreateTopic(proof.Soon(t), &pubsubpb.Topic{Name: topic})
			proof.Must(t, err)
		}, "its topic was deleted"},
		"the subscription is recreated": {func(t *testing.T, p *pubsubPlace) {
			r.Intercept(unnoticed)
			defer r.Intercept(nil)
			deleteIt(t, p)
			proof.Must(t, p.broker.DeclareSubscription(proof.Soon(t), p.topic, p.subscription, nil))
		}, "created again"},
		"its deadline is changed": {func(t *testing.T, p *pubsubPlace) {
			r.Intercept(unnoticed)
			defer r.Intercept(nil)
			p.recreate(t, longLease)
		}, "AckDeadlineSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.place(t, pubsubbroker.Options{CheckEvery: 300 * time.Millisecond}, nil)
			s := openSession(t, p.source, 10)
			publish(t, p.publisher, p.messages(2, "")...)
			proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, 2)))
			c.do(t, p)
			if err := pubsubEnds(t, s); !strings.Contains(err.Error(), c.want) {
				t.Errorf("the session ends with %v, want something about %q", err, c.want)
			}
		})
	}
}

// unnoticed answers a Pull with nothing, as if it had come at another time.
func unnoticed(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/Pull") {
		return new(pubsubpb.PullResponse), nil
	}
	return handler(ctx, req)
}

// pubsubEnds waits until a session ends, and returns its error.
func pubsubEnds(tb testing.TB, s broker.Session) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), soonTime)
	defer cancel()
	for {
		_, err := s.Receive(ctx, 10)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			tb.Fatal("the session goes on")
		}
		return err
	}
}

func TestPubSubRefusesSubscriptions(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	for name, c := range map[string]struct {
		change func(*pubsubpb.Subscription)
		want   string
	}{
		"without order": {unordered, "EnableMessageOrdering"},
		"that push": {func(settings *pubsubpb.Subscription) {
			settings.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "https://shop.example/"}
		}, "pushes"},
		"that export":       {func(settings *pubsubpb.Subscription) { settings.BigqueryConfig = new(pubsubpb.BigQueryConfig) }, "exports"},
		"that are detached": {func(settings *pubsubpb.Subscription) { settings.Detached = true }, "detached"},
		"of dead letters":   {func(settings *pubsubpb.Subscription) { settings.Topic += ".dead" }, "would go back"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.place(t, pubsubbroker.Options{}, c.change)
			if _, err := p.source.Open(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it opens: %v", err)
			}
		})
	}
	if _, err := pubsubbroker.New(r.client, nil).Subscription("no-such").Open(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a subscription opens that does not exist: %v", err)
	}
}

func TestPubSubDeadLetterPolicy(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, func(settings *pubsubpb.Subscription) {
		settings.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: settings.GetTopic() + ".dead", MaxDeliveryAttempts: 5}
	})
	p.broker = pubsubbroker.New(r.client, nil) // without a topic of its own
	s := openSession(t, p.broker.Subscription(p.subscription), 10)
	if keeper := s.(broker.DeadLetterer); !keeper.KeepsRejected() {
		t.Error("it does not keep what is rejected")
	}
	ms := p.messages(2, "")
	publish(t, p.publisher, ms[:1]...)
	for attempt := 1; attempt <= 5; attempt++ {
		ds := receive(t, s, 1)
		if ds[0].Message.Attempt != attempt {
			t.Errorf("attempt %d is counted as %d", attempt, ds[0].Message.Attempt)
		}
		proof.Must(t, s.Return(proof.Soon(t), ds, 0))
	}
	publish(t, p.publisher, ms[1:]...)
	proof.Must(t, s.Reject(proof.Soon(t), receive(t, s, 1), "no such customer"))
	dead := p.letters(t)
	if len(dead) != 2 || dead[0].ID != ms[0].ID || dead[1].ID != ms[1].ID || dead[1].Header["once-reason"] != "no such customer" || dead[1].Header["once-topic"] != p.topic {
		t.Errorf("the dead letters are %+v", dead)
	}
}

func TestPubSubRedeliveryHorizon(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	for name, c := range map[string]struct {
		change func(*pubsubpb.Subscription)
		want   time.Duration
	}{
		"default":      {nil, 7 * 24 * time.Hour},
		"subscription": {func(s *pubsubpb.Subscription) { s.MessageRetentionDuration = durationpb.New(time.Hour) }, time.Hour},
		"topic":        {func(s *pubsubpb.Subscription) { s.TopicMessageRetentionDuration = durationpb.New(744 * time.Hour) }, 744 * time.Hour},
	} {
		p := r.place(t, pubsubbroker.Options{}, c.change)
		if d, err := p.source.(broker.Horizon).RedeliveryHorizon(proof.Soon(t)); err != nil || d != c.want {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}

func TestPubSubReadsMessagesOfOtherPrograms(t *testing.T) {
	t.Parallel()
	r := startPubSub(t)
	p := r.place(t, pubsubbroker.Options{}, nil)
	_, err := r.client.TopicAdminClient.Publish(proof.Soon(t), &pubsubpb.PublishRequest{Topic: "projects/shop/topics/" + p.topic, Messages: []*pubsubpb.PubsubMessage{
		{Attributes: map[string]string{"Kind": "paid", "Amount": "5", "amount": "6"}},
		{Attributes: map[string]string{"ce-id": "event 1"}},
	}})
	proof.Must(t, err)
	ds := receive(t, openSession(t, p.source, 2), 2)
	if m := ds[0].Message; m.ID != "" || m.Header["kind"] != "paid" || m.Header["amount"] != "6" || m.Header["pubsub-id"] == "" || time.Since(m.Time) > time.Minute {
		t.Errorf("the message is %+v", m)
	}
	if m := ds[1].Message; m.ID != "event 1" || m.Header["pubsub-id"] != "" {
		t.Errorf("the event is %+v", m)
	}
}

func TestPubSubDeclaresOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	p := startPubSub(t).place(t, pubsubbroker.Options{}, nil)
	publish(t, p.publisher, p.messages(1, "")...)
	proof.Must(t, p.broker.DeclareSubscription(proof.Soon(t), p.topic, p.subscription, &pubsubbroker.SubscriptionOptions{ExactlyOnce: true}))
	receive(t, openSession(t, p.source, 1), 1)
	if err := p.broker.DeclareSubscription(proof.Soon(t), "", "x", nil); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("a subscription without a topic: %v", err)
	}
}
