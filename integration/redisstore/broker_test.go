//go:build linux

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/redis/go-redis/v9"
)

// TestBrokerConformsInACluster puts the streams of the cases on all three nodes.
func TestBrokerConformsInACluster(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: startCluster(t)})
	t.Cleanup(func() { _ = client.Close() })
	var places atomic.Int64
	brokertest.Run(t, brokertest.Harness{
		Fresh: func(tb testing.TB) brokertest.Place {
			stream := fmt.Sprint("stream ", places.Add(1))
			b := redisbroker.New(client, &redisbroker.Options{SingleActive: false, ClaimAfter: 2 * time.Second})
			proof.Must(tb, b.DeclareGroup(proof.Soon(tb), stream, "billing"))
			p := b.Publisher()
			tb.Cleanup(func() { _ = p.Close() })
			return brokertest.Place{Publisher: p, Source: b.Group(stream, "billing"), Topic: stream}
		},
		Patience: proof.Patience,
	})
}

func orders(from, to int) (ms []*broker.Message) {
	for i := from; i < to; i++ {
		ms = append(ms, &broker.Message{ID: fmt.Sprint("order ", i), Topic: "orders"})
	}
	return ms
}

// arrive receives until nothing has come for some time, and returns the
// deliveries by the ID of their message.
func arrive(t *testing.T, b *redisbroker.Broker) map[string]broker.Delivery {
	t.Helper()
	s, err := b.Group("orders", "billing").Open(proof.Soon(t), 100)
	proof.Must(t, err)
	defer s.Close(proof.Soon(t))
	got := make(map[string]broker.Delivery)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		ds, err := s.Receive(ctx, 100)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return got
		}
		proof.Must(t, err)
		for _, d := range ds {
			got[d.Message.ID] = d
		}
		proof.Must(t, s.Ack(proof.Soon(t), ds))
	}
}

// TestBrokerWithoutAppendOnlyFileForgets shows what a server without an
// append-only file and snapshots loses when it is killed: all messages, and the
// group, which consumers report.
func TestBrokerWithoutAppendOnlyFileForgets(t *testing.T) {
	n := startNode(t)
	b := redisbroker.New(n.client(t), nil)
	proof.Must(t, b.DeclareGroup(proof.Soon(t), "orders", "billing"))
	if errs := b.Publisher().Publish(proof.Soon(t), orders(0, 5)); errs != nil {
		t.Fatal(errs)
	}
	n.kill()
	n.start(t)
	if _, err := b.Group("orders", "billing").Open(proof.Soon(t), 1); err == nil {
		t.Fatal("the group is there")
	}
	proof.Must(t, b.DeclareGroup(proof.Soon(t), "orders", "billing"))
	if got := arrive(t, b); len(got) > 0 {
		t.Errorf("%d of the confirmed messages have come, and the documentation says that they are lost", len(got))
	}
}

// TestBrokerFailover shows what a failover loses: confirmed messages that the new
// primary has not received, and acks, whose messages come again, Redelivered.
// With Replicas, Publish does not confirm what would be lost.
func TestBrokerFailover(t *testing.T) {
	primary, followers := startReplicated(t, 1)
	patient := &redisbroker.Options{Replicas: 1, ConfirmTimeout: 2500 * time.Millisecond} // less than the ReadTimeout of the client
	safe := &redisbroker.Options{Replicas: 1, ConfirmTimeout: 300 * time.Millisecond}
	on := func(n *node, o *redisbroker.Options) *redisbroker.Broker { return redisbroker.New(n.client(t), o) }
	b := on(primary, nil)
	proof.Must(t, b.DeclareGroup(proof.Soon(t), "orders", "billing"))
	if errs := on(primary, patient).Publisher().Publish(proof.Soon(t), orders(0, 5)); errs != nil {
		t.Fatal(errs)
	}
	cut(t, primary, followers)
	if got := arrive(t, b); len(got) != 5 {
		t.Fatalf("%d of 5 messages have come", len(got))
	}
	if errs := b.Publisher().Publish(proof.Soon(t), orders(5, 8)); errs != nil {
		t.Fatal(errs) // they are confirmed, and will be lost
	}
	errs := on(primary, safe).Publisher().Publish(proof.Soon(t), orders(8, 9))
	if len(errs) != 1 || errs[0] == nil {
		t.Errorf("a message that no replica has received is confirmed: %v", errs)
	}
	promote(t, followers[0])
	got := arrive(t, on(followers[0], nil))
	for i := range 9 {
		d, ok := got[fmt.Sprint("order ", i)]
		if ok != (i < 5) {
			t.Errorf("order %d has come: %v", i, ok)
		}
		if ok && !d.Redelivered {
			t.Errorf("order %d was handled before the failover, and comes as if it were new", i)
		}
	}
}
