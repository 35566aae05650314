package otelonce_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/observe"
	"github.com/effectively-once/once/otelonce"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

var charge = &once.Operation[string]{Name: "charge", OnUnknown: once.Resend}

// bench is a store that is observed, and what was seen.
type bench struct {
	*otelonce.Observer
	store  *memstore.Store
	spans  *tracetest.SpanRecorder
	traces *trace.TracerProvider
	reader *metric.ManualReader
}

func newBench(t *testing.T, o otelonce.Options) *bench {
	t.Helper()
	b := &bench{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	b.traces = trace.NewTracerProvider(trace.WithSpanProcessor(b.spans))
	o.TracerProvider, o.MeterProvider = b.traces, metric.NewMeterProvider(metric.WithReader(b.reader))
	var err error
	if b.Observer, err = otelonce.New(&o); err != nil {
		t.Fatal(err)
	}
	b.store = memstore.New(&memstore.Options{Options: once.Options{Observer: b}})
	return b
}

func (b *bench) do(ctx context.Context, id string, err error) {
	_, _ = once.Do(ctx, b.store, charge.For(id).In("tenant"), func(context.Context, once.Key) (string, error) { return "", err })
}

func (b *bench) metrics(t *testing.T) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := b.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]metricdata.Metrics)
	for _, of := range all.ScopeMetrics {
		for _, m := range of.Metrics {
			got[m.Name] = m
		}
	}
	return got
}

func attributesOf(s trace.ReadOnlySpan) map[string]string {
	got := make(map[string]string)
	for _, a := range s.Attributes() {
		got[string(a.Key)] = a.Value.String()
	}
	return got
}

func TestAttemptsOfAKeyLinkToTheSameSpanContext(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	ctx, parent := b.traces.Tracer("test").Start(t.Context(), "request")
	b.do(ctx, "1", errors.New("timeout"))
	b.do(t.Context(), "1", nil)
	b.do(t.Context(), "1", nil)
	key := charge.For("1").In("tenant").Key()
	ended := b.spans.Ended()
	ended = slices.DeleteFunc(ended, func(s trace.ReadOnlySpan) bool { return s.Name() != "Do charge" })
	if len(ended) != 3 {
		t.Fatalf("%d spans have ended, want 3", len(ended))
	}
	for i, want := range []map[string]string{
		{"once.result": "unknown", "once.attempt": "1", "once.ran": "true"},
		{"once.result": "done", "once.attempt": "2", "once.ran": "true"},
		{"once.result": "replayed", "once.attempt": "2", "once.ran": "false"},
	} {
		got := attributesOf(ended[i])
		want["once.key"], want["once.id"], want["once.scope"], want["once.operation"] = key.String(), "1", "tenant", "charge"
		for name, value := range want {
			if got[name] != value {
				t.Errorf("span %d: %s is %q, want %q", i, name, got[name], value)
			}
		}
		links := ended[i].Links()
		if len(links) != 1 || links[0].SpanContext.TraceID() != key.UUID() || !links[0].SpanContext.IsValid() {
			t.Errorf("span %d has the links %v", i, links)
		}
		if failed := ended[i].Status().Code == codes.Error; failed != (i == 0) {
			t.Errorf("span %d has the status %v", i, ended[i].Status())
		}
	}
	if ended[0].Parent().SpanID() != parent.SpanContext().SpanID() {
		t.Error("the span is not below its caller's")
	}
}

func TestKeysAreShownAsChosen(t *testing.T) {
	for keys, want := range map[otelonce.Keys][]string{
		otelonce.Readable: {"once.id", "once.key", "once.scope"},
		otelonce.Hashed:   {"once.key"},
		otelonce.Omitted:  nil,
	} {
		b := newBench(t, otelonce.Options{Keys: keys})
		b.do(t.Context(), "secret-id", errors.New("timeout"))
		span := b.spans.Ended()[0]
		var got []string
		for name, value := range attributesOf(span) {
			if name == "once.id" || name == "once.key" || name == "once.scope" {
				got = append(got, name)
			}
			if keys != otelonce.Readable && strings.Contains(value, "secret") {
				t.Errorf("%d: %s is %q", keys, name, value)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%d: spans have %q, want %q", keys, got, want)
		}
		if linked := len(span.Links()) > 0; linked != (keys != otelonce.Omitted) {
			t.Errorf("%d: links are %v", keys, span.Links())
		}
		told := false // the text of the error
		for _, event := range span.Events() {
			told = told || event.Name == "exception"
			for _, of := range event.Attributes {
				if keys == otelonce.Omitted && of.Key == "once.key" || keys != otelonce.Readable && strings.Contains(of.Value.String(), "secret") {
					t.Errorf("%d: the event %s has %s %q", keys, event.Name, of.Key, of.Value.String())
				}
			}
		}
		if told != (keys == otelonce.Readable) {
			t.Errorf("%d: events are %v", keys, span.Events())
		}
	}
	if _, err := otelonce.New(&otelonce.Options{Keys: 7}); err == nil {
		t.Error("a choice that there is not was taken")
	}
}

// A string that is not UTF-8 is nothing that OTLP can carry: all spans that are exported with it are lost.
func TestKeysThatAreRefusedCanBeExported(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	b.do(t.Context(), "caf\xe9", nil)
	b.do(t.Context(), strings.Repeat("x", 1<<20), nil)
	b.do(t.Context(), "1", errors.New("caf\xe9"))
	for i, span := range b.spans.Ended() {
		all := attributesOf(span)
		for _, event := range span.Events() {
			for _, a := range event.Attributes {
				all[event.Name+" "+string(a.Key)] = a.Value.String()
			}
		}
		for name, value := range all {
			if !utf8.ValidString(value) || len(value) > 1000 {
				t.Errorf("span %d: %s has %d bytes, UTF-8: %v", i, name, len(value), utf8.ValidString(value))
			}
		}
	}
	if n := len(b.spans.Ended()); n != 3 {
		t.Errorf("there are %d spans, want 3", n)
	}
}

func TestTraceTravelsWithAMessage(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	ctx, span := b.traces.Tracer("test").Start(t.Context(), "order")
	var m broker.Message
	otelonce.Inject(ctx, &m)
	put := outbox.New(b.store, &outbox.Options{Header: otelonce.Header})
	tx := b.store.Begin()
	if err := put.Put(ctx, tx, &broker.Message{ID: "1", Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	rows, err := b.store.Outgoing(t.Context(), store.OutgoingQuery{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for where, m := range map[string]*broker.Message{"message": &m, "row": &rows[0].Message} {
		_, child := b.traces.Tracer("test").Start(otelonce.Extract(context.Background(), m), "consumer")
		if child.SpanContext().TraceID() != span.SpanContext().TraceID() {
			t.Errorf("%s: the consumer's span is in another trace (%q)", where, m.Header)
		}
	}
	var none broker.Message
	if otelonce.Inject(t.Context(), &none); none.Header != nil {
		t.Errorf("without a trace the headers are %q", none.Header)
	}
}

// handle tells of messages of a topic at a consumer.
func (b *bench) handle(n int, topic, outcome string) {
	for range n {
		_, ended := b.BeginHandling(context.Background(), inbox.Handling{Consumer: "billing", Source: "rabbitmq queue orders",
			Messages: []*broker.Message{{ID: "1", Topic: topic}}})
		ended([]inbox.HandlingResult{{Outcome: outcome}})
	}
}

func TestDuplicatesAreCountedByTopicAndSource(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	b.handle(3, "orders", observe.Handled)
	b.handle(2, "orders", observe.Duplicate)
	for i := range 300 { // whoever publishes chooses their names
		b.handle(1, fmt.Sprint("made up ", i), observe.Duplicate)
	}
	topics := make(map[string]bool)
	for _, p := range b.metrics(t)["once.messages"].Data.(metricdata.Sum[int64]).DataPoints {
		of := make(map[string]string)
		for _, a := range p.Attributes.ToSlice() {
			of[string(a.Key)] = a.Value.AsString()
		}
		topics[of["once.topic"]] = true
		want := int64(1)
		switch {
		case of["once.topic"] == "orders" && of["once.outcome"] == observe.Handled:
			want = 3
		case of["once.topic"] == "orders":
			want = 2
		case of["once.topic"] == "_other":
			want = 101
		}
		if p.Value != want || of["once.consumer"] != "billing" || of["once.source"] != "rabbitmq queue orders" {
			t.Errorf("%d messages are counted of %v, want %d", p.Value, of, want)
		}
	}
	if len(topics) != 201 {
		t.Errorf("%d topics are told apart, want 200 and the others", len(topics))
	}
}

// lagging is a source that tells how far its consumer is behind.
type lagging struct {
	broker.Source
	lag broker.Lag
	err error
}

func (l lagging) Lag(context.Context) (broker.Lag, error) { return l.lag, l.err }

func TestLagIsReported(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	if err := b.WatchLag("mute", struct{ broker.Source }{}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a source that cannot tell: %v", err)
	}
	b.WatchLag("behind", lagging{lag: broker.Lag{Messages: 7, Oldest: time.Minute}})
	b.WatchLag("down", lagging{err: errors.New("down")})
	got := b.metrics(t)
	lag := got["once.inbox.lag"].Data.(metricdata.Gauge[int64]).DataPoints
	oldest := got["once.inbox.lag.oldest"].Data.(metricdata.Gauge[float64]).DataPoints
	if len(lag) != 1 || lag[0].Value != 7 || len(oldest) != 1 || oldest[0].Value != 60 {
		t.Errorf("reported are %v and %v, want 7 messages and 60 s of one source", lag, oldest)
	}
	for _, p := range got["once.inbox.lag.unread"].Data.(metricdata.Sum[int64]).DataPoints {
		name, _ := p.Attributes.Value("once.name")
		if want := map[string]int64{"down": 1}[name.AsString()]; p.Value != want {
			t.Errorf("%d readings of %s have failed, want %d", p.Value, name.AsString(), want)
		}
	}
}

// logOf is a log whose broker keeps no place, with 10 messages.
type logOf struct{ broker.Source }

func (logOf) Name() string  { return "log" }
func (logOf) KeepsNoPlace() {}
func (logOf) LagFrom(_ context.Context, at map[string]broker.Position) (broker.Lag, error) {
	return broker.Lag{Messages: 9 - at["p"].Offset}, nil
}

// shelfless is a store that keeps no positions.
type shelfless struct{ once.Store }

func TestLagOfALogIsThatAfterPositions(t *testing.T) {
	s, ctx := memstore.New(nil), t.Context()
	for _, c := range []store.Consumer{{Name: "billing", Source: store.SourceText("log", map[string]string{"created": "today"}), Keys: "invoices"},
		{Name: "letters", Source: "another log"}} {
		if _, err := s.Register(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetPosition(ctx, store.Position{Consumer: "invoices", Partition: "p", Log: "log", Offset: 6}); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, otelonce.Options{})
	for name, err := range map[string]error{
		"a source that cannot tell":       b.WatchLogLag("billing", lagging{}, s),
		"a source without its positions":  b.WatchLag("billing", logOf{}),
		"a store that keeps no positions": b.WatchLogLag("billing", logOf{}, shelfless{s}),
		"no source":                       b.WatchLogLag("billing", nil, s),
		"no store":                        b.WatchLogLag("billing", logOf{}, nil),
	} {
		if !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, consumer := range []string{"billing", "letters", "unknown"} {
		if err := b.WatchLogLag(consumer, logOf{}, s); err != nil {
			t.Fatal(err)
		}
	}
	got := b.metrics(t)
	lag := got["once.inbox.lag"].Data.(metricdata.Gauge[int64]).DataPoints
	if len(lag) != 1 || lag[0].Value != 3 {
		t.Errorf("reported are %v, want the 3 messages of billing", lag)
	}
	for _, p := range got["once.inbox.lag.unread"].Data.(metricdata.Sum[int64]).DataPoints {
		name, _ := p.Attributes.Value("once.name")
		if want := map[string]int64{"letters": 1, "unknown": 1}[name.AsString()]; p.Value != want {
			t.Errorf("%d readings of %s have failed, want %d", p.Value, name.AsString(), want)
		}
	}
}

// counted is an outbox that counts its readings.
type counted struct {
	store.Relayable
	readings int
	err      error
}

func (c *counted) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	c.readings++
	return []store.Depth{{State: store.Pending, Count: 3, Oldest: time.Minute}}, c.err
}

func TestOutboxIsReadNoMoreOftenThanAllowed(t *testing.T) {
	b := newBench(t, otelonce.Options{OutboxEvery: time.Hour})
	box := &counted{}
	b.WatchOutbox("orders", box)
	for range 5 {
		oldest := b.metrics(t)["once.outbox.oldest"].Data.(metricdata.Gauge[float64])
		for _, p := range oldest.DataPoints {
			if state, _ := p.Attributes.Value("once.state"); state.AsString() == "pending" && p.Value != 60 {
				t.Errorf("the oldest message is %v s old, want 60", p.Value)
			}
		}
		if len(oldest.DataPoints) != 4 {
			t.Errorf("there are %d states, want 4", len(oldest.DataPoints))
		}
	}
	if box.readings != 1 {
		t.Errorf("the outbox was read %d times, want once", box.readings)
	}
	broken := &counted{err: errors.New("down")}
	b.WatchOutbox("orders", broken) // in place of the other
	got := b.metrics(t)
	if _, there := got["once.outbox.depth"]; there {
		t.Error("what could not be read is reported")
	}
	if err := b.WatchInbox("billing", nil); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("nothing was watched: %v", err)
	}
	if sum := got["once.outbox.unread"].Data.(metricdata.Sum[int64]); sum.DataPoints[0].Value != 1 {
		t.Errorf("%d readings have failed, want 1", sum.DataPoints[0].Value)
	}
}

// logged is an outbox that is read from a log.
type logged struct {
	counted
	lag *store.Lag
	err error
}

func (l *logged) OutboxLag(context.Context) (*store.Lag, error) { return l.lag, l.err }

func TestLagOfALog(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	box := &logged{lag: &store.Lag{Behind: 5, Retained: 7, Active: true, Status: store.LagExtended}}
	b.WatchOutbox("orders", box)
	got := b.metrics(t)
	value := func(name string) int64 { return got[name].Data.(metricdata.Gauge[int64]).DataPoints[0].Value }
	if value("once.outbox.log.lag") != 5 || value("once.outbox.log.retained") != 7 || value("once.outbox.log.active") != 1 {
		t.Errorf("the lag is %d, %d are retained, active is %d", value("once.outbox.log.lag"), value("once.outbox.log.retained"),
			value("once.outbox.log.active"))
	}
	statuses := got["once.outbox.log.status"].Data.(metricdata.Gauge[int64]).DataPoints
	for _, p := range statuses {
		status, _ := p.Attributes.Value("once.status")
		if is := status.AsString() == "extended"; is != (p.Value == 1) {
			t.Errorf("the status %s is %d", status.AsString(), p.Value)
		}
	}
	if len(statuses) != len(store.LagStatuses()) {
		t.Errorf("there are %d statuses", len(statuses))
	}
	for name, box := range map[string]*logged{"nobody's": {}, "unread": {err: errors.New("down"), lag: new(store.Lag)}} {
		b := newBench(t, otelonce.Options{})
		b.WatchOutbox("orders", box)
		got := b.metrics(t)
		if _, there := got["once.outbox.log.lag"]; there {
			t.Errorf("%s: a lag is reported", name)
		}
		if _, there := got["once.outbox.depth"]; !there {
			t.Errorf("%s: the depth is not reported", name)
		}
		failed := got["once.outbox.unread"].Data.(metricdata.Sum[int64]).DataPoints[0].Value
		if want := map[string]int64{"unread": 1}[name]; failed != want {
			t.Errorf("%s: %d readings have failed, want %d", name, failed, want)
		}
	}
}

var row = regexp.MustCompile("(?m)^\\| `(once\\.[a-z._]+)` \\| ([a-z ]+), `([^`]+)` \\| ([^|]*) \\|")

// The table in the documentation is compared with what there is.
func TestMetricsAreDocumented(t *testing.T) {
	b := newBench(t, otelonce.Options{})
	looked := new(reconcile.Stats)
	looked.Looks.Store(1)
	b.WatchInbox("billing", new(inbox.Stats))
	b.WatchRelay("shop", new(outbox.Stats))
	b.WatchReconciler("charges", looked)
	b.WatchJanitor("all", new(janitor.Stats))
	b.WatchOutbox("orders", &logged{lag: new(store.Lag)})
	b.WatchOutbox("broken", &counted{err: errors.New("down")})
	b.WatchLag("billing", lagging{err: errors.New("down")})
	b.WatchLag("letters", lagging{lag: broker.Lag{Messages: 1}})
	b.handle(1, "orders", observe.Handled)
	b.do(t.Context(), "1", nil)
	text, err := os.ReadFile("../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string][]string)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = m[2:]
	}
	got := b.metrics(t)
	for name, m := range got {
		kind, attributes := describe(m.Data)
		want := []string{kind, m.Unit, strings.Join(attributes, ", ")}
		if have := listed[name]; !slices.Equal(have, want) {
			t.Errorf("docs/observing.md has %s as %q, want %q", name, have, want)
		}
	}
	for name := range listed {
		if _, there := got[name]; !there {
			t.Errorf("docs/observing.md lists %s, which there is not", name)
		}
	}
}

// describe tells the kind of a metric, and which attributes it has.
func describe(data metricdata.Aggregation) (kind string, attributes []string) {
	var set attribute.Set
	switch d := data.(type) {
	case metricdata.Sum[int64]:
		kind, set = "counter", d.DataPoints[0].Attributes
	case metricdata.Gauge[int64]:
		kind, set = "gauge", d.DataPoints[0].Attributes
	case metricdata.Gauge[float64]:
		kind, set = "gauge", d.DataPoints[0].Attributes
	case metricdata.Histogram[float64]:
		kind, set = "histogram", d.DataPoints[0].Attributes
	}
	for _, a := range set.ToSlice() {
		attributes = append(attributes, "`"+string(a.Key)+"`")
	}
	return kind, attributes
}
