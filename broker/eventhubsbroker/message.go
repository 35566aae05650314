package eventhubsbroker

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once/broker"
)

// The application properties that this package uses. The ID is also the message
// ID of AMQP, which consumers that use the Kafka protocol do not see.
const (
	propertyID   = broker.IDField
	propertyKey  = broker.OrderingKeyField
	propertyTime = broker.TimeField
	eventID      = "cloudevents:id" // of a CloudEvent from another publisher
	kafkaEventID = "ce_id"          // the same, written by a Kafka client
)

// longestKey is the longest partition key that the service accepts.
const longestKey = 128

// encode returns the event of a message.
func encode(m *broker.Message) *azeventhubs.EventData {
	properties := make(map[string]any, len(m.Header)+3)
	for name, value := range m.Header {
		properties[name] = value
	}
	properties[propertyID] = m.ID
	if m.OrderingKey != "" {
		properties[propertyKey] = m.OrderingKey
	}
	if !m.Time.IsZero() {
		properties[propertyTime] = m.Time.UTC().Format(time.RFC3339Nano)
	}
	body := m.Body
	if body == nil {
		body = []byte{} // without a data section it would not be an event
	}
	return &azeventhubs.EventData{Body: body, MessageID: &m.ID, Properties: properties}
}

// partitionKey returns the partition key of an ordering key. Equal ones have equal
// partition keys.
func partitionKey(orderingKey string) string {
	if len(orderingKey) <= longestKey {
		return orderingKey
	}
	sum := sha256.Sum256([]byte(orderingKey))
	return hex.EncodeToString(sum[:])
}

// decode returns the message of an event from any publisher.
func decode(hub string, e *azeventhubs.ReceivedEventData) *broker.Message {
	header := make(map[string]string, len(e.Properties))
	for name, value := range e.Properties {
		switch value := value.(type) {
		case string:
			header[strings.ToLower(name)] = value
		case []byte: // written by a Kafka client
			header[strings.ToLower(name)] = string(value)
		}
	}
	m := &broker.Message{
		ID:          cmp.Or(header[propertyID], header[eventID], header[kafkaEventID]),
		Topic:       hub,
		OrderingKey: header[propertyKey],
		Body:        e.Body,
		Header:      header,
	}
	if m.ID == "" && e.MessageID != nil {
		m.ID = *e.MessageID
	}
	if m.OrderingKey == "" && e.PartitionKey != nil {
		m.OrderingKey = *e.PartitionKey
		// Earlier builds had the ordering key in the property once-key. Without a
		// partition key, that is the cause.
		if earlier := header[broker.KeyHeader]; earlier != "" && partitionKey(earlier) == m.OrderingKey {
			m.OrderingKey = earlier
			delete(header, broker.KeyHeader)
		}
	}
	if e.EnqueuedTime != nil {
		m.Time = *e.EnqueuedTime
	}
	if produced, err := time.Parse(time.RFC3339Nano, header[propertyTime]); err == nil {
		m.Time = produced
	}
	maps.DeleteFunc(header, func(name, _ string) bool { return broker.IsField(name) })
	return m
}
