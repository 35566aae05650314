package otelonce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
)

const (
	countTo  = 10_000          // from so many messages on, an outbox estimates
	readTime = 5 * time.Second // for one reading
)

// watched is read whenever metrics are collected.
type watched struct {
	mu    sync.Mutex
	reads map[string]func(context.Context, metric.Observer)
	every time.Duration

	received, inboxed, inboxFailures           metric.Int64ObservableCounter
	inboxDown                                  metric.Int64ObservableGauge
	lagUnread                                  metric.Int64ObservableCounter
	lag                                        metric.Int64ObservableGauge
	lagOldest                                  metric.Float64ObservableGauge
	outboxed, outboxFailures, refusals, unread metric.Int64ObservableCounter
	reconciled, looks, forgotten, cleanings    metric.Int64ObservableCounter
	depth, unknown, lapsed, orphaned, behind   metric.Int64ObservableGauge
	logLag, logRetained                        metric.Int64ObservableGauge
	logActive, logStatus                       metric.Int64ObservableGauge
	oldestMessage, oldestUnknown               metric.Float64ObservableGauge
}

// register makes the instruments, and has them read by one callback.
func (w *watched) register(meter metric.Meter, every time.Duration) error {
	w.every, w.reads = every, make(map[string]func(context.Context, metric.Observer))
	var all []metric.Observable
	var errs []error
	counter := func(to *metric.Int64ObservableCounter, name, unit, text string) {
		made, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = made, append(all, made), append(errs, err)
	}
	gauge := func(to *metric.Int64ObservableGauge, name, unit, text string) {
		made, err := meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		*to, all, errs = made, append(all, made), append(errs, err)
	}
	seconds := func(to *metric.Float64ObservableGauge, name, text string) {
		made, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(text))
		*to, all, errs = made, append(all, made), append(errs, err)
	}
	counter(&w.received, "once.inbox.received", "{message}", "Deliveries to a consumer.")
	counter(&w.inboxed, "once.inbox.messages", "{message}", "What has become of messages at a consumer.")
	counter(&w.inboxFailures, "once.inbox.failures", "{attempt}", "Attempts to handle a message that failed.")
	gauge(&w.inboxDown, "once.inbox.down", "{topic}", "Topics of which nothing gets through at a consumer.")
	gauge(&w.lag, "once.inbox.lag", "{message}", "Messages of a source that its consumer has not dealt with.")
	seconds(&w.lagOldest, "once.inbox.lag.oldest", "Since the oldest of them was stored, where the broker tells.")
	counter(&w.lagUnread, "once.inbox.lag.unread", "{reading}", "Readings of the lag that failed.")
	counter(&w.outboxed, "once.outbox.messages", "{message}", "What has become of messages at a relay.")
	counter(&w.outboxFailures, "once.outbox.failures", "{attempt}", "Attempts to publish a message that failed while others got through.")
	counter(&w.refusals, "once.outbox.refusals", "{call}", "Calls of the publisher in which nothing got through.")
	gauge(&w.depth, "once.outbox.depth", "{message}", "Messages in an outbox that are not published yet.")
	seconds(&w.oldestMessage, "once.outbox.oldest", "Since the oldest of them was put.")
	counter(&w.unread, "once.outbox.unread", "{reading}", "Readings of an outbox that failed.")
	gauge(&w.logLag, "once.outbox.log.lag", "By", "Log of the database that was written since what is known to be published.")
	gauge(&w.logRetained, "once.outbox.log.retained", "By", "Log that the database keeps for the reader of the outbox.")
	gauge(&w.logActive, "once.outbox.log.active", "{reader}", "1 while a relay reads the log.")
	gauge(&w.logStatus, "once.outbox.log.status", "{place}", "1 for what has become of the reader's place in the log.")
	counter(&w.reconciled, "once.reconcile.records", "{record}", "What has become of unknown outcomes at a reconciler.")
	counter(&w.looks, "once.reconcile.looks", "{look}", "Looks of a reconciler that have read the whole list.")
	gauge(&w.unknown, "once.unknown.records", "{record}", "Unknown outcomes, at the last look.")
	gauge(&w.lapsed, "once.unknown.lapsed", "{record}", "Of these, those whose lease lapsed: their holders crashed, or were cut off. An attempt has reported the others.")
	gauge(&w.orphaned, "once.unknown.orphaned", "{record}", "Of all, how many the reconciler does not look after.")
	seconds(&w.oldestUnknown, "once.unknown.oldest", "For how long the oldest of all had been unknown.")
	counter(&w.forgotten, "once.janitor.forgotten", "{record}", "What a janitor has forgotten.")
	counter(&w.cleanings, "once.janitor.looks", "{look}", "Looks of a janitor that ended with nothing left to forget.")
	gauge(&w.behind, "once.janitor.behind", "{janitor}", "1 while there may be more to forget.")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		w.mu.Lock()
		reads := maps.Clone(w.reads)
		w.mu.Unlock()
		for _, read := range reads {
			read(ctx, o)
		}
		return nil
	}, all...)
	return err
}

func (w *watched) add(kind, name string, missing bool, read func(context.Context, metric.Observer)) error {
	if missing || name == "" {
		return fmt.Errorf("%w: otelonce: there is nothing to watch as %s %q: give it a name, and the Stats or the store that "+
			"the %[2]s itself has", once.ErrInvalid, kind, name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads[kind+" "+name] = read
	return nil
}

// named makes the attributes of a metric: whose it is, and what else there is to say.
func named(name string, more ...string) metric.MeasurementOption {
	of := []attribute.KeyValue{attribute.String("once.name", name)}
	for i := 0; i+1 < len(more); i += 2 {
		of = append(of, attribute.String(more[i], more[i+1]))
	}
	return metric.WithAttributeSet(attribute.NewSet(of...))
}

// WatchInbox reports what a consumer counts. The name is an attribute of its metrics, and best the consumer's; what was
// watched under it before is watched no more. Nil Stats are once.ErrInvalid. So it is with the other methods.
func (b *Observer) WatchInbox(name string, s *inbox.Stats) error {
	w := &b.watched
	return w.add("inbox", name, s == nil, func(_ context.Context, o metric.Observer) {
		o.ObserveInt64(w.received, s.Received.Load(), named(name))
		o.ObserveInt64(w.inboxFailures, s.Failed.Load(), named(name))
		o.ObserveInt64(w.inboxDown, s.Down.Load(), named(name))
		o.ObserveInt64(w.inboxed, s.Handled.Load(), named(name, "once.outcome", "handled"))
		o.ObserveInt64(w.inboxed, s.Duplicates.Load(), named(name, "once.outcome", "duplicate"))
		o.ObserveInt64(w.inboxed, s.Prevented.Load(), named(name, "once.outcome", "prevented"))
		o.ObserveInt64(w.inboxed, s.Shelved.Load(), named(name, "once.outcome", "shelved"))
		o.ObserveInt64(w.inboxed, s.Parked.Load(), named(name, "once.outcome", "parked"))
	})
}

// WatchLag reports how far the consumer of a source is behind. The broker is asked when metrics are collected, and no more
// often than Options.OutboxEvery says. A source that is no broker.Lagger is once.ErrInvalid: it cannot tell. For a log whose
// consumer keeps its own positions, see WatchLogLag. Of a broker.Subscriber it is the queue of the consumer whose first name is
// name.
func (b *Observer) WatchLag(name string, s broker.Source) error {
	if topic, ok := s.(broker.Subscriber); ok {
		s = topic.For(name)
	}
	l, ok := broker.LaggerOf(s)
	return b.watchLag(name, ok, func(ctx context.Context) (broker.Lag, error) { return l.Lag(ctx) })
}

// keeper is a store in which consumers keep their positions.
type keeper interface {
	store.Registry
	Positions(ctx context.Context, consumer string) ([]store.Position, error)
}

// WatchLogLag is WatchLag for a source whose broker does not know how far the consumer is: a hub of Event Hubs, or a stream
// of NATS that is read as a log. It counts what comes after the positions that the consumer has in its store. The consumer is
// the one that is registered there with this name and source. Before it has run, the lag cannot be read. A source that is no
// broker.LogLagger, and a store without a registry and positions, are once.ErrInvalid.
func (b *Observer) WatchLogLag(consumer string, s broker.Source, of once.Store) error {
	log, tells := s.(broker.LogLagger)
	in, keeps := once.As[keeper](of)
	return b.watchLag(consumer, tells && keeps, func(ctx context.Context) (broker.Lag, error) {
		keys, err := keysOf(ctx, in, consumer, s.Name())
		if err != nil {
			return broker.Lag{}, err
		}
		at, err := in.Positions(ctx, keys)
		if err != nil {
			return broker.Lag{}, err
		}
		return store.LagAfter(ctx, log, at)
	})
}

// keysOf returns the name under which a consumer has its positions, whatever it is
// called now.
func keysOf(ctx context.Context, in store.Registry, consumer, source string) (string, error) {
	all, err := in.Consumers(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range all {
		if name, _ := store.SplitSource(c.Source); c.Name == consumer && name == source && c.IsLegible() {
			return c.Keys, nil
		}
	}
	for _, c := range all { // which may be it
		if !c.IsLegible() {
			return "", c.Damaged
		}
	}
	return "", fmt.Errorf("the store has no consumer %q of %s", consumer, source)
}

func (b *Observer) watchLag(name string, known bool, ask func(context.Context) (broker.Lag, error)) error {
	w := &b.watched
	gauge := &lagGauge{ask: ask, every: w.every}
	return w.add("lag", name, !known, func(ctx context.Context, o metric.Observer) {
		is, known, failed := gauge.read(ctx)
		o.ObserveInt64(w.lagUnread, failed, named(name))
		if known {
			o.ObserveInt64(w.lag, is.Messages, named(name))
			o.ObserveFloat64(w.lagOldest, is.Oldest.Seconds(), named(name))
		}
	})
}

// lagGauge reads the lag of a source, now and then.
type lagGauge struct {
	ask   func(context.Context) (broker.Lag, error)
	every time.Duration

	mu     sync.Mutex
	asked  time.Time
	last   broker.Lag
	known  bool
	failed int64
}

func (g *lagGauge) read(ctx context.Context) (lag broker.Lag, known bool, failed int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.IsZero() || time.Since(g.asked) >= g.every {
		limited, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		is, err := g.ask(limited)
		g.asked, g.last, g.known = time.Now(), is, err == nil
		if err != nil {
			g.failed++
		}
	}
	return g.last, g.known, g.failed
}

// WatchRelay reports what a relay counts.
func (b *Observer) WatchRelay(name string, s *outbox.Stats) error {
	w := &b.watched
	return w.add("relay", name, s == nil, func(_ context.Context, o metric.Observer) {
		o.ObserveInt64(w.outboxFailures, s.Failed.Load(), named(name))
		o.ObserveInt64(w.refusals, s.Refused.Load(), named(name))
		o.ObserveInt64(w.outboxed, s.Published.Load(), named(name, "once.outcome", "published"))
		o.ObserveInt64(w.outboxed, s.Held.Load(), named(name, "once.outcome", "held"))
		o.ObserveInt64(w.outboxed, s.Stuck.Load(), named(name, "once.outcome", "stuck"))
		o.ObserveInt64(w.outboxed, s.Repeated.Load(), named(name, "once.outcome", "repeated"))
	})
}

// WatchReconciler reports what a reconciler counts, and, once it has looked, how much is unknown.
func (b *Observer) WatchReconciler(name string, s *reconcile.Stats) error {
	w := &b.watched
	return w.add("reconciler", name, s == nil, func(_ context.Context, o metric.Observer) {
		o.ObserveInt64(w.reconciled, s.Done.Load(), named(name, "once.outcome", "done"))
		o.ObserveInt64(w.reconciled, s.Freed.Load(), named(name, "once.outcome", "freed"))
		o.ObserveInt64(w.reconciled, s.Parked.Load(), named(name, "once.outcome", "parked"))
		o.ObserveInt64(w.reconciled, s.Resumed.Load(), named(name, "once.outcome", "resumed"))
		o.ObserveInt64(w.reconciled, s.Unanswered.Load(), named(name, "once.outcome", "unanswered"))
		o.ObserveInt64(w.reconciled, s.Overtaken.Load(), named(name, "once.outcome", "overtaken"))
		looks := s.Looks.Load()
		o.ObserveInt64(w.looks, looks, named(name))
		if looks > 0 {
			o.ObserveInt64(w.unknown, s.Unknown.Load(), named(name))
			o.ObserveInt64(w.lapsed, s.Lapsed.Load(), named(name))
			o.ObserveInt64(w.orphaned, s.Orphaned.Load(), named(name))
			o.ObserveFloat64(w.oldestUnknown, time.Duration(s.Oldest.Load()).Seconds(), named(name))
		}
	})
}

// WatchJanitor reports what a janitor counts.
func (b *Observer) WatchJanitor(name string, s *janitor.Stats) error {
	w := &b.watched
	return w.add("janitor", name, s == nil, func(_ context.Context, o metric.Observer) {
		o.ObserveInt64(w.forgotten, s.Keys.Load(), named(name, "once.kind", "key"))
		o.ObserveInt64(w.forgotten, s.Shelved.Load(), named(name, "once.kind", "shelved"))
		o.ObserveInt64(w.forgotten, s.Published.Load(), named(name, "once.kind", "published"))
		o.ObserveInt64(w.forgotten, s.Archived.Load(), named(name, "once.kind", "archived"))
		o.ObserveInt64(w.cleanings, s.Looks.Load(), named(name))
		o.ObserveInt64(w.behind, oneIf(s.Behind.Load()), named(name))
	})
}

// WatchOutbox reports how much there is in an outbox, and how old it is; and, if it is read from the database's log, how far
// the reader is behind. The database is asked when metrics are collected, and no more often than Options.OutboxEvery says.
// What could not be read for that long is not reported.
func (b *Observer) WatchOutbox(name string, s store.Relayable) error {
	w := &b.watched
	gauge := &outboxGauge{store: s, every: w.every}
	return w.add("outbox", name, s == nil, func(ctx context.Context, o metric.Observer) {
		is := gauge.read(ctx)
		o.ObserveInt64(w.unread, is.failed, named(name))
		for state, depth := range is.depths {
			o.ObserveInt64(w.depth, int64(depth.Count), named(name, "once.state", state.String()))
			o.ObserveFloat64(w.oldestMessage, depth.Oldest.Seconds(), named(name, "once.state", state.String()))
		}
		if is.lag != nil {
			w.observeLag(o, name, is.lag)
		}
	})
}

func (w *watched) observeLag(o metric.Observer, name string, lag *store.Lag) {
	o.ObserveInt64(w.logLag, lag.Behind, named(name))
	o.ObserveInt64(w.logRetained, lag.Retained, named(name))
	o.ObserveInt64(w.logActive, oneIf(lag.Active), named(name))
	for _, status := range store.LagStatuses() {
		o.ObserveInt64(w.logStatus, oneIf(status == lag.Status), named(name, "once.status", status.String()))
	}
}

func oneIf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// outboxGauge reads an outbox, now and then.
type outboxGauge struct {
	store store.Relayable
	every time.Duration

	mu    sync.Mutex
	asked time.Time
	last  reading
}

// reading is the state read from an outbox.
type reading struct {
	depths map[store.OutgoingState]store.Depth
	lag    *store.Lag // nil: it is not read from the log
	failed int64      // readings, until now
}

func (g *outboxGauge) read(ctx context.Context) reading {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asked.IsZero() && time.Since(g.asked) < g.every {
		return g.last
	}
	limited, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	depths, err := g.store.OutboxDepth(limited, countTo)
	is := reading{failed: g.last.failed}
	if err == nil {
		is.depths = map[store.OutgoingState]store.Depth{store.Pending: {}, store.Delayed: {}, store.Held: {}, store.Stuck: {}}
		for _, depth := range depths {
			is.depths[depth.State] = depth
		}
	}
	if log, ok := once.As[store.LogLag](g.store); ok && err == nil {
		if is.lag, err = log.OutboxLag(limited); err != nil {
			is.lag = nil
		}
	}
	if err != nil {
		is.failed++
	}
	g.asked, g.last = time.Now(), is
	return is
}
