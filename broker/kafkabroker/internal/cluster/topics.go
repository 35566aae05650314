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

// describe asks the cluster for topics.
func describe(ctx context.Context, client *kgo.Client, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // nil would be all of them
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: no answer from the cluster: %w", err)
	}
	return resp, nil
}

// Logs returns the names of the logs of topics. It fails if a topic does not
// exist.
func Logs(ctx context.Context, client *kgo.Client, topics []string) (map[string]string, error) {
	resp, err := describe(ctx, client, topics)
	if err != nil {
		return nil, err
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

// ID returns the ID of the cluster, which is empty before version 0.10.1.
func ID(ctx context.Context, client *kgo.Client) (string, error) {
	resp, err := describe(ctx, client, nil)
	if err != nil {
		return "", err
	}
	if resp.ClusterID == nil {
		return "", nil
	}
	return *resp.ClusterID, nil
}

// LogName returns the name of a topic with its ID, if the cluster has IDs.
func LogName(topic string, id [16]byte) string {
	if id == [16]byte{} {
		return topic
	}
	return topic + "#" + hex.EncodeToString(id[:])
}

// Oldest returns the oldest offsets of partitions.
func Oldest(ctx context.Context, client *kgo.Client, of ...TopicPartition) (map[TopicPartition]int64, error) {
	return offsets(ctx, client, -2, of)
}

// Lag returns the number of offsets that a group has not committed. Without a
// commit, or if the committed offset is deleted, it counts from the oldest
// offset. It includes what a session has still to read past: the markers of
// transactions, and messages that were not committed.
func Lag(ctx context.Context, client *kgo.Client, group string, topics []string) (lag int64, err error) {
	resp, err := describe(ctx, client, topics)
	if err != nil {
		return 0, err
	}
	var all []TopicPartition
	for _, topic := range resp.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil || topic.Topic == nil {
			return 0, fmt.Errorf("kafkabroker: asking for the partitions of %q: %w", topics, err)
		}
		for _, part := range topic.Partitions {
			all = append(all, TopicPartition{*topic.Topic, part.Partition})
		}
	}
	committed, err := commits(ctx, client, group, resp.Topics)
	if err != nil {
		return 0, err
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

// commits returns the offsets that a group has committed in topics.
func commits(ctx context.Context, client *kgo.Client, group string, topics []kmsg.MetadataResponseTopic) (map[TopicPartition]int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group = group
	for _, topic := range topics {
		asked := kmsg.NewOffsetFetchRequestGroupTopic()
		asked.Topic = *topic.Topic
		for _, part := range topic.Partitions {
			asked.Partitions = append(asked.Partitions, part.Partition)
		}
		of.Topics = append(of.Topics, asked)
	}
	req.Groups = append(req.Groups, of)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: asking for the commits of group %q: %w", group, err)
	}
	for _, of := range resp.Groups {
		if err := kerr.ErrorForCode(of.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // the group has committed nothing
			return nil, fmt.Errorf("kafkabroker: asking for the commits of group %q: %w", group, err)
		}
	}
	committed := make(map[TopicPartition]int64)
	for at, mark := range Fetched(resp) {
		committed[at] = mark.Offset
	}
	return committed, nil
}

// offsets returns the offsets of partitions at a time: -2 is the oldest offset,
// -1 the next.
func offsets(ctx context.Context, client *kgo.Client, when int64, of []TopicPartition) (map[TopicPartition]int64, error) {
	starts := make(map[TopicPartition]int64)
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
			at := TopicPartition{topic.Topic, part.Partition}
			if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
				return nil, fmt.Errorf("kafkabroker: asking for an offset of %s: %w", at, err)
			}
			starts[at] = part.Offset
		}
	}
	return starts, nil
}

// slack is how long a cluster keeps a segment after its retention: twice the
// interval of its cleaner.
const slack = 10 * time.Minute

// Retention returns the longest retention of topics; 0 means for ever. It
// includes the time that a segment takes to fill, because Kafka deletes a
// segment when its newest message is old enough.
func Retention(ctx context.Context, client *kgo.Client, topics []string) (time.Duration, error) {
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
		kept, err := retention(topic.Configs)
		if err != nil || kept == 0 {
			return 0, err
		}
		longest = max(longest, kept)
	}
	return longest, nil
}

// retention returns the retention of a topic with these settings; 0 means for
// ever.
func retention(configs []kmsg.DescribeConfigsResponseResourceConfig) (time.Duration, error) {
	values := make(map[string]string)
	for _, c := range configs {
		if c.Value != nil {
			values[c.Name] = *c.Value
		}
	}
	if !strings.Contains(values["cleanup.policy"], "delete") {
		return 0, nil
	}
	messages, errRetention := strconv.ParseInt(values["retention.ms"], 10, 64)
	segment, errSegment := strconv.ParseInt(values["segment.ms"], 10, 64)
	if err := errors.Join(errRetention, errSegment); err != nil {
		return 0, fmt.Errorf("kafkabroker: the cluster does not return retention.ms or segment.ms of a topic: %w", err)
	}
	const century = 100 * 365 * 24 * time.Hour / time.Millisecond
	if messages < 0 || messages > int64(century) || segment > int64(century) {
		return 0, nil
	}
	return time.Duration(messages+segment)*time.Millisecond + slack, nil
}
