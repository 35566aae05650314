package kafkabroker

import (
	"bytes"
	"cmp"
	"maps"
	"strings"
	"time"
	"unicode"

	"github.com/effectively-once/once/broker"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The headers of records that this package uses.
const (
	headerID      = broker.IDField
	headerTime    = broker.TimeField // the timestamp of a record is when it was sent
	headerEventID = "ce_id"          // the ID of a CloudEvent from another publisher
	headerReason  = broker.ReasonHeader
	headerOrigin  = broker.OriginHeader
)

// encode returns the record of a message. It copies the body, because the client
// may keep the record after Publish has returned.
func encode(m *broker.Message) *kgo.Record {
	r := &kgo.Record{Topic: m.Topic, Value: append(make([]byte, 0, len(m.Body)), m.Body...)}
	if m.OrderingKey != "" {
		r.Key = []byte(m.OrderingKey)
	}
	for name, value := range m.Header {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerID, Value: []byte(m.ID)})
	if !m.Time.IsZero() {
		stamp := m.Time.UTC().Format(time.RFC3339Nano)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerTime, Value: []byte(stamp)})
	}
	return r
}

// decode returns the message of a record from any publisher.
func decode(r *kgo.Record) *broker.Message {
	header := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		header[strings.ToLower(h.Key)] = string(h.Value)
	}
	m := &broker.Message{
		ID:          cmp.Or(header[headerID], header[headerEventID]),
		Topic:       r.Topic,
		OrderingKey: string(r.Key),
		Body:        r.Value,
		Time:        r.Timestamp,
		Header:      header,
	}
	if produced, err := time.Parse(time.RFC3339Nano, header[headerTime]); err == nil {
		m.Time = produced
	}
	maps.DeleteFunc(header, func(name, _ string) bool { return broker.IsField(name) })
	return m
}

// deadLetter returns the record of a rejected message for the dead-letter topic.
func deadLetter(topic string, was *kgo.Record, origin, reason string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Key: was.Key, Value: bytes.Clone(was.Value)}
	for _, h := range was.Headers {
		if h.Key != headerReason && h.Key != headerOrigin {
			r.Headers = append(r.Headers, h)
		}
	}
	printable := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(reason, "?"))
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerReason, Value: []byte(printable)},
		kgo.RecordHeader{Key: headerOrigin, Value: []byte(origin)})
	return r
}
