package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/effectively-once/once"
)

// attempt is an attempt at several items. It decides how many of them are
// handled together now, and counts it at those that may have ended their
// process before.
type attempt struct {
	*env
	group     []*item // the items that may be handled together
	uncounted []*item // those of group with countBefore
	exclusive bool    // no other attempt runs
	now       int     // how many of group are handled now
	charged   int     // how many of uncounted are among them

	last      *item         // whose last attempt it is, or would be
	unsettled time.Duration // with errUnsettled: until it may be tried again
	waits     int           // the index of an item that waits
}

// begin counts an attempt at items that may have been delivered before, because
// one of them may end the process. It acquires the lock, which the caller
// releases. It returns how many items, from the first on, may be handled
// together now. If that is 0, it also returns a result: the first item's, whose
// attempts are used up, or every item's, if the result is again.
func (e *env) begin(ctx context.Context, lock *heldLock, items []*item) (now int, instead *result) {
	if err := lock.share(ctx); err != nil {
		return 0, &result{kind: again, reason: err.Error()}
	}
	a := &attempt{env: e, group: items[:lock.takeKeys(items)]}
	if len(a.group) == 0 {
		return 0, &result{kind: again, after: copyPause, alone: true}
	}
	if slices.ContainsFunc(a.group, func(it *item) bool { return it.counting == countBefore }) {
		a.group = a.group[:min(len(a.group), e.groupSize(1))]
	}
	for {
		now, instead := a.begin(ctx, lock)
		if instead == nil || !instead.alone || a.waits == 0 {
			return now, instead
		}
		a.group, a.waits = a.group[:a.waits], 0 // those before it need not wait with it
	}
}

// begin counts an attempt at the group. If an item has to wait, waits is its
// index, and the result is its own.
func (a *attempt) begin(ctx context.Context, lock *heldLock) (now int, instead *result) {
	a.uncounted = nil
	for _, it := range a.group {
		if it.counting == countBefore {
			a.uncounted = append(a.uncounted, it)
		}
	}
	if len(a.uncounted) == 0 {
		return a.plan(nil), nil
	}
	countedAt := time.Now()
	counts, err := a.updateCounts(ctx, a.uncounted, a.count)
	if errors.Is(err, errLastAttempt) {
		if a.heldElsewhere(ctx, a.last) == isHeld {
			a.waits = slices.Index(a.group, a.last)
			return 0, &result{kind: again, after: copyPause, alone: true}
		}
		if err := lock.exclude(ctx); err != nil {
			return 0, &result{kind: again, reason: err.Error()}
		}
		a.exclusive, countedAt = true, time.Now()
		counts, err = a.updateCounts(ctx, a.uncounted, a.count)
	}
	switch {
	case errors.Is(err, errUnsettled):
		a.waits = slices.Index(a.group, a.last)
		return 0, &result{kind: again, after: a.unsettled, alone: true}
	case err != nil:
		r := a.troubled(ctx, a.group[0], fmt.Errorf("an attempt could not be counted: %w", err))
		return 0, &r
	}
	for i, it := range a.uncounted {
		it.debt = attemptCount{}
		if it.attempts = counts[i].attemptCount; i < a.charged {
			it.counting, it.ran, it.countedAt = countedAhead, false, countedAt
		}
	}
	if a.now > 0 {
		return a.now, nil
	}
	first := a.group[0]
	switch a.heldElsewhere(ctx, first) {
	case isHeld:
		return 0, &result{kind: again, after: copyPause, alone: true}
	case hasEnded:
		return 0, &result{kind: again, alone: true}
	}
	return 0, &result{kind: toPark, reason: first.attempts.usedUp(nil)}
}

const (
	// beginTime is how long after it was counted an attempt may begin. A copy of
	// a message that is being handled is counted, waits, and is taken back. A
	// count that has not changed for so long has none of these.
	beginTime = 5 * time.Second

	copyPause = 200 * time.Millisecond // delay of a copy of a message that is being handled in this process
)

var (
	// errLastAttempt makes begin acquire the lock exclusively before it counts
	// the last attempt at a message.
	errLastAttempt = errors.New("inbox: the last attempt")

	// errUnsettled makes begin wait until it is certain that the counted attempts
	// at a message have begun. Until then its last attempt is not made, and it is
	// not parked.
	errUnsettled = errors.New("inbox: another attempt may not have begun")

	// errBeganLate keeps an attempt from beginning after beginTime.
	errBeganLate = errors.New("inbox: the attempt waited for too long, and has not begun")
)

// count is the countChange of begin.
func (a *attempt) count(counts []countNow) error {
	limit := int64(a.Retry.Attempts)
	for i, it := range a.uncounted {
		n := counts[i].plus(it.debt)
		if n.begun >= limit && n.failed > 0 && !a.outages.blames(it, a.Retry.Attempts) {
			n = n.plus(attemptCount{-n.failed, -n.failed})
		}
		counts[i].attemptCount = n
	}
	a.now = a.plan(counts)
	a.charged = 0
	if a.now == 0 {
		a.last = a.group[0]
		return a.settled(counts[0])
	}
	for _, it := range a.group[:a.now] {
		if it.counting != countBefore {
			continue
		}
		n := &counts[a.charged]
		if n.begun+1 == limit && !a.exclusive {
			a.last = it
			if err := a.settled(*n); err != nil {
				return err
			}
			return errLastAttempt
		}
		n.begun++
		a.charged++
	}
	return nil
}

// settled returns errUnsettled if an attempt may be counted that has not begun.
func (a *attempt) settled(n countNow) error {
	if a.unsettled = beginTime - n.unchanged; n.begun > n.failed && a.unsettled > 0 {
		return errUnsettled
	}
	return nil
}

// hold says who has the key of an item.
type hold int

const (
	isFree   hold = iota
	isHeld        // another attempt is handling it, perhaps in another process, or the store does not tell
	hasEnded      // it was handled or parked
)

// heldElsewhere finds out who has the key of an item. A transaction that claims it
// shows that, and is rolled back.
func (e *env) heldElsewhere(ctx context.Context, it *item) hold {
	if e.mode == inOrder || it.keyErr != nil { // a position decides who handles an item
		return isFree
	}
	request := e.freshClaimRequest(it)
	request.Wait = time.Second
	recs, err := e.transact(ctx, []once.ClaimRequest{request}, func([]once.Record) ([]once.Settlement, error) {
		return nil, errFree
	})
	switch {
	case errors.Is(err, errFree):
		return isFree
	case err != nil:
		_ = e.troubled(ctx, it, err)
		return isHeld
	case len(recs) == 1 && recs[0].Status == once.Running:
		return isHeld
	case len(recs) == 1 && recs[0].Status != once.Unknown:
		return hasEnded
	}
	return isFree
}

// errFree rolls back a claim that only had to show that a key is free.
var errFree = errors.New("inbox: the key is free")

// plan returns how many items of the group are handled together. counts are
// those of the uncounted items, without this attempt.
func (a *attempt) plan(counts []countNow) (now int) {
	limit := len(a.group)
	for uncounted := 0; now < limit; now++ {
		begun, it := int64(0), a.group[now]
		switch it.counting {
		case countBefore:
			if counts[uncounted].begun >= int64(a.Retry.Attempts) {
				return now
			}
			begun = counts[uncounted].begun + 1
			uncounted++
		case countedAhead:
			begun = it.attempts.begun
		}
		if limit = min(limit, a.groupSize(begun)); now >= limit {
			return now
		}
	}
	return now
}

// groupSize is how many items may be handled together if one of them was begun
// that often, including this attempt. It falls by half or more with each
// attempt, so that the last attempt at a message is made alone.
func (e *env) groupSize(begun int64) int {
	limit, attempts := float64(e.BatchSize), int64(e.Retry.Attempts)
	switch {
	case begun == 0:
		return e.BatchSize
	case begun >= attempts:
		return 1
	}
	root := math.Ceil(math.Pow(limit, float64(attempts-begun)/float64(attempts)))
	return max(int(min(root, float64(e.BatchSize>>min(begun, 30)))), 1)
}
