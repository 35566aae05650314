package servicebusbroker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker"
)

// The application properties of this package.
const (
	idProperty      = broker.IDField          // the ID, if MessageId is another
	keyProperty     = broker.OrderingKeyField // the OrderingKey, if SessionId is or may become another
	timeProperty    = broker.TimeField        // RFC 3339
	attemptProperty = broker.AttemptField     // deliveries of the messages that this one replaces

	diagnosticProperty = "Diagnostic-Id" // where the clients of Azure look for a traceparent
)

// The headers that have fields of their own, and those of a dead letter.
const (
	typeHeader        = "content-type"
	correlationHeader = "correlation-id"
	traceHeader       = "traceparent"

	reasonHeader      = broker.ReasonHeader
	descriptionHeader = broker.DescriptionHeader
)

// longest is the maximum length of MessageId and SessionId.
const longest = 128

// encode checks a message and returns it in the form that is sent. It shares the
// body.
func encode(m *broker.Message) (*azservicebus.Message, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	properties := make(map[string]any, len(m.Header)+3)
	out := &azservicebus.Message{Body: m.Body, ApplicationProperties: properties}
	out.MessageID = shortened(m.ID, idProperty, properties)
	if m.OrderingKey != "" {
		out.SessionID = shortened(m.OrderingKey, keyProperty, properties)
		_, caused := m.Header[broker.KeyHeader]
		if strings.ToLower(m.OrderingKey) != m.OrderingKey || caused {
			// Names of sessions that differ in case only are the same to the
			// service, which may return another one than it was given. And with a
			// cause, this tells the message from one of an earlier build.
			properties[keyProperty] = m.OrderingKey
		}
	} else {
		// Where sessions are required, the message needs one. Where they are not,
		// this makes the ID the partition key, so that partitions do not hide
		// duplicates.
		out.SessionID = out.MessageID
		properties[keyProperty] = ""
	}
	if !m.Time.IsZero() {
		properties[timeProperty] = m.Time.UTC().Format(time.RFC3339Nano)
	}
	for name, value := range m.Header {
		switch {
		case name == typeHeader && isASCII(value):
			out.ContentType = &value
		case name == correlationHeader && len(value) <= longest:
			out.CorrelationID = &value
		default:
			properties[name] = value
		}
	}
	if trace := m.Header[traceHeader]; trace != "" {
		properties[diagnosticProperty] = trace
	}
	return out, nil
}

// shortened returns s, or a digest if it is too long. s is then in the property.
func shortened(s, property string, properties map[string]any) *string {
	if len(s) > longest {
		properties[property] = s
		sum := sha256.Sum256([]byte(s))
		s = "sha256:" + hex.EncodeToString(sum[:])
	}
	return &s
}

// isASCII reports whether a value may be a symbol of AMQP.
func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

// decode returns a message from any publisher. The Topic is that of the source.
func decode(raw *azservicebus.ReceivedMessage, topic string) *broker.Message {
	m := &broker.Message{ID: raw.MessageID, Topic: topic, OrderingKey: deref(raw.SessionID), Attempt: attempts(raw)}
	if len(raw.Body) > 0 {
		m.Body = raw.Body
	}
	if raw.EnqueuedTime != nil {
		m.Time = raw.EnqueuedTime.UTC()
	}
	header := make(map[string]string)
	for name, value := range raw.ApplicationProperties {
		text := fmt.Sprint(value)
		switch name {
		case idProperty:
			m.ID = text
		case keyProperty:
			m.OrderingKey = text
		case timeProperty:
			if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
				m.Time = t
			}
		case diagnosticProperty:
			if _, ok := raw.ApplicationProperties[traceHeader]; !ok {
				header[traceHeader] = text
			}
		case attemptProperty, "DeadLetterReason", "DeadLetterErrorDescription":
		default:
			lower := strings.ToLower(name)
			if _, own := raw.ApplicationProperties[lower]; (!own || lower == name) && !broker.IsField(lower) {
				header[lower] = text
			}
		}
	}
	if once, has := header[broker.KeyHeader]; has && raw.ApplicationProperties[keyProperty] == nil {
		var isCause bool
		if m.OrderingKey, isCause = earlierKey(once, m); !isCause {
			delete(header, broker.KeyHeader)
		}
	}
	for name, value := range map[string]*string{typeHeader: raw.ContentType, correlationHeader: raw.CorrelationID,
		reasonHeader: raw.DeadLetterReason, descriptionHeader: raw.DeadLetterErrorDescription} {
		if value != nil {
			header[name] = *value
		}
	}
	if len(header) > 0 {
		m.Header = header
	}
	return m
}

// earlierKey returns the ordering key of a message of an earlier build, which had
// it in the property once-key. If the message had a cause, that was there instead,
// and the key is the session, which is the MessageId of a message without a key. m
// has the session as its ordering key.
func earlierKey(once string, m *broker.Message) (key string, isCause bool) {
	session := func(of string) string { return *shortened(of, "", make(map[string]any)) }
	switch {
	case once == "", strings.EqualFold(session(once), m.OrderingKey):
		return once, false
	case strings.EqualFold(session(m.ID), m.OrderingKey):
		return "", true
	}
	return m.OrderingKey, true
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// replaced returns how often the messages were delivered that a message replaces.
func replaced(raw *azservicebus.ReceivedMessage) int {
	n, _ := raw.ApplicationProperties[attemptProperty].(int64)
	return int(n)
}

// attempts returns how often a message was delivered, with this time.
func attempts(raw *azservicebus.ReceivedMessage) int { return replaced(raw) + int(raw.DeliveryCount) }

// sequence returns the number that the entity has given a message.
func sequence(raw *azservicebus.ReceivedMessage) int64 {
	if raw.SequenceNumber == nil {
		return 0
	}
	return *raw.SequenceNumber
}

// replacement returns a copy of a message to send again. Its MessageId is another,
// because duplicate detection would drop it, and its ID the same. If the copy is
// made twice, duplicate detection can drop the second one. It must not drop the copy
// of another message: each subscription counts from 1, also when it is created again.
func replacement(raw *azservicebus.ReceivedMessage, from *source) *azservicebus.Message {
	m := raw.Message()
	m.ApplicationProperties = maps.Clone(m.ApplicationProperties)
	if m.ApplicationProperties == nil {
		m.ApplicationProperties = make(map[string]any)
	}
	if _, ok := m.ApplicationProperties[idProperty]; !ok {
		m.ApplicationProperties[idProperty] = raw.MessageID
	}
	m.ApplicationProperties[attemptProperty] = int64(attempts(raw))
	delete(m.ApplicationProperties, "DeadLetterReason")
	delete(m.ApplicationProperties, "DeadLetterErrorDescription")
	var enqueued int64
	if raw.EnqueuedTime != nil {
		enqueued = raw.EnqueuedTime.UnixNano()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", from.Name(), raw.MessageID, enqueued))
	id := fmt.Sprintf("once/%d/%d/%x", sequence(raw), attempts(raw), sum[:16])
	m.MessageID, m.ScheduledEnqueueTime, m.TimeToLive = &id, nil, nil
	return m
}
