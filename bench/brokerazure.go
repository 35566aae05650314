package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/internal/fakeamqp"
	"github.com/effectively-once/once/store/memstore"
)

// serviceBusCarrier is an imitation of Service Bus, with queues that have sessions
// or not.
func serviceBusCarrier(sessions bool) carrier {
	name := "Service Bus"
	if sessions {
		name += ", sessions"
	}
	return carrier{name: name, client: "azservicebus, 10 at once", away: 10 * time.Millisecond, batch: 10,
		open: func(_ context.Context, away time.Duration) (*depot, error) { return openServiceBus(sessions, away) }}
}

// startAMQP starts an imitation of both services, and returns a connection string
// that is some time away.
func startAMQP(away time.Duration) (server *fakeamqp.Server, far string, stop func(), err error) {
	if server, err = fakeamqp.Start(); err != nil {
		return nil, "", nil, err
	}
	address, unroute, err := routed(server.Addr(), away)
	if err != nil {
		server.Close()
		return nil, "", nil, err
	}
	far = strings.Replace(server.ConnectionString(), server.Addr(), address, 1)
	return server, far, func() {
		unroute()
		server.Close()
	}, nil
}

func openServiceBus(sessions bool, away time.Duration) (*depot, error) {
	server, address, stop, err := startAMQP(away)
	if err != nil {
		return nil, err
	}
	near, err := azservicebus.NewClientFromConnectionString(server.ConnectionString(), nil)
	if err != nil {
		stop()
		return nil, err
	}
	far, err := azservicebus.NewClientFromConnectionString(address, nil)
	if err != nil {
		stop()
		return nil, err
	}
	d := &depot{publisher: servicebusbroker.New(near, nil).Publisher()}
	d.queue = func(_ context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "queue-" + newID()}
		q.drop = func() { server.DeleteQueue(q.topic) }
		server.CreateQueue(q.topic, fakeamqp.QueueOptions{Sessions: sessions})
		q.source = servicebusbroker.New(far, &servicebusbroker.Options{Sessions: sessions, MaxSessions: s.workers}).Queue(q.topic)
		loop := serviceBusLoop
		if sessions {
			q.keys, loop = 8*s.workers, serviceBusSessions
		}
		q.official = func(ctx context.Context, handle handleBatch) error {
			return loop(ctx, far, q.topic, s, handle)
		}
		return q, nil
	}
	d.close = func() {
		closeSoon(near)
		closeSoon(far)
		stop()
	}
	return d, nil
}

// serviceBusLoop receives messages and completes one after the other, as the
// examples of the client do, with a receiver for each worker.
func serviceBusLoop(ctx context.Context, client *azservicebus.Client, name string, s queueShape, handle handleBatch) error {
	receivers := make([]*azservicebus.Receiver, s.workers)
	for i := range receivers {
		var err error
		if receivers[i], err = client.NewReceiverForQueue(name, nil); err != nil {
			return err
		}
		defer closeSoon(receivers[i])
	}
	return inWorkers(ctx, s.workers, func(ctx context.Context, worker int) error {
		r := receivers[worker]
		ms, err := r.ReceiveMessages(ctx, s.batch, nil)
		if err != nil {
			return err
		}
		patient := context.WithoutCancel(ctx)
		for _, m := range ms {
			if err := handle(patient, [][]byte{m.Body}); err != nil {
				return err
			}
			if err := r.CompleteMessage(patient, m, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// serviceBusSessions accepts a session in each worker, completes its messages one
// after the other, and accepts the next one when there are no more.
func serviceBusSessions(ctx context.Context, client *azservicebus.Client, name string, s queueShape, handle handleBatch) error {
	return inWorkers(ctx, s.workers, func(ctx context.Context, _ int) error {
		r, err := client.AcceptNextSessionForQueue(ctx, name, nil)
		if err != nil {
			return err
		}
		defer closeSoon(r)
		patient := context.WithoutCancel(ctx)
		for {
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			ms, err := r.ReceiveMessages(soon, s.batch, nil)
			over := soon.Err() != nil
			cancel()
			if err != nil && !over {
				return err
			}
			if len(ms) == 0 {
				return nil
			}
			for _, m := range ms {
				if err := handle(patient, [][]byte{m.Body}); err != nil {
					return err
				}
				if err := r.CompleteMessage(patient, m, nil); err != nil {
					return err
				}
			}
		}
	})
}

// eventHubsCarrier is an imitation of Event Hubs. A worker reads a partition.
func eventHubsCarrier() carrier {
	return carrier{name: "Event Hubs", client: "azeventhubs, 100 at once", away: 10 * time.Millisecond, batch: 100, log: true,
		open: func(_ context.Context, away time.Duration) (*depot, error) { return openEventHubs(away) }}
}

func openEventHubs(away time.Duration) (*depot, error) {
	server, address, stop, err := startAMQP(away)
	if err != nil {
		return nil, err
	}
	near, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: server.ConnectionString()})
	if err != nil {
		stop()
		return nil, err
	}
	far, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: address})
	if err != nil {
		stop()
		return nil, err
	}
	d := &depot{publisher: near.Publisher()}
	d.queue = func(_ context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "hub-" + newID(), keys: 16 * s.workers}
		server.CreateHub(q.topic, s.workers)
		var members once.Store = memstore.New(nil)
		if s.store != nil {
			members = s.store
		}
		q.source = far.Log(q.topic, "$Default", members)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return eventHubsLoop(ctx, address, q.topic, s, handle)
		}
		q.drop = func() { server.DeleteHub(q.topic) }
		return q, nil
	}
	d.close = func() {
		_ = d.publisher.Close()
		stop()
	}
	return d, nil
}

// eventHubsLoop reads each partition with a client of its own, without storing
// checkpoints.
func eventHubsLoop(ctx context.Context, address, hub string, s queueShape, handle handleBatch) error {
	client, err := azeventhubs.NewConsumerClientFromConnectionString(address, hub, "$Default", nil)
	if err != nil {
		return err
	}
	defer closeSoon(client)
	first := true
	partitions := make([]*azeventhubs.PartitionClient, s.workers)
	for i := range partitions {
		partitions[i], err = client.NewPartitionClient(strconv.Itoa(i),
			&azeventhubs.PartitionClientOptions{StartPosition: azeventhubs.StartPosition{Earliest: &first}})
		if err != nil {
			return err
		}
		defer closeSoon(partitions[i])
	}
	return inWorkers(ctx, s.workers, func(ctx context.Context, worker int) error {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		events, err := partitions[worker].ReceiveEvents(soon, s.batch, nil)
		if err != nil && soon.Err() == nil {
			return err
		}
		if len(events) == 0 {
			return nil
		}
		bodies := make([][]byte, len(events))
		for i, e := range events {
			bodies[i] = e.Body
		}
		return handle(context.WithoutCancel(ctx), bodies)
	})
}
