package world

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
)

// Kinds of work.
const (
	asks    = "ask"    // at a downstream that can be asked
	honours = "honour" // at one that honours keys
	parks   = "park"   // at one that does neither
	inTx    = "order"  // in the database, after a step that can be asked

	recalls = "task" // at a downstream that can be asked, for a while; its name ends as another one
)

// downstreams returns the kinds of work at a downstream.
func (plan KeysPlan) downstreams() []string {
	if plan.Recalls > 0 {
		return []string{asks, honours, recalls}
	}
	return []string{asks, honours, parks}
}

// operation is how a process does work of a kind.
func (k *keys[Tx]) operation(p *sim.Process, kind string) *once.Operation[Answer] {
	op := &once.Operation[Answer]{Name: kind, Policy: k.Policy}
	if k.Plain {
		op.Codec = plainAnswers{}
	}
	switch kind {
	case asks, recalls:
		op.SettleTime = k.Settles
		op.Lookup = func(ctx context.Context, key once.Key) (Answer, bool, error) { return k.lookup(ctx, p, kind, key) }
		if kind == recalls {
			op.KeyValidFor = k.Recalls
		}
	case honours:
		op.OnUnknown, op.KeyValidFor = once.Resend, k.ValidFor
	case parks:
		op.OnUnknown = once.Park
	case inTx:
		op.Speculative = k.Speculative
	}
	return op
}

func (k *keys[Tx]) lookup(ctx context.Context, p *sim.Process, kind string, key once.Key) (a Answer, found bool, err error) {
	k.judgeAsked(key)
	c := sim.Call{Links: []sim.Link{Downstream}, What: "Lookup", About: sim.KeyText(key), Faults: sim.ReadFault}
	a, err = sim.Cross(ctx, p, c, func(context.Context) (a Answer, err error) {
		a, found = k.book.find(sim.KeyText(key))
		found = found && workOf(key) == kind && (kind != recalls || k.Now() < a.At+k.Recalls)
		a.Words = " as it was looked up"
		return a, nil
	})
	if d := k.DrawNth(p.Name, "waits for an answer", sim.KeyText(key)); k.LookupTakes > 0 && d.Chance(.3) {
		err = errors.Join(err, sim.Sleep(ctx, d.Between(0, k.LookupTakes)))
	}
	switch {
	case err != nil:
		return Answer{}, false, err
	case found && a.Refused:
		return a, true, once.ErrRejected
	}
	return a, found, nil
}

// life is a caller in one life of its process.
type life[Tx any] struct {
	*keys[Tx]
	p     *sim.Process
	store once.TxStore[Tx]
}

// caller calls all keys, again and again, until it has all answers.
func (k *keys[Tx]) caller(ctx context.Context, p *sim.Process) error {
	program, _, _ := strings.Cut(p.Name, ".")
	l := &life[Tx]{k, p, k.shop.open(p)}
	k.book.works(program, true)
	defer k.book.works(program, true) // its next life calls again
	var all sync.WaitGroup
	for _, kind := range append(k.downstreams(), inTx) {
		for n := range k.Keys {
			id := fmt.Sprintf("k%d", n+1)
			all.Go(func() { l.rounds(ctx, kind, id) })
			all.Go(func() { l.strays(ctx, kind, id) })
		}
	}
	all.Wait()
	if ctx.Err() == nil {
		k.book.works(program, false)
		<-ctx.Done()
	}
	return nil
}

func (l *life[Tx]) rounds(ctx context.Context, kind, id string) {
	for n := range l.Rounds {
		if sim.Sleep(ctx, l.pause(kind, id, n)) != nil || l.book.isAbandoned(kind+"/"+id) {
			return
		}
		l.untilAnswered(ctx, kind, id)
		if l.Now() > l.Length {
			return
		}
	}
}

// pause returns the time before a round.
func (l *life[Tx]) pause(kind, id string, n int) time.Duration {
	d := l.Seed.Draw("pause before", l.p.Name, kind, id).Nth(n)
	longest := l.Length / time.Duration(l.Rounds)
	if l.Now() > l.Length {
		longest = time.Second
	}
	return d.Between(0, longest)
}

// untilAnswered calls until there is an answer, as long as MayRetry says that this
// may help.
func (l *life[Tx]) untilAnswered(ctx context.Context, kind, id string) {
	key := kind + "/" + id
	for ctx.Err() == nil {
		d := l.DrawNth(l.p.Name, "calls", key)
		limited, cancel := ctx, context.CancelFunc(func() {})
		switch {
		case l.Hasty > 0 && d.Chance(l.Hasty):
			limited, cancel = context.WithTimeout(ctx, d.Between(time.Second, 8*time.Second))
		case d.Chance(.2): // some callers have little time
			limited, cancel = context.WithTimeout(ctx, d.Between(time.Second, 20*time.Second))
		case d.Chance(.1): // and some leave at once
			limited, cancel = context.WithTimeout(ctx, d.Between(time.Millisecond, 30*time.Millisecond))
		}
		began := l.Now()
		answer, err := l.call(limited, kind, id, id)
		if limited.Err() != nil {
			l.book.leaves(key)
		}
		cancel()
		if l.p.IsDead() || ctx.Err() != nil {
			return
		}
		if err == errPanic {
			l.Tell(sim.Line{Who: l.p.Name, What: "panics", About: key})
			continue
		}
		if err == nil || errors.Is(err, once.ErrRejected) && !errors.Is(err, once.ErrOutcomeUnavailable) {
			l.book.answered(kind, key, answer, err)
			l.judgeRecorded(once.Key{Operation: kind, ID: id}, answer)
			l.Tell(sim.Line{Who: l.p.Name, What: "is told", About: key, Note: answer.Text + answer.Words})
			if after := l.DrawNth(l.p.Name, "has its answer", key); after.Chance(.2) {
				l.mistake(ctx, kind, id)
			}
			return
		}
		l.Tell(sim.Line{Who: l.p.Name, What: "is told", About: key, Note: sim.FirstLine(err)})
		after, again := l.book.failed(kind, key, began, err)
		pause := d.Between(100*time.Millisecond, 2*time.Second)
		if d.Chance(.5) {
			pause = d.Between(time.Millisecond, 50*time.Millisecond)
		}
		if !again || l.givesUp(ctx, kind, key) || sim.Sleep(ctx, after+pause) != nil {
			return
		}
	}
}

// call calls, and contains the panics of work.
func (l *life[Tx]) call(ctx context.Context, kind, id, input string) (_ Answer, err error) {
	defer func() {
		if v := recover(); v == errPanic {
			err = errPanic
		} else if v != nil {
			panic(v)
		}
	}()
	return l.do(ctx, kind, id, input)
}

func (l *life[Tx]) do(ctx context.Context, kind, id, input string) (Answer, error) {
	work := l.operation(l.p, kind).For(id)
	if input != "" {
		work = work.Input([]byte(input))
	}
	s, began := l.store, l.Now()
	begins := l.DrawNth(l.p.Name, "begins anew", kind+"/"+id)
	if begins.Chance(l.Fleeting) {
		s = l.shop.open(l.p)
	}
	if l.CAS == nil && begins.Chance(.2) { // it probably is a duplicate
		work = work.Redelivered()
	}
	switch {
	case kind == honours && begins.Chance(l.Moved):
		return l.transact(ctx, s, work)
	case kind != inTx:
		return once.Do(ctx, s, work, l.effect)
	}
	step := l.operation(l.p, asks).Under(work.Key())
	if _, err := once.Do(ctx, s, step, l.effect); err != nil && !errors.Is(err, once.ErrRejected) {
		if _, again := once.MayRetry(err); again {
			return Answer{}, err
		}
		l.book.failed(asks, sim.KeyText(step.Key()), began, err) // it is done, and its answer is gone
	}
	return l.transact(ctx, s, work)
}

// transact does work in the database.
func (l *life[Tx]) transact(ctx context.Context, s once.TxStore[Tx], work once.Work[Answer]) (Answer, error) {
	var runs []Answer
	a, err := once.DoTx(ctx, s, work, func(ctx context.Context, tx Tx) (Answer, error) {
		a, err := l.row(ctx, tx, work.Key())
		runs = append(runs, a)
		return a, err
	})
	if err != nil && !l.p.IsDead() {
		l.book.toldFailed(sim.KeyText(work.Key()), runs, err)
	}
	return a, err
}

// row is work in the database.
func (l *life[Tx]) row(ctx context.Context, tx Tx, key once.Key) (Answer, error) {
	if err := l.business(ctx, sim.KeyText(key)); err != nil {
		return Answer{}, err
	}
	a := l.book.tries(sim.KeyText(key))
	insert := sim.Call{Links: sim.StoreLinks, What: "Insert", About: sim.KeyText(key), Faults: sim.ReadFault}
	err := sim.Do(ctx, l.p, insert, func(context.Context) error {
		l.shop.write(tx, a.Text)
		return nil
	})
	if err == nil && a.Refused {
		err = once.ErrRejected
	}
	return a, err
}

// effect is work at a downstream.
func (l *life[Tx]) effect(ctx context.Context, key once.Key) (Answer, error) {
	claim, _ := once.ClaimFrom(ctx)
	isKnown, ends := false, l.book.begins(sim.KeyText(key), claim.Attempt, l.p)
	defer func() { ends(isKnown) }()
	defer l.holds(ctx)()
	if err := l.business(ctx, sim.KeyText(key)); err != nil {
		isKnown = frees(key)
		return Answer{}, once.NotDone(err) // that it did nothing does not clear an attempt before
	}
	kind := workOf(key)
	c := sim.Call{Links: []sim.Link{Downstream}, What: "Effect", About: sim.KeyText(key), Faults: sim.WriteFault, Within: l.Settles}
	if kind == honours {
		c.Faults = sim.AnyFault
	}
	a, err := sim.Cross(ctx, l.p, c, func(context.Context) (Answer, error) { return l.book.arrives(kind, sim.KeyText(key)), nil })
	l.mayPanic("after " + sim.KeyText(key))
	isKnown = err == nil
	switch {
	case errors.Is(err, sim.ErrDown):
		isKnown = frees(key)
		return Answer{}, once.NotDone(err)
	case err == nil && a.Refused:
		return a, once.ErrRejected
	}
	return a, err
}

// frees reports whether an attempt that did nothing frees its key: none that may have
// happened was before it.
func frees(k once.Key) bool { return workOf(k) != honours }

// business takes its time, and fails if it is to.
func (l *life[Tx]) business(ctx context.Context, key string) error {
	if d, slow := l.Trait("slow "+key, l.Slow); slow {
		if err := sim.Sleep(ctx, d.Between(time.Second, l.Slowest)); err != nil {
			return err
		}
	}
	l.mayPanic("before " + key)
	if d, failing := l.Trait("failing "+key, l.Failing); failing && l.Number("business", "fails", key) <= 1+d.Number(3) {
		return errBusiness
	}
	return nil
}

var errPanic = errors.New("world: the work panics")

// mayPanic panics the first time, if it is to.
func (l *life[Tx]) mayPanic(when string) {
	if _, panics := l.Trait("panic "+when, l.Panics/2); panics && l.Number("work", "panics", when) == 1 {
		panic(errPanic)
	}
}

// person decides about parked keys, and those that nobody calls any more: what
// happened is done, and what did not, and no longer can, is free again.
func (k *keys[Tx]) person(ctx context.Context, p *sim.Process) error {
	s := k.shop.open(p)
	lister, _ := once.As[once.Lister](s)
	since, first := make(map[string]time.Time), make(map[string]once.Record)
	for {
		d := k.DrawNth(p.Name, "looks", "")
		wait := d.Between(time.Second, 15*time.Second)
		if d.Chance(.5) { // at what told the others, too
			const every = 10 * time.Second
			wait = every - k.Now()%every + d.Between(0, 20*time.Millisecond)
		}
		if sim.Sleep(ctx, wait) != nil {
			return nil
		}
		if k.done.Load() {
			<-ctx.Done()
			return nil
		}
		page, err := lister.List(ctx, once.RecordQuery{Status: []once.Status{once.Parked, once.Unknown}})
		if err != nil {
			continue
		}
		for _, r := range page.Records {
			seen := fmt.Sprint(sim.KeyText(r.Key), r.Attempt, r.Created.UnixNano()) // attempts are counted anew when a key was forgotten
			if since[seen].IsZero() {
				since[seen], first[seen] = time.Now(), r
			}
			wait := k.Settles
			if r.Status == once.Unknown {
				if wait += nobodyCalls; workOf(r.Key) != honours {
					k.asks(ctx, p, s, first[seen])
					continue // callers and the reconciler ask
				}
			}
			if time.Since(since[seen]) > wait {
				k.decide(ctx, p, s, r)
			}
		}
	}
}

// nobodyCalls is how long work that only another call can end is unknown until a
// person decides about it: nobody may call it any more.
const nobodyCalls = 3 * time.Minute

// workOf returns the kind of the work of a key.
func workOf(k once.Key) string { return k.Operation[strings.LastIndexByte(k.Operation, '/')+1:] }

func (k *keys[Tx]) decide(ctx context.Context, p *sim.Process, s once.Store, r once.Record) {
	key, kind := sim.KeyText(r.Key), workOf(r.Key)
	k.judgeAsked(r.Key)
	a, happened := k.book.find(key)
	if k.CAS == nil && k.Now()-a.At > time.Since(r.Created) { // of a time that was forgotten
		happened = false
	}
	var err error
	if happened {
		a.Words = " as " + p.Name + " found it"
		var out once.Outcome
		if out, err = k.operation(p, kind).Outcome(a); err == nil {
			out.Rejected = a.Refused
			err = once.MarkDone(ctx, s, r, out, p.Name+" found it")
			if errors.Is(err, once.ErrOutcomeRefused) || errors.Is(err, once.ErrOutcomeTooLarge) {
				err = once.MarkDone(ctx, s, r, once.Outcome{Rejected: a.Refused, Omitted: true}, p.Name+" found it, and its answer is too large")
			}
		}
	} else {
		err = once.MarkNotDone(ctx, s, r, p.Name+" did not find it")
	}
	k.Tell(sim.Line{Who: p.Name, What: "decides", About: key, Note: fmt.Sprintf("happened: %t, and is told: %s", happened, sim.Outcome(err))})
	k.book.decides(r, k.shop.record(r.Key).Attempt, p.Name, err)
}
