package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/effectively-once/once"
)

var errAborted = errors.New("current transaction is aborted")

func (s *buggyStore) begin() *buggyTx {
	return &buggyTx{rows: make(map[any]row), effects: make(map[string]int)}
}

func (s *buggyStore) end(tx *buggyTx, commit bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !commit && s.has("a rollback leaves the key taken") {
		return nil
	}
	for at := range tx.rows {
		delete(s.taken, at)
	}
	if commit && tx.aborted {
		return errAborted
	}
	if commit {
		maps.Copy(s.rows, tx.rows)
		s.commitEffects(tx)
	}
	if !commit && s.has("a rollback deletes the row") {
		for at := range tx.rows {
			delete(s.rows, at)
		}
	}
	tx.rows = nil
	return nil
}

func (s *buggyStore) commitEffects(tx *buggyTx) {
	for name, n := range tx.effects {
		s.effects[name] += n
	}
	tx.effects = make(map[string]int)
}

// speculativeRun is a body that ran before its claim.
type speculativeRun struct {
	recs []once.Record
	sets []once.Settlement
	err  error
}

func runSpeculatively(tx *buggyTx, r once.ClaimRequest, body func(*buggyTx, []once.Record) ([]once.Settlement, error)) *speculativeRun {
	e := &speculativeRun{recs: []once.Record{{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease}}}
	e.sets, e.err = body(tx, slices.Clone(e.recs))
	return e
}

func (s *buggyStore) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*buggyTx, []once.Record) ([]once.Settlement, error)) (_ []once.Record, err error) {

	tx, committed := s.begin(), false
	defer func() {
		if !committed {
			_ = s.end(tx, s.has("commits on a panic"))
		}
	}()
	var ran *speculativeRun
	if strings.HasPrefix(s.bug, "speculative") && len(rs) == 1 && rs[0].Speculative {
		ran = runSpeculatively(tx, rs[0], body)
		if s.has("speculative run commits unclaimed") {
			committed = true
			return ran.recs, s.end(tx, true)
		}
		if ran.err != nil && s.has("speculative error believed") {
			return nil, ran.err
		}
		if ran.err != nil && s.has("speculative rows of a failure kept") {
			committed = true
			return nil, errors.Join(ran.err, s.end(tx, true))
		}
	}
	recs, err := s.ClaimTx(ctx, tx, rs)
	if err != nil {
		return nil, err
	}
	if ran != nil {
		if s.has("speculative run not run again") && recs[0].Attempt > 1 {
			return recs, nil
		}
		if s.has("speculative rows of the loser kept") && recs[0].Owner != rs[0].Owner {
			committed = true
			return recs, s.end(tx, true)
		}
		if s.has("speculative claim of a silent body skipped") && len(tx.effects) == 0 {
			return recs, ran.err
		}
		if s.has("speculative claim not waited for") && recs[0].Status == once.Running && recs[0].Owner != rs[0].Owner {
			return nil, errAborted
		}
	}
	mine := slices.ContainsFunc(recs, func(rec once.Record) bool {
		return rec.Status == once.Running && slices.ContainsFunc(rs, func(r once.ClaimRequest) bool { return r.Owner == rec.Owner })
	})
	if s.has("own claim not run") {
		mine = len(tx.rows) > 0
	}
	if !mine && !s.has("body called by the loser") {
		return recs, nil
	}
	var sets []once.Settlement
	if ran != nil && recs[0].Attempt == 1 {
		sets, err = ran.sets, ran.err
	} else {
		clear(tx.effects)
		sets, err = body(tx, slices.Clone(recs))
	}
	if s.has("speculative outcome as foreseen") && ran != nil && len(sets) > 0 && rs[0].Expected.Outcome.Sum != 0 {
		sets[0].Outcome = rs[0].Expected.Outcome
	}
	switch {
	case err != nil && s.has("error of the body flattened"):
		return nil, fmt.Errorf("transact: %v", err)
	case err != nil && s.has("commits in spite of an error"):
		committed = true
		return nil, errors.Join(err, s.end(tx, true))
	case err != nil:
		return nil, err
	case ctx.Err() != nil && s.has("ends with its context"):
		return nil, ctx.Err()
	}
	if s.has("rows in a commit of their own") {
		s.mu.Lock()
		s.commitEffects(tx)
		s.mu.Unlock()
		s.hesitate()
	}
	if err := s.settleAll(tx, sets, true); err != nil {
		return nil, err
	}
	if s.has("returns the records as settled") {
		for i := range recs {
			recs[i].Status = once.Done
		}
	}
	committed = true
	return recs, s.end(tx, true)
}

func (s *buggyStore) settleAll(tx *buggyTx, sets []once.Settlement, mustChange bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, set := range sets {
		if i > 0 && s.has("settles the first only") {
			break
		}
		to := tx
		if s.has("settles outside the transaction") {
			to = nil
			delete(s.taken, s.index(set.Key))
		}
		changed, err := s.settle(to, set)
		switch {
		case s.has("stale settlement ignored"):
		case err != nil:
			return err
		case !changed && mustChange && !s.has("repeat counts as its own row"):
			return once.ErrLeaseLost
		case !changed && s.has("repeat refused in a transaction"):
			return once.ErrLeaseLost
		}
	}
	return nil
}

func (s *buggyStore) ClaimTx(ctx context.Context, tx *buggyTx, rs []once.ClaimRequest) (recs []once.Record, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, r := range rs {
		if s.has("one cause for all claims") {
			r.Cause = rs[0].Cause
		}
		to := tx
		if s.has("claims outside the transaction") {
			to = nil
		}
		rec := s.claim(to, r)
		if rec.Owner != r.Owner && s.has("a lost claim aborts the transaction") {
			tx.aborted = true
		}
		recs = append(recs, rec)
	}
	if s.has("records in another order") {
		slices.SortFunc(recs, func(a, b once.Record) int { return strings.Compare(a.Key.ID, b.Key.ID) })
	}
	return recs, nil
}

func (s *buggyStore) SettleTx(ctx context.Context, tx *buggyTx, sets []once.Settlement) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.settleAll(tx, sets, false)
}
