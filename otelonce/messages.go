package otelonce

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

var (
	_ once.EventObserver = (*Observer)(nil)
	_ inbox.Observer     = (*Observer)(nil)
	_ outbox.Observer    = (*Observer)(nil)
)

// maxLinks is the maximum number of links of a span. The SDK keeps no more by
// default.
const maxLinks = 128

// systems are the names of OpenTelemetry for the first word of a source.
var systems = map[string]string{"kafka": "kafka", "rabbitmq": "rabbitmq", "nats": "nats", "redis": "redis", "sqs": "aws_sqs",
	"pubsub": "gcp_pubsub", "eventhubs": "eventhubs",
	"servicebus": "servicebus"}

// BeginHandling begins the span of a message at a consumer, or of several that
// are handled together. It is for inbox.Consumer.Observer. The handler runs
// inside the span. A single message belongs to the trace of its producer; a
// span of several messages links to all of their traces.
func (b *Observer) BeginHandling(ctx context.Context, h inbox.Handling) (context.Context, func([]inbox.HandlingResult)) {
	of := append(b.messaging("process", h.Messages, h.Together), attribute.String("once.consumer", name.Line(h.Consumer, name.Limit)),
		attribute.String("once.source", name.Line(h.Source, name.Limit)), attribute.Bool("once.shelved", h.Shelved))
	if system, _, _ := strings.Cut(h.Source, " "); systems[system] != "" {
		of = append(of, attribute.String("messaging.system", systems[system]))
	}
	ctx, span := b.begin(ctx, "process "+name.Line(h.Source, name.Limit), trace.SpanKindConsumer, h.Messages, h.Together, of)
	return ctx, func(became []inbox.HandlingResult) {
		b.count(ctx, h, became)
		outcomes, reasons := make([]string, len(became)), make([]string, len(became))
		for i, e := range became {
			if outcomes[i], reasons[i] = e.Outcome, e.Reason; e.Outcome == observe.Parked && e.Reason == "" {
				reasons[i] = observe.Parked
			}
		}
		b.end(span, outcomes, reasons)
	}
}

// BeginPublishing begins the span of a call of a publisher. It is for
// outbox.Relay.Observer. A single message belongs to the trace in which it was
// put; a span of several messages links to all of their traces. Headers stay as
// they are, so that consumers follow the trace of the producer.
func (b *Observer) BeginPublishing(ctx context.Context, p outbox.Publishing) (context.Context, func([]error)) {
	together := len(p.Messages) > 1
	ctx, span := b.begin(ctx, "publish", trace.SpanKindProducer, p.Messages, together, b.messaging("publish", p.Messages, together))
	return ctx, func(errs []error) {
		outcomes, reasons := make([]string, len(p.Messages)), make([]string, len(p.Messages))
		for i := range outcomes {
			switch {
			case errs == nil || errs[i] == nil:
				outcomes[i] = "published"
				continue
			case errors.Is(errs[i], broker.ErrInvalid):
				outcomes[i] = "invalid"
			default:
				outcomes[i] = "failed"
			}
			reasons[i] = errs[i].Error()
		}
		b.end(span, outcomes, reasons)
	}
}

// count counts the outcomes of messages, by source and topic.
func (b *Observer) count(ctx context.Context, h inbox.Handling, became []inbox.HandlingResult) {
	for i, e := range became {
		b.messages.Add(ctx, 1, metric.WithAttributes(attribute.String("once.consumer", name.Line(h.Consumer, name.Limit)),
			attribute.String("once.source", name.Line(h.Source, name.Limit)),
			attribute.String("once.topic", b.topics.bounded(h.Messages[i].Topic)), attribute.String("once.outcome", e.Outcome)))
	}
}

// maxTopics is how many topics metrics distinguish, because publishers choose
// the names.
const maxTopics = 200

// otherTopics replaces all topics after the first maxTopics.
const otherTopics = "_other"

// topics are the topics that metrics distinguish.
type topics struct {
	mu    sync.Mutex
	known map[string]bool
}

func (t *topics) bounded(topic string) string {
	topic = name.Line(topic, name.Limit)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.known[topic]:
		return topic
	case len(t.known) >= maxTopics:
		return otherTopics
	case t.known == nil:
		t.known = make(map[string]bool)
	}
	t.known[topic] = true
	return topic
}

// messaging returns the attributes that OpenTelemetry defines.
func (b *Observer) messaging(operation string, ms []*broker.Message, together bool) []attribute.KeyValue {
	kind := operation
	if kind == "publish" {
		kind = "send"
	}
	of := []attribute.KeyValue{attribute.String("messaging.operation.name", operation), attribute.String("messaging.operation.type", kind)}
	if topic := ms[0].Topic; !slices.ContainsFunc(ms, func(m *broker.Message) bool { return m.Topic != topic }) {
		of = append(of, attribute.String("messaging.destination.name", name.Line(topic, name.Limit)))
	}
	switch {
	case together:
		of = append(of, attribute.Int("messaging.batch.message_count", len(ms)))
	case b.keys == Readable: // it is a part of the message's key
		of = append(of, attribute.String("messaging.message.id", name.Line(ms[0].ID, name.Limit)))
	}
	if cause := ms[0].Header[store.KeyHeader]; cause != "" && !together && b.keys != Omitted {
		of = append(of, attribute.String("once.cause", name.Line(cause, name.Limit)))
	}
	return of
}

// begin begins a span that links to the trace of each message. A span of one
// message also belongs to its trace; otherwise it begins a trace.
func (b *Observer) begin(ctx context.Context, title string, kind trace.SpanKind, ms []*broker.Message, together bool,
	of []attribute.KeyValue) (context.Context, trace.Span) {

	var links []trace.Link
	linked := make(map[trace.SpanID]bool)
	for _, m := range ms {
		from := trace.SpanContextFromContext(Extract(context.Background(), m))
		if from.IsValid() && !linked[from.SpanID()] && len(links) < maxLinks {
			linked[from.SpanID()] = true
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // the caller of Run is not part of the trace
	if !together {
		ctx = Extract(ctx, ms[0])
	}
	return b.tracer.Start(ctx, title, trace.WithSpanKind(kind), trace.WithLinks(links...), trace.WithAttributes(of...))
}

// end ends the span of messages. It shows their outcome if all have the same,
// and otherwise how many have which. A message with a reason has failed.
func (b *Observer) end(span trace.Span, outcomes, reasons []string) {
	defer span.End()
	counts, told := make(map[string]int), make(map[string]bool)
	for i, outcome := range outcomes {
		counts[outcome]++
		if reasons[i] == "" || told[reasons[i]] {
			continue
		}
		told[reasons[i]] = true
		if b.keys == Readable { // the text of an error may name a key
			span.RecordError(errors.New(name.Reason(reasons[i])))
		}
	}
	common := "mixed"
	if len(counts) == 1 {
		common = outcomes[0]
	} else {
		for outcome, n := range counts {
			span.SetAttributes(attribute.Int("once.outcomes."+outcome, n))
		}
	}
	span.SetAttributes(attribute.String("once.outcome", common))
	if len(told) > 0 {
		span.SetStatus(codes.Error, common)
	}
}
