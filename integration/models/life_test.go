package models

import (
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
)

// history writes the records of a key, one a second.
type history struct {
	t *testing.T
	Life
	at time.Time
}

func newHistory(t *testing.T, k Kind) *history {
	return &history{t, Life{Kind: k, SettleTime: 5 * time.Second}, time.Unix(1_800_000_000, 0)}
}

const lease, keep = 10 * time.Second, time.Minute

// write writes a record, for a lease that begins now or a key that is kept from now.
func (h *history) write(by string, s once.Status, attempt int64, owner byte) error {
	h.at = h.at.Add(time.Second)
	w := Write{By: by, Person: by == "person", Status: s, Attempt: attempt, Owner: [16]byte{owner}, Updated: h.at, Decided: h.at,
		Lease: h.at, Keep: h.at.Add(keep)}
	if s == once.Running {
		w.Lease = h.at.Add(lease)
	}
	return h.Next(w)
}

// right is a history that the model has.
func (h *history) right(by string, s once.Status, attempt int64, owner byte) {
	h.t.Helper()
	if err := h.write(by, s, attempt, owner); err != nil {
		h.t.Fatalf("a right history is refused: %v", err)
	}
}

func TestRightHistoriesAreAccepted(t *testing.T) {
	asked := newHistory(t, Ask)
	asked.right("a", once.Running, 1, 1)
	asked.right("a", once.Running, 1, 1)
	asked.right("a", once.Unknown, 1, 1)
	asked.at = asked.at.Add(5 * time.Second)
	asked.right("b", once.Absent, 1, 0)
	asked.right("b", once.Running, 2, 2)
	asked.right("b", once.Done, 2, 2)
	asked.at = asked.at.Add(keep)
	asked.right("c", once.Running, 1, 3)

	again := newHistory(t, Keyed)
	again.right("a", once.Running, 1, 1)
	again.at = again.at.Add(lease)
	again.right("b", once.Running, 2, 2)
	again.right("b", once.Unknown, 2, 2)
	again.right("b", once.Parked, 2, 2)
	again.right("person", once.Done, 2, 2)

	tx := newHistory(t, Tx)
	tx.right("a", once.Done, 1, 1)
}

func TestForgedHistoriesAreRefused(t *testing.T) {
	for name, forged := range map[string]struct {
		kind Kind
		last func(h *history) error
		why  string
	}{
		"a claim skips a fence": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Absent, 1, 1)
			return h.write("b", once.Running, 3, 2)
		}, "the attempt after"},
		"a claim has the fence of the one before": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Absent, 1, 1)
			return h.write("b", once.Running, 1, 2)
		}, "is forgotten, free to new, before its time"},
		"a settlement under another owner": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			return h.write("b", once.Done, 1, 2)
		}, "another fence"},
		"a claim of what is held": {Keyed, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			return h.write("b", once.Running, 2, 2)
		}, "holder claims, running to running"},
		"a takeover of what can be asked": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Unknown, 1, 1)
			return h.write("b", once.Running, 2, 2)
		}, "holder claims, unknown to running"},
		"a late claim": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Absent, 1, 1)
			return h.write("a", once.Running, 2, 1)
		}, "by its last owner"},
		"an extension of a lease that is over": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.at = h.at.Add(lease)
			return h.write("a", once.Running, 1, 1)
		}, "holder extends, lapsed to running"},
		"another process ends what is held": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			return h.write("b", once.Done, 1, 1)
		}, "only with a learned clock: ask: other settles, running to done"},
		"a key is freed before its settle time": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Unknown, 1, 1)
			return h.write("b", once.Absent, 1, 0)
		}, "unknown to free, before SettleTime"},
		"a takeover frees the key": {Keyed, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Unknown, 1, 1)
			h.right("b", once.Running, 2, 2)
			return h.write("b", once.Absent, 2, 0)
		}, "running to free, after a takeover"},
		"what is done runs again": {Ask, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Done, 1, 1)
			return h.write("b", once.Running, 2, 2)
		}, "holder claims, done to running"},
		"nobody decides what is parked": {Park, func(h *history) error {
			h.right("a", once.Running, 1, 1)
			h.right("a", once.Parked, 1, 1)
			return h.write("b", once.Absent, 1, 0)
		}, "other settles, parked to free"},
		"a transaction leaves a claim": {Tx, func(h *history) error {
			return h.write("a", once.Running, 1, 1)
		}, "holder claims, new to running"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := forged.last(newHistory(t, forged.kind)); err == nil || !strings.Contains(err.Error(), forged.why) {
				t.Errorf("the last step returns %v, want %q", err, forged.why)
			}
		})
	}
}
