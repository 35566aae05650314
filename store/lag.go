package store

import (
	"context"
	"fmt"
)

// LogLag is a [Relayable] that tells how far the reader of the database's log is behind.
type LogLag interface {
	// OutboxLag is nil and no error if nobody is to read the log, and nothing is kept for a reader.
	OutboxLag(ctx context.Context) (*Lag, error)
}

// Lag is how far the reader of a log is behind. What the database keeps for it fills its disk.
type Lag struct {
	Behind   int64 // bytes that were written to the log since what is known to be published; 0 without a place
	Retained int64 // bytes of log that the database keeps for the reader; 0 without a place, or if that is lost
	Active   bool  // somebody reads
	Status   LagStatus
}

// LagStatus is what has become of the place that a reader has in the log.
type LagStatus int

const (
	LagReserved   LagStatus = iota // the log behind it is kept
	LagExtended                    // it is kept, and is more than the database wants to keep
	LagUnreserved                  // it may be lost soon
	LagLost                        // it is lost: what was in the log only, and not published, is gone
	LagMissing                     // none delivers: no reader was ever there, or it is still being made, or somebody has taken it away
)

// LagStatuses are all of them.
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
