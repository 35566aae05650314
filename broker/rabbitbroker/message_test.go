package rabbitbroker

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	amqp "github.com/rabbitmq/amqp091-go"
)

var produced = time.UnixMilli(1700000000123)

// arrive returns the delivery of a published message.
func arrive(p publishing) *amqp.Delivery {
	return &amqp.Delivery{Headers: p.Headers, ContentType: p.ContentType, MessageId: p.MessageId, Body: p.Body,
		RoutingKey: p.key, Timestamp: p.Timestamp.Truncate(time.Second)}
}

func TestAMessageArrivesAsItWas(t *testing.T) {
	for _, kind := range []string{"text/plain", strings.Repeat("long", 100)} {
		m := &broker.Message{ID: "a", Topic: "orders", OrderingKey: "k", Body: []byte("x"), Time: produced,
			Header: map[string]string{"content-type": kind, "b": "c"}}
		p, err := encode(m, 1)
		if err != nil {
			t.Fatal(err)
		}
		p.stamp(7)
		if number := numberOf(&amqp.Return{Headers: p.Headers}); number != 7 {
			t.Errorf("the number is %d", number)
		}
		got, again := decode(arrive(p), "q")
		if again || got.Attempt != 1 || got.ID != "a" || got.Topic != "orders" || got.OrderingKey != "k" ||
			string(got.Body) != "x" || !got.Time.Equal(produced) || !maps.Equal(got.Header, m.Header) {
			t.Errorf("%+v has become %+v, again: %v", m, got, again)
		}
	}
}

func TestAMessageThatWouldBreakTheConnectionIsRefused(t *testing.T) {
	m := &broker.Message{ID: "a", Topic: "orders", Body: make([]byte, 9)}
	m.Header = map[string]string{"b": strings.Repeat("c", 3000)}
	if _, err := encode(m, 8); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("a body that is too large: %v", err)
	}
	p, err := encode(m, 9)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.checkSize(5000); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("headers that are too large: %v", err)
	}
	if err := errors.Join(p.checkSize(5100), p.checkSize(0)); err != nil {
		t.Error(err)
	}
}

func TestAttemptsAreThoseThatRabbitMQCounts(t *testing.T) {
	deaths := []any{amqp.Table{"queue": "q", "count": int64(2)}, amqp.Table{"queue": "other", "count": int64(5)}}
	for name, c := range map[string]struct {
		delivery amqp.Delivery
		attempt  int
	}{
		"first":     {amqp.Delivery{}, 1},
		"flag":      {amqp.Delivery{Redelivered: true}, 2},
		"counted":   {amqp.Delivery{Headers: amqp.Table{"x-delivery-count": int64(3)}}, 4},
		"died here": {amqp.Delivery{Headers: amqp.Table{"x-death": deaths}}, 3},
		"elsewhere": {amqp.Delivery{Headers: amqp.Table{"x-death": deaths[1:]}}, 2},
	} {
		if m, again := decode(&c.delivery, "q"); m.Attempt != c.attempt || again != (c.attempt > 1) {
			t.Errorf("%s: attempt %d, again: %v, want attempt %d", name, m.Attempt, again, c.attempt)
		}
	}
}

func TestADeadLetterKeepsItsProperties(t *testing.T) {
	d := &amqp.Delivery{RoutingKey: "orders", Type: "odd", Body: []byte("x"), Headers: amqp.Table{
		"CC": []any{"copy"}, "x-delivery-count": int64(3), "b": "c"}}
	p := deadLetter(d, "dead", "two\nlines")
	if p.key != "dead" || p.Type != "odd" || p.DeliveryMode != amqp.Persistent || len(p.Headers) != 3 ||
		p.Headers["b"] != "c" || p.Headers["once-reason"] != "two lines" || p.Headers["once-topic"] != "orders" {
		t.Errorf("%+v", p)
	}
	same := deadLetter(&amqp.Delivery{RoutingKey: "orders"}, "", "")
	if same.key != "orders" || len(same.Headers) != 1 {
		t.Errorf("%+v", same)
	}
	if len(d.Headers) != 3 {
		t.Error("the delivery was changed")
	}
}

// Earlier builds had the ordering key in the header once-key, and carried no cause.
func TestAMessageOfAnEarlierBuildKeepsItsOrderingKey(t *testing.T) {
	for name, c := range map[string]struct {
		headers    amqp.Table
		key, cause string
	}{
		"earlier":                      {amqp.Table{"once-key": "k"}, "k", ""},
		"earlier, no key":              {nil, "", ""},
		"now, no cause":                {amqp.Table{"once-ordering-key": "k"}, "k", ""},
		"now, with a cause":            {amqp.Table{"once-ordering-key": "k", "once-key": "c"}, "k", "c"},
		"now, with a cause and no key": {amqp.Table{"once-ordering-key": "", "once-key": "c"}, "", "c"},
	} {
		m, _ := decode(&amqp.Delivery{MessageId: "a", RoutingKey: "orders", Headers: c.headers}, "q")
		if m.OrderingKey != c.key || m.Header[broker.KeyHeader] != c.cause {
			t.Errorf("%s: the ordering key %q and the cause %q, want %q and %q", name, m.OrderingKey, m.Header[broker.KeyHeader], c.key, c.cause)
		}
	}
}
