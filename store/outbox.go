package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Outbox keeps messages that a transaction has written until a relay has published
// them. Tx is the transaction type of its TxStore. Package outbox writes through
// it.
type Outbox[Tx any] interface {
	Relayable

	// PutTx writes messages in a transaction that the caller began and ends. They are
	// published if it commits, and never if it does not. After an error the caller
	// rolls back.
	//
	//   - The store keeps Message with its Time as given, Delay and Cause. It assigns
	//     Lane with [Lane].
	//   - A message that Message.Check refuses is once.ErrInvalid.
	//   - An ID that was put before makes another row.
	//   - The store may write at once, or with the commit. It copies what it keeps.
	PutTx(ctx context.Context, tx Tx, ms []Outgoing) error
}

// Relayable is an [Outbox] as relays, and people who repair it, see it.
//
// Lane, Seq and State identify a row. A method with messages as arguments changes
// a row only if it is still in the State of its message, and returns how many rows
// it changed.
//
// Such a method changes a row only if its relay has the lease of the lane. A lapsed
// lease counts until another relay takes the lane. The zero relay stands for
// people, and needs no lease.
type Relayable interface {
	// Options returns those of the once.Store that the outbox is part of.
	Options() *once.Options

	// LeaseLanes makes a relay known as alive for ttl, and leases or extends those of
	// the lanes that it has, or that nobody has. Nobody has a lane whose lease has
	// lapsed, but [Leases] shows the lapsed lease until somebody takes the lane. It
	// returns all leases as they are then. The zero relay is once.ErrInvalid.
	LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (Leases, error)

	// ReleaseLanes ends the leases of a relay on lanes. If lanes is nil, it ends all of
	// them, and the relay is no longer alive.
	ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error

	// Outgoing returns committed messages, by Seq.
	Outgoing(ctx context.Context, q OutgoingQuery) ([]Outgoing, error)

	// Sent ends messages that were published. It may become durable a moment later: a
	// message whose end is lost in a crash of the database is published again, with
	// the same ID.
	Sent(ctx context.Context, relay [16]byte, ms []Outgoing, then Ending) (changed int, err error)

	// MoveOutgoing changes the state of messages, and writes their Attempts and
	// Reason. If the state is Delayed, they are due their Delay from now.
	MoveOutgoing(ctx context.Context, relay [16]byte, ms []Outgoing, to OutgoingState) (changed int, err error)

	// WakeDelayed changes the state of Delayed messages that are due, at most limit,
	// in lanes that the relay leases, or in all for the zero relay. It returns how
	// many it changed, and the time until the next message in these lanes is due. next
	// is 0 or less if more may be due now, and never more than an hour.
	WakeDelayed(ctx context.Context, relay [16]byte, to OutgoingState, limit int) (woken int, next time.Duration, err error)

	// RemoveOutgoing deletes messages in any state.
	RemoveOutgoing(ctx context.Context, relay [16]byte, ms []Outgoing) (changed int, err error)

	// ForgetOutgoing deletes Published messages that were published longer ago than
	// keep, at most limit, in one short transaction. It returns how many it deleted. A
	// limit below 1 is once.ErrInvalid.
	ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error)

	// DecidedOutgoing returns the messages that people, as the zero relay, made Held
	// or Stuck in the last [DecisionTime], and that still are, as of one moment of the
	// call, or only those that are Stuck. It may return other Held or Stuck messages. Bodies, headers and reasons may
	// be missing. Relays call it after they have read messages, so that none overtakes
	// a message that a person has parked or replayed. It is cheap if nobody has decided
	// anything.
	DecidedOutgoing(ctx context.Context, onlyStuck bool) ([]Outgoing, error)

	// OutboxDepth returns how many messages are in each state except Published. States
	// without messages are omitted. It may estimate numbers from count on, so that its
	// cost does not grow with them.
	OutboxDepth(ctx context.Context, count int) ([]Depth, error)
}

// OutboxArchive is a [Relayable] that keeps messages that were ended with
// [Archive], or that a person discarded, in an archive.
type OutboxArchive interface {
	// ForgetArchived deletes messages that were archived longer ago than keep, at most
	// limit, in one short transaction. It returns how many it deleted. A limit below 1
	// is once.ErrInvalid.
	ForgetArchived(ctx context.Context, keep time.Duration, limit int) (int, error)
}

// HandOver is a [Relayable] that is a [Shelf] too, in one database: a message goes
// from the outbox to the queues of its consumers in one commit.
type HandOver interface {
	// HandOver is Sent, and Shelve of the rows of each message, in one commit. rows[i]
	// are those of ms[i]. It returns which messages were handed over.
	//
	//   - A message that Sent would not change is left alone, and its rows are not
	//     shelved. So are later messages of ms with its ordering key.
	//   - If a row is refused, nothing is changed.
	//   - As with Sent, it may become durable a moment later: in a crash of the
	//     database both parts are lost, or none.
	HandOver(ctx context.Context, relay [16]byte, ms []Outgoing, rows [][]Shelved, then Ending) (handed []bool, err error)
}

// DecisionTime is how long a decision of a person is part of
// [Relayable.DecidedOutgoing]. Relays read all Held and Stuck messages more often.
const DecisionTime = 10 * time.Minute

// Lanes is the number of lanes of an outbox. Relays divide the lanes among
// themselves. Messages with the same ordering key are in the same lane.
const Lanes = 16

// Lane returns the lane of a message: the first hexadecimal digit of the SHA-256 of
// its ordering key, or of its ID if it has none. Programs in other languages that
// write rows may choose lanes differently, as long as messages with the same
// ordering key get the same lane.
func Lane(m *broker.Message) int {
	of := m.OrderingKey
	if of == "" {
		of = m.ID
	}
	return int(sha256.Sum256([]byte(of))[0] >> 4)
}

// Outgoing is a message in the outbox.
type Outgoing struct {
	Message  broker.Message // Attempt is not kept
	Delay    time.Duration  // until it may be published; 0 or less: now
	Lane     int            // from 0 to Lanes-1; like all that follows, set by the store
	Seq      int64          // rises in each lane with each insert, which is not the order of commits
	State    OutgoingState
	Attempts int       // that failed
	Reason   string    // of the last failure; at most 64 KiB
	Created  time.Time // when it was put
	Changed  time.Time // when its State last changed, if ever

	// Cause is the key of the unit of work that put the message, as [FormatCause]
	// writes it, or empty. PutTx gets it from its caller. It is never published.
	Cause string

	// LogPlace is the place of the message in the database's log, if it was read
	// there.
	LogPlace uint64

	// LogMore reports that more messages of its transaction follow in the log. If a
	// reader ends between them, those that it had sent are sent again.
	LogMore bool

	// Hint helps the store that returned the message to find it again. Callers ignore
	// it.
	Hint uint64

	// Unopened is why the message cannot be published. A store sets it to an error
	// that wraps once.ErrCorrupt if the row is damaged: then Lane, Seq and State can
	// be relied on, so the message can be moved and removed, and of the rest only
	// what could be read is there. A damaged message keeps no other from being read,
	// and relays make it Stuck. Admin.List of package outbox sets it if the message
	// could not be opened.
	Unopened error
}

// OutgoingState is the state of a message in the outbox.
type OutgoingState int

const (
	Pending   OutgoingState = iota // ready for a relay
	Delayed                        // not yet due
	Held                           // until its next attempt, or as long as an earlier message of its ordering key is Held
	Stuck                          // until a person decides: it failed too often, or can never be published
	Published                      // kept after it was published
)

func (s OutgoingState) String() string {
	names := [...]string{"pending", "delayed", "held", "stuck", "published"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state(%d)", int(s))
	}
	return names[s]
}

// Ending is what becomes of a message after it was published.
type Ending int

const (
	Delete  Ending = iota // its row is deleted
	Keep                  // it becomes Published, until ForgetOutgoing
	Archive               // its row moves to the archive, until ForgetArchived; without an [OutboxArchive] it is deleted
)

// Leases is who publishes what.
type Leases struct {
	Relays int // that are alive
	Lanes  [Lanes]LaneLease

	// Damaged is why the leases could not be read, in answers to people. Relays begin
	// anew once what they said must have lapsed.
	Damaged error
}

// LaneLease is the lease of a lane.
type LaneLease struct {
	Relay [16]byte      // zero: nobody
	Left  time.Duration // 0 or less: it has lapsed
}

// OutgoingQuery selects messages in one State.
type OutgoingQuery struct {
	State OutgoingState

	Lanes []int // any of them; empty: all

	OrderingKey string // exactly, unless it is empty
	Topic       string // exactly, unless it is empty
	Cause       string // exactly, unless it is empty
	IDs         []string
	After       int64 // messages after this Seq
	Limit       int   // default 100, at most 20,000
	MaxBytes    int   // of bodies: the page ends before it would exceed them, but has at least one message; 0: any
	Bodiless    bool  // omit the bodies and headers of messages

	// Unlogged selects nothing while Pending messages come from the database's log.
	// Relays set it before they publish from the table. The answer is as of after the
	// messages were read.
	Unlogged bool

	// Heads selects only the first message of each ordering key in the State, and all
	// messages without one. After and Limit do not change which is the first.
	Heads bool

	// HeldBy omits messages whose ordering key has an earlier one that the query does
	// not return, and that is in one of these states: Pending, Held or Stuck. Relays
	// set it for what they publish. Only stores whose queries may be behind need it,
	// and others ignore it.
	HeldBy []OutgoingState
}

// Depth is how many messages are in one state.
type Depth struct {
	State     OutgoingState
	Count     int
	Estimated bool          // Count is not exact
	Oldest    time.Duration // since the oldest was put
}

// Bell wakes relays when messages are put. Without it, relays poll.
type Bell interface {
	// HearOutbox begins to listen.
	HearOutbox(ctx context.Context) (Ear, error)
}

// Ear listens for messages that are put. Its methods are called from one
// goroutine.
type Ear interface {
	// Wait returns nil when messages may have been committed since HearOutbox, or
	// since the last Wait began. It may return a little before the commit. After an
	// error other than that of ctx it hears nothing more: the caller closes it, and
	// listens anew.
	Wait(ctx context.Context) error

	// Far reports whether it also hears of messages that other processes put.
	Far() bool

	// Close ends the listening.
	Close()
}
