package pubsubbroker

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"google.golang.org/protobuf/proto"
)

// The attributes of a message.
const (
	attributeID      = broker.IDField
	attributeTime    = broker.TimeField
	attributeEventID = "ce-id" // the ID of a CloudEvent from another publisher
)

// foreignHeader has the identifier that the service gave to a message without an
// ID.
const foreignHeader = "pubsub-id"

// The attributes of a dead letter.
const (
	attributeReason = broker.ReasonHeader
	attributeTopic  = broker.TopicHeader
	attributeOrigin = broker.OriginHeader
)

// The limits of the service, with what a dead letter adds taken off.
const (
	maxAttributes = 100
	ownAttributes = 3 // of a dead letter
	maxValue      = 1024
	maxRequest    = 10_000_000
	ownBytes      = 8 << 10 // of a dead letter and of a request
	longestReason = 1000
)

// encode checks a message and returns it as the service takes it. Both share the
// body.
func encode(m *broker.Message) (*pubsubpb.PubsubMessage, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	attributes := make(map[string]string, len(m.Header)+2)
	for header, value := range m.Header {
		switch {
		case strings.HasPrefix(header, "goog"):
			return nil, fmt.Errorf("%w: the header %q of message %q: Pub/Sub reserves names that begin with goog", broker.ErrInvalid, header, m.ID)
		case len(value) > maxValue:
			return nil, fmt.Errorf("%w: the header %q of message %q has %d bytes, and Pub/Sub accepts %d", broker.ErrInvalid, header, m.ID, len(value), maxValue)
		}
		attributes[header] = value
	}
	attributes[attributeID] = m.ID
	if !m.Time.IsZero() {
		attributes[attributeTime] = m.Time.UTC().Format(time.RFC3339Nano)
	}
	if len(attributes) > maxAttributes-ownAttributes {
		return nil, fmt.Errorf("%w: message %q has %d headers: Pub/Sub accepts %d attributes, and five are for this package",
			broker.ErrInvalid, m.ID, len(m.Header), maxAttributes)
	}
	encoded := &pubsubpb.PubsubMessage{Data: m.Body, Attributes: attributes, OrderingKey: m.OrderingKey}
	if size := proto.Size(encoded); size > maxRequest-ownBytes {
		return nil, fmt.Errorf("%w: message %q has %d bytes with its headers, and Pub/Sub accepts %d", broker.ErrInvalid, m.ID, size, maxRequest-ownBytes)
	}
	return encoded, nil
}

// decode returns a message from any publisher.
func decode(topic string, received *pubsubpb.ReceivedMessage) *broker.Message {
	p := received.GetMessage()
	m := &broker.Message{Topic: topic, OrderingKey: p.GetOrderingKey(), Body: p.GetData(),
		Time: p.GetPublishTime().AsTime(), Attempt: int(received.GetDeliveryAttempt())}
	attributes := p.GetAttributes()
	m.ID = cmp.Or(attributes[attributeID], attributes[attributeEventID])
	if t, err := time.Parse(time.RFC3339Nano, attributes[attributeTime]); err == nil {
		m.Time = t
	}
	header := make(map[string]string, len(attributes))
	for attribute, value := range attributes {
		// An attribute of another program does not hide a header.
		lower := strings.ToLower(attribute)
		if _, own := attributes[lower]; (!own || lower == attribute) && !broker.IsField(lower) {
			header[lower] = value
		}
	}
	if m.ID == "" {
		header[foreignHeader] = p.GetMessageId()
	}
	if len(header) > 0 {
		m.Header = header
	}
	return m
}

// deadLetter returns the dead letter of a message. Attributes that do not fit are
// left out, the reason last.
func deadLetter(p *pubsubpb.PubsubMessage, topic, reason string) *pubsubpb.PubsubMessage {
	attributes := make(map[string]string, len(p.GetAttributes())+ownAttributes)
	for attribute, value := range p.GetAttributes() {
		if !strings.HasPrefix(attribute, "goog") {
			attributes[attribute] = value
		}
	}
	for _, own := range [ownAttributes][2]string{
		{attributeReason, name.Line(strings.Join(strings.Fields(reason), " "), longestReason)},
		{attributeTopic, topic},
		{attributeOrigin, origin(topic, p)},
	} {
		if _, has := attributes[own[0]]; own[1] != "" && (has || len(attributes) < maxAttributes) {
			attributes[own[0]] = own[1]
		}
	}
	return &pubsubpb.PubsubMessage{Data: p.GetData(), Attributes: attributes, OrderingKey: p.GetOrderingKey()}
}

func origin(topic string, p *pubsubpb.PubsubMessage) string { return topic + "@" + p.GetMessageId() }
