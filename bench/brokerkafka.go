package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/effectively-once/once/internal/testenv"
)

// kafkaCarrier is Kafka itself. The processor time of the server is not measured.
func kafkaCarrier() carrier {
	return carrier{name: "Kafka", client: "franz-go, commits of what was handled", away: time.Millisecond, batch: 100, log: true,
		open: func(ctx context.Context, away time.Duration) (*depot, error) { return openKafka(ctx, away) }}
}

func openKafka(ctx context.Context, away time.Duration) (*depot, error) {
	address := os.Getenv(testenv.KafkaVar)
	if address == "" {
		return nil, errNoServer
	}
	via, unroute, err := routed(address, away)
	if err != nil {
		return nil, err
	}
	near := []kgo.Opt{kgo.SeedBrokers(address)}
	// The server tells its own address, so connections are led to the way.
	far := append(near, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, via)
	}))
	admin, err := kgo.NewClient(near...)
	if err != nil {
		unroute()
		return nil, err
	}
	if err := checkKafka(ctx, admin); err != nil {
		admin.Close()
		unroute()
		return nil, err
	}
	d := &depot{publisher: kafkabroker.New(&kafkabroker.Options{Client: near}).Publisher()}
	d.queue = func(ctx context.Context, s queueShape) (*queue, error) {
		q := &queue{topic: "once-bench-" + newID(), keys: 16 * s.workers}
		if err := createKafkaTopic(ctx, admin, q.topic, s.workers); err != nil {
			return nil, err
		}
		q.source = kafkabroker.New(&kafkabroker.Options{Client: far}).Topics(q.topic, q.topic)
		q.official = func(ctx context.Context, handle handleBatch) error {
			return kafkaLoop(ctx, far, q.topic, s, handle)
		}
		q.drop = func() {
			req := kmsg.NewPtrDeleteTopicsRequest()
			topic := kmsg.NewDeleteTopicsRequestTopic()
			topic.Topic = &q.topic
			req.TopicNames, req.Topics = []string{q.topic}, append(req.Topics, topic)
			_, _ = req.RequestWith(context.WithoutCancel(ctx), admin)
		}
		return q, nil
	}
	d.close = func() {
		_ = d.publisher.Close()
		admin.Close()
		unroute()
	}
	return d, nil
}

// checkKafka fails if the server is not the one that was started for tests.
func checkKafka(ctx context.Context, client *kgo.Client) error {
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if own := os.Getenv(testenv.KafkaClusterVar); resp.ClusterID == nil || *resp.ClusterID != own {
		return fmt.Errorf("the server of Kafka is not of the cluster %s", own)
	}
	return nil
}

func createKafkaTopic(ctx context.Context, client *kgo.Client, name string, partitions int) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), -1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// kafkaLoop polls, handles what it got of each partition in a worker, and commits,
// as an example of franz-go does with autocommit of what is marked.
func kafkaLoop(ctx context.Context, opts []kgo.Opt, topic string, s queueShape, handle handleBatch) (err error) {
	client, err := kgo.NewClient(append(opts, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll())...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, s.batch*s.workers)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		var partitions [][]*kgo.Record
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				partitions = append(partitions, p.Records)
			}
		})
		errs := make(chan error, len(partitions))
		for _, records := range partitions {
			go func() {
				var failed error
				for len(records) > 0 && failed == nil {
					batch := records[:min(s.batch, len(records))]
					records = records[len(batch):]
					bodies := make([][]byte, len(batch))
					for i, r := range batch {
						bodies[i] = r.Value
					}
					if failed = handle(context.WithoutCancel(ctx), bodies); failed == nil {
						client.MarkCommitRecords(batch...)
					}
				}
				errs <- failed
			}()
		}
		for range partitions {
			err = errors.Join(err, <-errs)
		}
		client.AllowRebalance()
		if err != nil {
			return err
		}
	}
	return failureOf(ctx)
}
