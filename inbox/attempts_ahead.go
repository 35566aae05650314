package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	a := &attempt{env: e, group: items}
	if slices.ContainsFunc(items, func(it *item) bool { return it.counting == countBefore }) {
		a.group = items[:min(len(items), e.groupSize(1))]
	}
	for _, it := range a.group {
		if it.counting == countBefore {
			a.uncounted = append(a.uncounted, it)
		}
	}
	if len(a.uncounted) == 0 {
		return a.plan(nil), nil
	}
	counts, err := e.updateCounts(ctx, a.uncounted, a.count)
	if errors.Is(err, errLastAttempt) {
		if err := lock.exclude(ctx); err != nil {
			return 0, &result{kind: again, reason: err.Error()}
		}
		a.exclusive = true
		counts, err = e.updateCounts(ctx, a.uncounted, a.count)
	}
	if err != nil {
		r := e.troubled(ctx, items[0], fmt.Errorf("an attempt could not be counted: %w", err))
		return 0, &r
	}
	for i, it := range a.uncounted {
		it.debt = 0
		if it.failed = counts[i]; i < a.charged {
			it.counting, it.ran = countedAhead, false
		}
	}
	if a.now == 0 {
		reason := fmt.Sprintf("begun %d times, at last alone, and never ended: it may end its process", items[0].failed)
		return 0, &result{kind: toPark, reason: reason}
	}
	return a.now, nil
}

// errLastAttempt makes begin acquire the lock exclusively before it counts the
// last attempt at a message.
var errLastAttempt = errors.New("inbox: the last attempt")

// count is the countChange of begin.
func (a *attempt) count(counts []int64) error {
	for i, it := range a.uncounted {
		counts[i] = max(counts[i]+it.debt, 0)
	}
	a.now = a.plan(counts)
	a.charged = 0
	for _, it := range a.group[:a.now] {
		if it.counting == countBefore {
			counts[a.charged]++
			if a.charged++; counts[a.charged-1] == int64(a.Retry.Attempts) && !a.exclusive {
				return errLastAttempt
			}
		}
	}
	return nil
}

// plan returns how many items of the group are handled together. counts are
// those of the uncounted items, without this attempt.
func (a *attempt) plan(counts []int64) (now int) {
	limit := len(a.group)
	for uncounted := 0; now < limit; now++ {
		begun, it := int64(0), a.group[now]
		switch it.counting {
		case countBefore:
			if counts[uncounted] >= int64(a.Retry.Attempts) {
				return now
			}
			begun = counts[uncounted] + 1
			uncounted++
		case countedAhead:
			begun = it.failed
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
