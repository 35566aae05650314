// Package alerts_test runs incidents, and sees which alerts they raise.
package alerts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

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

const (
	step  = time.Minute // between two scrapes
	steps = 100
	quiet = 20 // steps before the incident
)

var (
	charge = &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, Policy: once.Policy{Wait: once.NoWait}}
	mail   = &once.Operation[string]{Name: "mail", OnUnknown: once.Park}
	lookup = &once.Operation[string]{Name: "lookup", Lookup: func(context.Context, once.Key) (string, bool, error) {
		return "", false, errors.New("the provider does not answer")
	}}
	errDown = errors.New("down")
)

// house is a service with all of its parts, some of which a scene breaks.
type house struct {
	*memstore.Store
	down, lost, damaged, unread, silent, refusing, full atomic.Bool

	inbox inbox.Stats
	lag   atomic.Pointer[store.Lag] // nil: that of a reader which keeps up

	observer *otelonce.Observer
	behind   atomic.Pointer[broker.Lag] // the lag of the consumer; nil: none
	deaf     atomic.Bool                // the broker does not tell it
}

// Lag, Open and Name make a house the source of its consumer.
func (h *house) Lag(context.Context) (broker.Lag, error) {
	if h.deaf.Load() {
		return broker.Lag{}, errDown
	}
	if lag := h.behind.Load(); lag != nil {
		return *lag, nil
	}
	return broker.Lag{}, nil
}

func (h *house) Open(context.Context, int) (broker.Session, error) { return nil, errDown }
func (h *house) Name() string                                      { return "rabbitmq queue orders" }

// handle tells of messages at the consumer.
func (h *house) handle(n int, outcome string) {
	for range n {
		_, ended := h.observer.BeginHandling(context.Background(), inbox.Handling{Consumer: "billing", Source: h.Name(),
			Messages: []*broker.Message{{ID: "1", Topic: "orders"}}})
		ended([]inbox.HandlingResult{{Outcome: outcome}})
	}
}

func (h *house) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if h.down.Load() {
		return once.Record{}, errDown
	}
	rec, err := h.Store.Claim(ctx, r)
	if h.damaged.Load() {
		rec.Outcome.Sum++
	}
	return rec, err
}

func (h *house) Settle(ctx context.Context, s once.Settlement) error {
	err := h.Store.Settle(ctx, s)
	if h.lost.Load() {
		return once.ErrLeaseLost
	}
	return err
}

func (h *house) Forget(ctx context.Context, limit int) (int, error) {
	if h.full.Load() {
		return 0, errDown
	}
	return h.Store.Forget(ctx, limit)
}

func (h *house) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if h.silent.Load() {
		return once.RecordPage{}, errDown
	}
	return h.Store.List(ctx, q)
}

func (h *house) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	if h.unread.Load() {
		return nil, errDown
	}
	return h.Store.OutboxDepth(ctx, count)
}

func (h *house) OutboxLag(context.Context) (*store.Lag, error) {
	if lag := h.lag.Load(); lag != nil {
		return lag, nil
	}
	return &store.Lag{Behind: 1 << 10, Retained: 1 << 20, Active: true}, nil
}

// Publish refuses everything while the broker is down, and always what goes to the topic "misspelt" or "slow".
func (h *house) Publish(_ context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		switch {
		case h.refusing.Load() || m.Topic == "slow":
			errs[i] = errDown
		case m.Topic == "misspelt":
			errs[i] = broker.ErrInvalid
		}
	}
	return errs
}

func (h *house) Close() error { return nil }

func (h *house) do(op *once.Operation[string], id, input string, err error) {
	w := op.For(id)
	if input != "" {
		w = w.Input([]byte(input))
	}
	_, _ = once.Do(context.Background(), h, w, func(context.Context, once.Key) (string, error) { return id, err })
}

func (h *house) put(id, topic string) {
	tx := h.Begin()
	if err := outbox.New(h.Store, nil).Put(context.Background(), tx, &broker.Message{ID: id, Topic: topic}); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
}

// crash leaves a claim whose lease lapses.
func (h *house) crash(op *once.Operation[string], id string) {
	hold := once.Fence{Key: op.For(id).Key(), Owner: [16]byte{1}}
	_, err := h.Store.Claim(context.Background(), once.ClaimRequest{Fence: hold, Lease: time.Second})
	if err != nil {
		panic(err)
	}
}

// scene is what happens in each step of an incident, in which the healthy service goes on, and what it raises.
type scene struct {
	alerts []string
	happen func(h *house, i int)
}

var scenes = map[string]scene{
	"duplicates": {[]string{"OnceDuplicates"}, func(h *house, i int) {
		for n := range 100 {
			h.do(charge, fmt.Sprint("duplicate ", i/10, n), "", nil)
		}
	}},
	"key conflict": {[]string{"OnceKeyConflict"}, func(h *house, i int) {
		if i == 0 {
			_, _ = once.Do(context.Background(), h, charge.For("conflict"), func(ctx context.Context, _ once.Key) (string, error) {
				once.NoteKeyAnswer(ctx, once.KeyConflict, errors.New("409 idempotency_error"))
				return "", once.NotDone(errors.New("409 idempotency_error"))
			})
		}
	}},
	"duplicate messages": {[]string{"OnceDuplicateMessages"}, func(h *house, i int) { h.handle(100, observe.Duplicate) }},
	"consumer stopped": {[]string{"OnceConsumerLag"}, func(h *house, i int) {
		h.behind.Store(&broker.Lag{Messages: int64(i), Oldest: time.Duration(i) * step})
	}},
	"consumer slow": {[]string{"OnceConsumerLag"}, func(h *house, i int) { // at a broker that tells no ages
		h.behind.Store(&broker.Lag{Messages: int64(i) * 1000})
	}},
	"burst": {nil, func(h *house, i int) { // is worked off
		h.behind.Store(&broker.Lag{Messages: max(int64(9000-3000*i), 0), Oldest: step})
	}},
	"consumer down": {[]string{"OnceConsumerDown"}, func(h *house, i int) { h.inbox.Down.Store(1) }},
	"lag unread":    {[]string{"OnceConsumerLagUnread"}, func(h *house, i int) { h.deaf.Store(true) }},
	"healthy": {nil, func(h *house, i int) {
		h.do(charge, fmt.Sprint("again ", i/3), "", nil)                           // duplicates are no incident
		h.do(charge, fmt.Sprint("failed ", i), "", once.NotDone(errors.New("no"))) // nor is a failure now and then
	}},
	"retry storm": {[]string{"OnceRetryStorm"}, func(h *house, i int) {
		for n := range 100 {
			h.do(charge, fmt.Sprint("storm ", n), "", once.NotDone(errDown))
		}
	}},
	"store down": {[]string{"OnceStoreFails", "OnceRetryStorm"}, func(h *house, i int) {
		h.down.Store(true)
		for n := range 40 {
			h.do(charge, fmt.Sprint("down ", i, n), "", nil)
		}
	}},
	"leases lost": {[]string{"OnceLeasesLost"}, func(h *house, i int) {
		h.lost.Store(true)
		h.do(charge, fmt.Sprint("stalled ", i), "", nil)
		h.lost.Store(false)
	}},
	"crash loop": {[]string{"OnceCrashLoop"}, func(h *house, i int) {
		switch {
		case i < 8:
			h.do(charge, "crashing", "", errDown)
		case i == 8:
			h.do(charge, "crashing", "", nil)
		}
	}},
	"parked": {[]string{"OnceParked"}, func(h *house, i int) {
		if i == 0 {
			h.do(mail, "1", "", errors.New("cut off"))
		}
	}},
	"mismatch": {[]string{"OnceMismatch"}, func(h *house, i int) {
		if i == 0 {
			h.do(charge, "used", "a", nil)
			h.do(charge, "used", "b", nil)
		}
	}},
	"damaged": {[]string{"OnceRecordDamaged"}, func(h *house, i int) {
		if i == 0 {
			h.do(charge, "damaged", "", nil)
			h.damaged.Store(true)
			h.do(charge, "damaged", "", nil)
			h.damaged.Store(false)
		}
	}},
	"relay stalled": {[]string{"OnceRelayStalled"}, func(h *house, i int) { h.refusing.Store(true) }},
	"row stuck": {[]string{"OnceMessagesStuck"}, func(h *house, i int) {
		if i == 0 {
			h.put("misspelt", "misspelt")
		}
	}},
	"row held": {[]string{"OnceMessagesHeld"}, func(h *house, i int) {
		if i == 0 {
			h.put("slow", "slow")
		}
	}},
	"outbox unread": {[]string{"OnceOutboxUnread"}, func(h *house, i int) { h.unread.Store(true) }},
	"log stands still": {[]string{"OnceOutboxLogBehind"}, func(h *house, i int) { // a relay that reads, and gets nothing through
		h.lag.Store(&store.Lag{Behind: int64(i) << 26, Retained: int64(i) << 26, Active: true})
	}},
	"log without a reader": {[]string{"OnceOutboxLogBehind"}, func(h *house, i int) {
		h.lag.Store(&store.Lag{Behind: int64(i) << 10, Retained: 1 << 20})
	}},
	"slot lost": {[]string{"OnceOutboxLogBehind"}, func(h *house, i int) {
		h.lag.Store(&store.Lag{Behind: 1 << 30, Active: true, Status: store.LagLost})
	}},
	"deployment": {nil, func(h *house, i int) { // the place of the reader is free for some minutes
		h.lag.Store(&store.Lag{Behind: 1 << 20, Retained: 1 << 20, Active: i > 5, Status: store.LagExtended})
	}},
	"message parked": {[]string{"OnceMessagesParked"}, func(h *house, i int) { h.inbox.Parked.Store(1) }},
	"no answer": {[]string{"OnceUnknownForLong"}, func(h *house, i int) {
		if i == 0 {
			h.crash(lookup, "1")
		}
	}},
	"nobody's": {[]string{"OnceUnknownOrphaned"}, func(h *house, i int) {
		if i == 0 {
			h.crash(charge, "orphan")
		}
		if i == 40 {
			h.do(charge, "orphan", "", nil)
		}
	}},
	"nothing forgotten":  {[]string{"OnceJanitorBehind"}, func(h *house, i int) { h.full.Store(true) }},
	"reconciler stopped": {[]string{"OnceReconcilerStopped"}, func(h *house, i int) { h.silent.Store(true) }},
}

// scrape is what Prometheus gets at one time.
type scrape struct {
	at       time.Time
	families []*dto.MetricFamily
}

// play runs a scene in a time of its own.
func play(t *testing.T, s scene) (scrapes []scrape) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		reader, err := exporter.New(exporter.WithRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		observer, err := otelonce.New(&otelonce.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
		if err != nil {
			t.Fatal(err)
		}
		h := &house{Store: memstore.New(&memstore.Options{Options: once.Options{Observer: observer}})}
		h.observer = observer
		relay := &outbox.Relay{Store: h, Publisher: h, Stats: new(outbox.Stats), Retry: outbox.Retry{Attempts: 1000}}
		asks := &reconcile.Reconciler{Store: h, Operations: []reconcile.Operation{reconcile.Of(lookup)}, Stats: new(reconcile.Stats)}
		observer.WatchInbox("billing", &h.inbox)
		observer.WatchLag("billing", h)
		observer.WatchRelay("shop", relay.Stats)
		observer.WatchOutbox("shop", h)
		observer.WatchReconciler("lookups", asks.Stats)
		cleans := &janitor.Janitor{Store: h, Stats: new(janitor.Stats)}
		observer.WatchJanitor("all", cleans.Stats)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		go func() { ended <- cleans.Run(ctx) }()
		go func() { ended <- relay.Run(ctx) }()
		go func() { ended <- asks.Run(ctx) }()
		for i := range steps {
			h.do(charge, fmt.Sprint("usual ", i), "", nil)
			h.put(fmt.Sprint("usual ", i), "orders")
			h.inbox.Received.Add(1)
			h.inbox.Handled.Add(1)
			h.handle(1, observe.Handled)
			if i >= quiet {
				s.happen(h, i-quiet)
			}
			time.Sleep(step)
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			scrapes = append(scrapes, scrape{time.Now(), families})
		}
		cancel()
		if err := errors.Join(<-ended, <-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
	return scrapes
}

// samples puts a scrape into the words of Prometheus.
func samples(s scrape, each func(labels.Labels, float64)) {
	for _, family := range s.families {
		for _, m := range family.Metric {
			b := labels.NewBuilder(labels.EmptyLabels())
			for _, pair := range m.Label {
				b.Set(pair.GetName(), pair.GetValue())
			}
			add := func(suffix string, v float64) {
				each(b.Set(model.MetricNameLabel, family.GetName()+suffix).Labels(), v)
			}
			switch {
			case m.Counter != nil:
				add("", m.Counter.GetValue())
			case m.Gauge != nil:
				add("", m.Gauge.GetValue())
			case m.Histogram != nil:
				add("_sum", m.Histogram.GetSampleSum())
				add("_count", float64(m.Histogram.GetSampleCount()))
				for _, bucket := range m.Histogram.Bucket {
					b.Set("le", fmt.Sprint(bucket.GetUpperBound()))
					add("_bucket", float64(bucket.GetCumulativeCount()))
				}
			}
		}
	}
}

// world is a Prometheus that has seen a scene.
type world struct {
	t       *testing.T
	storage storage.Queryable
	engine  *promql.Engine
	times   []time.Time
	exposed map[string]map[string]bool // the labels of each metric
}

var words = parser.NewParser(parser.Options{})

func newWorld(t *testing.T, scrapes []scrape) *world {
	kept := &memory{series: make(map[string]*series)}
	w := &world{t: t, storage: kept.queryable(), exposed: make(map[string]map[string]bool),
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: 2 * time.Minute, Parser: words})}
	t.Cleanup(func() { _ = w.engine.Close() })
	for _, s := range scrapes {
		w.times = append(w.times, s.at)
		samples(s, func(l labels.Labels, v float64) {
			name := l.Get(model.MetricNameLabel)
			if w.exposed[name] == nil {
				w.exposed[name] = make(map[string]bool)
			}
			l.Range(func(l labels.Label) { w.exposed[name][l.Name] = true })
			kept.add(l, s.at.UnixMilli(), v)
		})
	}
	return w
}

func (w *world) ask(expr string, at time.Time) promql.Vector {
	w.t.Helper()
	query, err := w.engine.NewInstantQuery(w.t.Context(), w.storage, nil, expr, at)
	if err != nil {
		w.t.Fatalf("%s: %v", expr, err)
	}
	defer query.Close()
	got, err := query.Exec(w.t.Context()).Vector()
	if err != nil {
		w.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(got)
}

var template = regexp.MustCompile(`\$labels\.(\w+)`)

// fires reports whether a series of an alert is there for as long as it has to be.
func (w *world) fires(rule rulefmt.Rule) bool {
	query, err := w.engine.NewRangeQuery(w.t.Context(), w.storage, nil, rule.Expr, w.times[0], w.times[len(w.times)-1], step)
	if err != nil {
		w.t.Fatalf("%s: %v", rule.Alert, err)
	}
	defer query.Close()
	all, err := query.Exec(w.t.Context()).Matrix()
	if err != nil {
		w.t.Fatalf("%s: %v", rule.Alert, err)
	}
	for _, series := range all {
		for _, name := range template.FindAllStringSubmatch(rule.Annotations["summary"], -1) {
			if series.Metric.Get(name[1]) == "" {
				w.t.Errorf("%s says $labels.%s, which it does not have", rule.Alert, name[1])
			}
		}
		var since, last int64
		for _, point := range series.Floats {
			if point.T-last > step.Milliseconds() {
				since = point.T
			}
			if last = point.T; last-since >= time.Duration(rule.For).Milliseconds() {
				return true
			}
		}
	}
	return false
}

// check sees whether an expression asks for what there is.
func (w *world) check(where, expr string) {
	parsed, err := words.ParseExpr(expr)
	if err != nil {
		w.t.Errorf("%s: %v", where, err)
		return
	}
	have := make(map[string]bool)
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			if w.exposed[selector.Name] == nil {
				w.t.Errorf("%s asks for the metric %q, which there is not", where, selector.Name)
			}
			for _, m := range selector.LabelMatchers {
				if !w.exposed[selector.Name][m.Name] {
					w.t.Errorf("%s asks for the label %q of %s, which it does not have", where, m.Name, selector.Name)
				}
			}
			for name := range w.exposed[selector.Name] {
				have[name] = true
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if sum, ok := node.(*parser.AggregateExpr); ok {
			for _, name := range sum.Grouping {
				if !have[name] {
					w.t.Errorf("%s groups by the label %q, which there is not", where, name)
				}
			}
		}
		return nil
	})
}

func rules(t *testing.T) (all []rulefmt.Rule) {
	groups, errs := rulefmt.ParseFile("once.rules.yml", false, model.LegacyValidation, words, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func TestEachAlertFiresInItsIncident(t *testing.T) {
	all := rules(t)
	raised := make(map[string]bool)
	for name, s := range scenes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, play(t, s))
			var fired []string
			for _, rule := range all {
				if w.fires(rule) {
					fired = append(fired, rule.Alert)
					raised[rule.Alert] = true
				}
			}
			slices.Sort(fired)
			want := slices.Sorted(slices.Values(s.alerts))
			if !slices.Equal(fired, want) {
				t.Errorf("it raises %q, want %q", fired, want)
			}
		})
	}
	for _, rule := range all {
		if !raised[rule.Alert] {
			t.Errorf("no incident raises %s", rule.Alert)
		}
	}
}

// quietPanels show nothing while there is no incident.
var quietPanels = []string{"Leases lost, panics, unknown", "What other systems say about keys"}

func TestExpressionsAskForWhatThereIs(t *testing.T) {
	w := newWorld(t, play(t, scenes["healthy"]))
	for _, rule := range rules(t) {
		w.check(rule.Alert, rule.Expr)
	}
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			w.check(panel.Title, expr)
			shown := w.ask(expr, w.times[len(w.times)-1])
			if len(shown) == 0 && !slices.Contains(quietPanels, panel.Title) {
				t.Errorf("the panel %q shows nothing", panel.Title)
			}
		}
	}
	if len(board.Panels) == 0 {
		t.Error("the dashboard is empty")
	}
}
