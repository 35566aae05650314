//go:build go1.25

package oncetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// ErrRefused is what [Instance.Call] returns, in a year with People, for requests
// that the system outside refuses until a person has settled that with its owner.
// The call did not happen. A service that parks such work at once wraps it with
// once.NotDone and once.Permanent.
var ErrRefused = errors.New("oncetest: the system refuses this until a person has settled it")

const (
	// sure is after how long nothing of a claim can still arrive: no instance has
	// stalled since, and no call is on its way.
	sure = sim.Latest + time.Minute

	// evenings is how often a person looks through what is set aside after the faults.
	evenings = 4
)

// person decides about what is set aside, while everything goes wrong, and after
// that looks through the rest.
type person struct {
	*day
	name string
}

// startPeople starts people, each at a process of its own.
func (d *day) startPeople() {
	for n := range d.People {
		d.world.Start(fmt.Sprint("person", n+1), func(ctx context.Context, p *sim.Process) error {
			return (&person{d, p.Name}).work(ctx, d.store.Link(p))
		})
	}
}

func (o *person) work(ctx context.Context, s *sim.StoreLink) error {
	for {
		at := o.world.DrawNth(o.name, "looks", "")
		if sim.Sleep(ctx, at.Between(time.Second, 8*time.Second)) != nil || o.world.IsCalm() {
			<-ctx.Done()
			return nil
		}
		if at.Chance(.3) {
			o.holdMessage(ctx, s, &at)
		}
		o.decideAboutShelf(ctx, s, &at)
		o.decideAboutOutbox(ctx, s, &at)
	}
}

func (o *person) tells(what, about string, changed int, err error) {
	note := fmt.Sprintf("%d changed", changed)
	if err != nil {
		note = sim.FirstLine(err)
	}
	o.world.Tell(sim.Line{Who: o.name, What: what, About: about, Note: note})
}

func (o *person) may(what, about string) bool {
	return o.world.Happens(fmt.Sprintf("%s %s %s", o.name, what, about))
}

// holdMessage parks a message that waits in the outbox.
func (o *person) holdMessage(ctx context.Context, s *sim.StoreLink, at *sim.Draw) {
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Pending, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	id := ms[at.Number(len(ms))].Message.ID
	if !o.may(personParks, id) {
		return
	}
	q := store.OutgoingQuery{State: store.Pending, IDs: []string{id}}
	tally, err := outbox.Admin{Store: s}.Park(ctx, q, o.outboxDecision())
	o.tells(personParks, id, tally.Changed, err)
}

// decideAboutShelf replays or discards a message that a consumer has parked.
func (o *person) decideAboutShelf(ctx context.Context, s *sim.StoreLink, at *sim.Draw) {
	ms, err := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	m := ms[at.Number(len(ms))]
	if at.Chance(.4) && o.may(personDiscards, m.Message.ID) {
		o.discard(ctx, s, m)
	} else if o.may(personReplays, m.Message.ID) {
		o.replay(ctx, s, m)
	}
}

func shelfQuery(m store.Shelved) store.ShelfQuery {
	return store.ShelfQuery{Consumer: m.Consumer, IDs: []string{m.Message.ID}}
}

func (o *person) decision() inbox.Decision {
	return inbox.Decision{By: o.name, Reason: "a decision"}
}

func (o *person) outboxDecision() outbox.Decision {
	return outbox.Decision{By: o.name, Reason: "a decision"}
}

func (o *person) discard(ctx context.Context, s inbox.AdminStore, m store.Shelved) {
	o.givesUp(m.Consumer, &m.Message)
	o.discarded.Store(true)
	tally, err := inbox.Admin{Store: s}.Discard(ctx, shelfQuery(m), o.decision())
	if err == nil && tally.Changed == 1 {
		o.hasGivenUp(m.Consumer, &m.Message)
	}
	o.tells(personDiscards, m.Message.ID, tally.Changed, err)
}

// replay settles the matter with the system outside, and has the message tried
// again.
func (o *person) replay(ctx context.Context, s inbox.AdminStore, m store.Shelved) {
	o.settles(&m.Message)
	tally, err := inbox.Admin{Store: s}.Replay(ctx, shelfQuery(m), o.decision())
	o.tells(personReplays, m.Message.ID, tally.Changed, err)
}

// decideAboutOutbox publishes or discards a message that is stuck.
func (o *person) decideAboutOutbox(ctx context.Context, s *sim.StoreLink, at *sim.Draw) {
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Stuck, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	m := ms[at.Number(len(ms))].Message
	if at.Chance(.3) && o.may(personDiscards, m.ID) {
		o.givesUp("", &m)
		q := store.OutgoingQuery{State: store.Stuck, IDs: []string{m.ID}}
		tally, err := outbox.Admin{Store: s}.Discard(ctx, q, o.outboxDecision())
		o.tells(personDiscards, m.ID, tally.Changed, err)
	} else if o.may(personReplays, m.ID) {
		o.publishes(ctx, s, m.ID)
	}
}

func (o *person) publishes(ctx context.Context, s store.Relayable, id string) {
	tally, err := outbox.Admin{Store: s}.Replay(ctx, store.OutgoingQuery{IDs: []string{id}}, o.outboxDecision())
	o.tells(personReplays, id, tally.Changed, err)
}

// tidy is the evening of a person: with all faults gone, everything is decided that
// is still set aside.
func (d *day) tidy() {
	if d.People == 0 {
		return
	}
	ctx := context.Background()
	o := &person{d, "person"}
	s := d.shared.store
	if o.mustBeSure(ctx) {
		time.Sleep(sure)
	}
	d.settlesAll()
	for range evenings {
		o.freeKeys(ctx)
		shelved, _ := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 1000})
		for _, m := range shelved {
			if o.arrived(m.Unit(), &m.Message) { // what was unknown has happened
				o.discard(ctx, s, m)
			} else {
				o.replay(ctx, s, m)
			}
		}
		stuck, _ := s.Outgoing(ctx, store.OutgoingQuery{State: store.Stuck, Limit: 1000})
		for _, m := range stuck {
			o.publishes(ctx, s, m.Message.ID)
		}
		if len(shelved) == 0 && len(stuck) == 0 {
			return
		}
		time.Sleep(time.Minute)
	}
}

// mustBeSure reports whether the evening begins when nothing of the day can still
// arrive: before a key is freed, and to see that what was given up stays so.
func (o *person) mustBeSure(ctx context.Context) bool {
	page, err := o.shared.store.List(ctx, once.RecordQuery{Status: []once.Status{once.Parked}, Limit: 1})
	return err != nil || len(page.Records) > 0 || o.discarded.Load()
}

// freeKeys frees the parked keys whose calls never arrived.
func (o *person) freeKeys(ctx context.Context) {
	page, err := o.shared.store.List(ctx, once.RecordQuery{Status: []once.Status{once.Parked}, Limit: 1000})
	if err != nil {
		return
	}
	for _, rec := range page.Records {
		if !o.arrived(rec.Key, &broker.Message{ID: rec.Key.ID}) {
			err := once.MarkNotDone(ctx, o.shared.store, rec, "nothing has arrived")
			o.world.Tell(sim.Line{Who: o.name, What: personFrees, About: rec.Key.ID, Note: sim.FirstLine(err)})
		}
	}
}

// about returns the requests that a message is about. It is called with the mutex of
// the ledger held.
func (l *ledger) about(m *broker.Message) (rs []*requestState) {
	for id, r := range l.requests {
		if isAbout(m, id) {
			rs = append(rs, r)
		}
	}
	return rs
}

// givesUp notes that a person begins to give up a message of a consumer, or of all.
func (l *ledger) givesUp(consumer string, m *broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.about(m) {
		r.excused[consumer] = true
	}
}

// hasGivenUp notes that a message was given up for certain.
func (l *ledger) hasGivenUp(consumer string, m *broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.about(m) {
		r.givenUp[consumer] = time.Now()
	}
}

// excuses reports whether an effect need not happen, because a person gave up a
// message.
func (r *requestState) excuses(e Effect) bool {
	return r.excused[""] || r.excused[e.Consumer] || e.Consumer == "" && len(r.excused) > 0
}

// settles has the systems accept what a message is about.
func (l *ledger) settles(m *broker.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.about(m) {
		r.settled = true
	}
}

func (l *ledger) settlesAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		r.settled = true
	}
}

// refuses reports whether the system of an effect refuses a request of today.
func (d *day) refuses(r row) bool {
	if d.People == 0 || !strings.HasPrefix(r.id, fmt.Sprintf("d%dr", d.number)) {
		return false
	}
	d.ledger.mu.Lock()
	req := d.requests[r.id]
	accepts := req == nil || req.settled || req.happened[r.effect] > 0
	d.ledger.mu.Unlock()
	if accepts {
		return false
	}
	_, refused := d.world.Trait(fmt.Sprintf("%s is refused for %s", r.effect, r.id), .08)
	return refused
}

// hasArrived notes the claim under which a call arrived.
func (l *ledger) hasArrived(ctx context.Context, id string) {
	claim, ok := once.ClaimFrom(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.claims[claim.Key] = true
	} else if r := l.requests[id]; r != nil {
		r.unclaimed = true
	}
}

// arrived reports whether a call under a key has arrived, as far as the systems
// know.
func (l *ledger) arrived(key once.Key, m *broker.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims[key] {
		return true
	}
	for _, r := range l.about(m) {
		if r.unclaimed {
			return true
		}
	}
	return false
}
