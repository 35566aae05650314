package inbox

import (
	"context"
	"errors"
	"fmt"
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

// countReason begins the reason of a record that counts attempts. The count
// follows it.
const countReason = "attempts: "

// countOf reads the count from a record. The record's own Attempt is no count of
// attempts at the message, because it rises with each change.
func countOf(rec once.Record) int64 {
	if text, ok := strings.CutPrefix(rec.Reason, countReason); ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	return rec.Attempt
}

// countChange changes the counts of attempts at items. counts has the current
// values. It may be called several times.
type countChange func(counts []int64) error

// countUpdate is one call of updateCounts.
type countUpdate struct {
	*env
	items    []*item
	change   countChange
	requests []once.ClaimRequest
	known    []once.Record // as last read; zero: not read yet
	counts   []int64       // as last changed
	changed  bool          // change was called in the last transaction
}

// updateCounts changes the counts of attempts at items, all of them or none, in
// one transaction. A process that dies meanwhile therefore leaves no claim. It
// returns the new counts. An error of change ends it.
func (e *env) updateCounts(ctx context.Context, items []*item, change countChange) (counts []int64, err error) {
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
	counts := make([]int64, len(recs))
	for i, rec := range recs {
		switch {
		case !isOurs(rec, u.requests[i].Owner):
			return nil, errCountChanged
		case rec.Attempt == 1: // a new record
		case u.known[i].Attempt == rec.Attempt-1:
			counts[i] = countOf(u.known[i])
		default:
			return nil, errCountChanged
		}
	}
	if err := u.change(counts); err != nil {
		return nil, err
	}
	for i, n := range counts {
		keep := countKept
		if n == 0 {
			keep = time.Microsecond
		}
		fence := once.Fence{Key: u.requests[i].Key, Owner: u.requests[i].Owner, Attempt: recs[i].Attempt}
		sets = append(sets, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: keep, Reason: countReason + strconv.FormatInt(n, 10)})
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
	counts, err := e.updateCounts(ctx, []*item{it}, func(counts []int64) error {
		counts[0] = max(counts[0]+it.debt, 0) + 1
		return nil
	})
	if err == nil {
		it.failed, it.debt = counts[0], 0
		return
	}
	e.logger.WarnContext(ctx, "inbox: an attempt could not be counted", logs.Spaced(""), "message", it.Message.ID, "error", err)
	it.failed++
	it.debt++
	it.counting = countBefore
}

// payDebts writes the attempts that were taken back. What cannot be written is
// part of the next count at these deliveries.
func (e *env) payDebts(ctx context.Context, items []*item) {
	var indebted []*item
	for _, it := range items {
		if it.debt != 0 {
			indebted = append(indebted, it)
		}
	}
	if len(indebted) == 0 {
		return
	}
	_, err := e.updateCounts(ctx, indebted, func(counts []int64) error {
		for i, it := range indebted {
			counts[i] = max(counts[i]+it.debt, 0)
		}
		return nil
	})
	if err != nil {
		e.logger.WarnContext(ctx, "inbox: the counts of attempts could not be corrected", logs.Spaced(""), "messages", len(indebted), "error", err)
		return
	}
	for _, it := range indebted {
		it.debt = 0
	}
}
