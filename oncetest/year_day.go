//go:build go1.25

package oncetest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

const (
	busyTime   = 40 * time.Second // of a day, in which customers come and faults happen
	settleTime = 10 * time.Second // after everything is done, in which what is late would show
	wholeDay   = 24 * time.Hour
	recent     = 2 // days after which requests and messages no longer come again
)

// shared is what survives the nights.
type shared struct {
	store  *memstore.Store
	broker *membroker.Broker

	mu     sync.Mutex
	queues map[string]bool
	stored []storedMessage // the recent ones, in order
}

type storedMessage struct {
	day     int
	message broker.Message
}

func newYear(s Service) *year {
	options := &memstore.Options{Options: once.Options{Logger: slog.New(slog.DiscardHandler)}}
	return &year{Service: s, ledger: newLedger(), effects: make(map[string]Effect), progress: new(atomic.Int64), totals: newTotals(),
		shared: shared{store: memstore.New(options), broker: membroker.New(nil), queues: make(map[string]bool)}}
}

// run lives through all days, until one breaks a law.
func (y *year) run(t *testing.T) (held bool) {
	began := time.Now()
	for n := 1; n <= y.Days; n++ {
		d := y.newDay(n)
		sim.SeedRandom(t, d.world.Seed) // so that what differs when it is played again ends with its day
		result := d.live()
		y.totals.add(result)
		if len(result.Broken) > 0 {
			y.found(y.shrink(t, d, result).explain())
			time.Sleep(wholeDay) // for what has not returned in time
			return false
		}
		time.Sleep(time.Duration(n)*wholeDay - time.Since(began))
	}
	return true
}

// day is a day of a year: a world with faults, and what it leaves.
type day struct {
	*year
	number int
	world  *sim.World
	store  *sim.Store
	broker *sim.Broker
	orders []*requestState

	discarded atomic.Bool // a person has discarded a message

	mu        sync.Mutex
	instances []*Instance // nil: it is down
}

const network sim.Link = "network"

// systemLink is the link to the system outside at which an effect happens.
func systemLink(effect string) sim.Link { return sim.Link("system " + effect) }

func (y *year) newDay(n int) *day {
	seed := sim.Seed(y.Seed)
	of := seed.Draw("day", fmt.Sprint(n))
	w := sim.New(y.weather(sim.Seed(of.Number(1 << 62))))
	d := &day{year: y, number: n, world: w, store: sim.StoreOn(w, y.shared.store), broker: sim.BrokerOn(w, y.shared.broker),
		instances: make([]*Instance, y.Instances)}
	y.ledger.world = w
	d.store.Committed = y.committed
	d.broker.Copies = d.copies
	d.broker.Stored = d.keep
	return d
}

// weather draws how bad a day is.
func (y *year) weather(seed sim.Seed) sim.Settings {
	d := seed.Draw("weather")
	s := sim.Settings{Seed: seed, Length: busyTime, Stall: time.Minute, Progress: y.progress}
	p := []float64{.01, .03, .06, .1}[d.Number(4)]
	s.Chances = sim.Chances{Before: d.Some(p), After: d.Some(p), Hang: d.Some(p / 3), Late: d.Some(p), Twice: d.Some(p)}
	s.Deaths, s.Stalls = d.Number(3), d.Number(2)
	links := []sim.Link{sim.StoreName, sim.BrokerName, network}
	for _, e := range y.Effects {
		links = append(links, systemLink(e.Name))
	}
	for _, link := range links {
		if d.Chance(.15) {
			longest := []time.Duration{5 * time.Second, 20 * time.Second, 3 * time.Minute}[d.Number(3)]
			s.Outages = append(s.Outages, sim.Outage{Link: link, Times: 1 + d.Number(2), Longest: longest})
		}
	}
	return s
}

// live lets the day pass.
func (d *day) live() *sim.Result {
	for n := range d.Instances {
		d.world.Start(fmt.Sprint("instance", n+1), func(ctx context.Context, p *sim.Process) error { return d.instance(ctx, p, n) })
	}
	for n := range d.Requests {
		name := fmt.Sprint("customer", n+1)
		if d.world.Without[name] {
			continue
		}
		r := d.add(fmt.Sprintf("d%dr%03d", d.number, n+1))
		d.orders = append(d.orders, r)
		c := &customer{day: d, request: r}
		d.world.Start(name, c.run)
	}
	d.startRepeats()
	d.startPeople()
	d.world.BeginOutages()
	time.Sleep(busyTime)
	d.world.Calm()
	d.tidy()
	d.drain()
	return d.left()
}

// left ends the world and returns a copy of its result, because a goroutine of the
// service that outlives its day still calls, and adds to the result of its world.
func (d *day) left() *sim.Result {
	r := d.world.End()
	d.world.IsCalm() // takes the lock under which the result grows, here and after the copy
	left := *r
	left.History, left.Faults = slices.Clone(r.History), slices.Clone(r.Faults)
	left.Started, left.Broken = slices.Clone(r.Started), slices.Clone(r.Broken)
	d.world.IsCalm()
	return &left
}

// copies is how often the broker stores a message when it is published.
func (d *day) copies(m *broker.Message) int {
	if at, copied := d.world.Trait("copies of "+m.ID, .1); copied && !d.world.IsCalm() {
		d.totals.copied.Add(1)
		return 2 + at.Number(2)
	}
	return 1
}

// keep keeps a message that the broker has stored for the next days.
func (d *day) keep(m *broker.Message) {
	d.totals.messages.Add(1)
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	d.shared.stored = append(d.shared.stored, storedMessage{d.number, *m})
}

// startRepeats has something come again that is from the last days.
func (d *day) startRepeats() {
	at := d.world.Seed.Draw("repeats")
	if r := d.recentRequest(&at); r != nil && at.Chance(.5) {
		c := &customer{day: d, request: r, again: true}
		d.world.Start("latecomer", c.run)
	}
	if m := d.recentMessage(&at); m != nil && at.Chance(.5) {
		pause := at.Between(time.Second, busyTime)
		d.world.Start("dead letters", func(ctx context.Context, p *sim.Process) error { return d.publishAgain(ctx, pause, m) })
	}
}

func (d *day) recentRequest(at *sim.Draw) *requestState {
	day := d.number - 1 - at.Number(recent)
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	r := d.requests[fmt.Sprintf("d%dr%03d", day, 1+at.Number(d.Requests))]
	if r == nil || r.answer == nil || r.waits {
		return nil
	}
	return r
}

func (d *day) recentMessage(at *sim.Draw) *broker.Message {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	d.shared.stored = slices.DeleteFunc(d.shared.stored, func(m storedMessage) bool { return m.day < d.number-recent })
	if len(d.shared.stored) == 0 {
		return nil
	}
	m := d.shared.stored[at.Number(len(d.shared.stored))].message
	return &m
}

// publishAgain publishes a message again, as a person does who empties a queue of
// dead letters.
func (d *day) publishAgain(ctx context.Context, pause time.Duration, m *broker.Message) error {
	if sim.Sleep(ctx, pause) == nil && d.world.Happens("copy of "+m.ID) && d.shared.broker.Publisher().Publish(ctx, []*broker.Message{m}) == nil {
		d.totals.copied.Add(1)
		d.world.Tell(sim.Line{What: toldCopy, About: m.ID})
	}
	<-ctx.Done()
	return nil
}

func (d *day) serves(number int, i *Instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.instances[number] = i
}

func (d *day) at(number int) *Instance {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.instances[number]
}

func (d *day) usesQueue(name string) {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	d.shared.queues[name] = true
}

// drain waits until all requests of the day are done, or wait for a person.
func (d *day) drain() {
	began := time.Now()
	for {
		open := d.open()
		if len(open) == 0 && d.world.LateCalls() == 0 {
			break
		}
		if time.Since(began) > d.Drain {
			for r, b := range open {
				d.world.Broke(b.Law, r.id, "%s, and nothing of it waits for a person", b.Note)
			}
			return
		}
		time.Sleep(2*time.Second + 7*time.Nanosecond)
	}
	d.totals.slowest = max(d.totals.slowest, time.Since(began))
	time.Sleep(settleTime)
}

// open returns what is to be done, and the laws that it would break.
func (d *day) open() map[*requestState]sim.Break {
	open := make(map[*requestState]sim.Break)
	for _, r := range d.orders {
		if law, why := d.unfinished(r); law != "" && !d.waitsForPerson(r) {
			open[r] = sim.Break{Law: law, Note: why}
		}
	}
	return open
}

// waitsForPerson reports whether something of a request was set aside.
func (d *day) waitsForPerson(r *requestState) bool {
	waits := d.parkedKey(r.id) || d.onShelf(r.id) || d.stuck(r.id) || d.deadLetter(r.id)
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	r.waits = waits
	return waits
}

func (d *day) parkedKey(id string) bool {
	q := once.RecordQuery{Status: []once.Status{once.Parked}, Limit: 1000}
	for {
		page, err := d.shared.store.List(context.Background(), q)
		for _, rec := range page.Records {
			if strings.Contains(rec.Key.ID, id) {
				return true
			}
		}
		if err != nil || page.Next == (once.Key{}) {
			return false
		}
		q.After = page.Next
	}
}

func (d *day) onShelf(id string) bool {
	q := store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 1000}
	for {
		page, err := d.shared.store.Shelved(context.Background(), q)
		if err != nil || len(page) == 0 {
			return false
		}
		for _, m := range page {
			if isAbout(&m.Message, id) {
				return true
			}
		}
		q.After = page[len(page)-1].Seq
	}
}

func (d *day) stuck(id string) bool {
	q := store.OutgoingQuery{State: store.Stuck, Limit: 1000}
	for {
		page, err := d.shared.store.Outgoing(context.Background(), q)
		if err != nil || len(page) == 0 {
			return false
		}
		for _, m := range page {
			if isAbout(&m.Message, id) {
				return true
			}
		}
		q.After = page[len(page)-1].Seq
	}
}

func (d *day) deadLetter(id string) bool {
	d.shared.mu.Lock()
	defer d.shared.mu.Unlock()
	for name := range d.shared.queues {
		if slices.ContainsFunc(d.shared.broker.Messages(name+".dead"), func(m *broker.Message) bool { return isAbout(m, id) }) {
			return true
		}
	}
	return false
}

// isAbout reports whether a message has the ID of a request.
func isAbout(m *broker.Message, id string) bool {
	if strings.Contains(m.ID, id) || strings.Contains(m.OrderingKey, id) || strings.Contains(string(m.Body), id) {
		return true
	}
	for _, value := range m.Header {
		if strings.Contains(value, id) {
			return true
		}
	}
	return false
}
