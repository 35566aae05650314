package store

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Shelf keeps messages that consumers set aside: for another attempt, or for a
// person. Without it, a consumer rejects what fails for good to the broker's dead
// letters.
type Shelf interface {
	// Shelve sets messages aside, in the order of the slice. If the consumer already
	// has a message with this ID on the shelf, in any state, Shelve skips it.
	Shelve(ctx context.Context, ms []Shelved) error

	// Shelved returns messages by Seq, which is the order in which they were set
	// aside.
	Shelved(ctx context.Context, q ShelfQuery) ([]Shelved, error)

	// Change writes State, Due, Attempts, Reason and History of a message, and raises
	// its Version. If its Version has changed since it was read, Change returns
	// once.ErrLeaseLost. A change to Handled with an empty History deletes the
	// message.
	Change(ctx context.Context, m Shelved) error

	// ForgetShelved deletes Handled and Discarded messages that were last changed
	// longer ago than keep, at most limit, in one short transaction. It returns how
	// many it deleted. A limit below 1 is once.ErrInvalid.
	ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error)
}

// ShelfBatch changes several messages of a [Shelf] at once. Without it, they are
// changed one by one.
type ShelfBatch interface {
	// ChangeMany is Change for each message, in one transaction. A message whose
	// Version has changed since it was read is left alone, and is false in changed.
	ChangeMany(ctx context.Context, ms []Shelved) (changed []bool, err error)
}

// TxShelf is a [Shelf] in a transactional database. Tx is the transaction type of
// its TxStore. Its methods run in a transaction that the caller began and ends.
// After an error the caller rolls back. Without it, Consumer.Checkpoint is
// refused, and a handler with a transaction is not kept from overtaking an earlier
// message of its ordering key that is on the shelf.
type TxShelf[Tx any] interface {
	Shelf

	// ShelveTx is like Shelve.
	ShelveTx(ctx context.Context, tx Tx, ms []Shelved) error

	// BlockedTx returns those ordering keys for which the consumer has a Waiting
	// message on the shelf, or a Parked one if parkedToo is set. It sees what other
	// transactions have committed.
	BlockedTx(ctx context.Context, tx Tx, consumer string, orderingKeys []string, parkedToo bool) ([]string, error)

	// ChangeTx is like Change.
	ChangeTx(ctx context.Context, tx Tx, m Shelved) error
}

// BlockedQuery has the arguments of BlockedTx.
type BlockedQuery struct {
	Consumer     string
	OrderingKeys []string
	ParkedToo    bool
}

type blockedKey struct{}

// WithBlocked returns a context for a Transact whose body begins by calling
// BlockedTx with these arguments, or with fewer ordering keys. A store may ask in
// the same round trip, after the claims, and give BlockedTx the answer. It may
// ignore it. A nil query takes an earlier one back.
func WithBlocked(ctx context.Context, q *BlockedQuery) context.Context {
	return context.WithValue(ctx, blockedKey{}, q)
}

// BlockedOf returns the query of [WithBlocked], or nil.
func BlockedOf(ctx context.Context) *BlockedQuery {
	q, _ := ctx.Value(blockedKey{}).(*BlockedQuery)
	return q
}

// ShelfState is the state of a message on the shelf.
type ShelfState int

const (
	Waiting   ShelfState = iota + 1 // until its next attempt, or for earlier messages of its ordering key
	Parked                          // until a person decides
	Handled                         // after a replay that succeeded
	Discarded                       // after a person gave it up
)

func (s ShelfState) String() string {
	names := [...]string{"none", "waiting", "parked", "handled", "discarded"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state(%d)", int(s))
	}
	return names[s]
}

// Shelved is a message on the shelf.
type Shelved struct {
	Seq      int64 // the order in which messages were set aside; assigned by the store, never reused
	Version  int64 // rises with each change; 1 when new
	Consumer string
	Key      string         // the ID of its key; at most 255 bytes
	Message  broker.Message // as delivered; Attempt is not kept
	Origin   string         // see [broker.Delivery]
	State    ShelfState
	Due      time.Duration // Waiting: until the next attempt; when read, 0 or less means now
	Attempts int           // that failed, as far as is known
	Reason   string        // the last error, or what the message waits for; at most 64 KiB
	History  string        // what people did with it, a line for each action; at most 64 KiB
	Created  time.Time
	Updated  time.Time

	// Unopened is why the message cannot be used. A store sets it to an error that
	// wraps once.ErrCorrupt if the row is damaged: then Seq, Version and State can be
	// relied on, so Change works, and of the rest only what could be read is there.
	// A damaged message keeps no other from being read. If Seq is 0, it is no message
	// but what is damaged beside messages, such as the list of a consumer's.
	// [OpenShelved] sets it if the message could not be opened.
	Unopened error
}

// Unit returns the key of the unit of work that the message is about, or the zero
// Key if it has none.
func (m *Shelved) Unit() once.Key {
	if m.Key == "" {
		return once.Key{}
	}
	return once.Key{Operation: m.Consumer, ID: m.Key}
}

// Units returns the keys of the units of work that messages are about. A key that
// is parked with its message waits for the same decision as the message: who
// counts both counts one thing twice.
func Units(ms []Shelved) map[once.Key]bool {
	units := make(map[once.Key]bool, len(ms))
	for i := range ms {
		if k := ms[i].Unit(); k != (once.Key{}) {
			units[k] = true
		}
	}
	return units
}

// ShelfQuery selects messages. Zero fields select all.
type ShelfQuery struct {
	Consumer    string       // exactly
	States      []ShelfState // any of them
	IDs         []string     // of messages: any of them
	OrderingKey string       // exactly
	Topic       string       // exactly
	After       int64        // messages after this Seq
	Limit       int          // default 100, at most 1,000
	Bodiless    bool         // omit the bodies and headers of messages
	NoQueued    bool         // omit Waiting messages of queues: see [QueueOf]

	// Ready selects messages that may be tried now. They are Waiting and due, and no
	// earlier message of the same consumer and ordering key is Waiting or, if
	// BehindParked is set, Parked. Messages without an ordering key wait for no
	// others.
	Ready        bool
	BehindParked bool
}
