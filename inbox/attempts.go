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
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
)

// countKept is how long the count of attempts at a message is kept after the last of them.
const countKept = 7 * 24 * time.Hour

// countReason begins the reason of a record that counts attempts. The number follows.
const countReason = "attempts: "

// countOf reads the count out of a record. The Attempt of a record rises with each change, the count with attempts only.
func countOf(rec once.Record) int64 {
	if text, ok := strings.CutPrefix(rec.Reason, countReason); ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	return rec.Attempt
}

// tally changes the counts of attempts at items.
type tally struct {
	*consumerRun
	items  []*item
	change func(counts []int64) ([]int64, error) // from what they were to what they will be
	rs     []once.ClaimRequest
	known  []once.Record // as far as they were read
	wrote  bool
}

// tally changes the counts of attempts at items, all or none: for all processes together, and in one transaction, so
// that a process that dies in the middle has counted, or has not, and is in nobody's way. It may call change several
// times; an error of it ends everything.
func (s *consumerRun) tally(ctx context.Context, items []*item, change func(counts []int64) ([]int64, error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	t := &tally{consumerRun: s, items: items, change: change, rs: make([]once.ClaimRequest, len(items)), known: make([]once.Record, len(items))}
	for i, it := range items {
		t.rs[i] = once.ClaimRequest{Fence: once.Fence{Key: it.attempts, Owner: name.Token()}, Lease: s.Policy.Lease, Wait: time.Second}
	}
	pause := &backoff.Backoff{First: 2 * time.Millisecond, Limit: 250 * time.Millisecond}
	for commits := 0; ; {
		t.wrote = false
		recs, err := s.transact(ctx, t.rs, t.body)
		switch {
		case err == nil && (t.wrote || isWritten(recs)), errors.Is(err, errWritten):
			return nil
		case err == nil, errors.Is(err, errNotOurs):
			if err := t.look(ctx); err != nil {
				return err
			}
		case errors.Is(err, once.ErrOutcomeUnknown):
			if commits++; commits == commitTries {
				return err
			}
		case !errors.Is(err, once.ErrConflict):
			return err
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return err
		}
	}
}

// errNotOurs rolls back a change of counts that others have changed meanwhile.
var errNotOurs = errors.New("inbox: the count of attempts is not as it was read")

// errWritten rolls back a change of counts that an earlier call, whose reply was lost, has made.
var errWritten = errors.New("inbox: the attempts are counted already")

func (t *tally) body(recs []once.Record) (sets []once.Settlement, err error) {
	if isWritten(recs) {
		return nil, errWritten
	}
	counts := make([]int64, len(recs))
	for i, rec := range recs {
		switch {
		case !ours(rec, t.rs[i].Owner):
			return nil, errNotOurs
		case rec.Attempt == 1: // it is new
		case t.known[i].Attempt == rec.Attempt-1:
			counts[i] = countOf(t.known[i])
		default:
			return nil, errNotOurs
		}
	}
	if counts, err = t.change(counts); err != nil {
		return nil, err
	}
	for i, n := range counts {
		fence := once.Fence{Key: t.rs[i].Key, Owner: t.rs[i].Owner, Attempt: recs[i].Attempt}
		keep := countKept
		if n == 0 {
			keep = time.Microsecond
		}
		sets = append(sets, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: keep, Reason: countReason + strconv.FormatInt(n, 10)})
	}
	t.wrote = true
	return sets, nil
}

// isWritten reports whether an earlier call, whose reply was lost, was applied. One Absent record shows that: a claim meets
// it only where its own owner has settled, and the call settled all or none. Of the others, those with a count of zero may
// be forgotten by now, and some may be claimed by others.
func isWritten(recs []once.Record) bool {
	return slices.ContainsFunc(recs, func(rec once.Record) bool { return rec.Status == once.Absent })
}

// look reads the records that may have counts.
func (t *tally) look(ctx context.Context) (err error) {
	for i, it := range t.items {
		rec, err := t.store.Get(ctx, it.attempts)
		t.known[i], t.rs[i].Attempt = rec, 0
		switch {
		case err != nil:
			return err
		case rec.Status == once.Unknown: // someone has claimed the key by hand, and gone
			t.rs[i].Attempt = rec.Attempt
		case rec.Status != once.Absent && rec.Status != once.Running || rec.LeaseLeft > time.Second:
			return fmt.Errorf("the key that counts the attempts at message %q is %v, which no consumer has left", it.Message.ID, rec.Status)
		}
	}
	return nil
}

// count counts an attempt that failed. If that cannot be written, it is added to the next count, and there is no next
// attempt without one.
func (s *consumerRun) count(ctx context.Context, it *item) {
	err := s.tally(ctx, []*item{it}, func(counts []int64) ([]int64, error) {
		counts[0] = max(counts[0]+it.debt, 0) + 1
		it.failed = counts[0]
		return counts, nil
	})
	if err == nil {
		it.debt = 0
		return
	}
	s.logger.WarnContext(ctx, "inbox: an attempt could not be counted", logs.Spaced(""), "message", it.Message.ID, "error", err)
	it.failed++
	it.debt++
	it.counted = false
}

// excuse takes back the attempt that was counted at an item: its handler had no part in what went wrong.
func (it *item) excuse() {
	if !it.prepaid {
		return
	}
	it.prepaid, it.counted = false, false
	it.failed--
	it.debt--
}

// payDebts writes what is taken back. What cannot be written is part of the next count at these deliveries.
func (s *consumerRun) payDebts(ctx context.Context, items []*item) {
	var indebted []*item
	for _, it := range items {
		if it.debt != 0 {
			indebted = append(indebted, it)
		}
	}
	if len(indebted) == 0 {
		return
	}
	err := s.tally(ctx, indebted, func(counts []int64) ([]int64, error) {
		for i, it := range indebted {
			counts[i] = max(counts[i]+it.debt, 0)
		}
		return counts, nil
	})
	if err != nil {
		s.logger.WarnContext(ctx, "inbox: the counts of attempts could not be mended", logs.Spaced(""), "messages", len(indebted), "error", err)
		return
	}
	for _, it := range indebted {
		it.debt = 0
	}
}

// atOnce is how many items may be handled together, if one of them was begun so often, this attempt included. It is half
// as many with each attempt, or fewer, so that a message has its last attempt alone.
func (s *consumerRun) atOnce(begun int64) int {
	limit, attempts := float64(s.BatchSize), int64(s.Retry.Attempts)
	switch {
	case begun == 0:
		return s.BatchSize
	case begun >= attempts:
		return 1
	}
	root := math.Ceil(math.Pow(limit, float64(attempts-begun)/float64(attempts)))
	return max(int(min(root, float64(s.BatchSize>>min(begun, 30)))), 1)
}

// cautious counts an attempt at items that may have been delivered before, before they are handled: perhaps one of them
// ends its process. It takes a place on the floor, which the caller leaves in the end, and returns how many of them, from
// the first on, may be handled together now. If that is none, end is the result of the first, which was begun as often as it
// may be, or of all.
func (s *consumerRun) cautious(ctx context.Context, at *spot, items []*item) (now int, end *result) {
	if err := at.share(ctx); err != nil {
		return 0, &result{kind: again, reason: err.Error()}
	}
	c := caution{consumerRun: s, group: items}
	if slices.ContainsFunc(items, func(it *item) bool { return !it.counted }) {
		c.group = items[:min(len(items), s.atOnce(1))]
	}
	for _, it := range c.group {
		if !it.counted {
			c.fresh = append(c.fresh, it)
		}
	}
	if len(c.fresh) == 0 {
		return c.plan(nil), nil
	}
	err := s.tally(ctx, c.fresh, c.begin)
	if errors.Is(err, errLastAttempt) {
		if err := at.alone(ctx); err != nil {
			return 0, &result{kind: again, reason: err.Error()}
		}
		c.alone = true
		err = s.tally(ctx, c.fresh, c.begin)
	}
	if err != nil {
		f := s.troubled(ctx, items[0], fmt.Errorf("an attempt could not be counted: %w", err))
		return 0, &f
	}
	for i, it := range c.fresh {
		it.debt = 0
		if it.failed = c.counts[i]; i < c.begun {
			it.counted, it.prepaid, it.ran = true, true, false
		}
	}
	if c.now == 0 {
		reason := fmt.Sprintf("begun %d times, at last alone, and never dealt with: it may end its process", items[0].failed)
		end = &result{kind: hopeless, reason: reason}
	}
	return c.now, end
}

// errLastAttempt has everything else ended before the last attempt at a message is counted.
var errLastAttempt = errors.New("inbox: the last attempt")

// caution decides how many items of a group are handled together.
type caution struct {
	*consumerRun
	group, fresh []*item // fresh: those that are to be counted
	alone        bool    // nothing else is at work here
	counts       []int64 // of the fresh ones
	now          int     // of the group
	begun        int     // of the fresh ones
}

// begin changes the counts of the fresh items that are begun now.
func (c *caution) begin(counts []int64) ([]int64, error) {
	for i, it := range c.fresh {
		counts[i] = max(counts[i]+it.debt, 0)
	}
	c.now = c.plan(counts)
	c.begun = 0
	for _, it := range c.group[:c.now] {
		if !it.counted {
			counts[c.begun]++
			if c.begun++; counts[c.begun-1] == int64(c.Retry.Attempts) && !c.alone {
				return nil, errLastAttempt
			}
		}
	}
	c.counts = counts
	return counts, nil
}

// plan is how many items of the group are handled together, if the fresh ones were begun so often before.
func (c *caution) plan(counts []int64) (now int) {
	limit := len(c.group)
	for fresh := 0; now < limit; now++ {
		begun, it := int64(0), c.group[now]
		switch {
		case !it.counted && counts[fresh] >= int64(c.Retry.Attempts):
			return now
		case !it.counted:
			begun = counts[fresh] + 1
			fresh++
		case it.prepaid:
			begun = it.failed
		}
		if limit = min(limit, c.atOnce(begun)); now >= limit {
			return now
		}
	}
	return now
}
