package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Logs asks for the identities of the topics, and by that whether they exist.
func Logs(ctx context.Context, client *kgo.Client, topics []string) (map[string]string, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: no answer from the cluster: %w", err)
	}
	logs := make(map[string]string)
	for _, topic := range resp.Topics {
		if topic.Topic == nil {
			continue
		}
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return nil, fmt.Errorf("kafkabroker: topic %q: %w", *topic.Topic, err)
		}
		logs[*topic.Topic] = LogName(*topic.Topic, topic.TopicID)
	}
	return logs, nil
}

// ID asks for the identity of the cluster, which has none before version 0.10.1.
func ID(ctx context.Context, client *kgo.Client) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // nil would be all of them
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return "", fmt.Errorf("kafkabroker: no answer from the cluster: %w", err)
	}
	if resp.ClusterID == nil {
		return "", nil
	}
	return *resp.ClusterID, nil
}

// LogName names a topic together with its identity, if the cluster tells it.
func LogName(topic string, id [16]byte) string {
	if id == [16]byte{} {
		return topic
	}
	return topic + "#" + hex.EncodeToString(id[:])
}

// Oldest asks for the oldest offsets of partitions.
func Oldest(ctx context.Context, client *kgo.Client, of ...Place) (map[Place]int64, error) {
	return offsets(ctx, client, -2, of)
}

// Lag asks how many offsets a group has not committed. Where it has committed nothing, or what is gone, it begins at the
// oldest. Markers of transactions are among them.
func Lag(ctx context.Context, client *kgo.Client, group string, topics []string) (lag int64, err error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("kafkabroker: no answer from the cluster: %w", err)
	}
	var all []Place
	for _, topic := range resp.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil || topic.Topic == nil {
			return 0, fmt.Errorf("kafkabroker: asking for the partitions of %q: %w", topics, err)
		}
		for _, part := range topic.Partitions {
			all = append(all, Place{*topic.Topic, part.Partition})
		}
	}
	commits := kmsg.NewPtrOffsetFetchRequest()
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group = group
	for _, topic := range resp.Topics {
		asked := kmsg.NewOffsetFetchRequestGroupTopic()
		asked.Topic = *topic.Topic
		for _, part := range topic.Partitions {
			asked.Partitions = append(asked.Partitions, part.Partition)
		}
		of.Topics = append(of.Topics, asked)
	}
	commits.Groups = append(commits.Groups, of)
	fetched, err := commits.RequestWith(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("kafkabroker: asking for the commits of group %q: %w", group, err)
	}
	for _, of := range fetched.Groups {
		if err := kerr.ErrorForCode(of.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // which has committed nothing
			return 0, fmt.Errorf("kafkabroker: asking for the commits of group %q: %w", group, err)
		}
	}
	committed := make(map[Place]int64)
	for at, mark := range Fetched(fetched) {
		committed[at] = mark.Offset
	}
	starts, err := Oldest(ctx, client, all...)
	if err != nil {
		return 0, err
	}
	ends, err := offsets(ctx, client, -1, all)
	if err != nil {
		return 0, err
	}
	for _, at := range all {
		from := starts[at]
		if done, ok := committed[at]; ok {
			from = max(from, done)
		}
		lag += max(ends[at]-from, 0)
	}
	return lag, nil
}

// offsets asks for the offsets of partitions at a time: -2 for the oldest, -1 for the next.
func offsets(ctx context.Context, client *kgo.Client, when int64, of []Place) (map[Place]int64, error) {
	starts := make(map[Place]int64)
	if len(of) == 0 {
		return starts, nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for _, at := range of {
		topic, part := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp = at.Number, when
		topic.Topic, topic.Partitions = at.Topic, append(topic.Partitions, part)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: asking for offsets: %w", err)
	}
	for _, topic := range resp.Topics {
		for _, part := range topic.Partitions {
			at := Place{topic.Topic, part.Partition}
			if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
				return nil, fmt.Errorf("kafkabroker: asking for an offset of %s: %w", at, err)
			}
			starts[at] = part.Offset
		}
	}
	return starts, nil
}

// slack is how much longer than it should a cluster keeps a segment: the interval of its cleaner, twice.
const slack = 10 * time.Minute

// Kept asks how long messages are kept where they are kept the longest; 0: for ever. Kafka drops whole segments, when
// the newest message in them is old enough: so the time that a segment takes to fill is a part of it.
func Kept(ctx context.Context, client *kgo.Client, topics []string) (time.Duration, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, topic := range topics {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
		resource.ConfigNames = []string{"cleanup.policy", "retention.ms", "segment.ms"}
		req.Resources = append(req.Resources, resource)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("kafkabroker: reading the settings of topics: %w", err)
	}
	longest := time.Duration(0)
	for _, topic := range resp.Resources {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return 0, fmt.Errorf("kafkabroker: reading the settings of topic %q: %w", topic.ResourceName, err)
		}
		kept, err := keeps(topic.Configs)
		if err != nil || kept == 0 {
			return 0, err
		}
		longest = max(longest, kept)
	}
	return longest, nil
}

// keeps says how long a topic with these settings keeps a message; 0: for ever.
func keeps(configs []kmsg.DescribeConfigsResponseResourceConfig) (time.Duration, error) {
	values := make(map[string]string)
	for _, c := range configs {
		if c.Value != nil {
			values[c.Name] = *c.Value
		}
	}
	if !strings.Contains(values["cleanup.policy"], "delete") {
		return 0, nil
	}
	retention, errRetention := strconv.ParseInt(values["retention.ms"], 10, 64)
	segment, errSegment := strconv.ParseInt(values["segment.ms"], 10, 64)
	if err := errors.Join(errRetention, errSegment); err != nil {
		return 0, fmt.Errorf("kafkabroker: the cluster does not tell retention.ms or segment.ms of a topic: %w", err)
	}
	const century = 100 * 365 * 24 * time.Hour / time.Millisecond
	if retention < 0 || retention > int64(century) || segment > int64(century) {
		return 0, nil
	}
	return time.Duration(retention+segment)*time.Millisecond + slack, nil
}
