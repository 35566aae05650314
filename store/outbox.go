package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Outbox keeps messages that a transaction has written until a relay has published them. Tx is that of its TxStore.
type Outbox[Tx any] interface {
	Relayable

	// PutTx writes messages inside a transaction that the caller began and ends: they are published if it commits, and
	// never were if it does not. Of a message it writes Message, with the Time as given, Delay and Cause; its lane is [Lane]'s.
	// One that Message.Check refuses is once.ErrInvalid. An ID that was put before makes another row. After an error the
	// caller rolls back. Whether it writes at once or together with the commit is the store's choice; what it is given
	// stays the caller's.
	PutTx(ctx context.Context, tx Tx, ms []Outgoing) error
}

// Relayable is an [Outbox] as relays and people see it.
//
// A row is known by its Lane, Seq and State: a method that is given a message changes its row only if that is still in
// that State, and returns how many rows it has changed. With a relay other than zero it also has to have the lease of
// the lane, lapsed or not, as long as nobody else has it: a relay that has lost its lease changes nothing. The zero relay is
// people, who need no lease.
type Relayable interface {
	// Options are those of the once.Store that the outbox is part of.
	Options() *once.Options

	// LeaseLanes is the sign of life of a relay, which is not zero, and good for ttl from now on. It leases to it, or
	// extends, those of the lanes that are its own or nobody's; lapsed leases are nobody's, but remain until somebody
	// takes them. It returns how things are then.
	LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (Leases, error)

	// ReleaseLanes makes lanes of a relay nobody's. With nil it is all of them, and the relay is no longer alive.
	ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error

	// Outgoing returns committed messages, by Seq.
	Outgoing(ctx context.Context, q OutgoingQuery) ([]Outgoing, error)

	// Sent ends messages that were published. It is durable some moments later only: a message whose end is lost in a
	// crash of the database is published again, with its ID.
	Sent(ctx context.Context, relay [16]byte, ms []Outgoing, then Ending) (changed int, err error)

	// MoveOutgoing gives messages another state, and writes their Attempts and Reason. Moved to Delayed they also get
	// their Delay, from now on.
	MoveOutgoing(ctx context.Context, relay [16]byte, ms []Outgoing, to OutgoingState) (changed int, err error)

	// WakeDelayed gives another state to those messages in Delayed that are due, in lanes that the relay leases, lapsed
	// or not, or in all for the zero relay; at most so many of them at once. It returns how many, and how long it is until
	// the next one in these lanes is due: not above 0 if there may be more now, and an hour if there is none, or it is
	// later.
	WakeDelayed(ctx context.Context, relay [16]byte, to OutgoingState, most int) (woken int, next time.Duration, err error)

	// RemoveOutgoing deletes messages, whatever they are waiting for.
	RemoveOutgoing(ctx context.Context, relay [16]byte, ms []Outgoing) (changed int, err error)

	// ForgetOutgoing deletes messages that were published and kept, longer ago than keep, at most limit, in one short
	// transaction, and returns how many. A limit below 1 is once.ErrInvalid.
	ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error)

	// OutboxDepth tells how much there is in each state but Published, at a cost that does not grow with it: from count
	// on, it estimates. States without messages are left out.
	OutboxDepth(ctx context.Context, count int) ([]Depth, error)
}

// OutboxArchive is a [Relayable] with an archive, which has what was discarded, and what relays end with [Archive].
type OutboxArchive interface {
	// ForgetArchived deletes messages that came to the archive longer ago than keep, at most limit, in one short
	// transaction, and returns how many. A limit below 1 is once.ErrInvalid.
	ForgetArchived(ctx context.Context, keep time.Duration, limit int) (int, error)
}

// Lanes is how many lanes an outbox has: what relays share out among themselves. Messages with an equal ordering key are
// in one lane.
const Lanes = 16

// Lane is the lane of a message: the first hexadecimal digit of the SHA-256 of its ordering key, or of its ID if it has
// none. Whoever writes rows in another language may choose the lanes in another way, if messages with an equal
// ordering key are in one.
func Lane(m *broker.Message) int {
	of := m.OrderingKey
	if of == "" {
		of = m.ID
	}
	return int(sha256.Sum256([]byte(of))[0] >> 4)
}

// Outgoing is a message on its way out.
type Outgoing struct {
	Message  broker.Message // Attempt is not kept
	Delay    time.Duration  // until it is to be published; when put: not above 0 means at once
	Lane     int            // from 0 to Lanes-1, and given by the store, like what follows
	Seq      int64          // rises in each lane from insert to insert, which is not the order of commits
	State    OutgoingState
	Attempts int       // that failed
	Reason   string    // of the last failure; at most 64 KiB
	Created  time.Time // when it was put
	Changed  time.Time // when its State last changed, if ever

	// Cause is the key of the unit of work that has put it, as [FormatCause] writes it, or empty. It is given to PutTx, and
	// leaves the store with no message.
	Cause string

	// LogPlace is where it stands in the database's log, if it came from there.
	LogPlace uint64

	// LogMore says that more of its transaction follows it in the log. A reader that ends between them, with some of them
	// sent, has these sent again.
	LogMore bool

	// Hint helps the store that returned it to find it again. It is nobody else's.
	Hint uint64

	// Unopened is why the message could not be opened: see [OpenOutgoing]. No store sets it.
	Unopened error
}

// OutgoingState is what a message in the outbox waits for.
type OutgoingState int

const (
	Pending   OutgoingState = iota // for a relay
	Delayed                        // until it is due
	Held                           // for another attempt, or behind one of its ordering key that does
	Stuck                          // for a person: it was tried too often, or can never be published
	Published                      // for nothing: it is kept
)

func (s OutgoingState) String() string {
	names := [...]string{"pending", "delayed", "held", "stuck", "published"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state(%d)", int(s))
	}
	return names[s]
}

// Ending is what becomes of a message that was published.
type Ending int

const (
	Delete  Ending = iota // its row is deleted
	Keep                  // it becomes Published, until ForgetOutgoing
	Archive               // its row goes to a table of its own, which nothing here reads, until ForgetArchived
)

// Leases are who publishes what.
type Leases struct {
	Relays int // that are alive
	Lanes  [Lanes]LaneLease
}

// LaneLease is who has a lane.
type LaneLease struct {
	Relay [16]byte      // zero: nobody
	Left  time.Duration // not above 0: it has lapsed
}

// OutgoingQuery selects messages in one State.
type OutgoingQuery struct {
	State OutgoingState

	Lanes []int // those to look at; none: all

	OrderingKey string // exactly, unless it is empty
	Topic       string // exactly, unless it is empty
	Cause       string // exactly, unless it is empty
	IDs         []string
	After       int64 // behind this Seq
	Limit       int   // default 100, at most 20,000
	MaxBytes    int   // of bodies, together: before more the page ends, but not before the first message; 0: any
	Bodiless    bool  // leave out the bodies and headers of messages

	// Unlogged selects nothing as long as what is Pending comes out of the database's log: it is what a relay asks before it
	// publishes from the table. The answer holds for the moment after the messages were read.
	Unlogged bool

	// Heads selects only the first message of each ordering key in the State, whatever After and Limit say, and all that
	// have none.
	Heads bool
}

// Depth is how much there is in one state.
type Depth struct {
	State     OutgoingState
	Count     int
	Estimated bool          // Count is not exact
	Oldest    time.Duration // since the oldest of them was put
}

// Bell is a [Relayable] that can tell when something was put, so that relays need not ask all the time.
type Bell interface {
	// HearOutbox begins to listen.
	HearOutbox(ctx context.Context) (Ear, error)
}

// Ear hears that messages were put. Its methods are called from one goroutine.
type Ear interface {
	// Wait returns nil when messages may have been committed since HearOutbox, or since the last Wait began. An error other
	// than that of ctx means that nothing is heard any more: close it and begin anew. What rings may be early: the
	// transaction is about to commit.
	Wait(ctx context.Context) error

	// Far reports whether it hears of what other processes put, too.
	Far() bool

	Close()
}

// OutboxLog is a [Relayable] that can read what was put out of the database's own log.
type OutboxLog interface {
	// TailOutbox takes the log's one place for a reader. It returns nil and no error if nobody is to read the log, which may
	// change, and once.ErrConflict while another reader has it.
	TailOutbox(ctx context.Context) (OutboxTail, error)

	// LogsRows reports whether rows come out of the log, as far as the store knows: then nobody publishes them from the
	// table while they are Pending, and what becomes Pending later is in no log, so nobody moves a message there. It may
	// change with each call of Outgoing with Unlogged, and of WakeDelayed: one that would wake to Pending wakes nothing then.
	LogsRows() bool
}

// OutboxTail reads the messages that are put, in the order of commits; what was put before there was a reader comes
// first, lane by lane. Receive has one caller at a time; the others may
// be called concurrently. An error other than that of a context means that it is broken: close it and open another,
// which begins behind the last message of which it is known that it, and all before it, were sent or set aside.
type OutboxTail interface {
	// Receive waits for messages and returns at least one and at most so many, without waiting for more than there are.
	// None of them is Delayed: those are in the table.
	Receive(ctx context.Context, limit int) ([]Outgoing, error)

	// Sent says that messages were published, and ends their rows, if they have any, like Relayable's.
	Sent(ctx context.Context, ms []Outgoing, then Ending) error

	// SetAside makes sure that messages are in the table, with their State, Attempts and Reason. One that was set aside
	// when the reply was lost may be there twice.
	SetAside(ctx context.Context, ms []Outgoing) error

	// Close gives the place to another reader.
	Close(ctx context.Context) error
}
