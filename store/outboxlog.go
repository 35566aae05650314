package store

import (
	"context"
	"fmt"
)

// OutboxLog is a [Relayable] that reads messages from the log of its database.
// Without it, relays read the table.
type OutboxLog interface {
	// TailOutbox becomes the only reader of the log. It returns nil and no error if
	// the log is not to be read, which may change, and once.ErrConflict while another
	// reader has it.
	TailOutbox(ctx context.Context) (OutboxTail, error)

	// LogsRows reports whether messages come from the log, as far as the store knows.
	// If so, nobody publishes Pending messages from the table, and nobody makes a
	// message in the table Pending, because the log does not show that. It may change
	// with each call of Outgoing with Unlogged, and of WakeDelayed, which then makes no
	// message Pending.
	LogsRows() bool
}

// OutboxTail reads messages in the order of commits. Messages that were put before
// there was a reader come first, lane by lane.
//
// Receive is called by one goroutine at a time. The other methods may be called
// concurrently. After an error other than that of a context the tail is broken: the
// caller closes it and opens another. That one begins after the last message for
// which it is known that it, and all before it, were sent or set aside.
type OutboxTail interface {
	// Receive waits for messages, and returns at least one and at most limit. It does
	// not wait for more than there are. None of them is Delayed: those are in the
	// table.
	Receive(ctx context.Context, limit int) ([]Outgoing, error)

	// Sent ends messages that were published, and their rows if they have any, as in
	// Relayable.
	Sent(ctx context.Context, ms []Outgoing, then Ending) error

	// SetAside writes messages to the table, with their State, Attempts and Reason. A
	// message may be there twice if the reply to an earlier call was lost.
	SetAside(ctx context.Context, ms []Outgoing) error

	// Close lets another reader open the log.
	Close(ctx context.Context) error
}

// LogLag is a [Relayable] that reports how far the reader of its log is behind.
// Without it, there are no metrics of the log.
type LogLag interface {
	// OutboxLag returns nil and no error if the log is not to be read, and nothing is
	// kept for a reader.
	OutboxLag(ctx context.Context) (*Lag, error)
}

// Lag is how far the reader of a log is behind. The log that the database keeps for
// it takes space on disk.
type Lag struct {
	Behind   int64 // bytes of log since the last place up to which all is known to be published; 0 if there is no place
	Retained int64 // bytes of log that the database keeps for the reader; 0 if there is no place, or it is lost
	Active   bool  // a reader is connected
	Status   LagStatus
}

// LagStatus is the state of a reader's place in the log.
type LagStatus int

const (
	LagReserved   LagStatus = iota // the log after it is kept
	LagExtended                    // the log after it is kept, and exceeds what the database is set to keep
	LagUnreserved                  // it may be lost soon
	LagLost                        // it is lost, and so are messages that were only in the log and not published
	LagMissing                     // no place delivers: there was never a reader, or the place is being made, or somebody removed it
)

// LagStatuses returns all of them.
func LagStatuses() []LagStatus {
	return []LagStatus{LagReserved, LagExtended, LagUnreserved, LagLost, LagMissing}
}

func (s LagStatus) String() string {
	names := [...]string{"reserved", "extended", "unreserved", "lost", "missing"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("status(%d)", int(s))
	}
	return names[s]
}
