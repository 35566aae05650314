package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

func claimsText(rs []once.ClaimRequest) string {
	keys := make([]string, len(rs))
	for i, r := range rs {
		keys[i] = KeyText(r.Key)
	}
	return strings.Join(keys, " ")
}

// Transact begins a transaction over the boundary, and commits it over the
// boundary. COMMIT may be lost on its way, or its reply, or it arrives late: the
// transaction is open until then, and holds what it has written.
func (l *StoreLink) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	about := claimsText(rs)
	if err := l.begin(ctx, about); err != nil {
		return nil, err
	}
	c := l.commit(ctx, about)
	return c.run(func(ctx context.Context) ([]once.Record, error) {
		return l.at.Transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			sets, err := body(tx, recs)
			if err != nil {
				l.shared.touchedBy(tx)
				return nil, err
			}
			l.shared.touch(tx, claimed(rs)...)
			l.shared.touch(tx, settled(sets)...)
			return sets, c.arrives(tx)
		})
	})
}

// TransactAt is Transact for a position.
func (l *StoreLink) TransactAt(ctx context.Context, from, to store.Position, body func(*memstore.Tx) error) error {
	about := from.Consumer + " " + from.Partition
	if err := l.begin(ctx, about); err != nil {
		return err
	}
	c := l.commit(ctx, about)
	_, err := c.run(func(ctx context.Context) ([]once.Record, error) {
		return nil, l.at.TransactAt(ctx, from, to, func(tx *memstore.Tx) error {
			if err := body(tx); err != nil {
				l.shared.touchedBy(tx)
				return err
			}
			l.shared.touch(tx, touch{consumer: from.Consumer, tx: tx})
			return c.arrives(tx)
		})
	})
	return err
}

// InFlight is the What of a claim without a reply that is still to be committed.
const InFlight = "claims in flight"

// SoonCommitted is before a caller who repeats a claim gives up.
const SoonCommitted = 30 * time.Millisecond

// ForLong is the Note of one that is in flight for longer.
const ForLong = "for long"

// claimInFlight makes a claim that is committed after a while. It returns when
// others meet it.
func (l *StoreLink) claimInFlight(ctx context.Context, r once.ClaimRequest, x *crossing) {
	note := ""
	if x.open > SoonCommitted {
		note = ForLong
	}
	l.p.World.Tell(Line{Who: l.p.Name, What: InFlight, About: x.About, Nth: x.nth, Note: note})
	met := make(chan struct{})
	l.p.World.Go(func() {
		committed := func() { close(met) } // if it is not won
		_, _ = l.at.Transact(ctx, []once.ClaimRequest{r}, func(*memstore.Tx, []once.Record) ([]once.Settlement, error) {
			close(met)
			time.Sleep(x.open)
			committed = l.record(touch{key: r.Key})
			return nil, nil
		})
		committed()
	})
	<-met
}

func (l *StoreLink) begin(ctx context.Context, about string) error {
	return Do(ctx, l.p, StoreRead("Begin", about), func(context.Context) error { return nil })
}

// committing is the COMMIT of a transaction.
type committing struct {
	*crossing
	ctx     context.Context
	link    *StoreLink
	tx      *memstore.Tx // once COMMIT has arrived
	commits func()       // ends the record of a COMMIT that is applied; nil: it is not
	answers chan answer
}

type answer struct {
	recs     []once.Record
	err      error
	panicked any // of the work
}

func (l *StoreLink) commit(ctx context.Context, about string) *committing {
	c := Call{Links: StoreLinks, What: "Commit", About: about, Faults: WriteFault, Unknown: once.ErrOutcomeUnknown}
	return &committing{crossing: l.p.depart(c), ctx: ctx, link: l, answers: make(chan answer, 2)}
}

// run runs the transaction. If COMMIT is late, the caller has its answer before
// the transaction has ended.
func (c *committing) run(transact func(context.Context) ([]once.Record, error)) ([]once.Record, error) {
	if c.fault == Late {
		c.from.World.whenLate(func() { c.end(transact) })
	} else {
		c.end(transact)
	}
	a := <-c.answers
	if a.panicked != nil {
		panic(a.panicked)
	}
	gone := c.comesBack(c.ctx)
	c.from.wake(c.notices)
	switch {
	case c.from.IsDead():
		return nil, ErrDead
	case gone != nil && c.tx != nil:
		return nil, errors.Join(c.unknown(), gone)
	}
	return a.recs, a.err
}

func (c *committing) end(transact func(context.Context) ([]once.Record, error)) {
	defer func() {
		if v := recover(); v != nil {
			c.answers <- answer{panicked: v}
		}
	}()
	recs, err := transact(context.WithoutCancel(c.ctx))
	if c.commits != nil {
		c.commits()
	}
	if c.tx == nil { // it never came to COMMIT
		c.answers <- answer{recs: recs, err: err}
		return
	}
	c.told(err)
	if err == nil && c.link.shared.Committed != nil {
		c.link.shared.Committed(c.tx)
	}
	if err == nil && c.fault == After {
		recs, err = nil, once.ErrOutcomeUnknown
	}
	c.answers <- answer{recs: recs, err: err}
}

// arrives is the way of COMMIT to the server. It returns why the server does not
// commit.
func (c *committing) arrives(tx *memstore.Tx) (err error) {
	c.tx = tx
	defer func() {
		touched := c.link.shared.touchedBy(tx)
		if err == nil {
			c.commits = c.link.record(touched...)
		}
	}()
	c.from.wake(c.notices)
	time.Sleep(c.there)
	switch {
	case c.from.IsDead() && !c.crossing.arrives, c.isCutOff(), c.fault == Before:
		return ErrReset
	case c.fault == Hang:
		return c.hangs(c.ctx)
	case c.fault == Late:
		c.answers <- answer{err: c.hangs(c.ctx)}
		time.Sleep(c.long)
		if c.isCutOff() {
			return ErrReset
		}
	}
	return nil
}
