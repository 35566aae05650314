package otelonce_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/otelonce"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/memstore"
)

// put writes messages in a transaction, within a span of its own for each.
func (b *bench) put(t *testing.T, ids ...string) (from []api.SpanContext) {
	t.Helper()
	events := outbox.New(b.store, &outbox.Options{Header: otelonce.Header})
	for _, id := range ids {
		ctx, span := b.traces.Tracer("test").Start(t.Context(), "order")
		tx := b.store.Begin()
		if err := errors.Join(events.Put(ctx, tx, &broker.Message{ID: id, Topic: "orders"}), tx.Commit()); err != nil {
			t.Fatal(err)
		}
		span.End()
		from = append(from, span.SpanContext())
	}
	return from
}

// run runs a relay, and then a consumer, for long enough to have nothing left to do.
func (b *bench) run(t *testing.T, c *inbox.Consumer) {
	t.Helper()
	queue := membroker.New(nil)
	c.Name, c.Source, c.Observer = "billing", queue.Queue("orders"), b
	relay := &outbox.Relay{Store: b.store, Publisher: queue.Publisher(), Observer: b}
	for _, run := range []func(context.Context) error{relay.Run, c.Run} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) named(prefix string) []trace.ReadOnlySpan {
	return slices.DeleteFunc(b.spans.Ended(), func(s trace.ReadOnlySpan) bool { return !strings.HasPrefix(s.Name(), prefix) })
}

// linked are the spans that a span has links to.
func linked(s trace.ReadOnlySpan) (all []api.SpanContext) {
	for _, l := range s.Links() {
		all = append(all, l.SpanContext.WithRemote(false))
	}
	return all
}

func (b *bench) wantAttributes(t *testing.T, s trace.ReadOnlySpan, want map[string]string) {
	t.Helper()
	got := attributesOf(s)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %s is %q, want %q", s.Name(), name, got[name], value)
		}
	}
}

func TestAMessageIsOneTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, otelonce.Options{})
		from := b.put(t, "1")[0]
		calls := 0
		b.run(t, &inbox.Consumer{Handler: inbox.Do(b.store, &once.Operation[string]{OnUnknown: once.Resend},
			func(ctx context.Context, _ once.Key, m *broker.Message) (string, error) {
				calls++
				b.do(ctx, "of the message", nil)
				return "", nil
			})})
		publish, process := b.named("publish"), b.named("process")
		outer, inner := b.named("Do billing"), b.named("Do charge")
		if calls != 1 || len(publish) != 1 || len(process) != 1 || len(outer) != 1 || len(inner) != 1 {
			t.Fatalf("%d calls, and the spans %d, %d, %d, %d", calls, len(publish), len(process), len(outer), len(inner))
		}
		for _, s := range []trace.ReadOnlySpan{publish[0], process[0]} {
			if s.Parent().SpanID() != from.SpanID() || s.SpanContext().TraceID() != from.TraceID() {
				t.Errorf("%s is not below the span in which the message was put", s.Name())
			}
			if got := linked(s); len(got) != 1 || got[0].SpanID() != from.SpanID() {
				t.Errorf("%s has the links %v", s.Name(), got)
			}
			if s.Status().Code == codes.Error || len(s.Events()) > 0 {
				t.Errorf("%s has the status %v and the events %v", s.Name(), s.Status(), s.Events())
			}
		}
		if outer[0].Parent().SpanID() != process[0].SpanContext().SpanID() || inner[0].Parent().SpanID() != outer[0].SpanContext().SpanID() {
			t.Error("the calls of the handler are not below the span of the message")
		}
		if publish[0].SpanKind() != api.SpanKindProducer || process[0].SpanKind() != api.SpanKindConsumer {
			t.Errorf("the spans are of the kinds %v and %v", publish[0].SpanKind(), process[0].SpanKind())
		}
		b.wantAttributes(t, publish[0], map[string]string{"messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.message.id": "1", "once.outcome": "published"})
		b.wantAttributes(t, process[0], map[string]string{"messaging.operation.name": "process", "messaging.operation.type": "process",
			"messaging.destination.name": "orders", "messaging.message.id": "1", "once.consumer": "billing",
			"once.source": "membroker queue orders", "once.shelved": "false", "once.outcome": "handled"})
	})
}

func TestASpanOfSeveralMessagesHasLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, otelonce.Options{})
		from := b.put(t, "1", "2", "3")
		var inside []api.SpanContext
		b.run(t, &inbox.Consumer{Handler: inbox.Batch(b.store, func(ctx context.Context, _ *memstore.Tx, ms []*broker.Message) error {
			inside = append(inside, api.SpanContextFromContext(ctx))
			return nil
		})})
		publish, process := b.named("publish"), b.named("process")
		if len(publish) != 1 || len(process) != 1 || len(inside) != 1 || inside[0].SpanID() != process[0].SpanContext().SpanID() {
			t.Fatalf("the spans are %d and %d, and the handler saw %v", len(publish), len(process), inside)
		}
		for _, s := range []trace.ReadOnlySpan{publish[0], process[0]} {
			if s.Parent().IsValid() {
				t.Errorf("%s is below one of its messages", s.Name())
			}
			got := linked(s)
			for _, want := range from {
				if !slices.ContainsFunc(got, func(c api.SpanContext) bool { return c.SpanID() == want.SpanID() && c.TraceID() == want.TraceID() }) {
					t.Errorf("%s has no link to %v", s.Name(), want.SpanID())
				}
			}
			if len(got) != len(from) {
				t.Errorf("%s has %d links, want %d", s.Name(), len(got), len(from))
			}
			b.wantAttributes(t, s, map[string]string{"messaging.batch.message_count": "3", "messaging.message.id": ""})
		}
	})
}

func TestSpansSayWhatBecameOfMessages(t *testing.T) {
	for keys, shown := range map[otelonce.Keys]bool{otelonce.Readable: true, otelonce.Hashed: false, otelonce.Omitted: false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, otelonce.Options{Keys: keys})
			b.put(t, "secret-1")
			b.run(t, &inbox.Consumer{Retry: inbox.Retry{Attempts: 3, Outage: -1, First: 10 * time.Second},
				Handler: inbox.Tx(b.store, func(context.Context, *memstore.Tx, *broker.Message) error {
					return errors.New("secret-1 does not get through")
				})})
			var outcomes []string
			for _, s := range b.named("process") {
				of := attributesOf(s)
				outcomes = append(outcomes, of["once.outcome"]+" "+of["once.shelved"])
				if s.Status().Code != codes.Error || s.Status().Description != of["once.outcome"] {
					t.Errorf("an attempt that failed has the status %v", s.Status())
				}
				if _, named := of["messaging.message.id"]; named != shown || len(s.Events()) > 0 != shown {
					t.Errorf("%d: the message is named: %v, and the events are %v", keys, named, s.Events())
				}
				for name, value := range of {
					if strings.Contains(value, "secret") && !shown {
						t.Errorf("%d: %s is %q", keys, name, value)
					}
				}
			}
			if got := strings.Join(outcomes, ", "); got != "shelved false, retried true, parked true" {
				t.Errorf("the spans say %q", got)
			}
		})
	}
}

// What is not of one kind is counted, and what cannot be exported is no part of a span.
func TestSpansOfMixedMessages(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	wild := func(id string) *broker.Message {
		return &broker.Message{ID: id, Topic: "caf\xe9 " + id, Header: map[string]string{"traceparent": "\xff"}}
	}
	ms := []*broker.Message{wild("1"), wild("2"), wild("3")}
	_, ended := b.BeginPublishing(t.Context(), outbox.Publishing{Messages: ms})
	ended([]error{nil, errors.New("caf\xe9"), broker.ErrInvalid})
	_, handled := b.BeginHandling(t.Context(), inbox.Handling{Consumer: "caf\xe9", Source: "kafka topic caf\xe9", Messages: ms[:1]})
	handled([]inbox.HandlingResult{{Outcome: "parked", Reason: strings.Repeat("\xe9", 1<<20)}})
	for i, s := range b.spans.Ended() {
		all := attributesOf(s)
		for _, e := range s.Events() {
			for _, a := range e.Attributes {
				all[e.Name+" "+string(a.Key)] = a.Value.String()
			}
		}
		all["name"] = s.Name()
		for name, value := range all {
			if !utf8.ValidString(value) || len(value) > 1000 {
				t.Errorf("span %d: %s has %d bytes, UTF-8: %v", i, name, len(value), utf8.ValidString(value))
			}
		}
	}
	b.wantAttributes(t, b.spans.Ended()[0], map[string]string{"once.outcome": "mixed", "once.outcomes.published": "1",
		"once.outcomes.failed": "1", "once.outcomes.invalid": "1", "messaging.destination.name": ""})
	b.wantAttributes(t, b.spans.Ended()[1], map[string]string{"once.outcome": "parked", "messaging.system": "kafka"})
}

// Who runs consumers and relays within a span of their own does not get one trace of all messages, for ever.
func TestSpansOfMessagesAreNotBelowWhoRunsTheirConsumer(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	ctx, span := b.traces.Tracer("test").Start(context.WithValue(t.Context(), benchKey{}, 1), "main")
	defer span.End()
	ms := []*broker.Message{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "orders"}}
	inside, _ := b.BeginHandling(ctx, inbox.Handling{Messages: ms, Together: true})
	alone, _ := b.BeginHandling(ctx, inbox.Handling{Messages: ms[:1]})
	out, _ := b.BeginPublishing(ctx, outbox.Publishing{Messages: ms})
	for name, c := range map[string]context.Context{"together": inside, "alone": alone, "publish": out} {
		s := api.SpanFromContext(c).(trace.ReadOnlySpan)
		if s.Parent().IsValid() || s.SpanContext().TraceID() == span.SpanContext().TraceID() {
			t.Errorf("%s: the span belongs to the trace of who has called Run", name)
		}
		if c.Value(benchKey{}) != 1 {
			t.Errorf("%s: the values of the caller's context are gone", name)
		}
	}
}

type benchKey struct{}

// A handler with an effect that says no to a message from the shelf has handled it.
func TestTheSpanOfANoFromTheShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, otelonce.Options{})
		b.put(t, "1")
		calls := 0
		b.run(t, &inbox.Consumer{Retry: inbox.Retry{Attempts: 3, Outage: -1, First: 10 * time.Second},
			Handler: inbox.Do(b.store, &once.Operation[string]{OnUnknown: once.Resend},
				func(context.Context, once.Key, *broker.Message) (string, error) {
					if calls++; calls == 1 {
						return "", once.NotDone(errors.New("not yet"))
					}
					return "no", once.ErrRejected
				})})
		var outcomes []string
		for _, s := range b.named("process") {
			of := attributesOf(s)
			outcomes = append(outcomes, of["once.outcome"]+" "+of["once.shelved"])
		}
		if got := strings.Join(outcomes, ", "); calls != 2 || got != "shelved false, handled true" {
			t.Errorf("after %d calls the spans say %q", calls, got)
		}
	})
}
