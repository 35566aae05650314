package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
)

// excuses are what the store has still to learn of the attempts at an effect for
// which its message is not to blame. The key of the effect counts all attempts, and
// that count cannot be lowered, so they are counted beside it.
type excuses struct {
	add   int64 // so many more than the store knows
	least int64 // at least so many, because all attempts before are excused
}

// on returns how many attempts are excused if the store knows of some.
func (x excuses) on(stored int64) int64 { return max(stored+x.add, x.least) }

// excusedReason begins the reason of the record that counts excused attempts.
const excusedReason = "excused: "

// excuseMark is in the owner of a claim of that record.
const excuseMark = "excu"

// excuseOwner returns the owner of a claim that writes a count, which is expected to
// be an attempt. It has both in it: a store without transactions claims the record
// and then settles it, and a process may die in between. Whoever finds such a claim
// completes it.
func excuseOwner(n, attempt int64) [16]byte {
	owner := name.Token()
	copy(owner[4:], excuseMark)
	binary.BigEndian.PutUint32(owner[8:], uint32(attempt))
	binary.BigEndian.PutUint32(owner[12:], uint32(n))
	return owner
}

// excusedIn returns the count in a record. begun reports whether a process has
// claimed the record, and not settled it.
func excusedIn(rec once.Record) (n int64, begun bool) {
	if rec.Status == once.Running || rec.Status == once.Unknown {
		if string(rec.Owner[4:8]) != excuseMark {
			return 0, true // a claim of an earlier version
		}
		expected, n := binary.BigEndian.Uint32(rec.Owner[8:]), binary.BigEndian.Uint32(rec.Owner[12:])
		between := max(rec.Attempt-int64(expected), 0) // each change by a copy since the count was read has excused an attempt
		return int64(n) + between, true
	}
	text, _ := strings.CutPrefix(rec.Reason, excusedReason)
	n, _ = strconv.ParseInt(text, 10, 64)
	return n, false
}

// excused returns how many of the attempts at an effect do not count. If that
// cannot be read, only the last one does, because it decides about parking.
func (h *effects[T]) excused(ctx context.Context, it *item, attempts int64) int64 {
	if attempts <= 1 && it.excuses == (excuses{}) && !h.outages.isDown(it.Message.Topic) {
		return 0
	}
	rec, err := h.store.Get(ctx, it.countKey)
	if errors.Is(err, once.ErrCorrupt) { // it stays so: what it said is lost
		return min(it.excuses.on(0), attempts)
	}
	if err != nil {
		return max(attempts-1, 0)
	}
	stored, _ := excusedIn(rec)
	return min(it.excuses.on(stored), attempts)
}

// excuseTries is how often a count is read again because copies of the message
// change it.
const excuseTries = 5

// excuse stores the excuses of an item. If that fails, they remain for the next
// time. Each write adds one, so that others know how many they have missed.
func (h *effects[T]) excuse(ctx context.Context, it *item) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	var err error
	for try := 0; it.excuses != (excuses{}) && try < excuseTries; try++ {
		now := excuses{min(it.excuses.add, 1), it.excuses.least}
		if err = h.tryExcuse(ctx, it.countKey, now); err == nil {
			it.excuses = excuses{add: it.excuses.add - now.add}
		} else if !errors.Is(err, errNoted) {
			break
		}
	}
	if err != nil {
		h.logger.WarnContext(ctx, "inbox: the counts of attempts could not be corrected", logs.Spaced(""), "messages", 1, "error", err)
	}
}

// tryExcuse returns errNoted if a copy of the message changes the count now.
func (h *effects[T]) tryExcuse(ctx context.Context, key once.Key, x excuses) error {
	was, err := h.store.Get(ctx, key)
	if err != nil {
		return err
	}
	stored, begun := excusedIn(was)
	if begun {
		if err := h.settleExcuse(ctx, was); err != nil {
			return err
		}
		return errNoted
	}
	n := min(x.on(stored), math.MaxUint32)
	claim := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: excuseOwner(n, was.Attempt+1)}, Lease: noteLease}
	rec, err := h.store.Claim(ctx, claim)
	switch {
	case err != nil:
		return err
	case !isOurs(rec, claim.Owner):
		return errNoted
	}
	rec.Key, rec.Owner = key, claim.Owner
	return h.settleExcuse(ctx, rec)
}

// settleExcuse ends a claim of the count. It may be that of another process, which
// has died or is about to do the same.
func (h *effects[T]) settleExcuse(ctx context.Context, rec once.Record) error {
	n, _ := excusedIn(rec)
	fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
	err := h.store.Settle(ctx, once.Settlement{Fence: fence, Status: once.Absent, KeepKey: countKept,
		Reason: excusedReason + strconv.FormatInt(n, 10)})
	if errors.Is(err, once.ErrLeaseLost) { // somebody has done it
		return nil
	}
	return err
}

// endExcuse ends a claim of the count of a message that is handled, if a process
// died with it: nobody would look at it again, and an unknown key is never
// forgotten.
func (h *effects[T]) endExcuse(ctx context.Context, it *item) {
	rec, err := h.store.Get(ctx, it.countKey)
	if err == nil {
		if _, begun := excusedIn(rec); begun {
			err = h.settleExcuse(ctx, rec)
		}
	}
	if err != nil {
		h.logger.WarnContext(ctx, "inbox: the counts of attempts could not be corrected", logs.Spaced(""), "messages", 1, "error", err)
	}
}
