package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// heap is a source that knows its lag, and where it is.
type heap struct {
	broker.Source
	name    string
	facts   map[string]string
	where   error
	lag     broker.Lag
	err     error
	located *atomic.Int64
}

func (h heap) Name() string { return h.name }
func (h heap) Location(context.Context) (map[string]string, error) {
	if h.located != nil {
		h.located.Add(1)
	}
	return h.facts, h.where
}
func (h heap) Lag(context.Context) (broker.Lag, error) { return h.lag, h.err }

// uncounted is a source that does not know its lag, nor where it is.
type uncounted struct {
	broker.Source
	name string
}

func (m uncounted) Name() string { return m.name }

// placed is one that knows where it is.
type placed struct {
	uncounted
	facts map[string]string
}

func (p placed) Location(context.Context) (map[string]string, error) { return p.facts, nil }

// about returns the question about a source whose broker knows the answer.
func about(source string) LagQuestion { return LagQuestion{Source: source} }

// A lag of another queue with the same name would send somebody to the wrong
// cluster, or leave the right one alone.
func TestTheLagIsThatOfTheSameSource(t *testing.T) {
	in := func(cluster string, n int64) heap {
		return heap{name: "queue orders", facts: map[string]string{"cluster": cluster, "vhost": "/"}, lag: broker.Lag{Messages: n}}
	}
	unreachable := in("", 0)
	unreachable.where = errors.New("connection refused")
	at := func(cluster string) string {
		return store.SourceText("queue orders", map[string]string{"cluster": cluster, "vhost": "/"})
	}
	for _, c := range []struct {
		name    string
		sources []broker.Source
		of      string
		want    int64
		err     string
	}{
		{"the only one", []broker.Source{in("a", 3)}, "queue orders", 3, ""},
		{"the first of two", []broker.Source{in("a", 3), in("b", 5)}, at("a"), 3, ""},
		{"the second of two", []broker.Source{in("a", 3), in("b", 5)}, at("b"), 5, ""},
		{"a third of two", []broker.Source{in("a", 3), in("b", 5)}, at("c"), 0, "nobody can be asked"},
		{"one of two that the registry does not tell apart", []broker.Source{in("a", 3), in("b", 5)}, "queue orders", 0, "several sources"},
		{"one that is there twice", []broker.Source{in("a", 3), in("a", 3)}, at("a"), 0, "several sources"},
		{"another name", []broker.Source{in("a", 3)}, "queue payments", 0, "nobody can be asked"},
		{"one that does not say where it is", []broker.Source{heap{name: "queue orders"}}, at("a"), 0, "nobody can be asked"},
		{"one that does not say in which cluster it is", []broker.Source{heap{name: "queue orders", facts: map[string]string{"cluster": "", "vhost": "/"}}}, at("a"), 0, "nobody can be asked"},
		{"one that says more than the registry", []broker.Source{in("a", 3)}, store.SourceText("queue orders", map[string]string{"vhost": "/"}), 3, ""},
		{"the other is unreachable", []broker.Source{unreachable, in("b", 5)}, at("b"), 5, ""},
		{"it is unreachable itself", []broker.Source{in("b", 5), unreachable}, at("a"), 0, "connection refused"},
		{"it may be the unreachable one", []broker.Source{in("b", 5), unreachable}, "queue orders", 0, "connection refused"},
		{"its broker counts nothing", []broker.Source{uncounted{name: "queue orders"}}, "queue orders", 0, "counts no messages"},
		{"its located broker counts nothing", []broker.Source{placed{uncounted{name: "queue orders"}, map[string]string{"cluster": "a", "vhost": "/"}}}, at("a"), 0, "counts no messages"},
		{"there is none", nil, "queue orders", 0, "nobody can be asked"},
	} {
		got, err := LagOf(c.sources...)(t.Context(), about(c.of))
		switch {
		case c.err == "" && (err != nil || got.Messages != c.want):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %+v, %v, want an error with %q", c.name, got, err, c.err)
		case err != nil && errors.Is(err, ErrLagUnknown) == strings.Contains(err.Error(), "refused"):
			t.Errorf("%s: %v", c.name, err)
		}
	}
	one := in("a", 3)
	one.located = new(atomic.Int64)
	ask := LagOf(one)
	for range 3 {
		if _, err := ask(t.Context(), about(at("a"))); err != nil {
			t.Fatal(err)
		}
	}
	if n := one.located.Load(); n != 1 {
		t.Errorf("it was asked %d times where it is, which changes rarely", n)
	}
}

// register registers consumers, each at the source with its name.
func register(t *testing.T, s store.Registry, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := s.Register(t.Context(), store.Consumer{Name: name, Source: "queue " + name}); err != nil {
			t.Fatal(err)
		}
	}
}

// replies are what sources answer to a console, and how often each was asked.
type replies struct {
	mu    sync.Mutex
	of    map[string]func(context.Context) (broker.Lag, error)
	asked map[string]int
}

func (r *replies) lag(ctx context.Context, q LagQuestion) (broker.Lag, error) {
	source := q.Source
	r.mu.Lock()
	if r.asked == nil {
		r.asked = make(map[string]int)
	}
	r.asked[source]++
	reply := r.of[source]
	r.mu.Unlock()
	if reply == nil {
		return broker.Lag{}, ErrLagUnknown
	}
	return reply(ctx)
}

func (r *replies) times(source string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[source]
}

func messages(n int64, oldest time.Duration) func(context.Context) (broker.Lag, error) {
	return func(context.Context) (broker.Lag, error) { return broker.Lag{Messages: n, Oldest: oldest}, nil }
}

// asking returns a console that asks lag for the lag, but only in rounds of the test.
func asking(t *testing.T, o Options, lag func(context.Context, LagQuestion) (broker.Lag, error)) (*Console, *atomic.Int64) {
	t.Helper()
	c, now := still(t, o)
	c.o.Lag = lag
	return c, now
}

// round lets the console ask, if it is time to.
func round(c *Console) {
	c.askLags(context.Background())
	c.running.Wait()
}

func TestPagesShowTheLagAndDoNotAsk(t *testing.T) {
	s := memstore.New(nil)
	register(t, s, "mail", "bill", "audit", "gone")
	if err := s.RetireConsumer(t.Context(), store.Retirement{Name: "gone", As: store.RetiredSource(time.Now(), "ann", "replaced")}); err != nil {
		t.Fatal(err)
	}
	r := &replies{of: map[string]func(context.Context) (broker.Lag, error){
		"queue mail": messages(12, 5*time.Minute), "queue bill": messages(1200, 0),
		"queue audit": func(context.Context) (broker.Lag, error) { return broker.Lag{}, errors.New("access refused" + script) }}}
	log := new(logtest.Log)
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}, Log: slog.New(slog.NewTextHandler(log, nil))}, r.lag)
	b := as(t, c, lookToken)
	for range 3 {
		b.get("/").hides("Consumer lag")
		b.get("/consumers?store=shop").shows("not known: it was not asked yet", "Not asked yet")
		b.get("/consumers/one?store=shop&name=mail").shows("not known: it was not asked yet")
		now.Add(60)
	}
	if r.asked != nil {
		t.Fatalf("pages asked %v", r.asked)
	}
	round(c)
	now.Add(14)
	b.get("/").is(http.StatusOK).shows("Consumer lag 1,212+ most for bill, the oldest 5 m ago, 1 not known", "The lag was asked 14 s ago", "Nothing needs a person now").hides(script)
	b.get("/consumers?store=shop").is(http.StatusOK).shows("12 messages, the oldest 5 m ago", "1,200 messages", "not known: access refused", "Asked 14 s ago").hides(script)
	b.get("/consumers/one?store=shop&name=bill").shows("1,200 messages").hides("this store does not know", "oldest")
	round(c)
	if n := r.times("queue mail"); n != 1 {
		t.Errorf("asked %d times within 15 seconds", n)
	}
	now.Add(1)
	r.mu.Lock()
	r.of["queue bill"] = messages(0, 0)
	r.mu.Unlock()
	round(c)
	b.get("/").shows("Consumer lag 12+ most for mail")
	if !strings.Contains(b.text, "in the last hour between 12 and 1212, now 12") {
		t.Error("the line does not show both")
	}
	c.sampler.looked = time.Time{}
	for range 4 {
		now.Add(15)
		round(c)
	}
	if n := r.times("queue mail"); n != 3 {
		t.Errorf("asked %d times: while nobody looks, once a minute is enough", n)
	}
	if n := r.times("queue gone"); n != 0 {
		t.Error("the source of a retired consumer was asked")
	}
	if n := strings.Count(log.String(), "console: the lag of a consumer cannot be read"); n != 1 {
		t.Errorf("logged %d times: %s", n, log)
	}
	b.get("/consumers/one?store=shop&name=gone").shows("retired", "–").hides("not known")
}

// What nobody knows is not nothing.
func TestAnUnknownLagIsNotZero(t *testing.T) {
	s := memstore.New(nil)
	register(t, s, "mail")
	r := new(replies)
	log := new(logtest.Log)
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}, {Name: "empty", Store: memstore.New(nil)}}, Log: slog.New(slog.NewTextHandler(log, nil))}, r.lag)
	b := as(t, c, lookToken)
	look := func(why string) {
		t.Helper()
		now.Add(60)
		round(c)
		b.get("/").is(http.StatusOK).shows("Consumer lag not known 1 not known")
		if n := strings.Count(b.text, "Consumer lag</a>"); n != 1 {
			t.Errorf("there are %d tiles, also of a store without consumers", n)
		}
		b.get("/consumers?store=shop").shows("not known: " + why).hides("0 messages")
	}
	reply := func(of func(context.Context) (broker.Lag, error)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.of = map[string]func(context.Context) (broker.Lag, error){"queue mail": of}
	}
	look("nobody can be asked")
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("logged %s", log)
	}
	reply(messages(-1, 0))
	look("its broker counts -1 messages")
	reply(func(context.Context) (broker.Lag, error) { panic("dial amqp://app:hunter2@mq:5672") })
	look("the source panicked, see the log")
	b.hides("hunter2")
	if !strings.Contains(log.String(), "console: a source panicked") {
		t.Errorf("logged %s", log)
	}
	reply(messages(0, 0))
	now.Add(60)
	round(c)
	b.get("/").shows("Consumer lag 0 none").hides("1 not known")
	b.get("/consumers?store=shop").shows("0 messages")
	c, _ = still(t, Options{Stores: []Store{{Name: "shop", Store: s}}})
	b = as(t, c, lookToken)
	round(c)
	b.get("/").hides("Consumer lag")
	b.get("/consumers/one?store=shop&name=mail").shows("this store does not know", "--broker")
}

// Messages wait for a consumer that does not run: only a person can start it.
func TestASilentConsumerWithALagNeedsAPerson(t *testing.T) {
	s := &silent{Store: memstore.New(nil)}
	register(t, s, "mail", "bill", "audit")
	r := &replies{of: map[string]func(context.Context) (broker.Lag, error){"queue mail": messages(12, 0), "queue bill": messages(0, 0)}}
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, r.lag)
	now.Add(60)
	round(c)
	b := as(t, c, lookToken)
	b.get("/").is(http.StatusOK).shows("Something needs a person", "12 messages wait for the consumer mail , which was last seen 60 m ago: start it").hides("Nothing needs a person now", "consumers/one?name=bill", "consumers/one?name=audit")
	b.follow("mail").is(http.StatusOK).shows("12 messages", "not running?")
	r.of["queue mail"] = messages(0, 0)
	now.Add(60)
	round(c)
	b.get("/").shows("Nothing needs a person now")
}

// Two consumers at one source, as a rebuild and its consumer are, share its messages.
func TestTheLagOfASourceCountsOnce(t *testing.T) {
	s := memstore.New(nil)
	register(t, s, "mail")
	if _, err := s.Register(t.Context(), store.Consumer{Name: "mail two", Source: "queue mail", Keys: "mail two"}); err != nil {
		t.Fatal(err)
	}
	r := &replies{of: map[string]func(context.Context) (broker.Lag, error){"queue mail": messages(12, 0)}}
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, r.lag)
	now.Add(60)
	round(c)
	as(t, c, lookToken).get("/").shows("Consumer lag 12 most for mail")
	if n := r.times("queue mail"); n != 1 {
		t.Errorf("the source was asked %d times", n)
	}
}

// keptLog is a source that counts from the positions of its consumer.
type keptLog struct {
	uncounted
	end int64 // offset of the next message
}

func (keptLog) KeepsNoPlace() {}

func (l keptLog) LagFrom(_ context.Context, at map[string]broker.Position) (broker.Lag, error) {
	p, ok := at["p"]
	switch {
	case ok && p.Log != "log":
		return broker.Lag{}, errors.New("the log was recreated")
	case ok:
		return broker.Lag{Messages: l.end - p.Offset - 1}, nil
	}
	return broker.Lag{Messages: l.end}, nil
}

// A log whose broker does not know how far its consumers are has a lag for each of
// them.
func TestTheLagOfALogIsThatAfterPositions(t *testing.T) {
	s := memstore.New(nil)
	source := keptLog{uncounted{name: "queue mail"}, 100}
	register(t, s, "mail", "bill")
	if _, err := s.Register(t.Context(), store.Consumer{Name: "mail@2", Source: source.name}); err != nil {
		t.Fatal(err)
	}
	move := func(consumer, log string, offset int64) {
		t.Helper()
		if err := s.SetPosition(t.Context(), store.Position{Consumer: consumer, Partition: "p", Log: log, Offset: offset}); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(b *browser, mail, second string) {
		t.Helper()
		b.get("/consumers/one?store=shop&name=mail").shows(mail)
		b.get("/consumers/one?store=shop&name=mail@2").shows(second)
	}
	c, now := asking(t, Options{Stores: []Store{{Name: "shop", Store: s}}}, LagOf(source, heap{name: "queue bill", lag: broker.Lag{Messages: 5}}))
	b := as(t, c, lookToken)
	next := func() {
		now.Add(60)
		round(c)
	}
	move("mail", "log", 94)
	next()
	rows(b, "5 messages", "100 messages") // the rebuild has handled nothing
	b.get("/").shows("Consumer lag 105 most for mail@2")
	move("mail@2", "log", 89)
	move("mail", "log", 99)
	next()
	rows(b, "0 messages", "10 messages")
	b.get("/").shows("Consumer lag 15 most for mail@2").hides("1 not known")
	move("mail", "earlier", 99)
	next()
	rows(b, "not known: the log was recreated", "10 messages")
	b.get("/").shows("Consumer lag 15+ most for mail@2, 1 not known")
}

// Without its positions, a consumer that has handled everything would have the lag
// of the whole log.
func TestTheLagIsNotKnownWithoutPositions(t *testing.T) {
	source := keptLog{uncounted{name: "queue mail"}, 100}
	for _, c := range []struct {
		name      string
		positions func(context.Context) ([]store.Position, error)
		want      int64
		err       string
	}{
		{"nothing was handled", func(context.Context) ([]store.Position, error) {
			return []store.Position{{Consumer: "mail", Partition: "p"}}, nil // as the first session leaves it
		}, 100, ""},
		{"the store is down", func(context.Context) ([]store.Position, error) { return nil, errors.New("the store is down") }, 0, "the positions of the consumer cannot be read: the store is down"},
	} {
		q := about(source.name)
		q.Positions = c.positions
		switch got, err := LagOf(source)(t.Context(), q); {
		case c.err == "" && (err != nil || got.Messages != c.want):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case c.err != "" && (err == nil || err.Error() != c.err):
			t.Errorf("%s: %+v, %v, want %q", c.name, got, err, c.err)
		}
	}
}

// moving is a source whose stream is deleted and made again, which a source of NATS
// tells by its facts.
type moving struct {
	heap
	cluster *atomic.Pointer[string]
}

func (m moving) Location(context.Context) (map[string]string, error) {
	return map[string]string{"cluster": *m.cluster.Load()}, nil
}

// The lag of what took the place of a source is not that of the old one, and is known
// for the new one.
func TestTheLagIsNotThatOfASuccessor(t *testing.T) {
	now := time.Now()
	s := moving{heap{name: "queue orders", lag: broker.Lag{Messages: 3}}, new(atomic.Pointer[string])}
	old, fresh := "old", "fresh"
	s.cluster.Store(&old)
	l := newAskable(func() time.Time { return now }, s)
	at := func(cluster string) string {
		return store.SourceText("queue orders", map[string]string{"cluster": cluster})
	}
	if got, err := l.lag(t.Context(), about(at(old))); err != nil || got.Messages != 3 {
		t.Fatal(got, err)
	}
	s.cluster.Store(&fresh)
	now = now.Add(placeTime)
	if got, err := l.lag(t.Context(), about(at(old))); !errors.Is(err, ErrLagUnknown) {
		t.Errorf("the old source has the lag %+v, %v", got, err)
	}
	if got, err := l.lag(t.Context(), about(at(fresh))); err != nil || got.Messages != 3 {
		t.Errorf("the new source has the lag %+v, %v", got, err)
	}
}
