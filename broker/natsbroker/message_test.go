package natsbroker

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/nats-io/nats.go"
)

var produced = time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)

func TestAMessageArrivesAsItWas(t *testing.T) {
	for _, id := range []string{"a", " a ", "é"} {
		m := &broker.Message{ID: id, Topic: "shop.orders", OrderingKey: " k", Body: []byte("x"), Time: produced,
			Header: map[string]string{"plain": "b", "spaced": " c=%20 ", "nats-msg-id": "mine"}}
		sent, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got := decode(sent, time.Now())
		if got.ID != id || got.Topic != m.Topic || got.OrderingKey != m.OrderingKey || string(got.Body) != "x" ||
			!got.Time.Equal(produced) || !maps.Equal(got.Header, m.Header) {
			t.Errorf("%+v has become %+v", m, got)
		}
		if dedup := sent.Header.Get(nats.MsgIdHdr); (dedup == id) == (id == " a ") {
			t.Errorf("%q goes as %q to the stream that drops duplicates", id, dedup)
		}
	}
}

func TestAForeignMessageIsRead(t *testing.T) {
	got := decode(&nats.Msg{Subject: "s", Header: nats.Header{
		"Kind": {"first", "last"}, "same": {"lower"}, "Same": {"upper"}, "Empty": nil, "Once-Time": {"soon"},
	}}, produced)
	want := map[string]string{"kind": "last", "same": "lower"}
	if got.ID != "" || !got.Time.Equal(produced) || !maps.Equal(got.Header, want) {
		t.Errorf("%+v", got)
	}
	if bare := decode(&nats.Msg{Subject: "s"}, produced); bare.Header != nil {
		t.Errorf("%+v", bare)
	}
}

func TestADeadLetterIsNoDuplicate(t *testing.T) {
	sent, err := encode(&broker.Message{ID: "a", Topic: "orders", Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	sent.Header.Set(nats.ExpectedStreamHdr, "ORDERS")
	letter := deadLetter(sent, "dead", "no", "ORDERS@1")
	got := decode(letter, produced)
	want := map[string]string{"once-reason": "no", "once-topic": "orders", "once-origin": "ORDERS@1"}
	if got.ID != "a" || got.Topic != "dead" || string(got.Body) != "x" || !maps.Equal(got.Header, want) {
		t.Errorf("%+v", got)
	}
	if letter.Header.Get(nats.MsgIdHdr) != "" || sent.Header.Get(nats.MsgIdHdr) != "a" {
		t.Errorf("%v of %v", letter.Header, sent.Header)
	}
}

func TestSubjectsToPublishTo(t *testing.T) {
	for subject, good := range map[string]bool{
		"a": true, "a.b": true, "a*.b": true, "": false, "a..b": false, "a.*": false, "a.>": false, "a b": false,
		"$JS.x": false,
	} {
		if err := checkSubject(subject); (err == nil) != good || err != nil && !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%q: %v", subject, err)
		}
	}
}

// Earlier builds had the ordering key in Once-Key, beside a cause in once-key.
func TestAMessageOfAnEarlierBuildKeepsItsOrderingKey(t *testing.T) {
	for _, key := range []string{"Once-Key", "Once-Ordering-Key"} {
		m := decode(&nats.Msg{Subject: "s", Header: nats.Header{key: {"k"}, "once-key": {"c"}}}, produced)
		if m.OrderingKey != "k" || m.Header[broker.KeyHeader] != "c" || len(m.Header) != 1 {
			t.Errorf("%s: %+v", key, m)
		}
	}
}

// A dead letter that was sent back, and is rejected again, has the new reason.
func TestADeadLetterHasItsOwnReason(t *testing.T) {
	for _, before := range []string{"no", " no "} {
		sent, err := encode(&broker.Message{ID: "a", Topic: "orders", Header: map[string]string{"once-reason": before, "b": " c "}})
		if err != nil {
			t.Fatal(err)
		}
		got := decode(deadLetter(sent, "dead", "still no", "ORDERS@2"), produced)
		want := map[string]string{"once-reason": "still no", "once-topic": "orders", "once-origin": "ORDERS@2", "b": " c "}
		if !maps.Equal(got.Header, want) {
			t.Errorf("%q", got.Header)
		}
	}
}
