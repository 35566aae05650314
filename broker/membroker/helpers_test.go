package membroker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
)

var ctx = context.Background()

func message(id, topic, key string) *broker.Message {
	return &broker.Message{ID: id, Topic: topic, OrderingKey: key, Body: []byte(id)}
}

// publish publishes messages with these IDs and the same ordering key.
func publish(t *testing.T, b *membroker.Broker, topic string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if errs := b.Publisher().Publish(ctx, []*broker.Message{message(id, topic, "key")}); errs != nil {
			t.Fatalf("Publish %s: %v", id, errs[0])
		}
	}
}

func open(t *testing.T, src broker.Source, window int) broker.Session {
	t.Helper()
	s, err := src.Open(ctx, window)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(ctx) })
	return s
}

// want receives the available messages and compares them with a list of IDs
// such as "1 2+ 3+2": "+" means redelivered, and a number after it is the
// attempt.
func want(t *testing.T, s broker.Session, list string) []broker.Delivery {
	t.Helper()
	return wantWithin(t, 10*time.Second, s, list)
}

func wantWithin(t *testing.T, patience time.Duration, s broker.Session, list string) []broker.Delivery {
	t.Helper()
	var got []broker.Delivery
	for len(got) < len(strings.Fields(list)) {
		soon, cancel := context.WithTimeout(ctx, patience)
		ds, err := s.Receive(soon, 1000)
		cancel()
		if err != nil {
			t.Fatalf("after %q, want %q: %v", show(got), list, err)
		}
		got = append(got, ds...)
	}
	if show(got) != list {
		t.Fatalf("got %q, want %q", show(got), list)
	}
	return got
}

func show(ds []broker.Delivery) string {
	var list []string
	for _, d := range ds {
		name := d.Message.ID
		if d.Redelivered {
			name += "+"
		}
		if d.Message.Attempt != 1 {
			name += fmt.Sprint(d.Message.Attempt)
		}
		list = append(list, name)
	}
	return strings.Join(list, " ")
}

// empty checks that no message is available.
func empty(t *testing.T, s broker.Session) {
	t.Helper()
	soon, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	if ds, err := s.Receive(soon, 1000); err == nil || soon.Err() == nil {
		t.Fatalf("want nothing, got %q and %v", show(ds), err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ids(ms []*broker.Message) string {
	var list []string
	for _, m := range ms {
		list = append(list, m.ID)
	}
	return strings.Join(list, " ")
}
