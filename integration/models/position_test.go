package models

import (
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// logHistory writes the position of a consumer in one partition, and its shelf.
type logHistory struct {
	t *testing.T
	*Position
	at    store.Position
	shelf []store.Shelved
}

func newLogHistory(t *testing.T) *logHistory {
	return &logHistory{t, NewPosition(false), store.Position{Partition: "p"}, nil}
}

func (h *logHistory) write(by string, effects ...broker.Message) error {
	held := Held{By: by, Person: by == "person", Places: []store.Position{h.at}, Effects: effects, Shelf: append([]store.Shelved(nil), h.shelf...)}
	for _, m := range h.shelf {
		if _, known := h.Position.shelf[m.Seq]; !known {
			held.Aside = append(held.Aside, m)
		}
	}
	return h.Next(held)
}

func (h *logHistory) opens(by string) error {
	h.at.Epoch++
	return h.write(by)
}

func (h *logHistory) handles(by string, m broker.Message) error {
	h.at.Log, h.at.Offset = "l", h.at.Offset+1
	return h.write(by, m)
}

func (h *logHistory) shelves(by string, m broker.Message, state store.ShelfState) error {
	h.at.Log, h.at.Offset = "l", h.at.Offset+1
	h.shelf = append(h.shelf, store.Shelved{Seq: int64(len(h.shelf) + 1), Message: m, State: state})
	return h.write(by)
}

func (h *logHistory) becomes(by string, row int, state store.ShelfState, effects ...broker.Message) error {
	h.shelf[row].State = state
	return h.write(by, effects...)
}

var (
	firstOfKey  = broker.Message{ID: "first", OrderingKey: "k"}
	secondOfKey = broker.Message{ID: "second", OrderingKey: "k"}
	otherKey    = broker.Message{ID: "other", OrderingKey: "o"}
)

func TestRightHistoriesOfPositionsAreAccepted(t *testing.T) {
	h := newLogHistory(t)
	for n, err := range []error{
		h.opens("a"), h.shelves("a", firstOfKey, store.Waiting), h.handles("a", otherKey), h.opens("b"),
		h.shelves("b", secondOfKey, store.Waiting), h.becomes("a", 0, store.Parked), h.becomes("person", 0, store.Waiting),
		h.becomes("b", 0, store.Handled, firstOfKey), h.becomes("person", 1, store.Discarded),
	} {
		if err != nil {
			t.Errorf("change %d of a right history is refused: %v", n+1, err)
		}
	}
}

func TestForgedHistoriesOfPositionsAreRefused(t *testing.T) {
	for name, forged := range map[string]struct {
		last func(h *logHistory) error
		why  string
	}{
		"one that was overtaken moves the position": {func(h *logHistory) error {
			_, _ = h.opens("a"), h.opens("b")
			return h.handles("a", firstOfKey)
		}, "rival moves the position past one, with an effect"},
		"the position skips a message": {func(h *logHistory) error {
			_, _ = h.opens("a"), h.handles("a", firstOfKey)
			h.at.Offset++
			return h.handles("a", secondOfKey)
		}, "from 1 to 3, past 1 effects"},
		"a message passes one of its key": {func(h *logHistory) error {
			_, _ = h.opens("a"), h.shelves("a", firstOfKey, store.Waiting)
			return h.handles("a", secondOfKey)
		}, "with an effect, behind another"},
		"one of the shelf passes one of its key": {func(h *logHistory) error {
			_, _, _ = h.opens("a"), h.shelves("a", firstOfKey, store.Parked), h.shelves("a", secondOfKey, store.Waiting)
			return h.becomes("a", 1, store.Handled, secondOfKey)
		}, "worker handles one that is waiting, behind another"},
		"what is parked is handled": {func(h *logHistory) error {
			_, _ = h.opens("a"), h.shelves("a", firstOfKey, store.Parked)
			return h.becomes("a", 0, store.Handled, firstOfKey)
		}, "worker handles one that is parked"},
		"a message leaves the shelf without its effect": {func(h *logHistory) error {
			_, _ = h.opens("a"), h.shelves("a", firstOfKey, store.Waiting)
			return h.becomes("a", 0, store.Handled)
		}, "without its effect"},
		"an effect without its position": {func(h *logHistory) error {
			_ = h.opens("a")
			return h.write("a", firstOfKey)
		}, "1 effects"},
		"a position is opened under its epoch": {func(h *logHistory) error {
			_ = h.opens("a")
			h.at.Epoch++
			return h.opens("b")
		}, "the epoch after 1 is 3"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := forged.last(newLogHistory(t)); err == nil || !strings.Contains(err.Error(), forged.why) {
				t.Errorf("the last change returns %v, want %q", err, forged.why)
			}
		})
	}
}
