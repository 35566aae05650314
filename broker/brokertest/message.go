package brokertest

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

func messageRules() []rule {
	return []rule{
		{"message/fields", "all fields of a message arrive unchanged, and its delivery has an Origin", messageFields},
		{"message/bare", "a message with only an ID and a topic arrives unchanged", messageBare},
		{"message/body", "a body arrives unchanged: empty, of 1 MiB or MaxBody, with every byte value", messageBody},
		{"message/header", "headers arrive with every value that Check accepts, and no others are added", messageHeader},
		{"message/library", "all headers of the library arrive, with and without an ordering key, beside the fields of the message", messageLibrary},
		{"message/time", "the time of a message arrives with millisecond precision", messageTime},
		{"message/long", "an ID and an ordering key may have 255 bytes, and every character that Check accepts", messageLong},
	}
}

// travel publishes messages and returns the received ones in the same order.
func (b *bench) travel(ms ...*broker.Message) []*broker.Message {
	s := b.open(wide)
	b.publish(ms...)
	ds := b.get(s, ms)
	b.ack(s, ds...)
	arrived := make([]*broker.Message, len(ms))
	for i, m := range ms {
		arrived[i] = ds[slices.IndexFunc(ds, func(d broker.Delivery) bool { return d.Message.ID == m.ID })].Message
	}
	return arrived
}

// same fails unless a received message equals the published one. Nil and empty
// slices and maps are equal.
func (b *bench) same(was, is *broker.Message) {
	switch {
	case was.ID != is.ID:
		b.failf("ID %q arrived as %q", was.ID, is.ID)
	case was.Topic != is.Topic:
		b.failf("Topic %q arrived as %q", was.Topic, is.Topic)
	case was.OrderingKey != is.OrderingKey:
		b.failf("OrderingKey %q arrived as %q", was.OrderingKey, is.OrderingKey)
	case !bytes.Equal(was.Body, is.Body):
		b.failf("a body of %d bytes arrived as another one of %d: %.40q as %.40q",
			len(was.Body), len(is.Body), was.Body, is.Body)
	case !maps.Equal(was.Header, is.Header):
		b.failf("the header %q arrived as %q", was.Header, is.Header)
	case !was.Time.IsZero() && !was.Time.Truncate(time.Millisecond).Equal(is.Time.Truncate(time.Millisecond)):
		b.failf("Time %v arrived as %v", was.Time, is.Time)
	}
}

func messageFields(b *bench) {
	m := b.message("customer 7")
	m.Header = map[string]string{"content-type": "text/plain", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-01"}
	m.Time = time.Now()
	s := b.open(wide)
	b.publish(m)
	d := b.get(s, []*broker.Message{m})[0]
	b.same(m, d.Message)
	if d.Origin == "" {
		b.failf("the Origin is empty: say where exactly the message came from")
	}
	if b.Log != (d.Position != nil) {
		b.failf("the Position is %v, and the source is declared a log: %v", d.Position, b.Log)
	}
}

func messageBare(b *bench) {
	m := &broker.Message{ID: b.message("").ID, Topic: b.Topic}
	b.same(m, b.travel(m)[0])
}

func messageBody(b *bench) {
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	bodies := [][]byte{nil, {}, {0}, all, []byte("{}"), []byte("\xff\xfe no UTF-8"), bytes.Repeat(all, b.maxBody()/len(all))}
	ms := b.messages(len(bodies), "")
	for i, body := range bodies {
		ms[i].Body = body
	}
	for i, arrived := range b.travel(ms...) {
		b.same(ms[i], arrived)
	}
}

func (b *bench) maxBody() int {
	if b.MaxBody > 0 {
		return b.MaxBody
	}
	return 1 << 20
}

func messageHeader(b *bench) {
	many := make(map[string]string)
	for c := 'a'; c <= 'z'; c++ {
		many["x-"+string(c)] = strings.Repeat(string(c), 100)
	}
	headers := []map[string]string{
		nil,
		{"empty": ""},
		{"a": " spaces around ", "b.c_d-e": "quotes \" ' commas , ; colons : = %41 \\"},
		{"unicode": "Straße, 東京, 🜁"},
		{"once-trace": "the library's own"},
		{"0": "1"},
		many,
	}
	ms := b.messages(len(headers), "")
	for i, header := range headers {
		ms[i].Header = header
	}
	for i, arrived := range b.travel(ms...) {
		b.same(ms[i], arrived)
	}
}

// messageLibrary sends what a relay sends: the cause is a header, and the ordering
// key a field that the system may have to carry as a header, too. Every name keeps
// its own meaning, also if the two have one value.
func messageLibrary(b *bench) {
	all := libraryHeaders("the library's")
	const cause = "0123456789abcdef0123456789abcdef"
	all[broker.KeyHeader] = cause
	var ms []*broker.Message
	for _, key := range []string{"", "Customer 7", strings.Repeat("k", 200), cause} {
		m := b.message(key)
		m.Header, m.Time = all, time.Now()
		ms = append(ms, m)
	}
	for _, key := range []string{"", strings.ToUpper(cause)} {
		m := b.message(key)
		m.Header = map[string]string{broker.KeyHeader: cause}
		ms = append(ms, m)
	}
	for i, arrived := range b.travel(ms...) {
		b.same(ms[i], arrived)
	}
}

// libraryHeaders returns all headers of the library, with values that begin with
// a prefix.
func libraryHeaders(prefix string) map[string]string {
	all := make(map[string]string)
	for _, name := range broker.Headers() {
		all[name] = prefix + " " + name
	}
	return all
}

func messageTime(b *bench) {
	elsewhere := time.FixedZone("elsewhere", 5*3600+1800)
	times := []time.Time{
		time.Date(2024, 2, 29, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(2030, 1, 1, 0, 0, 0, 1_000_000, elsewhere),
		time.Date(2001, 9, 9, 1, 46, 40, 0, time.UTC),
		time.Now(),
	}
	ms := b.messages(len(times), "")
	for i, at := range times {
		ms[i].Time = at
	}
	for i, arrived := range b.travel(ms...) {
		b.same(ms[i], arrived)
	}
}

func messageLong(b *bench) {
	odd := " Ä/ß?&#%.*>:\"'\\{}[]東京 "
	long := b.message(strings.Repeat("k", 255))
	long.ID += strings.Repeat("i", 255-len(long.ID))
	strange := b.message(odd)
	strange.ID += odd
	ms := []*broker.Message{long, strange}
	for i, arrived := range b.travel(ms...) {
		b.same(ms[i], arrived)
	}
}
