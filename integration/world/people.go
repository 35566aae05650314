package world

import (
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
}

// startOperators starts people, each at a process of its own.
func (m *mail) startOperators() {
	for n := range m.Operators {
		name := fmt.Sprint("operator", n+1)
		m.Start(name, func(ctx context.Context, p *sim.Process) error { return (&operator{m, p, n}).work(ctx) })
	}
}

// work looks again and again, at drawn times that are near to each other.
func (o *operator) work(ctx context.Context) error {
	for {
		d := o.DrawNth(o.p.Name, "looks", "")
		if sim.Sleep(ctx, d.Between(5*time.Millisecond, 2*time.Second)) != nil {
			return nil
		}
		if o.IsCalm() {
			<-ctx.Done()
			return nil
		}
		switch d.Number(4) {
		case 0:
			o.park(ctx, d)
		case 1:
			o.release(ctx, d)
		default:
			o.decideAboutParked(ctx, d)
		}
	}
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
	done := o.ledger.parks(id)
	tally, err := outbox.Admin{Store: s}.Park(ctx, store.OutgoingQuery{State: state, IDs: []string{id}}, o.decision())
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
	id := ms[d.Number(len(ms))].Message.ID
	o.ledger.releases(id)
	tally, err := outbox.Admin{Store: s}.Replay(ctx, store.OutgoingQuery{IDs: []string{id}}, o.decision())
	o.Tell(sim.Line{Who: o.p.Name, What: "RELEASES", About: id, Note: told(tally.Changed, err)})
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
		d := &discard{q, by}
		o.discards.begin(d)
		tally, err := inbox.Admin{Store: s}.Discard(ctx, q, by)
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
	q  store.ShelfQuery
	by inbox.Decision
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
	if err == nil {
		ds.open = slices.DeleteFunc(ds.open, func(other *discard) bool { return other == d })
	}
}

func (ds *discards) all() []*discard {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return slices.Clone(ds.open)
}

func told(changed int, err error) string {
	if err != nil {
		return "fails: " + sim.FirstLine(err)
	}
	return fmt.Sprintf("%d changed", changed)
}
