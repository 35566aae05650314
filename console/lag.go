package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/abandon"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/store"
)

const (
	lagEvery  = 15 * time.Second // while somebody looks at the overview, and else idleEvery
	lagTime   = 5 * time.Second  // limit of the answer of one source
	lagRound  = 30 * time.Second // limit of a round: sources that were not reached are not known
	placeTime = time.Minute      // for which it is taken for known where a source is
	lagAtOnce = 8                // sources that are asked at the same time
)

// ErrLagUnknown is returned by [Options.Lag] for a source that nobody can be asked
// about. Its text is shown, and it is not logged.
var ErrLagUnknown = errors.New("nobody can be asked")

var (
	errNotAsked  = errors.New("it was not asked yet")
	errNoTime    = errors.New("other sources took so long that it was not asked")
	errHangs     = errors.New("its broker does not answer")
	errPanicked  = errors.New("the source panicked, see the log")
	errStillBusy = errors.New("its broker has not answered the question before")
	errStoreBusy = errors.New("the store of its positions does not answer")
)

// LagQuestion is what a console wants to know from [Options.Lag].
type LagQuestion struct {
	Store    string // the Name of the [Store] that has the consumer
	Consumer string // its name
	Source   string // its source, as it is registered: see [store.SourceText]

	// Positions returns how far the consumer has come in a log, for a source whose
	// broker does not know. If it is not called, the answer is also that for the
	// other consumers of the source.
	Positions func(context.Context) ([]store.Position, error)
}

// LagOf returns an [Options.Lag] that asks sources. A source is the one of a consumer
// if it has the name and, where the registry says where its broker is, also its
// Location. A source of the same name at another broker is never taken for it. A
// [broker.Lagger] is asked, and a [broker.LogLagger] from the positions of the
// consumer. Of other sources the lag is not known.
func LagOf(sources ...broker.Source) func(context.Context, LagQuestion) (broker.Lag, error) {
	return newAskable(time.Now, sources...).lag
}

func newAskable(now func() time.Time, sources ...broker.Source) *askable {
	return &askable{now: now, sources: slices.Clone(sources), places: make([]sourcePlace, len(sources))}
}

// askable are sources that can be asked for their lag.
type askable struct {
	now     func() time.Time
	sources []broker.Source

	mu     sync.Mutex
	places []sourcePlace // of each source
}

// sourcePlace is where a source is.
type sourcePlace struct {
	facts map[string]string
	asked time.Time // zero: not known yet
}

func (l *askable) lag(ctx context.Context, q LagQuestion) (broker.Lag, error) {
	name, registered := store.SplitSource(q.Source)
	var certain, possible []broker.Source
	var failed error
	for i, s := range l.sources {
		if s.Name() != name {
			continue
		}
		place, err := l.place(ctx, i)
		if err != nil {
			if failed == nil {
				failed = err
			}
			continue
		}
		switch {
		case len(registered) == 0:
			possible = append(possible, s)
		case agrees(registered, place):
			certain = append(certain, s)
		}
	}
	if len(certain) == 0 {
		certain = possible
	}
	switch {
	case len(certain) > 1:
		return broker.Lag{}, fmt.Errorf("%w: several sources are called so, and where they are does not tell which one it is", ErrLagUnknown)
	case failed != nil && (len(certain) == 0 || len(registered) == 0):
		return broker.Lag{}, failed
	case len(certain) == 0:
		return broker.Lag{}, ErrLagUnknown
	}
	return lagOf(ctx, certain[0], q.Positions)
}

// lagOf asks a source. It reads positions only if the broker does not know how far the
// consumer has come.
func lagOf(ctx context.Context, s broker.Source, positions func(context.Context) ([]store.Position, error)) (broker.Lag, error) {
	if l, ok := broker.LaggerOf(s); ok {
		return l.Lag(ctx)
	}
	log, ok := s.(broker.LogLagger)
	if !ok {
		return broker.Lag{}, fmt.Errorf("%w: its broker counts no messages", ErrLagUnknown)
	}
	at, err := positions(ctx)
	if err != nil {
		return broker.Lag{}, fmt.Errorf("the positions of the consumer cannot be read: %w", err)
	}
	return store.LagAfter(ctx, log, at)
}

// agrees reports whether a place has all facts that are registered. One of them is not
// enough: most queues are in the vhost "/", whatever their cluster.
func agrees(registered, place map[string]string) bool {
	for fact, value := range registered {
		if place[fact] != value {
			return false
		}
	}
	return true
}

// place returns where a source is. That changes if somebody makes it anew, such as a
// stream, or puts another broker at the address. So it is asked again at times.
func (l *askable) place(ctx context.Context, i int) (map[string]string, error) {
	located, ok := l.sources[i].(broker.Located)
	if !ok {
		return nil, nil
	}
	l.mu.Lock()
	known := l.places[i]
	l.mu.Unlock()
	now := l.now()
	if !known.asked.IsZero() && now.Sub(known.asked) < placeTime {
		return known.facts, nil
	}
	place, err := located.Location(ctx)
	if err != nil {
		return nil, fmt.Errorf("where %s is: %w", l.sources[i].Name(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.places[i] = sourcePlace{maps.Clone(place), now}
	return place, nil
}

// lagAnswer is what is known of the lag of a consumer at a source.
type lagAnswer struct {
	broker.Lag
	err error // why it is not known
}

// laggedAt is a consumer at a source. Its positions are under its keys.
type laggedAt struct{ store, source, keys string }

// lagged is a consumer that is not retired, as a round found it.
type lagged struct {
	store.Consumer
	lagAnswer
	at laggedAt
}

// lagRow is what a round found about a store.
type lagRow struct {
	err       error // of the registry
	consumers []lagged
}

// lags are the answers of the sources of all consumers. A round asks them. Pages only
// show them.
type lags struct {
	mu      sync.Mutex
	running bool
	begun   time.Time // the latest round
	at      time.Time // the latest round that has ended; zero: none
	answers map[laggedAt]lagAnswer
	busy    map[string]bool // the sources that were asked, and are not back
	rows    []lagRow        // of each store
	history [][]sample      // of each store, the latest last
}

// begin reports whether a round is to begin now.
func (l *lags) begin(now time.Time, every time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running || !l.begun.IsZero() && now.Sub(l.begun) < every {
		return false
	}
	l.running, l.begun = true, now
	return true
}

// of returns the answer about a consumer.
func (l *lags) of(at laggedAt) lagAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if answer, ok := l.answers[at]; ok {
		return answer
	}
	return lagAnswer{err: errNotAsked}
}

// ended returns when the latest round ended. It is zero if none has.
func (l *lags) ended() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// store returns what is known about the consumers of a store, and its history.
func (l *lags) store(i int) (row lagRow, past []sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rows == nil {
		return row, nil
	}
	return l.rows[i], l.history[i]
}

// askLags asks the sources of consumers for their lag, if it is time to. It does not
// wait for the answers.
func (c *Console) askLags(ctx context.Context) {
	every := idleEvery
	if c.sampler.isWatched(c.now()) {
		every = lagEvery
	}
	if c.o.Lag == nil || !c.lags.begin(c.now(), every) {
		return
	}
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		c.lagRound(ctx)
		c.sampler.tell()
	}()
}

// lagRound reads the registries, and asks each source once, or once for each of its
// consumers if their positions count.
func (c *Console) lagRound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lagRound)
	defer cancel()
	rows := make([]lagRow, len(c.o.Stores))
	var reading sync.WaitGroup
	for i, of := range c.o.Stores {
		registry, ok := once.As[store.Registry](of.Store)
		if !ok {
			continue
		}
		reading.Add(1)
		go func() {
			defer reading.Done()
			ctx, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			all, err := guarded(ctx, c, of.Name, func() ([]store.Consumer, error) { return registry.Consumers(ctx) })
			rows[i].err = err
			for _, at := range all {
				if _, _, _, retired := store.RetiredAt(at.Source); !retired && at.IsLegible() {
					rows[i].consumers = append(rows[i].consumers, lagged{Consumer: at, at: laggedAt{of.Name, at.Source, at.Keys}})
				}
			}
		}()
	}
	reading.Wait()
	answers := c.askSources(ctx, c.sourcesOf(rows))
	c.lags.end(c.now(), rows, answers)
}

// askedSource is a source with its consumers.
type askedSource struct {
	name   string
	failed bool // it did not answer the last time
	of     []askedConsumer
}

// askedConsumer is a consumer of a source.
type askedConsumer struct {
	laggedAt
	name  string
	store Store
}

// sourcesOf returns the sources of all consumers. Those that did not answer the last
// time come last, so that they keep nobody from the others.
func (c *Console) sourcesOf(rows []lagRow) []askedSource {
	by := make(map[string]*askedSource)
	for i, row := range rows {
		for _, at := range row.consumers {
			s := by[at.Source]
			if s == nil {
				s = &askedSource{name: at.Source}
				by[at.Source] = s
			}
			one := askedConsumer{at.at, at.Name, c.o.Stores[i]}
			answer := c.lags.of(one.laggedAt)
			s.failed = s.failed || errors.Is(answer.err, errHangs) || errors.Is(answer.err, errStillBusy) || errors.Is(answer.err, errStoreBusy)
			s.of = append(s.of, one)
		}
	}
	sources := make([]askedSource, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		sources = append(sources, *by[name])
	}
	slices.SortStableFunc(sources, func(a, b askedSource) int { return cmp.Compare(oneIf(a.failed), oneIf(b.failed)) })
	return sources
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// askSources asks sources side by side, until ctx ends.
func (c *Console) askSources(ctx context.Context, sources []askedSource) map[laggedAt]lagAnswer {
	answers := make(map[laggedAt]lagAnswer)
	var mu sync.Mutex
	next := make(chan askedSource, len(sources))
	for _, source := range sources {
		next <- source
		for _, of := range source.of {
			answers[of.laggedAt] = lagAnswer{err: errNoTime}
		}
	}
	close(next)
	var asking sync.WaitGroup
	for range min(lagAtOnce, len(sources)) {
		asking.Add(1)
		go func() {
			defer asking.Done()
			for source := range next {
				c.askSource(ctx, source, func(of laggedAt, answer lagAnswer) {
					mu.Lock()
					defer mu.Unlock()
					answers[of] = answer
				})
			}
		}()
	}
	asking.Wait()
	return answers
}

// askSource asks one source for each of its consumers, until ctx ends. An answer
// that needed no positions is that for all of them.
func (c *Console) askSource(ctx context.Context, source askedSource, tell func(laggedAt, lagAnswer)) {
	asked := make(map[laggedAt]bool)
	for i, of := range source.of {
		if asked[of.laggedAt] { // it has two names
			continue
		}
		asked[of.laggedAt] = true
		if ctx.Err() != nil {
			return
		}
		answer, own := c.askFor(ctx, of)
		tell(of.laggedAt, answer)
		if own {
			continue
		}
		for _, other := range source.of[i+1:] {
			if !asked[other.laggedAt] {
				tell(other.laggedAt, answer)
			}
		}
		return
	}
}

// askFor asks a source for one consumer, unless it is still at the question before.
// It waits for a limited time, also for one that does not listen to its context. It
// reports whether the answer is about that consumer alone.
func (c *Console) askFor(ctx context.Context, of askedConsumer) (answer lagAnswer, own bool) {
	if !c.lags.take(of.source) {
		return lagAnswer{err: errStillBusy}, false
	}
	ctx, cancel := context.WithTimeout(ctx, lagTime)
	defer cancel()
	var positioned, read atomic.Bool
	lag, err := abandon.Ask(ctx, func() (lag broker.Lag, err error) {
		defer c.lags.giveBack(of.source)
		defer func() {
			if cause := recover(); cause != nil {
				c.log.Error("console: a source panicked", "source", of.source, "panic", cause, "stack", string(debug.Stack()))
				err = errPanicked // what it panicked with may have an address with a password in it
			}
		}()
		if _, ok := store.TopicOf(of.source); ok { // each consumer has a queue of its own
			positioned.Store(true)
			defer func() { read.Store(ctx.Err() == nil) }()
			return c.queueLagOf(ctx, of)
		}
		return c.o.Lag(ctx, LagQuestion{Store: of.laggedAt.store, Consumer: of.name, Source: of.source,
			Positions: func(ctx context.Context) ([]store.Position, error) {
				positioned.Store(true)
				defer func() { read.Store(ctx.Err() == nil) }()
				return c.positionsOf(ctx, of)
			}})
	})
	own = positioned.Load()
	switch {
	case err != nil && ctx.Err() != nil && own && !read.Load():
		err = errStoreBusy
	case err != nil && ctx.Err() != nil:
		err = errHangs
	case err == nil && (lag.Messages < 0 || lag.Oldest < 0):
		err = fmt.Errorf("its broker counts %d messages, the oldest %v old", lag.Messages, lag.Oldest)
	}
	if err == nil {
		return lagAnswer{Lag: lag}, own
	}
	before := c.lags.of(of.laggedAt)
	if !errors.Is(err, ErrLagUnknown) && (before.err == nil || errors.Is(before.err, errNotAsked)) {
		c.log.WarnContext(ctx, "console: the lag of a consumer cannot be read", "consumer", of.name, "source", of.source, "error", err)
	}
	return lagAnswer{err: err}, own
}

// queueLagOf counts the messages in the queue of a consumer, which is in its store
// unless that is carried by another one.
func (c *Console) queueLagOf(ctx context.Context, of askedConsumer) (broker.Lag, error) {
	shelf, ok := once.As[store.Shelf](of.store.Store)
	if !ok {
		return broker.Lag{}, fmt.Errorf("%w: its store has no shelf", ErrLagUnknown)
	}
	return guarded(ctx, c, of.store.Name, func() (broker.Lag, error) { return store.QueueLag(ctx, shelf, of.keys) })
}

// positionsOf reads the positions of a consumer.
func (c *Console) positionsOf(ctx context.Context, of askedConsumer) ([]store.Position, error) {
	positioned, ok := once.As[interface {
		Positions(context.Context, string) ([]store.Position, error)
	}](of.store.Store)
	if !ok {
		return nil, fmt.Errorf("%w: its store keeps no positions", ErrLagUnknown)
	}
	all, err := guarded(ctx, c, of.store.Name, func() ([]store.Position, error) { return positioned.Positions(ctx, of.keys) })
	if err == nil {
		err = store.Corrupt(all)
	}
	return all, err
}

// take reports whether a source may be asked.
func (l *lags) take(source string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[source] {
		return false
	}
	if l.busy == nil {
		l.busy = make(map[string]bool)
	}
	l.busy[source] = true
	return true
}

func (l *lags) giveBack(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, source)
}

// end keeps what a round has found.
func (l *lags) end(now time.Time, rows []lagRow, answers map[laggedAt]lagAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.history == nil {
		l.history = make([][]sample, len(rows))
	}
	for i := range rows {
		for j := range rows[i].consumers {
			rows[i].consumers[j].lagAnswer = answers[rows[i].consumers[j].at]
		}
		past := l.history[i]
		for len(past) > 0 && now.Sub(past[0].at) > historyTime {
			past = past[1:]
		}
		l.history[i] = append(past[:len(past):len(past)], sample{at: now, readings: map[string]reading{lagName: rows[i].total()}})
	}
	l.running, l.at, l.rows, l.answers = false, now, rows, answers
}

// lagName is the gauge of the lag of the consumers of a store.
const lagName = "lag"

// total adds up the messages of the sources whose lag is known. Messages of a source
// that wait for two consumers count once: a rebuild is at the source of its consumer.
func (r *lagRow) total() (sum reading) {
	most := make(map[string]int64) // by source
	for _, at := range r.consumers {
		if at.err != nil {
			sum.More = true // at least as many
			continue
		}
		sum.Known = true
		most[at.Source] = max(most[at.Source], at.Messages)
		sum.Oldest = max(sum.Oldest, at.Oldest)
	}
	for _, n := range most {
		sum.N = int(min(int64(sum.N)+min(n, math.MaxInt32), math.MaxInt32))
	}
	return sum
}

// lagCard is the lag of the consumers of a store, as the overview shows it.
type lagCard struct {
	reading
	URL, Points, Trend string

	Most    string   // the consumer with most messages; empty: none has any
	Unknown int      // consumers whose lag is not known
	Problem string   // why the registry cannot be read
	Waited  []waited // consumers that messages wait for, and that do not run
}

// waited is a consumer that is silent although messages wait for it.
type waited struct{ Name, URL, Seen, Messages string }

// maxWaited are the silent consumers that the overview lists.
const maxWaited = 10

// lagCardOf returns the lag of the consumers of a store, or nil if it has none, or
// nobody was asked.
func (v *view) lagCardOf(i int, now time.Time) *lagCard {
	row, past := v.lags.store(i)
	s := v.o.Stores[i].Name
	b := &lagCard{reading: row.total(), URL: v.link("/consumers", "store", s)}
	if row.err != nil {
		b.Problem = legible.Text(row.err.Error())
		return b
	}
	if len(row.consumers) == 0 {
		return nil
	}
	b.Points, b.Trend = spark(past, lagName, now)
	most := int64(0)
	for _, at := range row.consumers {
		if at.err != nil {
			b.Unknown++
			continue
		}
		if at.Messages > most {
			most, b.Most = at.Messages, at.Name
		}
		if at.Messages > 0 && at.Seen > silentAfter && len(b.Waited) < maxWaited {
			b.Waited = append(b.Waited, waited{at.Name, v.consumerLink(s, at.Name), legible.Ago(at.Seen), countOf(at.Messages, "message waits", "messages wait")})
		}
	}
	return b
}

// countOf formats a number of messages with its noun.
func countOf(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return plus(int(min(n, math.MaxInt32)), n > math.MaxInt32) + " " + many
}

// lagText is the lag of a consumer at a source, as its row shows it.
type lagText struct {
	Text  string // such as "12 messages, the oldest 5 min"; empty: not known
	Why   string // it is not known
	Waits bool   // there are messages
}

// lagTextOf returns what is known of the lag of a consumer.
func (c *Console) lagTextOf(at laggedAt) lagText {
	answer := c.lags.of(at)
	if answer.err != nil {
		return lagText{Why: legible.Text(answer.err.Error())}
	}
	text := countOf(answer.Messages, "message", "messages")
	if answer.Messages > 0 && answer.Oldest > 0 {
		text += ", the oldest " + legible.Ago(answer.Oldest)
	}
	return lagText{Text: text, Waits: answer.Messages > 0}
}

// lagNews says how old the lag on a page is.
type lagNews struct {
	Asks bool   // somebody is asked
	As   string // how long ago; empty: not asked yet
}

func (c *Console) lagNews() lagNews {
	n := lagNews{Asks: c.o.Lag != nil}
	if at := c.lags.ended(); !at.IsZero() {
		n.As = c.ago(at)
	}
	return n
}
