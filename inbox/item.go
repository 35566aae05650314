package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"strconv"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// item is a delivery on its way through the consumer.
type item struct {
	broker.Delivery
	lane  string // items of one lane are handled in order; empty: in any order
	order string // the ordering key

	key    once.Key // of the work
	keyErr error    // why the key cannot be used, or nil
	input  []byte   // what messages with the same key must have in common

	token         [16]byte // the owner in its claims
	commitUnknown bool     // a commit with token may have happened

	countKey  once.Key // of the record that counts the attempts at the message
	counting  counting
	ran       bool         // the handler was called in this attempt
	abandoned bool         // a goroutine ended while it handled the item
	tries     int          // failed attempts at this delivery
	probe     bool         // it is tried to find out whether its topic has recovered
	waitsUp   bool         // it waits because its topic is down
	heldSince time.Time    // when it was first held for that
	last      bool         // the attempt before never ended, and this is the last one
	attempts  attemptCount // as far as they are known
	debt      attemptCount // what the store has still to add to the count; may be negative
	countedAt time.Time    // when the attempt was counted that is countedAhead
	excuses   excuses      // of an effect: attempts for which it is not to blame, and that the store does not know of

	shelfID   string    // its ID on the shelf, if that is not the message's
	shelvedAt time.Time // when it was put on the shelf; zero: it comes from the broker
	onShelf   shelfPresence
	hold      *shelfHold // while it is tried from the shelf
	parkAlone bool       // it is parked without being handled, in a transaction of its own

	seeks int // how often its partition had been read again when it was received
}

// counting says when the next attempt at an item is counted in the store.
type counting int

const (
	countAfter   counting = iota // after it failed: this is the first delivery
	countBefore                  // before it starts: an earlier delivery may have ended its process
	countedAhead                 // the attempt is counted already; excuse takes it back
)

// shelfPresence says whether a message was on the shelf when that was last read.
type shelfPresence int

const (
	notOnShelf     shelfPresence = iota
	parkedOnShelf                // it waits for a person
	waitingOnShelf               // it has attempts left
)

// excuse takes back an attempt that was counted ahead, because the handler did
// not cause its failure.
func (it *item) excuse() {
	if it.counting != countedAhead {
		return
	}
	it.counting = countBefore
	it.change(attemptCount{begun: -1})
}

// beganLate reports whether an attempt was counted too long ago to begin now.
func (it *item) beganLate() bool {
	return it.counting == countedAhead && !it.ran && time.Since(it.countedAt) > beginTime
}

// change changes the count in memory. The store is told by payDebts.
func (it *item) change(by attemptCount) {
	it.attempts, it.debt = it.attempts.plus(by), it.debt.sum(by)
}

// keepCount keeps an attempt that was counted ahead, because it has failed. It
// returns false if the attempt is not counted yet.
func (it *item) keepCount() bool {
	if it.counting != countedAhead {
		return false
	}
	it.counting = countAfter
	it.change(attemptCount{failed: 1})
	return true
}

// endCount ends the count of an item that needs no other attempt.
func (it *item) endCount() {
	if it.counting == countedAhead {
		it.counting = countAfter
	}
	it.debt = attemptCount{}
}

// made is the number of attempts that were made, without one that was counted
// ahead and did not start.
func (it *item) made() int {
	if it.counting == countedAhead && !it.ran {
		return int(it.attempts.begun) - 1
	}
	return int(it.attempts.begun)
}

// cause is the key of the work that put the message; zero if it is not known.
func (it *item) cause() [16]byte { return name.Parse(it.Message.Header[store.KeyHeader]) }

// place is a digest of the item's place in a log.
func (it *item) place() [16]byte {
	return name.Digest(it.Position.Log, it.Position.Partition, strconv.FormatInt(it.Position.Offset, 10))
}

// laneOf is the lane of a partition, whose name may be empty.
func laneOf(p *broker.Position) string { return "partition " + p.Partition }

// workOn returns the unit of work of an item.
func workOn[T any](op *once.Operation[T], it *item) once.Work[T] {
	work := op.For(it.key.ID).CausedBy(it.Message.Header[store.KeyHeader])
	if it.input != nil {
		work = work.Input(it.input)
	}
	return work
}

// digest distinguishes messages that have the same place in a log, or the same
// ID on the shelf.
func digest(m *broker.Message) [16]byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(m.ID), []byte(m.Topic), []byte(m.OrderingKey), m.Body} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return [16]byte(h.Sum(nil)[:16])
}

// original returns a message as it was before it was put on the shelf.
func original(m broker.Message) broker.Message {
	m.Header = maps.Clone(m.Header)
	for header, value := range map[string]*string{broker.OriginalIDHeader: &m.ID, broker.OriginalOrderingKeyHeader: &m.OrderingKey} {
		if was, ok := m.Header[header]; ok {
			*value = was
			delete(m.Header, header)
		}
	}
	return m
}

func messages(items []*item) []*broker.Message {
	ms := make([]*broker.Message, len(items))
	for i, it := range items {
		ms[i] = it.Message
	}
	return ms
}
