package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/broker/natsbroker"
)

// natsCarrier is a NATS server in this process, which keeps messages in files.
func natsCarrier() carrier {
	return carrier{name: "NATS JetStream", client: "nats.go, Fetch of 10, an ack for each", away: time.Millisecond, batch: 10,
		open: func(_ context.Context, away time.Duration) (*depot, error) { return openJetStream(away) }}
}

func openJetStream(away time.Duration) (*depot, error) {
	dir, err := os.MkdirTemp("", "once-bench-nats")
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, err
	}
	go s.Start()
	ends := []func(){func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}}
	end := func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	d, err := dialJetStream(s, away, func(f func()) { ends = append(ends, f) })
	if err != nil {
		end()
		return nil, err
	}
	d.close = end
	return d, nil
}

func dialJetStream(s *server.Server, away time.Duration, later func(func())) (*depot, error) {
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the NATS server takes no connections")
	}
	near, err := connectJetStream(s.ClientURL(), later)
	if err != nil {
		return nil, err
	}
	address, unroute, err := routed(strings.TrimPrefix(s.ClientURL(), "nats://"), away)
	if err != nil {
		return nil, err
	}
	later(unroute)
	far, err := connectJetStream("nats://"+address, later)
	if err != nil {
		return nil, err
	}
	d := &depot{publisher: natsbroker.New(near, nil).Publisher()}
	later(func() { _ = d.publisher.Close() })
	b := natsbroker.New(far, nil)
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "once-bench-" + newID()}
		if _, err := near.CreateStream(ctx, jetstream.StreamConfig{Name: q.topic, Subjects: []string{q.topic}}); err != nil {
			return nil, err
		}
		q.drop = func() { _ = near.DeleteStream(context.WithoutCancel(ctx), q.topic) }
		if err := b.DeclareConsumer(ctx, q.topic, natsDurable); err != nil {
			q.drop()
			return nil, err
		}
		q.source = b.Consumer(q.topic, natsDurable)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return natsLoop(ctx, far, q.topic, s, handle)
		}
		return q, nil
	}
	return d, nil
}

const natsDurable = "bench"

func connectJetStream(address string, later func(func())) (jetstream.JetStream, error) {
	connection, err := nats.Connect(address)
	if err != nil {
		return nil, err
	}
	later(connection.Close)
	return jetstream.New(connection)
}

// natsLoop fetches ten messages at a time, and acknowledges one after the other,
// as the examples of the client do.
func natsLoop(ctx context.Context, js jetstream.JetStream, stream string, s queueShape, handle handleBatch) error {
	consumer, err := js.Consumer(ctx, stream, natsDurable)
	if err != nil {
		return err
	}
	return inWorkers(ctx, s.workers, func(ctx context.Context, _ int) error {
		got, err := consumer.Fetch(s.batch, jetstream.FetchMaxWait(100*time.Millisecond))
		if err != nil {
			return err
		}
		for m := range got.Messages() {
			if err := handle(context.WithoutCancel(ctx), [][]byte{m.Data()}); err != nil {
				return err
			}
			if err := m.Ack(); err != nil {
				return err
			}
		}
		if err := got.Error(); err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		return nil
	})
}
