package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/effectively-once/once/bench/internal/pubsubfake"
	"github.com/effectively-once/once/broker/pubsubbroker"
)

// pubsubCarrier is an imitation of Pub/Sub.
func pubsubCarrier() carrier {
	return carrier{name: "Pub/Sub", client: "pubsub, StreamingPull", away: 10 * time.Millisecond, batch: 100, window: 1000, open: openPubSub}
}

func openPubSub(ctx context.Context, away time.Duration) (*depot, error) {
	listener, err := listen()
	if err != nil {
		return nil, err
	}
	fake, server := pubsubfake.New(), grpc.NewServer()
	pubsubpb.RegisterPublisherServer(server, fake)
	pubsubpb.RegisterSubscriberServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	address, unroute, err := routed(listener.Addr().String(), away)
	if err != nil {
		server.Stop()
		return nil, err
	}
	near, nearErr := dialPubSub(ctx, listener.Addr().String())
	far, farErr := dialPubSub(ctx, address)
	if err := errors.Join(nearErr, farErr); err != nil {
		unroute()
		server.Stop()
		return nil, err
	}
	b := pubsubbroker.New(near, &pubsubbroker.Options{Unordered: true})
	d := &depot{publisher: b.Publisher()}
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "topic-" + newID()}
		if err := b.DeclareSubscription(ctx, q.topic, q.topic, nil); err != nil {
			return nil, err
		}
		q.source = pubsubbroker.New(far, &pubsubbroker.Options{Unordered: true}).Subscription(q.topic)
		q.official = func(ctx context.Context, handle handleBatch) error { return pubsubLoop(ctx, far, q.topic, s, handle) }
		q.drop = func() { fake.Drop(q.topic) }
		return q, nil
	}
	d.close = func() {
		_, _ = near.Close(), far.Close()
		unroute()
		server.Stop()
	}
	return d, nil
}

func dialPubSub(ctx context.Context, address string) (*pubsub.Client, error) {
	return pubsub.NewClient(ctx, "once", option.WithEndpoint(address), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
}

// pubsubLoop is the high-level client, which streams messages, calls a function
// for each and acknowledges in the background. Its number of handlers is limited
// apart from the messages in flight, of which it has as many as by default.
func pubsubLoop(ctx context.Context, client *pubsub.Client, subscription string, s queueShape, handle handleBatch) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	subscriber := client.Subscriber(subscription)
	subscriber.ReceiveSettings.MaxOutstandingMessages = s.window
	handlers := make(chan struct{}, s.workers)
	patient := context.WithoutCancel(ctx)
	err := subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
		handlers <- struct{}{}
		defer func() { <-handlers }()
		if err := handle(patient, [][]byte{m.Data}); err != nil {
			cancel(err)
			m.Nack()
			return
		}
		m.Ack()
	})
	return cmp.Or(err, failureOf(ctx))
}
