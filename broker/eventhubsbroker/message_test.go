package eventhubsbroker

import (
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once/broker"
)

// Earlier builds had the ordering key in the property once-key, and the cause only
// in an event without an ordering key, which has no partition key.
func TestAnEventOfAnEarlierBuildKeepsItsOrderingKey(t *testing.T) {
	long := strings.Repeat("k", 200)
	for name, c := range map[string]struct {
		partition, once, now, key, cause string
	}{
		"earlier":                      {"k", "k", "", "k", ""},
		"earlier, long":                {partitionKey(long), long, "", long, ""},
		"earlier, no key":              {"", "c", "", "", "c"},
		"now":                          {"k", "c", "k", "k", "c"},
		"now, long":                    {partitionKey(long), "c", long, long, "c"},
		"now, the cause is the key":    {"c", "c", "c", "c", "c"},
		"now, no key":                  {"", "c", "", "", "c"},
		"another program's, its cause": {"k", "c", "", "k", "c"},
	} {
		e := &azeventhubs.ReceivedEventData{EventData: azeventhubs.EventData{Properties: map[string]any{"once-id": "a", "once-key": c.once}}}
		if c.partition != "" {
			e.PartitionKey = &c.partition
		}
		if c.now != "" {
			e.Properties["once-ordering-key"] = c.now
		}
		m := decode("hub", e)
		if m.OrderingKey != c.key || m.Header[broker.KeyHeader] != c.cause {
			t.Errorf("%s: the ordering key %q and the cause %q, want %q and %q", name, m.OrderingKey, m.Header[broker.KeyHeader], c.key, c.cause)
		}
	}
}
