package parcel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Unpack returns a delivery as a message, and whether it may have been delivered before.
func Unpack(d *amqp.Delivery, queue string) (m *broker.Message, again bool) {
	m = &broker.Message{ID: d.MessageId, Topic: d.RoutingKey, Body: d.Body, Time: timeOf(d), Attempt: 1}
	m.OrderingKey, _ = d.Headers[keyHeader].(string)
	m.Header = headerOf(d)
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
	// Sorted, a name in lower case comes behind its likes, and stays.
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		switch name {
		case keyHeader, timeHeader, numberHeader:
			continue
		}
		if text, ok := textOf(d.Headers[name]); ok {
			header[strings.ToLower(name)] = text
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

// deathsIn is how often a message was dead-lettered by the queue.
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
