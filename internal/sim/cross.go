package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Call is a call over a boundary.
type Call struct {
	Links []Link // it fails while one of them is down; the first one is what is called
	What  string
	About string // its objects

	Faults  []FaultKind // that can happen to it
	Unknown error       // of a call that may have been applied; default: ErrReset

	// Within is the time after which a call that has left can no longer arrive.
	// Default: 20 seconds, and the way.
	Within time.Duration

	// Quietly keeps it out of the history if nothing happens to it: it only looks for
	// work, and finds none.
	Quietly bool
}

const (
	Latest   = 20 * time.Second // after which a late call arrives
	patience = time.Minute      // after which the caller of a call that hangs gives up, if its context has no end
)

// crossing is a call under way.
type crossing struct {
	Call
	from  *Process
	nth   int
	fault FaultKind

	there, back time.Duration
	notices     time.Duration // until it notices that its context has ended, as others do at the same instant
	long        time.Duration // until a late call arrives
	slow        time.Duration // of a slow reply
	open        time.Duration // until a claim without a reply is committed; 0: it is
	gives       time.Duration // after which its caller gives up, if nobody answers
	arrives     bool          // although its process dies on the way
	unanswered  bool          // while its link is down
}

// Cross makes a call of a process over a boundary. apply does it at the other
// side. It gets a context that has the values of ctx and does not end.
func Cross[T any](ctx context.Context, p *Process, c Call, apply func(context.Context) (T, error)) (reply T, err error) {
	return cross(ctx, p.depart(c), apply)
}

// cross is Cross of a call that departs.
func cross[T any](ctx context.Context, x *crossing, apply func(context.Context) (T, error)) (reply T, err error) {
	p, c := x.from, x.Call
	if err := x.travel(ctx); err != nil {
		if !p.IsDead() {
			x.fault = Cut
			err = x.told(err)
		}
		return reply, err
	}
	free := context.WithoutCancel(ctx)
	if refused := x.arrive(ctx); refused != nil {
		return reply, refused
	}
	switch x.fault {
	case Before:
		return reply, x.told(ErrReset)
	case Hang:
		x.told(nil)
		return reply, x.hangs(ctx)
	case Late:
		x.told(nil)
		p.World.whenLate(func() {
			time.Sleep(x.long)
			if !x.isCutOff() {
				_, err := apply(free)
				p.World.Tell(Line{Who: p.Name, What: c.What, About: c.About, Nth: x.nth, Note: "arrives late: " + Outcome(err)})
			}
		})
		return reply, x.hangs(ctx)
	}
	reply, err = apply(free)
	x.told(err)
	if x.fault == Twice {
		time.Sleep(x.back)
		_, again := apply(free)
		p.World.Tell(Line{Who: p.Name, What: c.What, About: c.About, Nth: x.nth, Note: "again: " + Outcome(again)})
	}
	gone := x.comesBack(ctx)
	p.wake(x.notices)
	switch {
	case p.IsDead():
		var none T
		return none, ErrDead
	case gone != nil:
		var none T
		return none, errors.Join(x.unknown(), gone)
	case x.fault == After:
		var none T
		return none, x.unknown()
	}
	return reply, err
}

// Do is Cross of a call without a reply.
func Do(ctx context.Context, p *Process, c Call, apply func(context.Context) error) error {
	_, err := Cross(ctx, p, c, func(ctx context.Context) (struct{}, error) { return struct{}{}, apply(ctx) })
	return err
}

func Outcome(err error) string {
	if err == nil {
		return "done"
	}
	return FirstLine(err)
}

// depart draws what will happen to a call.
func (p *Process) depart(c Call) *crossing {
	w := p.World
	x := &crossing{Call: c, from: p, nth: w.Number(p.Name, c.What, c.About)}
	d := w.Seed.Draw(p.Name, c.What, c.About).Nth(x.nth)
	x.there, x.back = d.Between(200*time.Microsecond, 8*time.Millisecond), d.Between(200*time.Microsecond, 8*time.Millisecond)
	if d.Number(50) == 0 || w.Slow > 0 && d.Chance(w.Slow) {
		x.there += d.Between(0, 2*time.Second)
	}
	x.notices = d.Between(time.Nanosecond, 100*time.Microsecond)
	x.long = d.Between(time.Second, Latest)
	x.gives = min(4*x.long, patience)
	x.arrives, x.unanswered = d.Chance(.5), d.Chance(.25)
	if c.Within > 0 {
		x.hurry(&d)
	}
	x.fault = w.draw(x, &d)
	x.slow = d.Between(time.Second/10, []time.Duration{time.Second, 3 * time.Second, 12 * time.Second}[d.Number(3)])
	if d.Chance(w.Open) {
		x.open = d.Between(time.Millisecond, []time.Duration{SoonCommitted, SoonCommitted, 2 * time.Second}[d.Number(3)])
	}
	w.mu.Lock()
	w.result.Calls++
	w.mu.Unlock()
	w.Progress.Add(1)
	return x
}

// hurry has a call arrive within its bound, and often at the end of it, where a
// mistake shows. Its caller may be told much earlier that the connection is gone.
func (x *crossing) hurry(d *Draw) {
	x.there = min(x.there, x.Within/4)
	longest := x.Within - x.there
	if x.long = d.Between(0, longest); d.Chance(.5) {
		x.long = longest - d.Between(0, longest/20)
	}
	x.gives = d.Between(0, 2*x.long)
}

func (w *World) draw(x *crossing, d *Draw) FaultKind {
	at := d.Float()
	chances, own := w.At[x.Links[0]]
	if !own {
		chances = w.Chances
	}
	for _, k := range x.Faults {
		if at -= chances.of(k); at < 0 {
			if !w.Happens(fmt.Sprintf("%s %s %s #%d %s", x.from.Name, x.What, x.About, x.nth, k)) {
				return NoFault
			}
			return k
		}
	}
	return NoFault
}

// travel waits until the call is at the other side.
func (x *crossing) travel(ctx context.Context) error {
	x.from.wake(x.notices)
	died := x.from.IsDead()
	if died {
		return ErrDead
	}
	if err := x.wait(ctx, x.there); err != nil && !x.from.IsDead() {
		return err
	}
	return nil
}

// wait waits, and returns the error of ctx a moment after it ends.
func (x *crossing) wait(ctx context.Context, d time.Duration) error {
	err := Sleep(ctx, d)
	if err != nil {
		time.Sleep(x.notices)
	}
	return err
}

// arrive returns why the call is not applied, if so.
func (x *crossing) arrive(ctx context.Context) error {
	switch {
	case x.from.IsDead() && !x.arrives:
		return x.told(ErrDead)
	case x.isCutOff():
		if x.unanswered {
			_ = x.wait(ctx, x.gives)
		}
		return x.told(ErrDown)
	}
	return nil
}

// isCutOff reports whether a call cannot arrive.
func (x *crossing) isCutOff() bool {
	w := x.from.World
	if w.isCut(x.from, x.Links[0]) {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	isStore := x.Links[0] == StoreName
	return w.down[x.from.host] > 0 || isStore && w.down[x.from.way] > 0 || slices.ContainsFunc(x.Links, func(l Link) bool { return w.down[l] > 0 })
}

// comesBack waits for the reply. It returns the error of ctx if that ends before a
// slow one is there.
func (x *crossing) comesBack(ctx context.Context) error {
	if x.fault == Slow {
		return x.wait(ctx, x.slow)
	}
	time.Sleep(x.back)
	return nil
}

// hangs waits for a reply that does not come.
func (x *crossing) hangs(ctx context.Context) error {
	err := x.wait(ctx, x.gives)
	x.from.wake(x.notices)
	return errors.Join(x.unknown(), err)
}

func (x *crossing) unknown() error {
	if x.Unknown != nil {
		return x.Unknown
	}
	return ErrReset
}

// told writes the call into the history, with its result at the other side.
func (x *crossing) told(err error) error {
	if !x.Quietly || x.from.World.Loud || x.fault != NoFault {
		x.from.World.Tell(Line{Who: x.from.Name, What: x.What, About: x.About, Nth: x.nth, Fault: x.fault, Note: FirstLine(err)})
	}
	return err
}
