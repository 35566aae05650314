package world

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// operator is a person who decides about messages at the worst time: while relays
// and consumers work on them.
type operator struct {
	*mail
	p *sim.Process
	n int // decides how this one works

	pick sim.Draw // which one it decides about next
}

// startOperators starts people, each at a process of its own.
func (m *mail) startOperators() {
	for n := range m.Operators {
		name := fmt.Sprint("operator", n+1)
		m.Start(name, func(ctx context.Context, p *sim.Process) error { return (&operator{mail: m, p: p, n: n}).work(ctx) })
	}
}

// work looks again and again, at drawn times that are near to each other.
func (o *operator) work(ctx context.Context) error {
	for {
		d := o.DrawNth(o.p.Name, "looks", "")
		if sim.Sleep(ctx, o.pause(&d)) != nil {
			return nil
		}
		if o.IsCalm() {
			<-ctx.Done()
			return nil
		}
		o.act(ctx, d)
	}
}

// meeting is from one moment at which people decide to the next.
const meeting = 2 * time.Second

// pause is how long it is until the next look. Those who meet look at the same
// message then, most of the time.
func (o *operator) pause(d *sim.Draw) time.Duration {
	meeting := cmp.Or(o.Shelving.EachTime, meeting)
	if !o.Meet {
		pause := d.Between(5*time.Millisecond, meeting)
		o.pick = *d
		return pause
	}
	n := o.Now()/meeting + 1
	if o.pick = *d; d.Chance(.7) {
		o.pick = o.Seed.Draw("meeting", fmt.Sprint(n))
	}
	return n*meeting - o.Now() + d.Between(0, 40*time.Millisecond)
}

// act does one of the things that a person may do.
func (o *operator) act(ctx context.Context, d sim.Draw) {
	acts := []func(context.Context, sim.Draw){o.park, o.release, o.decideAboutParked, o.decideAboutParked}
	switch {
	case o.Shelving.Regrets:
		acts = []func(context.Context, sim.Draw){o.regret}
	case o.Shelving.GivesUp:
		acts = []func(context.Context, sim.Draw){o.giveUpWaiting}
	case o.Meet && o.Silent:
		acts = []func(context.Context, sim.Draw){o.park, o.release, o.regret, o.regret, o.giveUp}
	case o.Meet:
		acts = append(acts, o.giveUp, o.giveUpWaiting, o.giveUpWaiting)
	}
	acts[d.Number(len(acts))](ctx, o.pick)
}

func (o *operator) decision() outbox.Decision {
	return outbox.Decision{By: o.p.Name, Reason: "a decision"}
}

// park parks a message that waits in the outbox. It is held until a person
// releases it.
func (o *operator) park(ctx context.Context, d sim.Draw) {
	s := o.store.Link(o.p)
	state := []store.OutgoingState{store.Pending, store.Held}[d.Number(2)]
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: state, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	id := ms[d.Number(len(ms))].Message.ID
	if !o.Happens(fmt.Sprintf("%s parks %s #%d", o.p.Name, id, o.Number(o.p.Name, "parks", id))) {
		return
	}
	o.parkOne(ctx, id, state)
}

func (o *operator) parkOne(ctx context.Context, id string, state store.OutgoingState) {
	done := o.ledger.parks(id)
	q := store.OutgoingQuery{State: state, IDs: []string{id}}
	tally, err := outbox.Admin{Store: o.store.Link(o.p)}.Park(ctx, q, o.decision())
	o.Tell(sim.Line{Who: o.p.Name, What: "PARKS", About: id, Note: told(tally.Changed, err)})
	if err == nil && tally.Changed > 0 {
		done()
	}
}

// release has one of the messages published that are stuck.
func (o *operator) release(ctx context.Context, d sim.Draw) {
	s := o.store.Link(o.p)
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Stuck, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	o.releaseOne(ctx, ms[d.Number(len(ms))].Message.ID)
}

// releaseOne releases a message, but not twice within a second. If it is parked, released,
// parked and released while a relay reads its key, no read of the relay may show it.
func (o *operator) releaseOne(ctx context.Context, id string) {
	for {
		ago := o.ledger.sinceRelease(id)
		if ago >= time.Second {
			break
		}
		if sim.Sleep(ctx, time.Second-ago) != nil {
			return
		}
	}
	ended := o.ledger.releases(id)
	tally, err := outbox.Admin{Store: o.store.Link(o.p)}.Replay(ctx, store.OutgoingQuery{IDs: []string{id}}, o.decision())
	ended(err)
	o.Tell(sim.Line{Who: o.p.Name, What: "RELEASES", About: id, Note: told(tally.Changed, err)})
}

// regret parks the first message that is held, and releases it at once.
func (o *operator) regret(ctx context.Context, _ sim.Draw) {
	ms, err := o.store.Link(o.p).Outgoing(ctx, store.OutgoingQuery{State: store.Held, Limit: 1})
	if err != nil || len(ms) == 0 {
		return
	}
	o.parkOne(ctx, ms[0].Message.ID, store.Held)
	o.releaseOne(ctx, ms[0].Message.ID)
}

// giveUp discards a message that waits in the outbox.
func (o *operator) giveUp(ctx context.Context, d sim.Draw) {
	s := o.store.Link(o.p)
	state := []store.OutgoingState{store.Pending, store.Held}[d.Number(2)]
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: state, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	id := ms[d.Number(len(ms))].Message.ID
	if !o.Happens(fmt.Sprintf("%s gives up %s #%d", o.p.Name, id, o.Number(o.p.Name, "gives up", id))) {
		return
	}
	ended := o.ledger.givesUp(id)
	tally, err := outbox.Admin{Store: s}.DiscardWaiting(ctx, store.OutgoingQuery{State: state, IDs: []string{id}}, o.decision())
	ended(tally.Changed, err)
	o.Tell(sim.Line{Who: o.p.Name, What: "GIVES UP", About: id, Note: told(tally.Changed, err)})
}

// giveUpWaiting discards a message that waits on the shelf of a consumer, or that is
// being tried there.
func (o *operator) giveUpWaiting(ctx context.Context, d sim.Draw) {
	s := o.store.Link(o.p)
	ms, err := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Waiting}, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	at := ms[d.Number(len(ms))]
	id, consumer := at.Message.ID, consumerOf(at)
	if !o.ledger.knows(id) || !o.Happens(fmt.Sprintf("%s gives up %s of %s #%d", o.p.Name, id, consumer, o.Number(o.p.Name, "gives up "+consumer, id))) {
		return
	}
	ended := o.ledger.givesUpWaiting(id, consumer)
	open := &discard{q: store.ShelfQuery{Consumer: at.Consumer, IDs: []string{id}}, waiting: true}
	open.by = inbox.Decision{By: o.p.Name, Reason: "a decision"}
	o.discards.begin(open)
	tally, err := open.carryOut(ctx, inbox.Admin{Store: s})
	o.discards.end(open, err)
	ended(tally.Changed, err)
	o.Tell(sim.Line{Who: o.p.Name, What: "GIVES UP", About: at.Consumer + "/" + id, Note: told(tally.Changed, err)})
}

// decideAboutParked has a message that a consumer parked tried again, or gives it
// up if it is poison.
func (o *operator) decideAboutParked(ctx context.Context, d sim.Draw) {
	s := o.store.Link(o.p)
	ms, err := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: 10})
	if err != nil || len(ms) == 0 {
		return
	}
	at := ms[d.Number(len(ms))]
	if !o.ledger.knows(at.Message.ID) {
		return
	}
	o.judgeBlame(at, consumerOf(at))
	by := inbox.Decision{By: o.p.Name, Reason: "a decision"} // without NotDone: a call may be under way
	q := store.ShelfQuery{Consumer: at.Consumer, IDs: []string{at.Message.ID}}
	if o.failsAt(consumerOf(at), at.Message.ID) == forEver {
		o.ledger.discard(at.Message.ID, consumerOf(at))
		d := &discard{q: q, by: by}
		o.discards.begin(d)
		tally, err := d.carryOut(ctx, inbox.Admin{Store: s})
		o.discards.end(d, err)
		o.Tell(sim.Line{Who: o.p.Name, What: "DISCARDS", About: at.Consumer + "/" + at.Message.ID, Note: told(tally.Changed, err)})
		return
	}
	undo := o.ledger.triesAgain(at.Message.ID, consumerOf(at))
	tally, err := inbox.Admin{Store: s}.Replay(ctx, q, by)
	if err == nil && tally.Changed == 0 {
		undo()
	}
	o.Tell(sim.Line{Who: o.p.Name, What: "REPLAYS", About: at.Consumer + "/" + at.Message.ID, Note: told(tally.Changed, err)})
}

// discard is a discard of a message that a person has begun.
type discard struct {
	q       store.ShelfQuery
	by      inbox.Decision
	waiting bool // the message is not parked
	failed  bool // its person got an error, or its process has ended
}

func (d *discard) carryOut(ctx context.Context, admin inbox.Admin) (inbox.Tally, error) {
	if d.waiting {
		return admin.DiscardWaiting(ctx, d.q, d.by)
	}
	return admin.Discard(ctx, d.q, d.by)
}

// discards are those whose process has ended, or got an error, before it was told
// that all is done. Whoever has begun one repeats it.
type discards struct {
	mu   sync.Mutex
	open []*discard
}

func (ds *discards) begin(d *discard) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.open = append(ds.open, d)
}

func (ds *discards) end(d *discard, err error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d.failed = err != nil; !d.failed {
		ds.open = slices.DeleteFunc(ds.open, func(other *discard) bool { return other == d })
	}
}

// failed returns those that are to be repeated.
func (ds *discards) failed() (all []*discard) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for _, d := range ds.open {
		if d.failed {
			all = append(all, d)
		}
	}
	return all
}

func (ds *discards) areDone() bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return len(ds.open) == 0
}

func told(changed int, err error) string {
	if err != nil {
		return "fails: " + sim.FirstLine(err)
	}
	return fmt.Sprintf("%d changed", changed)
}
