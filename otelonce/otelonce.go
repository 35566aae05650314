// Package otelonce reports to OpenTelemetry what package once does: a metric
// and a span for each call, a span for each message that is published or
// handled, the Stats of consumers, relays, janitors and reconcilers, and the
// trace of a message from its producer to its consumers.
//
//	observer, err := otelonce.New(nil) // or with Options
//	store := pgstore.New(pool, &pgstore.Options{Options: once.Options{Observer: observer}})
//	consumer := &inbox.Consumer{Name: "billing", Source: source, Handler: handler, Observer: observer, Stats: new(inbox.Stats)}
//	relay := &outbox.Relay{Store: store, Publisher: publisher, Observer: observer, Stats: new(outbox.Stats)}
//	err = errors.Join(observer.WatchInbox("billing", consumer.Stats), observer.WatchRelay("shop", relay.Stats))
//
// docs/observing.md lists every metric. Attributes have few values: names from
// the code, verbs, results. Keys are on spans only. The compatibility promise
// is that of package once, and covers the names of metrics and attributes.
package otelonce

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
)

const scope = "github.com/effectively-once/once/otelonce"

// Options configures an [Observer]. The zero value is valid.
type Options struct {
	MeterProvider  metric.MeterProvider // default: the global one
	TracerProvider trace.TracerProvider // default: the global one
	Keys           Keys                 // what spans show of a key; default: Readable

	// OutboxEvery is the minimum time between two readings of the depth of an
	// outbox, however often metrics are collected. Default: 15 seconds.
	OutboxEvery time.Duration
}

// Keys selects what spans show of a key.
type Keys int

const (
	Readable Keys = iota // its parts, and the text of errors
	Hashed               // key.String() only: whoever can guess the parts of a key can check the guess
	Omitted              // nothing, so that attempts are not linked either
)

// Observer is a [once.Observer], an [inbox.Observer] and an [outbox.Observer].
// Any number of stores, consumers and relays may share it.
type Observer struct {
	tracer   trace.Tracer
	keys     Keys
	calls    metric.Int64Counter
	events   metric.Int64Counter
	messages metric.Int64Counter
	topics   topics
	duration metric.Float64Histogram
	watched  watched
}

// New returns an Observer. If o is nil, the defaults apply. Make one Observer
// for each MeterProvider: a second one has the same instruments.
func New(o *Options) (*Observer, error) {
	if o == nil {
		o = new(Options)
	}
	if o.Keys < Readable || o.Keys > Omitted || o.OutboxEvery < 0 {
		return nil, errors.New("otelonce: Keys must be Readable, Hashed or Omitted, and OutboxEvery must not be negative")
	}
	meters, tracers := o.MeterProvider, o.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	meter := meters.Meter(scope)
	b := &Observer{tracer: tracers.Tracer(scope), keys: o.Keys}
	var err1, err2 error
	b.calls, err1 = meter.Int64Counter("once.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of Do, DoTx, InTx and Ask that have ended."))
	b.duration, err2 = meter.Float64Histogram("once.call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls took, with their waiting and their work."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	var err3, err4 error
	b.events, err3 = meter.Int64Counter("once.events", metric.WithUnit("{event}"),
		metric.WithDescription("Steps in the life of keys."))
	b.messages, err4 = meter.Int64Counter("once.messages", metric.WithUnit("{message}"),
		metric.WithDescription("What has become of messages at consumers, by source and topic, with each attempt."))
	return b, errors.Join(err1, err2, err3, err4, b.watched.register(meter, cmp.Or(o.OutboxEvery, 15*time.Second)))
}

// Begin begins a span. All calls with one key link to the same span context,
// which is derived from the key: its trace ID is key.UUID(), and its span ID is
// the second half of that. No such span exists. A backend that lists the spans
// with this link finds all attempts, in whatever trace they are.
func (b *Observer) Begin(ctx context.Context, verb string, k once.Key) (context.Context, func(once.CallResult)) {
	begun := time.Now()
	operation := name.Line(k.Operation, name.Limit)
	of := []attribute.KeyValue{attribute.String("once.operation", operation), attribute.String("once.verb", verb)}
	ctx, span := b.tracer.Start(ctx, verb+" "+operation, append(b.about(k), trace.WithAttributes(of...))...)
	return ctx, func(e once.CallResult) {
		took := time.Since(begun).Seconds()
		of := metric.WithAttributeSet(attribute.NewSet(append(of, attribute.String("once.result", e.Result))...))
		b.calls.Add(ctx, 1, of)
		b.duration.Record(ctx, took, of)
		span.SetAttributes(attribute.String("once.result", e.Result), attribute.Int64("once.attempt", e.Attempt),
			attribute.Bool("once.ran", e.Ran))
		if e.Err != nil && !errors.Is(e.Err, once.ErrRejected) {
			span.SetStatus(codes.Error, e.Result)
			if b.keys == Readable { // the text of an error names its key
				span.RecordError(exportable(e.Err))
			}
		}
		span.End()
	}
}

// Event counts a step of a key, and adds it to the span of ctx.
func (b *Observer) Event(ctx context.Context, e once.Event) {
	of := attribute.String("once.event", e.Name)
	b.events.Add(ctx, 1, metric.WithAttributes(of, attribute.String("once.operation", name.Line(e.Key.Operation, name.Limit))))
	with := []attribute.KeyValue{attribute.Int64("once.attempt", e.Attempt)}
	if b.keys != Omitted {
		with = append(with, attribute.String("once.key", e.Key.String()))
	}
	trace.SpanFromContext(ctx).AddEvent(e.Name, trace.WithAttributes(with...))
}

// exportable returns err, or its text if invalid UTF-8 in it would make the
// exporter drop a batch of spans.
func exportable(err error) error {
	if text := err.Error(); !utf8.ValidString(text) {
		return errors.New(strings.ToValidUTF8(text, "?"))
	}
	return err
}

// about returns what a span shows of its key. The call of an invalid key has a
// span too. It shows no more than fits a valid key, and no bytes that exporters
// refuse.
func (b *Observer) about(k once.Key) []trace.SpanStartOption {
	if b.keys == Omitted {
		return nil
	}
	of := []attribute.KeyValue{attribute.String("once.key", k.String())}
	if b.keys == Readable {
		of = append(of, attribute.String("once.scope", name.Line(k.Scope, name.Limit)),
			attribute.String("once.id", name.Line(k.ID, name.Limit)))
	}
	return []trace.SpanStartOption{trace.WithLinks(trace.Link{SpanContext: SpanContext(k)}), trace.WithAttributes(of...)}
}
