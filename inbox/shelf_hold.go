package inbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lease"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	turns "github.com/effectively-once/once/internal/turn"
	"github.com/effectively-once/once/store"
)

const (
	// shelfLease is how long a message on the shelf waits for a process that has
	// died in an attempt. It is renewed while the attempt lasts.
	shelfLease   = 8 * time.Second
	renewalGrace = 100 * time.Millisecond // how long the end of an attempt waits for a renewal
	findTime     = time.Second            // and for the version of the row, if a renewal had no reply
	noRenewals   = 10 * time.Minute       // how long leases are long after renewing one did not work
	waitsPage    = 20                     // of messages that are looked at for whom they wait
)

// neverEnded begins the reason of a message on the shelf while an attempt at it
// runs, and after an attempt that never ended. Then it says whose attempt that is,
// except in rows of earlier builds, and the reason before.
const (
	neverEnded       = "begun, and not ended"
	neverEndedBy     = " by "
	neverEndedBefore = ". Before that: "
)

func neverEndedReason(holder, before string) string {
	return neverEnded + neverEndedBy + holder + neverEndedBefore + before
}

// cutNeverEnded returns the parts of a reason.
func cutNeverEnded(reason string) (holder, before string, unended bool) {
	rest, unended := strings.CutPrefix(reason, neverEnded)
	holder, before, found := strings.Cut(rest, neverEndedBefore)
	if !unended || !found {
		return "", reason, false
	}
	return strings.TrimPrefix(holder, neverEndedBy), before, true
}

// shelfHolder names a worker to those that wait for it.
func shelfHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("process %d on %s (worker %s)", os.Getpid(), host, name.Format(name.Token()))
}

// shelfHold keeps a message on the shelf from other processes during an attempt.
// Each renewal raises the Version of its row. Whoever writes the row in the end
// calls end first, which stops the renewals and returns the last Version.
type shelfHold struct {
	worker *shelfWorker
	length time.Duration
	was    string // the Reason before the attempt
	began  time.Time
	alone  bool // no other attempt is made meanwhile

	kept *lease.Kept // nil: it is not renewed
	turn turns.Turn  // of the renewal in progress

	mu      sync.Mutex
	row     store.Shelved // as it was last written
	written time.Time     // when that began
	unsure  bool          // a renewal got no reply: the row may have been written once more
	renewed bool
	first   bool // a transaction writes the row first, and nothing is renewed meanwhile
	lost    bool // somebody else has written it
	ended   bool
	cancel  context.CancelFunc // of the renewal in progress
}

// start begins to renew the lease, or does so again after end.
func (h *shelfHold) start(ctx context.Context) {
	if h.kept != nil {
		return
	}
	h.mu.Lock()
	h.ended = false
	written := h.written
	h.mu.Unlock()
	h.kept = lease.Keep(ctx, &h.worker.leases, h, h.length, written)
}

// lapses returns when the lease ends.
func (h *shelfHold) lapses() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written.Add(h.length)
}

// isUnsure reports whether the Version of the row is not known for sure.
func (h *shelfHold) isUnsure() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unsure
}

// end stops the renewals, and returns the Version of the row. If that cannot be
// found out, it is the one before the last renewal: writing the row then fails, or
// is right.
func (h *shelfHold) end(ctx context.Context) int64 {
	if h.kept != nil {
		h.kept.Stop()
		h.kept = nil
	}
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if !h.awaitRenewal(ctx) { // SQLite keeps it waiting for the transaction of the handler
		h.mu.Lock()
		cancel := h.cancel
		h.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		h.awaitRenewal(ctx)
	}
	h.mu.Lock()
	row, unsure := h.row, h.unsure
	h.mu.Unlock()
	if !unsure {
		return row.Version
	}
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	if found, err := h.find(ctx, row); err == nil {
		h.mu.Lock()
		h.renewed = h.renewed || found.Version != row.Version
		h.row, h.unsure = found, false
		h.mu.Unlock()
		return found.Version
	}
	return row.Version
}

// awaitRenewal reports whether no renewal is in progress, or the one in progress
// has ended in time.
func (h *shelfHold) awaitRenewal(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, renewalGrace)
	defer cancel()
	if h.turn.Take(ctx) != nil {
		return false
	}
	h.turn.Give()
	return true
}

// isLost reports whether somebody else has written the row.
func (h *shelfHold) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

var errRenewing = errors.New("inbox: another renewal is in progress")

var errChangedByOthers = fmt.Errorf("%w: somebody else has changed the message", once.ErrLeaseLost)

// Extend renews the lease, for package lease.
func (h *shelfHold) Extend(ctx context.Context) (final bool, err error) {
	if !h.turn.TryTake() {
		return false, errRenewing
	}
	defer h.turn.Give()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := time.Now()
	h.mu.Lock()
	row, unsure, ended := h.row, h.unsure, h.ended
	if !ended {
		h.unsure, h.cancel = true, cancel
	}
	h.mu.Unlock()
	if ended {
		return true, nil
	}
	if unsure {
		row, err = h.find(ctx, row)
	}
	if err == nil {
		err = h.worker.shelf.Change(ctx, row)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		row.Version++
		h.row, h.written, h.unsure, h.renewed = row, begun, false, true
	case errors.Is(err, once.ErrLeaseLost):
		h.row, h.lost, h.unsure = row, true, false
		return true, err
	}
	return false, err
}

// find returns the row with its Version after a renewal whose reply was lost.
func (h *shelfHold) find(ctx context.Context, row store.Shelved) (store.Shelved, error) {
	found, err := h.worker.find(ctx, row)
	if err == nil && found.Reason != row.Reason { // which names this worker
		err = errChangedByOthers
	}
	if err == nil {
		row.Version = found.Version
	}
	return row, err
}

// Lost reports that the lease is not renewed any more, for package lease.
func (h *shelfHold) Lost(ctx context.Context, err error) error {
	h.worker.renewNone()
	h.mu.Lock()
	id := h.row.Message.ID
	h.mu.Unlock()
	h.worker.logger.WarnContext(ctx, "inbox: a message on the shelf is not kept from other processes while its handler runs",
		logs.Spaced(""), "message", id, "error", err)
	return err
}

// writesFirst reports whether a transaction begins with writing the row.
func (h *shelfHold) writesFirst() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.first
}

// refused is told that a transaction could not write the row in the end. Above READ
// COMMITTED some engines refuse to change a row that was renewed since the
// transaction began. It is repeated, and then writes the row first.
func (h *shelfHold) refused(ctx context.Context, err error) {
	h.mu.Lock()
	renewed := h.renewed || h.unsure
	h.first = h.first || renewed
	h.mu.Unlock()
	if renewed {
		h.worker.renewNone()
		h.worker.logger.InfoContext(ctx, "inbox: messages on the shelf are not renewed during transactions for some time",
			logs.Spaced(""), "error", err)
	}
}

// newHold returns the hold for an attempt at a message with this Reason. Where
// renewing leases does not work, they are long, because attempts that others take
// over count, and transactions write the row first.
func (w *shelfWorker) newHold(was string) *shelfHold {
	long := 2 * w.Policy.Lease
	h := &shelfHold{worker: w, was: was, length: min(shelfLease, long)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.renewAgain) {
		h.length, h.first = long, true
	}
	return h
}

func (w *shelfWorker) renewNone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewAgain = time.Now().Add(noRenewals)
}

// tellWaits says which messages wait for a process that has begun attempts at them
// and has not renewed its leases, and so is probably dead.
func (w *shelfWorker) tellWaits(ctx context.Context) {
	if time.Since(w.told) < shelfLease/2 {
		return
	}
	w.told = time.Now()
	q := store.ShelfQuery{Consumer: w.keys, States: []store.ShelfState{store.Waiting}, Limit: waitsPage, Bodiless: true}
	rows, err := w.shelf.Shelved(ctx, q)
	if err != nil {
		return // the next look fails, too
	}
	count, first, of := 0, store.Shelved{}, ""
	for _, row := range rows {
		holder, _, unended := cutNeverEnded(row.Reason)
		renewed := min(shelfLease, 2*w.Policy.Lease) / 2 // what a lease has left at least if it is renewed
		if !unended || row.Due <= 0 || row.Due > renewed || holder == w.holder {
			continue
		}
		if count++; count == 1 {
			first, of = row, holder
		}
	}
	if count > 0 {
		w.logger.WarnContext(ctx, "inbox: messages on the shelf wait for a process that tried them and no longer answers", logs.Spaced(of),
			"messages", count, "first", first.Message.ID, "holder", of, "until", first.Due)
	}
}
