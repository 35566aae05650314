// Package cluster has the requests to a Kafka cluster, in terms of its protocol.
package cluster

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/effectively-once/once/broker"
)

// TopicPartition identifies a partition.
type TopicPartition struct {
	Topic  string
	Number int32
}

func (p TopicPartition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// ParseTopicPartition parses the output of String. Names of topics have no slash.
func ParseTopicPartition(text string) (TopicPartition, error) {
	topic, digits, _ := strings.Cut(text, "/")
	number, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return TopicPartition{}, fmt.Errorf("%w: %q is not a partition, which looks like \"orders/3\"", broker.ErrInvalid, text)
	}
	return TopicPartition{topic, int32(number)}, nil
}

// TopicPartitions returns partitions that are listed by topic.
func TopicPartitions(byTopic map[string][]int32) iter.Seq[TopicPartition] {
	return func(yield func(TopicPartition) bool) {
		for topic, numbers := range byTopic {
			for _, number := range numbers {
				if !yield(TopicPartition{topic, number}) {
					return
				}
			}
		}
	}
}
