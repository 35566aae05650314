package otelonce

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// SpanContext returns the span context that the spans of all calls with one key
// link to. See [Observer.Begin].
func SpanContext(k once.Key) trace.SpanContext {
	id := k.UUID()
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: [8]byte(id[8:]), Remote: true})
}

// Header returns the trace of ctx as W3C headers. It is for
// outbox.Options.Header, so that each message carries the trace through its row
// and its broker to its consumers.
func Header(ctx context.Context) map[string]string {
	header := make(map[string]string)
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(header))
	return header
}

// Inject writes the trace of ctx into the headers of a message. If there is no
// trace, it writes nothing.
func Inject(ctx context.Context, m *broker.Message) {
	for name, value := range Header(ctx) {
		if m.Header == nil {
			m.Header = make(map[string]string)
		}
		m.Header[name] = value
	}
}

// Extract returns a context that belongs to the trace of a message: what is begun in it is a part of that. Without a trace
// in the message it returns ctx.
func Extract(ctx context.Context, m *broker.Message) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(m.Header))
}
