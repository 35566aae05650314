package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/internal/testenv"
)

// rabbitCarrier is RabbitMQ itself, with quorum queues. The processor time of the
// server is not measured.
func rabbitCarrier() carrier {
	return carrier{name: "RabbitMQ", client: "amqp091-go, an ack for each", away: time.Millisecond, batch: 10,
		open: func(ctx context.Context, away time.Duration) (*depot, error) { return openRabbit(ctx, away) }}
}

func openRabbit(ctx context.Context, away time.Duration) (*depot, error) {
	address := os.Getenv(testenv.RabbitMQVar)
	if address == "" {
		return nil, errNoServer
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	admin, err := amqp.Dial(address)
	if err != nil {
		return nil, err
	}
	if err := checkRabbit(admin); err != nil {
		_ = admin.Close()
		return nil, err
	}
	host, unroute, err := routed(u.Host, away)
	if err != nil {
		_ = admin.Close()
		return nil, err
	}
	u.Host = host
	near, far := rabbitbroker.New(address, nil), rabbitbroker.New(u.String(), nil)
	d := &depot{publisher: near.Publisher("")}
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "once-bench-" + newID()}
		if err := near.DeclareQueue(ctx, q.topic, rabbitbroker.QueueOptions{}); err != nil {
			return nil, err
		}
		q.source = far.Queue(q.topic)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return rabbitLoop(ctx, u.String(), q.topic, s, handle)
		}
		q.drop = func() {
			if channel, err := admin.Channel(); err == nil {
				_, _ = channel.QueueDelete(q.topic, false, false, false)
				_ = channel.Close()
			}
		}
		return q, nil
	}
	d.close = func() {
		_ = d.publisher.Close()
		_ = admin.Close()
		unroute()
	}
	return d, nil
}

// checkRabbit fails if the server is not the one that was started for tests.
func checkRabbit(c *amqp.Connection) error {
	name, _ := c.Properties["cluster_name"].(string)
	node, _, _ := strings.Cut(name, "@") // the name of the machine follows
	if own := os.Getenv(testenv.RabbitMQClusterVar); node != own {
		return fmt.Errorf("the server of RabbitMQ is of the cluster %s, and not of %s", node, own)
	}
	return nil
}

// rabbitLoop handles and acknowledges one delivery after the other in each worker,
// on one channel, as the tutorials of RabbitMQ do.
func rabbitLoop(ctx context.Context, address, name string, s queueShape, handle handleBatch) error {
	connection, err := amqp.Dial(address)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(s.window, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, name, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	return inWorkers(ctx, s.workers, func(ctx context.Context, _ int) error {
		select {
		case <-ctx.Done():
			return nil
		case m, open := <-deliveries:
			if !open {
				return amqp.ErrClosed
			}
			if err := handle(context.WithoutCancel(ctx), [][]byte{m.Body}); err != nil {
				return err
			}
			return m.Ack(false)
		}
	})
}
