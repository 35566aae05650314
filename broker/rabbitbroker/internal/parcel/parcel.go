// Package parcel puts messages into the words of AMQP 0-9-1, and reads them there, whoever has written them. It talks
// to no server.
package parcel

import (
	"fmt"
	"maps"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The headers that are not the user's.
const (
	keyHeader    = "once-key"
	timeHeader   = "once-time"    // in milliseconds: the property has seconds only
	numberHeader = "once-publish" // tells apart what is returned: the number that its confirm has
	reasonHeader = "once-reason"
	topicHeader  = "once-topic" // of a dead letter that has got another routing key
	typeHeader   = "content-type"
)

const (
	shortString = 255  // the bytes of AMQP's short strings; a longer one breaks the connection
	maxReason   = 1000 // bytes; a header frame has to hold it besides the rest
	frameSpare  = 2048 // of a header frame, for properties and what is added here
)

// Parcel is a message as it is published.
type Parcel struct {
	Key string // the routing key
	amqp.Publishing
}

// Pack returns the message as a parcel. Its header table is its own.
func Pack(m *broker.Message, maxBody int) (Parcel, error) {
	if err := m.Check(); err != nil {
		return Parcel{}, err
	}
	if len(m.Body) > maxBody {
		return Parcel{}, fmt.Errorf("%w: message %q has a body of %d bytes, the limit is %d: see Options.MaxBody",
			broker.ErrInvalid, m.ID, len(m.Body), maxBody)
	}
	headers := make(amqp.Table, len(m.Header)+3)
	for name, value := range m.Header {
		headers[name] = value
	}
	p := Parcel{m.Topic, amqp.Publishing{
		Headers: headers, DeliveryMode: amqp.Persistent, MessageId: m.ID, Body: m.Body,
	}}
	if kind := m.Header[typeHeader]; kind != "" && len(kind) <= shortString {
		p.ContentType = kind
		delete(headers, typeHeader)
	}
	delete(headers, keyHeader)
	if m.OrderingKey != "" {
		headers[keyHeader] = m.OrderingKey
	}
	delete(headers, timeHeader)
	if !m.Time.IsZero() {
		p.Timestamp = m.Time
		headers[timeHeader] = m.Time.UnixMilli()
	}
	return p, nil
}

// Stamp gives a parcel the number that tells it apart, should it be returned.
func (p *Parcel) Stamp(number uint64) { p.Headers[numberHeader] = int64(number) }

// Number is the one that a returned message was stamped with.
func Number(r *amqp.Return) uint64 {
	number, _ := integer(r.Headers[numberHeader])
	return uint64(number)
}

// Fits says whether the headers fit into a frame of that size; 0 is one without a limit. RabbitMQ would break the
// connection otherwise.
func (p *Parcel) Fits(frame int) error {
	if size := tableSize(p.Headers); frame > 0 && size > frame-frameSpare {
		return fmt.Errorf("%w: message %q has headers of %d bytes, which do not fit into a frame of %d: see frame_max",
			broker.ErrInvalid, p.MessageId, size, frame)
	}
	return nil
}

// tableSize is about how many bytes a table takes.
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

// Letter returns a delivery as a dead letter: all that it came with, but for what would let RabbitMQ drop it, send it
// to further queues, or refuse it. It goes to a topic; empty: the one that it came with.
func Letter(d *amqp.Delivery, topic, reason string) Parcel {
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
	return Parcel{key, amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}}
}
