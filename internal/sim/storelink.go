package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/turn"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// StoreName is the link to the store.
const StoreName Link = "store"

// Store is the transactional store that the processes of a world share.
type Store struct {
	*memstore.Store
	world *World

	// Committed is called with each transaction that was committed, before anybody
	// else sees what it wrote. It may be nil.
	Committed func(*memstore.Tx)

	// Shelves is called with each row that came onto the shelf without a transaction
	// of a caller. It may be nil.
	Shelves func(store.Shelved)

	// Retired is called when a consumer was retired, and perhaps again if it is so
	// already. It may be nil.
	Retired func(name string)

	// Recorded is called after each call that may have changed the record of a key,
	// before any other such call, with the process that made it. keep is how long its
	// settlement keeps the key. It may be nil.
	Recorded func(p *Process, k once.Key, keep time.Duration)

	// Wrote is called after each call that may have changed the positions or the shelf
	// of a consumer, before any other such call, with the process that made it, or nil
	// for a person at the store, and with its transaction and what that has put on the
	// shelf, if it has one. It may be nil.
	Wrote func(p *Process, consumer string, tx *memstore.Tx, aside []store.Shelved)

	// Outboxed is called after each call that may have changed the outbox, before any
	// other such call, with the process that made it, or nil for a person at the store.
	// It may be nil.
	Outboxed func(*Process, Outboxed)

	// Stuck is called when a relay has made some of these messages Stuck. It may be nil.
	Stuck func(ids []string)

	mu      sync.Mutex
	present map[[16]byte]bool   // relays whose lock is held
	proved  map[[16]byte]proved // when they last looked
	relays  map[[16]byte]string // their processes
	lanes   [store.Lanes]LaneHold
	leasing turn.Turn // taken from a change of leases until it is noted

	recording sync.Mutex // held from a change of a record until Recorded has been called
	touched   map[*memstore.Tx][]touch
}

// NewStore returns an empty store.
func NewStore(w *World, o *memstore.Options) *Store { return StoreOn(w, memstore.New(o)) }

// StoreOn returns a store that may have been in other worlds before.
func StoreOn(w *World, s *memstore.Store) *Store {
	return &Store{Store: s, world: w, present: make(map[[16]byte]bool), proved: make(map[[16]byte]proved), relays: make(map[[16]byte]string),
		touched: make(map[*memstore.Tx][]touch)}
}

// Link returns the store as a process sees it.
func (s *Store) Link(p *Process) *StoreLink { return &StoreLink{shared: s, at: s.Store, p: p} }

// StoreLink is a store that is called over a boundary. It has what memstore has,
// and [store.Presence] as well.
type StoreLink struct {
	shared *Store
	at     *memstore.Store
	p      *Process
}

var (
	_ once.TxStore[*memstore.Tx] = (*StoreLink)(nil)
	_ once.Lister                = (*StoreLink)(nil)

	_ store.Registry                = (*StoreLink)(nil)
	_ store.RegistryEditor          = (*StoreLink)(nil)
	_ store.Positions[*memstore.Tx] = (*StoreLink)(nil)
	_ store.TxShelf[*memstore.Tx]   = (*StoreLink)(nil)
	_ store.ShelfBatch              = (*StoreLink)(nil)
	_ store.Outbox[*memstore.Tx]    = (*StoreLink)(nil)
	_ store.HandOver                = (*StoreLink)(nil)
	_ store.Bell                    = (*StoreLink)(nil)
	_ store.Presence                = (*StoreLink)(nil)
	_ store.Archivable              = (*StoreLink)(nil)
	_ store.Reopener                = (*StoreLink)(nil)
)

var StoreLinks = []Link{StoreName}

func StoreWrite(what, about string) Call {
	return Call{Links: StoreLinks, What: what, About: about, Faults: WriteFault}
}

func StoreRead(what, about string) Call {
	return Call{Links: StoreLinks, What: what, About: about, Faults: ReadFault}
}

// poll is a read that processes make again and again.
func StorePoll(what, about string) Call {
	return Call{Links: StoreLinks, What: what, About: about, Faults: ReadFault, Quietly: true}
}

func KeyText(k once.Key) string { return k.Operation + "/" + k.ID }

func outgoingText(ms []store.Outgoing) string { return strings.Join(outgoingIDs(ms), " ") }

func outgoingIDs(ms []store.Outgoing) []string {
	ids := make([]string, len(ms))
	for i, m := range ms {
		ids[i] = m.Message.ID
	}
	return ids
}

func shelvedText(ms []store.Shelved) string {
	texts := make([]string, len(ms))
	for i, m := range ms {
		texts[i] = fmt.Sprintf("%s/%s %s", m.Consumer, m.Message.ID, m.State)
	}
	return strings.Join(texts, ", ")
}

func (l *StoreLink) Options() *once.Options { return l.at.Options() }

func (l *StoreLink) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	x := l.p.depart(StoreWrite("Claim", KeyText(r.Key)))
	return cross(ctx, x, func(ctx context.Context) (once.Record, error) {
		if x.fault == After && x.open > 0 {
			l.claimInFlight(ctx, r, x)
			return once.Record{}, nil // which nobody gets
		}
		defer l.record(touch{key: r.Key})()
		return l.at.Claim(ctx, r)
	})
}

func (l *StoreLink) Get(ctx context.Context, k once.Key) (once.Record, error) {
	return Cross(ctx, l.p, StoreRead("Get", KeyText(k)), func(ctx context.Context) (once.Record, error) {
		return l.at.Get(ctx, k)
	})
}

func (l *StoreLink) Extend(ctx context.Context, f once.Fence, d time.Duration) error {
	return Do(ctx, l.p, StoreWrite("Extend", KeyText(f.Key)), func(ctx context.Context) error {
		defer l.record(touch{key: f.Key})()
		return l.at.Extend(ctx, f, d)
	})
}

func (l *StoreLink) Settle(ctx context.Context, s once.Settlement) error {
	about := fmt.Sprintf("%s %s", KeyText(s.Key), s.Status)
	return Do(ctx, l.p, StoreWrite("Settle", about), func(ctx context.Context) error {
		defer l.record(touch{key: s.Key, keep: s.KeepKey})()
		return l.at.Settle(ctx, s)
	})
}

func (l *StoreLink) Forget(ctx context.Context, limit int) (int, error) {
	return Cross(ctx, l.p, StoreWrite("Forget", ""), func(ctx context.Context) (int, error) {
		return l.at.Forget(ctx, limit)
	})
}

func (l *StoreLink) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	return Cross(ctx, l.p, StorePoll("List", ""), func(ctx context.Context) (once.RecordPage, error) {
		return l.at.List(ctx, q)
	})
}

func (l *StoreLink) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	due, err = Cross(ctx, l.p, StorePoll("Forgettable", ""), func(ctx context.Context) (due []once.Record, err error) {
		due, more, err = l.at.Forgettable(ctx, limit)
		return due, err
	})
	return due, more && err == nil, err
}

func (l *StoreLink) ForgetRecords(ctx context.Context, due []once.Record) (int, error) {
	due = slices.Clone(due)
	return Cross(ctx, l.p, StoreWrite("ForgetRecords", ""), func(ctx context.Context) (int, error) {
		return l.at.ForgetRecords(ctx, due)
	})
}

func (l *StoreLink) Reopen(ctx context.Context, f once.Fence, keepKey time.Duration, reason string) error {
	return Do(ctx, l.p, StoreWrite("Reopen", KeyText(f.Key)), func(ctx context.Context) error { return l.at.Reopen(ctx, f, keepKey, reason) })
}

func (l *StoreLink) Register(ctx context.Context, c store.Consumer) (store.Consumer, error) {
	return Cross(ctx, l.p, StoreWrite("Register", c.Name), func(ctx context.Context) (store.Consumer, error) {
		return l.at.Register(ctx, c)
	})
}

func (l *StoreLink) Consumers(ctx context.Context) ([]store.Consumer, error) {
	return Cross(ctx, l.p, StorePoll("Consumers", ""), l.at.Consumers)
}

func (l *StoreLink) RenameConsumer(ctx context.Context, from, to string) error {
	return Do(ctx, l.p, StoreWrite("RenameConsumer", from+" "+to), func(ctx context.Context) error { return l.at.RenameConsumer(ctx, from, to) })
}

func (l *StoreLink) RetireConsumer(ctx context.Context, r store.Retirement) error {
	return Do(ctx, l.p, StoreWrite("RetireConsumer", r.Name), func(ctx context.Context) error {
		err := l.at.RetireConsumer(ctx, r)
		if err == nil && l.shared.Retired != nil {
			l.shared.Retired(r.Name)
		}
		return err
	})
}

func (l *StoreLink) Shelve(ctx context.Context, ms []store.Shelved) error {
	ms = slices.Clone(ms)
	return Do(ctx, l.p, StoreWrite("Shelve", shelvedText(ms)), func(ctx context.Context) error {
		defer l.record(shelvedFor(nil, ms)...)()
		err := l.at.Shelve(ctx, ms)
		if err == nil {
			l.shared.shelves(ms)
		}
		return err
	})
}

func (s *Store) shelves(ms []store.Shelved) {
	for _, m := range ms {
		if s.Shelves != nil {
			s.Shelves(m)
		}
	}
}

func (l *StoreLink) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	return Cross(ctx, l.p, StorePoll("Shelved", q.Consumer), func(ctx context.Context) ([]store.Shelved, error) {
		return l.at.Shelved(ctx, q)
	})
}

func (l *StoreLink) Change(ctx context.Context, m store.Shelved) error {
	c := StoreWrite("Change", shelvedText([]store.Shelved{m}))
	return Do(ctx, l.p, c, func(ctx context.Context) error {
		defer l.record(touch{consumer: m.Consumer})()
		return l.at.Change(ctx, m)
	})
}

func (l *StoreLink) ChangeMany(ctx context.Context, ms []store.Shelved) ([]bool, error) {
	ms = slices.Clone(ms)
	return Cross(ctx, l.p, StoreWrite("ChangeMany", shelvedText(ms)), func(ctx context.Context) ([]bool, error) {
		defer l.record(shelvedFor(nil, ms)...)()
		return l.at.ChangeMany(ctx, ms)
	})
}

func (l *StoreLink) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return Cross(ctx, l.p, StoreWrite("ForgetShelved", ""), func(ctx context.Context) (int, error) {
		return l.at.ForgetShelved(ctx, keep, limit)
	})
}

func (l *StoreLink) ShelveTx(ctx context.Context, tx *memstore.Tx, ms []store.Shelved) error {
	return Do(ctx, l.p, StoreRead("ShelveTx", shelvedText(ms)), func(ctx context.Context) error {
		l.shared.touch(tx, shelvedFor(tx, ms)...)
		return l.at.ShelveTx(ctx, tx, ms)
	})
}

func (l *StoreLink) BlockedTx(ctx context.Context, tx *memstore.Tx, consumer string, keys []string, parkedToo bool) ([]string, error) {
	return Cross(ctx, l.p, StoreRead("BlockedTx", consumer), func(ctx context.Context) ([]string, error) {
		return l.at.BlockedTx(ctx, tx, consumer, keys, parkedToo)
	})
}

func (l *StoreLink) ChangeTx(ctx context.Context, tx *memstore.Tx, m store.Shelved) error {
	c := StoreRead("ChangeTx", shelvedText([]store.Shelved{m}))
	return Do(ctx, l.p, c, func(ctx context.Context) error {
		l.shared.touch(tx, touch{consumer: m.Consumer, tx: tx})
		return l.at.ChangeTx(ctx, tx, m)
	})
}

func (l *StoreLink) ClaimTx(ctx context.Context, tx *memstore.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	return Cross(ctx, l.p, StoreRead("ClaimTx", claimsText(rs)), func(ctx context.Context) ([]once.Record, error) {
		l.shared.touch(tx, claimed(rs)...)
		return l.at.ClaimTx(ctx, tx, rs)
	})
}

func (l *StoreLink) SettleTx(ctx context.Context, tx *memstore.Tx, sets []once.Settlement) error {
	return Do(ctx, l.p, StoreRead("SettleTx", ""), func(ctx context.Context) error {
		l.shared.touch(tx, settled(sets)...)
		return l.at.SettleTx(ctx, tx, sets)
	})
}

func (l *StoreLink) PutTx(ctx context.Context, tx *memstore.Tx, ms []store.Outgoing) error {
	return Do(ctx, l.p, StoreRead("PutTx", outgoingText(ms)), func(ctx context.Context) error {
		l.shared.touch(tx, outboxed(ms))
		return l.at.PutTx(ctx, tx, ms)
	})
}

func (l *StoreLink) OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error) {
	return Cross(ctx, l.p, StoreWrite("OpenPosition", consumer+" "+partition), func(ctx context.Context) (store.Position, error) {
		defer l.record(touch{consumer: consumer})()
		return l.at.OpenPosition(ctx, consumer, partition)
	})
}

func (l *StoreLink) SetPosition(ctx context.Context, to store.Position) error {
	return Do(ctx, l.p, StoreWrite("SetPosition", to.Consumer), func(ctx context.Context) error {
		defer l.record(touch{consumer: to.Consumer})()
		return l.at.SetPosition(ctx, to)
	})
}

func (l *StoreLink) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	return Cross(ctx, l.p, StorePoll("Positions", consumer), func(ctx context.Context) ([]store.Position, error) {
		return l.at.Positions(ctx, consumer)
	})
}

func (l *StoreLink) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	return Cross(ctx, l.p, StorePoll("Outgoing", q.State.String()), func(ctx context.Context) ([]store.Outgoing, error) {
		return l.at.Outgoing(ctx, q)
	})
}

func (l *StoreLink) DecidedOutgoing(ctx context.Context, onlyStuck bool) ([]store.Outgoing, error) {
	return Cross(ctx, l.p, StorePoll("DecidedOutgoing", ""), func(ctx context.Context) ([]store.Outgoing, error) {
		return l.at.DecidedOutgoing(ctx, onlyStuck)
	})
}

func (l *StoreLink) MoveOutgoing(ctx context.Context, me [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	ms = slices.Clone(ms)
	return Cross(ctx, l.p, StoreWrite("Move", outgoingText(ms)+" "+to.String()), func(ctx context.Context) (int, error) {
		defer l.record(outboxed(ms))()
		n, err := l.at.MoveOutgoing(ctx, me, ms, to)
		if n > 0 && to == store.Stuck && me != [16]byte{} && l.shared.Stuck != nil {
			l.shared.Stuck(outgoingIDs(ms))
		}
		return n, err
	})
}

func (l *StoreLink) RemoveOutgoing(ctx context.Context, me [16]byte, ms []store.Outgoing) (int, error) {
	ms = slices.Clone(ms)
	return Cross(ctx, l.p, StoreWrite("Remove", outgoingText(ms)), func(ctx context.Context) (int, error) {
		defer l.record(outboxed(ms))()
		return l.at.RemoveOutgoing(ctx, me, ms)
	})
}

func (l *StoreLink) Sent(ctx context.Context, me [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	ms = slices.Clone(ms)
	return Cross(ctx, l.p, StoreWrite("Sent", outgoingText(ms)), func(ctx context.Context) (int, error) {
		defer l.record(outboxed(ms))()
		return l.at.Sent(ctx, me, ms, then)
	})
}

func (l *StoreLink) HandOver(ctx context.Context, me [16]byte, ms []store.Outgoing, rows [][]store.Shelved,
	then store.Ending) ([]bool, error) {

	ms, rows = slices.Clone(ms), slices.Clone(rows)
	return Cross(ctx, l.p, StoreWrite("HandOver", outgoingText(ms)), func(ctx context.Context) ([]bool, error) {
		defer l.record(outboxed(ms))()
		handed, err := l.at.HandOver(ctx, me, ms, rows, then)
		for i, done := range handed {
			if done && err == nil {
				l.shared.shelves(rows[i])
			}
		}
		return handed, err
	})
}

func (l *StoreLink) WakeDelayed(ctx context.Context, me [16]byte, to store.OutgoingState,
	limit int) (woken int, next time.Duration, err error) {

	type reply struct {
		woken int
		next  time.Duration
	}
	r, err := Cross(ctx, l.p, StorePoll("WakeDelayed", ""), func(ctx context.Context) (r reply, err error) {
		r.woken, r.next, err = l.at.WakeDelayed(ctx, me, to, limit)
		return r, err
	})
	return r.woken, r.next, err
}

func (l *StoreLink) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return Cross(ctx, l.p, StoreWrite("ForgetOutgoing", ""), func(ctx context.Context) (int, error) {
		return l.at.ForgetOutgoing(ctx, keep, limit)
	})
}

func (l *StoreLink) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	return Cross(ctx, l.p, StorePoll("OutboxDepth", ""), func(ctx context.Context) ([]store.Depth, error) {
		return l.at.OutboxDepth(ctx, count)
	})
}

func (l *StoreLink) LeaseLanes(ctx context.Context, me [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	lanes = slices.Clone(lanes)
	c := StoreWrite("LeaseLanes", "")
	c.Quietly = true
	return Cross(ctx, l.p, c, func(ctx context.Context) (store.Leases, error) {
		if err := l.shared.leasing.Take(ctx); err != nil {
			return store.Leases{}, err
		}
		defer l.shared.leasing.Give()
		at := Outboxed{Relay: me, Lanes: lanes, Leased: new(store.Leases)}
		defer l.record(touch{outbox: at})()
		leases, err := l.at.LeaseLanes(ctx, me, ttl, lanes)
		*at.Leased = leases
		if err == nil {
			l.shared.leased(l.p, me, leases)
		}
		return leases, err
	})
}

func (l *StoreLink) ReleaseLanes(ctx context.Context, me [16]byte, lanes []int) error {
	lanes = slices.Clone(lanes)
	return Do(ctx, l.p, StoreWrite("ReleaseLanes", fmt.Sprint(lanes)), func(ctx context.Context) error {
		if err := l.shared.leasing.Take(ctx); err != nil {
			return err
		}
		defer l.shared.leasing.Give()
		defer l.record(touch{outbox: Outboxed{Relay: me, Lanes: l.shared.orAll(lanes), Released: true, Counts: l.shared.counts(me)}})()
		err := l.at.ReleaseLanes(ctx, me, lanes)
		if err == nil {
			l.shared.released(me, lanes)
		}
		return err
	})
}

// HearOutbox begins to listen. Each process hears of a commit in its own time.
func (l *StoreLink) HearOutbox(ctx context.Context) (store.Ear, error) {
	c := StoreRead("HearOutbox", "")
	return Cross(ctx, l.p, c, func(ctx context.Context) (store.Ear, error) {
		e, err := l.at.HearOutbox(ctx)
		return &ear{e, l.p}, err
	})
}

type ear struct {
	store.Ear
	p *Process
}

func (e *ear) Wait(ctx context.Context) error {
	if err := e.Ear.Wait(ctx); err != nil {
		return err
	}
	d := e.p.World.DrawNth(e.p.Name, "hears of a commit", "")
	if err := Sleep(ctx, d.Between(100*time.Microsecond, 5*time.Millisecond)); err != nil {
		return err
	}
	e.p.wake(d.Between(time.Nanosecond, 100*time.Microsecond))
	if e.p.World.IsDown(StoreName) {
		return ErrReset
	}
	return nil
}
