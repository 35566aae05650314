package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/legible"
	"github.com/effectively-once/once/store"
)

const (
	lookEvery   = 10 * time.Second // younger samples are shown again
	idleEvery   = time.Minute      // while nobody looks
	lookedFor   = 5 * time.Minute  // after a look, somebody may still look
	lookTime    = 3 * time.Second  // limit of a sample of one store
	historyTime = time.Hour
	countUpTo   = 1000
)

// gauge is a number of the overview.
type gauge struct {
	Name, Text string // of what it counts
	Path       string // of the page that lists it
	State      string // on that page
	Urgent     bool   // it needs a person if it is not zero
}

var gauges = []gauge{
	{"unknown", "Unknown keys", "/unknown", "", true},
	{"parked", "Parked keys", "/parked", "", true},
	{"shelved", "Parked messages", "/messages", "parked", true},
	{"stuck", "Stuck messages", "/outbox", "stuck", true},
	{"held", "Held messages", "/outbox", "held", false},
	{"pending", "Messages to publish", "/outbox", "pending", false},
	{published, "Messages published", "", "", false},
	{prevented, "Duplicates prevented", "", "", false},
}

// The gauges that the program knows, and not the store.
const (
	published = "published"
	prevented = "prevented"
)

// reading is the value of a gauge.
type reading struct {
	N      int
	More   bool // there are more, or N is an estimate
	Oldest time.Duration
	Known  bool // the store has this
}

// sample is the state of a store at one time.
type sample struct {
	at       time.Time
	err      error
	readings map[string]reading
	relays   int // -1: not known
}

// sampler reads the stores at a limited rate, however often it is asked, and
// remembers the last hour.
type sampler struct {
	mu      sync.Mutex
	history [][]sample // of each store, the latest last
	busy    []atomic.Bool

	look   sync.Mutex // of what follows, and never held for long
	looked time.Time
	news   int                // how often there was something new
	counts map[string]reading // of the urgent gauges, in all stores
}

// isWatched reports whether somebody looks, or may still look.
func (s *sampler) isWatched(now time.Time) bool {
	s.look.Lock()
	defer s.look.Unlock()
	return now.Sub(s.looked) < lookedFor
}

// watch says that somebody looks. It returns how often there was something new.
func (s *sampler) watch(now time.Time) (news int) {
	s.look.Lock()
	defer s.look.Unlock()
	s.looked = now
	return s.news
}

// tell says that there is something new.
func (s *sampler) tell() {
	s.look.Lock()
	defer s.look.Unlock()
	s.news++
}

// counted returns how much of each urgent gauge the latest samples have. It does not
// wait for one that is being taken.
func (s *sampler) counted() map[string]reading {
	s.look.Lock()
	defer s.look.Unlock()
	return s.counts
}

// countUp keeps what the latest samples of all stores have of the urgent gauges. What
// no store has told is not known. If only some have, there may be more.
func (s *sampler) countUp() {
	counts := make(map[string]reading)
	for _, g := range gauges {
		if !g.Urgent {
			continue
		}
		var sum reading
		for _, past := range s.history {
			now := past[len(past)-1]
			r := now.readings[g.Name]
			if now.err != nil && !r.Known {
				sum.More = true
			}
			sum.N, sum.More, sum.Known = sum.N+r.N, sum.More || r.More, sum.Known || r.Known
		}
		counts[g.Name] = sum
	}
	s.look.Lock()
	defer s.look.Unlock()
	s.counts = counts
}

// watch samples until the context ends.
func (c *Console) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		c.sample(ctx, false)
		c.checkUp(ctx)
		c.askLags(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample reads the stores if it is time to, and returns what is known of each.
func (c *Console) sample(ctx context.Context, looks bool) [][]sample {
	s := &c.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.now()
	if looks {
		s.watch(now)
	}
	if s.history == nil {
		s.history, s.busy = make([][]sample, len(c.o.Stores)), make([]atomic.Bool, len(c.o.Stores))
	}
	every := idleEvery
	if s.isWatched(now) {
		every = lookEvery
	}
	read := false
	var wg sync.WaitGroup
	for i, of := range c.o.Stores {
		past := s.history[i]
		if len(past) > 0 && now.Sub(past[len(past)-1].at) < every {
			continue
		}
		read = true
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime) // the first who looks may be gone
			defer cancel()
			next, err := c.look(ctx, i, of)
			if err != nil {
				next = sample{err: err, relays: -1}
			}
			next.at = now
			for len(past) > 0 && now.Sub(past[0].at) > historyTime {
				past = past[1:]
			}
			s.history[i] = append(past[:len(past):len(past)], next)
		}()
	}
	wg.Wait()
	if read {
		s.countUp()
		s.tell()
	}
	out := make([][]sample, len(s.history))
	copy(out, s.history)
	return out
}

var errBusy = errors.New("it has not answered the question before")

// look reads the state of a store, unless it is still at the question before.
func (c *Console) look(ctx context.Context, i int, of Store) (sample, error) {
	busy := &c.sampler.busy[i]
	if !busy.CompareAndSwap(false, true) {
		return sample{}, errBusy
	}
	return contained(ctx, c, of.Name, func() (sample, error) {
		defer busy.Store(false)
		return c.read1(ctx, of), nil
	})
}

// read1 reads the state of one store, in bounded work.
func (c *Console) read1(ctx context.Context, of Store) sample {
	s := sample{readings: make(map[string]reading), relays: -1}
	if of.Duplicates != nil {
		s.readings[prevented] = reading{N: int(of.Duplicates()), Known: true}
	}
	if of.Published != nil {
		s.readings[published] = reading{N: int(of.Published()), Known: true}
	}
	var units map[once.Key]bool // of parked messages, which are counted as messages
	if shelf, ok := once.As[store.Shelf](of.Store); ok {
		ms, err := shelf.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: countUpTo, Bodiless: true})
		if err != nil {
			s.err = err
			return s
		}
		r := reading{N: len(ms), More: len(ms) == countUpTo, Known: true}
		if len(ms) > 0 {
			r.Oldest = max(time.Since(ms[0].Created), 0)
		}
		s.readings["shelved"], units = r, store.Units(ms)
	}
	if lister, ok := once.As[once.Lister](of.Store); ok {
		c.learn(ctx, lister)
		for name, status := range map[string]once.Status{"unknown": once.Unknown, "parked": once.Parked} {
			r, read := reading{Known: true}, 0
			for q := (once.RecordQuery{Status: []once.Status{status}, Limit: countUpTo}); ; {
				page, err := lister.List(ctx, q)
				if err != nil {
					s.err = err
					return s
				}
				for _, rec := range page.Records {
					c.names.see(rec.Key)
					if status == once.Parked && units[rec.Key] {
						continue
					}
					r.Oldest = max(r.Oldest, unchanged(rec))
					r.N++
				}
				read += len(page.Records)
				if q.After = page.Next; q.After == (once.Key{}) {
					break
				}
				if r.More = read >= countUpTo; r.More {
					break
				}
			}
			s.readings[name] = r
		}
	}
	if messages, ok := once.As[store.Relayable](of.Store); ok {
		depth, err := messages.OutboxDepth(ctx, countUpTo)
		if err != nil {
			s.err = err
			return s
		}
		for _, state := range []store.OutgoingState{store.Stuck, store.Held, store.Pending} {
			s.readings[state.String()] = reading{Known: true}
		}
		for _, d := range depth {
			if _, shown := s.readings[d.State.String()]; shown {
				s.readings[d.State.String()] = reading{N: d.Count, More: d.Estimated, Oldest: d.Oldest, Known: true}
			}
		}
		s.relays = relaysOf(ctx, of)
	}
	return s
}

// relaysOf returns how many relays are alive, or -1 if the store cannot tell
// without a change.
func relaysOf(ctx context.Context, of Store) int {
	leases := of.Leases
	if leases == nil {
		if s, ok := once.As[interface {
			OutboxLeases(context.Context) (store.Leases, error)
		}](of.Store); ok {
			leases = s.OutboxLeases
		}
	}
	if leases == nil {
		return -1
	}
	found, err := leases(ctx)
	if err != nil {
		return -1
	}
	return found.Relays
}

// card is a number of the overview as it is shown.
type card struct {
	gauge
	reading
	URL    string
	Points string // of the sparkline
	Trend  string // the same in words
	Rate   string // of what is published; empty: it is not known
}

// board is a store on the overview.
type board struct {
	Name    string
	Problem string
	Cards   []card
	Relays  string
	NoRelay bool // messages wait, and nobody publishes them
	Doctor  *diagnosis
	Counted bool // somebody knows how many duplicates were prevented
	Lag     *lagCard
}

type overviewPage struct {
	Boards []board
	At     time.Time
	Needs  int // kinds of things that need a person
	Silent int // consumers that do not run, and messages wait for them
	Down   int // stores that do not answer
	Unsafe bool
	lagNews
}

func (v *view) overview() {
	v.render(http.StatusOK, "overview", v.overviewOf(v.sample(v.r.Context(), true)))
}

// rateSpan is how far back a rate looks.
const rateSpan = 5 * time.Minute

// publishRate says how many messages were published in a minute of late, or nothing if
// too little is known.
func publishRate(past []sample) string {
	now := past[len(past)-1]
	for _, before := range past {
		took := now.at.Sub(before.at)
		if took > rateSpan || !before.readings[published].Known {
			continue
		}
		if took < time.Second {
			break
		}
		n := now.readings[published].N - before.readings[published].N
		return fmt.Sprintf("%.0f a minute of late", max(float64(n), 0)/took.Minutes())
	}
	return ""
}

// seen returns what is known of each store, and asks them only if nothing is.
func (c *Console) seen() [][]sample {
	s := &c.sampler
	s.mu.Lock()
	out := slices.Clone(s.history)
	s.mu.Unlock()
	if out == nil {
		return c.sample(context.Background(), true)
	}
	return out
}

func (v *view) overviewOf(all [][]sample) page {
	p := overviewPage{At: v.now(), lagNews: v.lagNews()}
	for i, past := range all {
		if at := past[len(past)-1].at; at.Before(p.At) {
			p.At = at
		}
		b := v.board(v.o.Stores[i], past)
		for _, c := range b.Cards {
			if c.Urgent && c.N > 0 {
				p.Needs++
			}
		}
		if b.Lag = v.lagCardOf(i, p.At); b.Lag != nil {
			p.Silent += len(b.Lag.Waited)
		}
		if b.Problem != "" {
			p.Down++
		}
		p.Unsafe = p.Unsafe || b.Doctor != nil && b.Doctor.Unsafe
		p.Boards = append(p.Boards, b)
	}
	return page{Title: "Overview", Nav: "overview", Live: v.link("/events", "of", "overview"), Body: p}
}

func (v *view) board(of Store, past []sample) board {
	b, now := board{Name: of.Name, Doctor: v.diagnosisOf(of), Counted: of.Duplicates != nil}, past[len(past)-1]
	if now.err != nil {
		b.Problem = legible.Text(now.err.Error())
		return b
	}
	for _, g := range gauges {
		r := now.readings[g.Name]
		if !r.Known {
			continue
		}
		c := card{gauge: g, reading: r}
		if g.Path != "" {
			c.URL = v.link(g.Path, "store", of.Name, "state", g.State)
		}
		c.Points, c.Trend = spark(past, g.Name, now.at)
		if g.Name == published {
			c.Rate = publishRate(past)
		}
		b.Cards = append(b.Cards, c)
	}
	if now.relays >= 0 {
		b.Relays = legible.Count(int64(now.relays), "relay is alive", "relays are alive")
		b.NoRelay = now.relays == 0 && now.readings["pending"].N > 0
	}
	return b
}

// spark returns the points of a line over the last hour, 120 wide and 24 high, and
// the line in words.
func spark(past []sample, name string, now time.Time) (points, words string) {
	lowest, highest, last := -1, 0, 0
	for _, s := range past {
		if r := s.readings[name]; r.Known {
			highest, last = max(highest, r.N), r.N
			if lowest < 0 || r.N < lowest {
				lowest = r.N
			}
		}
	}
	var line []string
	for _, s := range past {
		if r := s.readings[name]; r.Known {
			x := 120 * (1 - float64(now.Sub(s.at))/float64(historyTime))
			line = append(line, fmt.Sprintf("%.1f,%.1f", max(x, 0), 22-20*float64(r.N)/float64(max(highest, 1))))
		}
	}
	if len(line) == 1 {
		line = append(line, "119,"+line[0][strings.IndexByte(line[0], ',')+1:])
	}
	return strings.Join(line, " "), fmt.Sprintf("in the last hour between %d and %d, now %d", max(lowest, 0), highest, last)
}
