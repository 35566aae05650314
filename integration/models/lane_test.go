package models

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// outboxHistory writes an outbox with two messages of one ordering key.
type outboxHistory struct {
	*Lane
	at   time.Time
	rows []store.Outgoing
}

func newOutboxHistory() *outboxHistory {
	h := &outboxHistory{Lane: NewLane(), at: time.Unix(1_800_000_000, 0)}
	for i, m := range []broker.Message{firstOfKey, secondOfKey} {
		h.rows = append(h.rows, store.Outgoing{Seq: int64(i + 1), Lane: store.Lane(&m), Message: m})
	}
	return h
}

func (h *outboxHistory) lanes() []int { return []int{h.rows[0].Lane} }

func (h *outboxHistory) puts() error { return h.Wrote("producer", false, h.lanes(), h.rows) }

func relayID(by string) (id [16]byte) {
	copy(id[:], by)
	return id
}

func (h *outboxHistory) leases(by string) error {
	var after store.Leases
	after.Lanes[h.rows[0].Lane] = store.LaneLease{Relay: relayID(by), Left: lease}
	return h.Leased(by, relayID(by), h.lanes(), after, h.at)
}

func (h *outboxHistory) sends(by string, ms ...broker.Message) error {
	var all []*broker.Message
	for _, m := range ms {
		all = append(all, &m)
	}
	return h.Sends(by, all)
}

// becomes is that a process writes the state of a message.
func (h *outboxHistory) becomes(by string, m broker.Message, to store.OutgoingState) error {
	var after []store.Outgoing
	for _, row := range h.rows {
		if row.Message.ID == m.ID {
			row.State = to
		}
		after = append(after, row)
	}
	h.rows = after
	return h.Wrote(by, by == "person", h.lanes(), after)
}

func TestRightHistoriesOfLanesAreAccepted(t *testing.T) {
	h := newOutboxHistory()
	right := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("a right history is refused: %v", err)
		}
	}
	right(h.puts(), h.leases("a"), h.leases("a"), h.sends("a", firstOfKey, secondOfKey))
	right(h.becomes("a", firstOfKey, store.Held), h.becomes("a", secondOfKey, store.Held), h.becomes("a", firstOfKey, store.Stuck))
	h.at = h.at.Add(lease)
	right(h.leases("b"), h.becomes("person", firstOfKey, store.Held), h.sends("b", firstOfKey))
	h.Published(firstOfKey.ID)
	right(h.sends("b", secondOfKey), h.becomes("b", firstOfKey, store.Published))
	right(h.becomes("person", secondOfKey, store.Stuck), h.becomes("person", secondOfKey, store.Published))
	right(h.Released("c", relayID("b"), nil, false, h.at), h.leases("c"))
}

func TestForgedHistoriesOfLanesAreRefused(t *testing.T) {
	for name, forged := range map[string]struct {
		last func(h *outboxHistory) error
		why  string
	}{
		"a lane is taken from one that has it": {func(h *outboxHistory) error { return h.leases("b") }, "and is that of a"},
		"a lane is taken from one that is present": {func(h *outboxHistory) error {
			return h.Released("b", relayID("a"), nil, true, h.at)
		}, "whose relay still counts on it"},
		"one without the lane sends": {func(h *outboxHistory) error { return h.sends("b", firstOfKey) }, "other sends one that is pending"},
		"a message passes one of its key": {func(h *outboxHistory) error {
			return h.sends("a", secondOfKey)
		}, "owner sends one that is pending, before one of its key"},
		"one without the lane writes": {func(h *outboxHistory) error {
			return h.becomes("b", firstOfKey, store.Held)
		}, "other holds one that is pending"},
		"what was not published ends": {func(h *outboxHistory) error {
			return h.becomes("a", firstOfKey, store.Published)
		}, "owner ends one that is pending, unpublished"},
		"a relay releases what is stuck": {func(h *outboxHistory) error {
			_ = h.becomes("person", firstOfKey, store.Stuck)
			return h.becomes("a", firstOfKey, store.Held)
		}, "owner holds one that is stuck"},
		"what is held is pending again": {func(h *outboxHistory) error {
			_ = h.becomes("a", firstOfKey, store.Held)
			return h.becomes("a", firstOfKey, store.Pending)
		}, "first was held, and is pending"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newOutboxHistory()
			if err := errors.Join(h.puts(), h.leases("a")); err != nil {
				t.Fatal(err)
			}
			if err := forged.last(h); err == nil || !strings.Contains(err.Error(), forged.why) {
				t.Errorf("the last change returns %v, want %q", err, forged.why)
			}
		})
	}
}
