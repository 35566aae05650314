package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
)

// countKept is how long the count of attempts at a message is kept after its
// last change.
const countKept = 7 * 24 * time.Hour

// attemptCount is what is known of the attempts at a message. An attempt that
// has begun and not failed may be running, or has ended its process.
type attemptCount struct {
	begun  int64
	failed int64 // of those that have begun
}

// sum adds two changes of a count.
func (n attemptCount) sum(d attemptCount) attemptCount {
	return attemptCount{n.begun + d.begun, n.failed + d.failed}
}

// plus returns the count after a change.
func (n attemptCount) plus(d attemptCount) attemptCount {
	begun := max(n.begun+d.begun, 0)
	return attemptCount{begun, min(max(n.failed+d.failed, 0), begun)}
}

// The reason of a record that counts attempts is "attempts: 4, failed: 3".
const (
	countReason  = "attempts: "
	failedReason = ", failed: "
)

func (n attemptCount) String() string {
	return countReason + strconv.FormatInt(n.begun, 10) + failedReason + strconv.FormatInt(n.failed, 10)
}

// countOf reads the count from a record. The record's own Attempt is no count of
// attempts at the message, because it rises with each change.
func countOf(rec once.Record) attemptCount {
	begun, failed, _ := strings.Cut(strings.TrimPrefix(rec.Reason, countReason), failedReason)
	n, err := strconv.ParseInt(begun, 10, 64)
	if err != nil {
		return attemptCount{begun: rec.Attempt}
	}
	of, _ := strconv.ParseInt(failed, 10, 64) // an earlier version did not count failures
	return attemptCount{n, min(of, n)}
}

// countChange changes the counts of attempts at items. counts has the current
// values. It may be called several times.
type countChange func(counts []countNow) error

// countNow is a count in a countChange.
type countNow struct {
	attemptCount
	unchanged time.Duration // since its last change, by the clock of the store
}

// countUpdate is one call of updateCounts.
type countUpdate struct {
	*env
	items    []*item
	change   countChange
	requests []once.ClaimRequest
	known    []once.Record // as last read; zero: not read yet
	counts   []countNow    // as last changed
	changed  bool          // change was called in the last transaction
}

// updateCounts changes the counts of attempts at items, all of them or none, in
// one transaction. A process that dies meanwhile therefore leaves no claim. It
// returns the new counts. An error of change ends it.
func (e *env) updateCounts(ctx context.Context, items []*item, change countChange) (counts []countNow, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	u := &countUpdate{env: e, items: items, change: change, requests: make([]once.ClaimRequest, len(items)), known: make([]once.Record, len(items))}
	for i, it := range items {
		u.requests[i] = once.ClaimRequest{Fence: once.Fence{Key: it.countKey, Owner: name.Token()}, Lease: e.Policy.Lease, Wait: time.Second}
	}
	err = e.repeat(ctx, u.try)
	return u.counts, err
}

var (
	// errCountChanged rolls back an update of counts that were changed since
	// they were read.
	errCountChanged = errors.New("inbox: the count of attempts is not as it was read")

	// errCounted rolls back an update that an earlier transaction, whose reply
	// was lost, has made.
	errCounted = errors.New("inbox: the attempts are counted already")
)

func (u *countUpdate) try(ctx context.Context) error {
	u.changed = false
	recs, err := u.transact(ctx, u.requests, u.update)
	switch {
	case err == nil && (u.changed || isCounted(recs)), errors.Is(err, errCounted):
		return nil
	case err == nil, errors.Is(err, errCountChanged):
		if err := u.read(ctx); err != nil {
			return err
		}
		return errAgain
	}
	return err
}

func (u *countUpdate) update(recs []once.Record) (sets []once.Settlement, err error) {
	if isCounted(recs) {
		return nil, errCounted
	}
	counts := make([]countNow, len(recs))
	for i, rec := range recs {
		switch known := u.known[i]; {
		case !isOurs(rec, u.requests[i].Owner):
			return nil, errCountChanged
		case rec.Attempt == 1: // a new record
			counts[i].unchanged = math.MaxInt64
		case known.Attempt == rec.Attempt-1:
			counts[i] = countNow{countOf(known), known.Created.Add(known.Age).Sub(known.Updated)}
		default:
			return nil, errCountChanged
		}
	}
	if err := u.change(counts); err != nil {
		return nil, err
	}
	for i, n := range counts {
		keep := countKept
		if n.begun == 0 {
			keep = time.Microsecond
		}
		fence := once.Fence{Key: u.requests[i].Key, Owner: u.requests[i].Owner, Attempt: recs[i].Attempt}
		sets = append(sets, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: keep, Reason: n.String()})
	}
	u.counts, u.changed = counts, true
	return sets, nil
}

// isCounted reports whether an earlier transaction of this update, whose reply
// was lost, was committed. One Absent record shows that: a claim finds it only
// if its own owner has settled, and a transaction settles all records or none.
// The others may be forgotten by now, or claimed by another process.
func isCounted(recs []once.Record) bool {
	return slices.ContainsFunc(recs, func(rec once.Record) bool { return rec.Status == once.Absent })
}

// read reads the records that may have counts.
func (u *countUpdate) read(ctx context.Context) error {
	for i, it := range u.items {
		rec, err := u.store.Get(ctx, it.countKey)
		u.known[i], u.requests[i].Attempt = rec, 0
		switch {
		case err != nil:
			return err
		case rec.Status == once.Unknown: // a claim that was made by hand, and has lapsed
			u.requests[i].Attempt = rec.Attempt
		case rec.Status != once.Absent && rec.Status != once.Running || rec.LeaseLeft > time.Second:
			return fmt.Errorf("the key that counts the attempts at message %q is %v, which no consumer does", it.Message.ID, rec.Status)
		}
	}
	return nil
}

// count counts an attempt that failed. If the count cannot be written, it is
// added to the next one, and the next attempt does not start without it.
func (e *env) count(ctx context.Context, it *item) {
	it.debt = it.debt.sum(attemptCount{1, 1})
	counts, err := e.updateCounts(ctx, []*item{it}, func(counts []countNow) error {
		counts[0].attemptCount = counts[0].plus(it.debt)
		return nil
	})
	if err == nil {
		it.attempts, it.debt = counts[0].attemptCount, attemptCount{}
		return
	}
	e.logger.WarnContext(ctx, "inbox: an attempt could not be counted", logs.Spaced(""), "message", it.Message.ID, "error", err)
	it.attempts = it.attempts.plus(attemptCount{1, 1})
	it.counting = countBefore
}

// payDebts writes what has become of attempts that were counted ahead: they were
// taken back, or have failed. What cannot be written is part of the next count at
// these deliveries.
func (e *env) payDebts(ctx context.Context, items []*item) {
	var indebted []*item
	for _, it := range items {
		if it.debt != (attemptCount{}) {
			indebted = append(indebted, it)
		}
	}
	if len(indebted) == 0 {
		return
	}
	_, err := e.updateCounts(ctx, indebted, func(counts []countNow) error {
		for i, it := range indebted {
			counts[i].attemptCount = counts[i].plus(it.debt)
		}
		return nil
	})
	if err != nil {
		e.logger.WarnContext(ctx, "inbox: the counts of attempts could not be corrected", logs.Spaced(""), "messages", len(indebted), "error", err)
		return
	}
	for _, it := range indebted {
		it.debt = attemptCount{}
	}
}
