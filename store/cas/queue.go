package cas

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/effectively-once/once/store"
)

// messagePrefix begins the names of messages.
const messagePrefix = "out/"

// IsMessage reports whether a name is that of a message in the outbox, or how
// such names begin.
func IsMessage(name string) bool { return strings.HasPrefix(name, messagePrefix) }

// WakesRelays reports whether a name is that of a message that is Pending or
// Delayed, so that relays publish it, now or later. An engine's feed wakes relays
// when there is a document with such a name.
func WakesRelays(name string) bool {
	if !IsMessage(name) {
		return false
	}
	at, err := placeOf(DocName{Name: name})
	return err == nil && (at.state == store.Pending || at.state == store.Delayed)
}

// QueueEngine is a DocEngine that finds documents by how their names begin, for
// [Publishing].
type QueueEngine[Tx any] interface {
	DocEngine[Tx]

	// PlaceOf returns the Place of the documents that the transaction may write beside
	// what it holds already. An engine that has one place returns "". Others return an
	// error that wraps once.ErrInvalid while the place is not known, and says what to
	// do first.
	PlaceOf(tx Tx) (string, error)

	// Queued returns documents with any Place whose names begin with prefix and come
	// after a name, by name. There are at most limit of them. If there are fewer, there
	// are no more. It may be behind if Publishing.Lags is set. A transaction that is
	// visible in part is visible in whole soon.
	Queued(ctx context.Context, prefix, after string, limit int) ([]NamedDoc, error)

	// Move makes each of the moves on its own, in any order, and reports which were
	// made. A move is not made if its document does not exist, or if it has another
	// version than Over, or if there is one with the name To. If there is an error, some
	// may have been made.
	Move(ctx context.Context, moves []Move) (made []bool, err error)
}

// NamedDoc is a document with its name.
type NamedDoc struct {
	DocName
	Doc
}

// Move deletes a document, or gives it another name and text.
type Move struct {
	DocName
	Over string // empty: any version
	To   string // in the same Place, and maybe the same name; empty: the document is deleted
	Is   []byte // the text of To
}

// MoveEach makes moves by a request for each, a few at once, for engines that move
// one document at a time. It begins no more after an error.
func MoveEach(moves []Move, move func(Move) (made bool, err error)) (made []bool, err error) {
	const atOnce = 16
	made, errs := make([]bool, len(moves)), make([]error, len(moves))
	var next atomic.Int64
	var failed atomic.Bool
	var moving sync.WaitGroup
	for range min(atOnce, len(moves)) {
		moving.Add(1)
		go func() {
			defer moving.Done()
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(moves) {
					return
				}
				if made[i], errs[i] = move(moves[i]); errs[i] != nil {
					failed.Store(true)
				}
			}
		}()
	}
	moving.Wait()
	for _, err := range errs {
		if err != nil {
			return made, err // one is enough
		}
	}
	return made, nil
}
