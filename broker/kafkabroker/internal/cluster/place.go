// Package cluster is what is asked of a Kafka cluster, and told to it, in the words of its protocol.
package cluster

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/effectively-once/once/broker"
)

// Place names a partition.
type Place struct {
	Topic  string
	Number int32
}

func (p Place) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// ParsePlace reads what String has written. Names of topics have no slash.
func ParsePlace(text string) (Place, error) {
	topic, digits, _ := strings.Cut(text, "/")
	number, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return Place{}, fmt.Errorf("%w: %q is no partition of a topic, which is like \"orders/3\"", broker.ErrInvalid, text)
	}
	return Place{topic, int32(number)}, nil
}

// Places are what the client has by topic.
func Places(byTopic map[string][]int32) iter.Seq[Place] {
	return func(yield func(Place) bool) {
		for topic, numbers := range byTopic {
			for _, number := range numbers {
				if !yield(Place{topic, number}) {
					return
				}
			}
		}
	}
}
