package rabbitbroker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The headers that this package uses.
const (
	keyHeader    = broker.OrderingKeyField
	timeHeader   = broker.TimeField   // in milliseconds, because the property has only seconds
	numberHeader = broker.NumberField // the number of the confirm, which identifies a returned message
	reasonHeader = broker.ReasonHeader
	topicHeader  = broker.TopicHeader // the original routing key
	typeHeader   = "content-type"
)

const (
	shortString = 255  // maximum bytes of a short string; a longer one breaks the connection
	maxReason   = 1000 // bytes; it must fit into a header frame with the other headers
	frameSpare  = 2048 // bytes of a header frame for properties and our own headers
)

// publishing is a message in the form that is published.
type publishing struct {
	key string // routing key
	amqp.Publishing
}

// encode checks a message and returns it in the form that is published. The
// message shares its body and not its header.
func encode(m *broker.Message, maxBody int) (publishing, error) {
	if err := m.Check(); err != nil {
		return publishing{}, err
	}
	if len(m.Body) > maxBody {
		return publishing{}, fmt.Errorf("%w: message %q has a body of %d bytes, the limit is %d: see Options.MaxBody",
			broker.ErrInvalid, m.ID, len(m.Body), maxBody)
	}
	headers := make(amqp.Table, len(m.Header)+3)
	for name, value := range m.Header {
		headers[name] = value
	}
	p := publishing{m.Topic, amqp.Publishing{
		Headers: headers, DeliveryMode: amqp.Persistent, MessageId: m.ID, Body: m.Body,
	}}
	if kind := m.Header[typeHeader]; kind != "" && len(kind) <= shortString {
		p.ContentType = kind
		delete(headers, typeHeader)
	}
	// With a cause, an empty one tells the message from one of an earlier build.
	if _, caused := headers[broker.KeyHeader]; m.OrderingKey != "" || caused {
		headers[keyHeader] = m.OrderingKey
	}
	if !m.Time.IsZero() {
		p.Timestamp = m.Time
		headers[timeHeader] = m.Time.UnixMilli()
	}
	return p, nil
}

// stamp sets the number that identifies the message if it is returned.
func (p *publishing) stamp(number uint64) { p.Headers[numberHeader] = int64(number) }

// numberOf returns the number of a returned message.
func numberOf(r *amqp.Return) uint64 {
	number, _ := integer(r.Headers[numberHeader])
	return uint64(number)
}

// checkSize returns an error if the headers do not fit into a frame of that size;
// 0 means no limit. RabbitMQ would close the connection.
func (p *publishing) checkSize(frame int) error {
	if size := tableSize(p.Headers); frame > 0 && size > frame-frameSpare {
		return fmt.Errorf("%w: message %q has headers of %d bytes, which do not fit into a frame of %d: see frame_max",
			broker.ErrInvalid, p.MessageId, size, frame)
	}
	return nil
}

// tableSize returns the approximate size of a table in bytes.
func tableSize(t amqp.Table) (n int) {
	for name, value := range t {
		n += len(name) + 2 + valueSize(value)
	}
	return n
}

func valueSize(value any) (n int) {
	switch v := value.(type) {
	case string:
		return 4 + len(v)
	case []byte:
		return 4 + len(v)
	case amqp.Table:
		return 4 + tableSize(v)
	case []any:
		for _, element := range v {
			n += 1 + valueSize(element)
		}
		return 4 + n
	default:
		return 8
	}
}

// deadLetter returns the dead letter of a delivery. It keeps all properties and
// headers, except those that make RabbitMQ drop it, copy it to other queues or
// refuse it. If topic is empty, it keeps its routing key.
func deadLetter(d *amqp.Delivery, topic, reason string) publishing {
	headers := maps.Clone(d.Headers)
	if headers == nil {
		headers = amqp.Table{}
	}
	for _, own := range []string{"CC", "BCC", "x-delivery-count"} {
		delete(headers, own)
	}
	headers[reasonHeader] = name.Line(reason, maxReason)
	key := d.RoutingKey
	if topic != "" && topic != key {
		headers[topicHeader], key = key, topic
	}
	return publishing{key, amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}}
}

// decode returns the message of a delivery from any publisher, and whether it may
// have been delivered before.
func decode(d *amqp.Delivery, queue string) (m *broker.Message, again bool) {
	m = &broker.Message{ID: d.MessageId, Topic: d.RoutingKey, Body: d.Body, Time: timeOf(d), Attempt: 1}
	m.Header = headerOf(d)
	if key, ours := d.Headers[keyHeader]; ours {
		m.OrderingKey, _ = key.(string)
	} else if key, earlier := d.Headers[broker.KeyHeader]; earlier { // where earlier builds had it, without a cause
		m.OrderingKey, _ = key.(string)
		delete(m.Header, broker.KeyHeader)
	}
	failed, _ := integer(d.Headers["x-delivery-count"])
	deaths := d.Headers["x-death"]
	again = d.Redelivered || failed > 0 || deaths != nil
	m.Attempt += int(failed + deathsIn(deaths, queue))
	if again && m.Attempt < 2 {
		m.Attempt = 2
	}
	return m, again
}

func timeOf(d *amqp.Delivery) time.Time {
	if ms, ok := integer(d.Headers[timeHeader]); ok {
		return time.UnixMilli(ms)
	}
	return d.Timestamp
}

func headerOf(d *amqp.Delivery) map[string]string {
	header := make(map[string]string, len(d.Headers)+1)
	if d.ContentType != "" {
		header[typeHeader] = d.ContentType
	}
	// In sorted order, the spelling in lower case comes last and wins.
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		lower := strings.ToLower(name)
		if text, ok := textOf(d.Headers[name]); ok && !broker.IsField(lower) {
			header[lower] = text
		}
	}
	if len(header) == 0 {
		return nil
	}
	return header
}

func textOf(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), utf8.Valid(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case bool, int8, uint8, int16, uint16, int32, uint32, int64, float32, float64:
		return fmt.Sprint(v), true
	default:
		return "", false
	}
}

func integer(value any) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int8:
		return int64(v), true
	default:
		return 0, false
	}
}

// deathsIn returns how often a message was dead-lettered by the queue.
func deathsIn(deaths any, queue string) (n int64) {
	list, _ := deaths.([]any)
	for _, element := range list {
		if death, ok := element.(amqp.Table); ok && death["queue"] == queue {
			count, _ := integer(death["count"])
			n += count
		}
	}
	return n
}
