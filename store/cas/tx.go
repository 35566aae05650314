package cas

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/effectively-once/once"
)

// TxEngine is an engine that writes several items as one request. Tx is the
// transaction that users know: it collects their writes.
type TxEngine[Tx any] interface {
	Engine

	// Begin returns a transaction that Transact ends. Its own methods to commit and
	// to roll back return once.ErrInvalid.
	Begin() Tx

	// Changes returns what the transaction holds for this store, or an error that
	// wraps once.ErrInvalid if it has ended or belongs to another store.
	Changes(tx Tx) (*Changes, error)

	// Commit sends the writes of the transaction and its Changes, which the engine
	// applies as a whole or not at all, and ends it.
	//
	//   - once.ErrConflict: nothing was applied, because a row has another version
	//     than its change says, or because of a concurrent request of which the
	//     engine says so.
	//   - once.ErrOutcomeUnknown: it is not known whether it was applied.
	//   - any other error: nothing was applied. A transaction that the engine cannot
	//     take, because it is too large or spans partitions, is once.ErrInvalid
	//     before anything is sent.
	Commit(ctx context.Context, tx Tx) error

	// Rollback ends the transaction and drops its writes.
	Rollback(tx Tx)
}

// Changes are the rows that a transaction writes. The zero value is empty.
type Changes struct {
	seen  map[[16]byte]int // index in all
	all   []Change
	order []int // those that are written, by first write
	docs  []*docChange
}

// Change is a row that a transaction writes if the stored version is still that
// of Was.
type Change struct {
	Was Stored
	Is  Row
}

// All returns the changes in the order in which they were first made.
func (c *Changes) All() []Change {
	all := make([]Change, len(c.order))
	for i, at := range c.order {
		all[i] = c.all[at]
	}
	return all
}

// change returns the row of a key as the transaction sees it, and its index.
func (c *Changes) change(ctx context.Context, s *Store, k once.Key) (Row, int, error) {
	id := k.UUID()
	at, ok := c.seen[id]
	if !ok {
		was, err := s.load(ctx, k)
		if err != nil {
			return Row{}, 0, err
		}
		at = c.add(id, was)
	}
	return c.all[at].Is, at, nil
}

// add notes what is stored.
func (c *Changes) add(id [16]byte, was Stored) (at int) {
	if c.seen == nil {
		c.seen = make(map[[16]byte]int)
	}
	at = len(c.all)
	c.seen[id] = at
	c.all = append(c.all, Change{Was: was, Is: was.Row})
	return at
}

// set writes a row.
func (c *Changes) set(at int, is Row) {
	c.all[at].Is = is
	if !slices.Contains(c.order, at) {
		c.order = append(c.order, at)
	}
}

// Transactions has the methods by which a [Store] is a [once.TxStore], on an
// engine whose transactions are one conditional request.
//
// By default Transact reads the keys, and calls its body if one is free, as if it
// had claimed it. Nothing is written before the commit, which is refused if a
// row has changed since it was read. So a repeat of finished work runs nothing,
// and of several at once more than one may run, of which one commits; the others
// get once.ErrConflict, run again and find its record. A claim does not see
// transactions in flight, and does not wait for them.
//
// A Speculative transaction omits the read. With ClaimFirst, and for a request
// that is Firm, the claim is written first, at the price of a second write: then
// a body runs only under a claim that was won. Such a claim is not extended while
// the body runs. Bodies that take longer than the lease lose it to the next call of
// the same key, whose claim then refuses their commit: if calls keep coming, none
// commits.
type Transactions[Tx any] struct {
	*Store

	// Engine is that of the Store.
	Engine TxEngine[Tx]

	// ClaimFirst makes all claims of Transact firm.
	ClaimFirst bool
}

// Transact claims, calls body, settles, and commits.
func (t *Transactions[Tx]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	now, err := t.now(ctx)
	if err != nil {
		return nil, err
	}
	run := &run[Tx]{Transactions: t, tx: t.Engine.Begin(), ctx: context.WithoutCancel(ctx)}
	defer run.end()
	if run.changes, err = t.Engine.Changes(run.tx); err != nil {
		return nil, err
	}
	if len(rs) == 1 && rs[0].Speculative && !rs[0].Firm && !t.ClaimFirst {
		return run.speculate(rs, body, now)
	}
	claimed, err := run.claim(ctx, rs, now)
	if err != nil || !holdsAny(rs, claimed) {
		return claimed, err
	}
	if err := run.commit(claimed, body); err != nil {
		return nil, err
	}
	return claimed, nil
}

// run is one Transact.
type run[Tx any] struct {
	*Transactions[Tx]
	ctx     context.Context // which the caller cannot end
	tx      Tx
	changes *Changes
	firm    []firmClaim
	sent    bool
}

// firmClaim is a claim that was written before the commit.
type firmClaim struct {
	is     Stored
	before Row
}

// finishTime bounds what the end of the caller's context does not end, apart
// from the commit itself: an engine that does not answer must not hold the caller.
const finishTime = 10 * time.Second

// end drops what was not sent, and takes firm claims back.
func (r *run[Tx]) end() {
	if r.sent {
		return
	}
	r.Engine.Rollback(r.tx)
	ctx, cancel := context.WithTimeout(r.ctx, finishTime)
	defer cancel()
	for _, claim := range r.firm {
		if row, ok := claim.is.rolledBack(claim.before); ok {
			_, _ = r.engine.Put(ctx, row, claim.is.Version) // or its lease lapses, which has the same effect
		}
	}
}

// speculate calls body as if the key were new. If it is not, the engine refuses
// the commit.
func (r *run[Tx]) speculate(rs []once.ClaimRequest, body func(Tx, []once.Record) ([]once.Settlement, error), now Now) (
	[]once.Record, error) {

	row, _ := Row{}.claim(rs[0], now)
	r.changes.set(r.changes.add(rs[0].Key.UUID(), Stored{}), row)
	claimed := []once.Record{row.Record(now)}
	err := r.commit(claimed, body)
	if err == nil {
		return claimed, nil
	}
	if errors.Is(err, once.ErrOutcomeUnknown) {
		return nil, err
	}
	// Was it because the claim was lost?
	ctx, cancel := context.WithTimeout(r.ctx, finishTime)
	defer cancel()
	is, lookErr := r.load(ctx, rs[0].Key)
	switch {
	case lookErr != nil:
		return nil, errors.Join(err, lookErr)
	case is.Version == "":
		return nil, err
	}
	again := rs[0]
	again.Speculative = false
	return r.Transact(ctx, []once.ClaimRequest{again}, body)
}

// claim makes claims in the transaction. Firm ones are written at once.
func (r *run[Tx]) claim(ctx context.Context, rs []once.ClaimRequest, now Now) (recs []once.Record, err error) {
	for _, req := range rs {
		var rec once.Record
		if req.Firm || r.ClaimFirst {
			rec, err = r.claimFirmly(ctx, req)
		} else {
			rec, err = r.claimIn(ctx, r.changes, req, now)
		}
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func (r *run[Tx]) claimFirmly(ctx context.Context, req once.ClaimRequest) (once.Record, error) {
	var before Row
	is, now, err := r.Store.claim(ctx, req, func(was Row, req once.ClaimRequest, now Now) (Row, bool) {
		before = was.At(now)
		return was.claimFirmly(req, now)
	})
	if err != nil {
		return once.Record{}, err
	}
	rec := is.Record(now)
	if rec.HeldBy(req.Owner) {
		r.firm = append(r.firm, firmClaim{is, before})
		kept := is.Row
		if kept.Firm { // once the transaction has committed, it is a claim like others
			kept.Firm, kept.KeepKey = false, 0
		}
		r.changes.set(r.changes.add(req.Key.UUID(), is), kept)
	}
	return rec, nil
}

// commit calls body, settles, and sends the transaction.
func (r *run[Tx]) commit(claimed []once.Record, body func(Tx, []once.Record) ([]once.Settlement, error)) error {
	sets, err := body(r.tx, slices.Clone(claimed))
	if err != nil {
		return err
	}
	if err := r.settle(sets); err != nil {
		return err
	}
	err = r.Engine.Commit(r.ctx, r.tx)
	r.sent = err == nil || errors.Is(err, once.ErrOutcomeUnknown)
	return err
}

// settle applies settlements in the transaction.
func (r *run[Tx]) settle(sets []once.Settlement) error {
	ctx, cancel := context.WithTimeout(r.ctx, finishTime)
	defer cancel()
	now, err := r.now(ctx)
	if err != nil {
		return err
	}
	for _, set := range sets {
		changed, err := r.settleIn(ctx, r.changes, set, now)
		if err == nil && !changed {
			err = lost(set.Fence)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ClaimTx claims in the caller's transaction: the claims are written with its
// commit, which is refused if a row has changed meanwhile.
func (t *Transactions[Tx]) ClaimTx(ctx context.Context, tx Tx, rs []once.ClaimRequest) (recs []once.Record, err error) {
	now, err := t.now(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := t.Engine.Changes(tx)
	for i := 0; i < len(rs) && err == nil; i++ {
		var rec once.Record
		rec, err = t.claimIn(ctx, changes, rs[i], now)
		recs = append(recs, rec)
	}
	return recs, err
}

func (t *Transactions[Tx]) claimIn(ctx context.Context, changes *Changes, r once.ClaimRequest, now Now) (once.Record, error) {
	was, at, err := changes.change(ctx, t.Store, r.Key)
	if err != nil {
		return once.Record{}, err
	}
	is, ok := was.claim(r, now)
	rec := is.Record(now)
	if ok || rec.HeldBy(r.Owner) { // a claim that was there already has to be current at the commit, too
		changes.set(at, is)
	}
	return rec, nil
}

// SettleTx settles in the caller's transaction.
func (t *Transactions[Tx]) SettleTx(ctx context.Context, tx Tx, sets []once.Settlement) error {
	now, err := t.now(ctx)
	if err != nil {
		return err
	}
	changes, err := t.Engine.Changes(tx)
	for i := 0; i < len(sets) && err == nil; i++ {
		_, err = t.settleIn(ctx, changes, sets[i], now)
	}
	return err
}

func (t *Transactions[Tx]) settleIn(ctx context.Context, changes *Changes, set once.Settlement, now Now) (changed bool, err error) {
	was, at, err := changes.change(ctx, t.Store, set.Key)
	if err != nil {
		return false, err
	}
	is, changed, err := was.settle(set, now)
	if changed {
		changes.set(at, is)
	}
	return changed, err
}

func holdsAny(rs []once.ClaimRequest, recs []once.Record) bool {
	for i, rec := range recs {
		if rec.HeldBy(rs[i].Owner) {
			return true
		}
	}
	return false
}
