// Package store has the contracts of what a transactional store can keep besides the keys of [once.TxStore]. For
// consumers it is who consumes what, how far a consumer of a log has come, and the messages that are put aside: package
// inbox says what it does without them. For producers it is the [Outbox]: messages that a relay of package outbox is to
// publish. Each is optional, and found by [once.As], also through wrappers.
//
// What package once says about its Store holds here: methods may be called concurrently, from any number of processes;
// each is atomic, and durable when it returns nil; an error that is not named means that the call may or may not have
// been applied; adapters do not retry; time is the store's clock; slices in arguments belong to the caller.
//
// Package storetest has the rules as tests. The compatibility is that of package once.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
)

// Registry knows which consumer is at which source.
type Registry interface {
	// Register writes down that a consumer is at work now, and returns what was known of it before: the zero Consumer if
	// nothing was known of its Name. It is called at its start and then now and again, as its sign of life. Keys is written
	// at the first time only, and stays; an empty Keys is the Name.
	//
	// A Name belongs to the Source that it was first registered with. At another one it is registered, too, if SharedWith
	// is a source that the name is registered at; before has the new Source then, and else what is known of the first.
	// If SharedWith is none of them, nothing is written, and before says where the name is: its Source is not that of c.
	//
	// Two Sources are one if [MatchSource] says so. What is written and returned has the facts of both.
	Register(ctx context.Context, c Consumer) (before Consumer, err error)

	// Consumers returns all that are registered, in the order of their names, and once for each Source of a name.
	Consumers(ctx context.Context) ([]Consumer, error)
}

// Consumer is a name that messages are consumed under.
type Consumer struct {
	Name   string        // 1 to 255 bytes
	Source string        // the name of the source, perhaps with facts: see [SourceText]
	Keys   string        // what its keys are named by: the Name that it was first registered with
	Seen   time.Duration // since its last sign of life there; not written

	SharedWith string // to register: another source of the Name, which the same work comes from; not read
}

// Positions is a store that knows how far a consumer has come in each partition of a log. Tx is that of its TxStore.
type Positions[Tx any] interface {
	// OpenPosition takes the place of a consumer in a partition for the caller: it raises the Epoch, so that whoever opened
	// it before can move it no more, and returns the row. A row that was never written has Epoch 1 and begins nowhere:
	// its Log is empty.
	OpenPosition(ctx context.Context, consumer, partition string) (Position, error)

	// TransactAt begins a transaction, moves the row from one position to another, calls body, and commits. Both
	// positions name the same row and Epoch. The row must be as from says, in Epoch, Log and Offset; it is locked until
	// the end.
	//
	// If the row is at to already, in this Epoch, then an earlier call, whose reply was lost, has committed: it returns
	// nil and does not call body. If it is anything else: once.ErrLeaseLost, and body is not called.
	//
	// For the rest it is as once.TxStore says of Transact: if body fails, panics or ends its goroutine, everything is
	// rolled back, and its error comes back, wrapped at most; once.ErrConflict: the database rolled everything back and the
	// same call may succeed; once.ErrOutcomeUnknown: the commit was sent and whether it was applied is not known; other
	// errors: nothing was committed. The transaction does not end because ctx does.
	TransactAt(ctx context.Context, from, to Position, body func(Tx) error) error

	// SetPosition writes a row whoever has it open, and raises its Epoch: for people who have a part of a log handled
	// again. The Epoch of p is not used.
	SetPosition(ctx context.Context, p Position) error

	// Positions returns the rows of a consumer, in the order of their partitions.
	Positions(ctx context.Context, consumer string) ([]Position, error)
}

// Position is how far a consumer has come: the message at Offset, and all before it, are dealt with.
type Position struct {
	Consumer  string
	Partition string
	Log       string   // see [broker.Position]; empty: nothing was dealt with yet
	Offset    int64    // of the last message dealt with
	Digest    [16]byte // of that message; zero: not known
	Epoch     int64    // rises with each OpenPosition and SetPosition
	Shelved   bool     // when read: the consumer has messages on the [Shelf] that are waiting or parked
}

// Shelf keeps the messages that consumers put aside.
type Shelf interface {
	// Shelve puts messages aside, in the order of the slice. One that the consumer has on the shelf already, by its ID, is
	// left as it is, whatever its state.
	Shelve(ctx context.Context, ms []Shelved) error

	// Shelved returns messages in the order in which they were put aside, so in that of their Seq.
	Shelved(ctx context.Context, q ShelfQuery) ([]Shelved, error)

	// Change writes State, Due, Attempts, Reason and History of a message, if its Version is still the one that it was
	// read with, and raises the Version; else once.ErrLeaseLost. A change to Handled without a History deletes it.
	Change(ctx context.Context, m Shelved) error

	// ForgetShelved deletes messages that are Handled or Discarded and were last changed longer ago than keep, at most
	// limit, in one short transaction, and returns how many. A limit below 1 is once.ErrInvalid.
	ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error)
}

// TxShelf is a [Shelf] in a transactional database. Tx is that of its TxStore. Its methods run inside a transaction that the
// caller began and ends; after an error the caller rolls back.
type TxShelf[Tx any] interface {
	Shelf

	// ShelveTx is Shelve.
	ShelveTx(ctx context.Context, tx Tx, ms []Shelved) error

	// BlockedTx returns those of these ordering keys that have a message of this consumer on the shelf that is waiting or
	// parked, or waiting only. It sees what other transactions have committed.
	BlockedTx(ctx context.Context, tx Tx, consumer string, orderingKeys []string, parkedToo bool) ([]string, error)

	// ChangeTx is Change.
	ChangeTx(ctx context.Context, tx Tx, m Shelved) error
}

// ShelfState is what a message on the shelf waits for.
type ShelfState int

const (
	Waiting   ShelfState = iota + 1 // for its next attempt, or for those before it with its ordering key
	Parked                          // for a person
	Handled                         // for nothing: somebody had it tried again, and it was dealt with
	Discarded                       // for nothing: somebody has given it up
)

func (s ShelfState) String() string {
	names := [...]string{"none", "waiting", "parked", "handled", "discarded"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state(%d)", int(s))
	}
	return names[s]
}

// Shelved is a message that is put aside.
type Shelved struct {
	Seq      int64 // the order in which they were put aside; given by the store, never twice
	Version  int64 // rises with each change; 1 when new
	Consumer string
	Key      string         // the ID of the key that the consumer gives it; at most 255 bytes
	Message  broker.Message // as delivered; Attempt is not kept
	Origin   string         // see [broker.Delivery]
	State    ShelfState
	Due      time.Duration // Waiting: until the next attempt; when read, not above 0 means now
	Attempts int           // that failed, as far as is known
	Reason   string        // why it is here: the last error, or what it waits behind
	History  string        // what people did about it: a line for each action. Texts are at most 64 KiB
	Created  time.Time
	Updated  time.Time

	// Unopened is why the message, as it was read, could not be opened: see [OpenShelved]. No store sets it.
	Unopened error
}

// ShelfQuery selects messages; zero fields select all.
type ShelfQuery struct {
	Consumer    string       // exactly
	States      []ShelfState // any of them
	IDs         []string     // of messages: any of them
	OrderingKey string       // exactly
	Topic       string       // exactly
	After       int64        // behind this Seq
	Limit       int          // default 100, at most 1,000
	Bodiless    bool         // leave out the bodies and headers of messages

	// Ready selects what may be tried now: Waiting, due, and with no message before it, by Seq, of the same consumer and
	// the same non-empty ordering key that is Waiting or, if BehindParked, Parked.
	Ready        bool
	BehindParked bool
}
