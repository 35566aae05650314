package store

import (
	"context"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Positions records how far a consumer has come in each partition of a log. Tx is
// the transaction type of its TxStore. Without it, Consumer.Checkpoint is refused,
// and a consumer of a log keeps a key for each message.
type Positions[Tx any] interface {
	// OpenPosition raises the Epoch of a row and returns the row. Callers that opened
	// it before can no longer move it. A row that was never written has Epoch 1 and
	// an empty Log. A damaged row is once.ErrCorrupt, and stays as it is, until a
	// person sets it.
	OpenPosition(ctx context.Context, consumer, partition string) (Position, error)

	// TransactAt begins a transaction, moves a row, calls body, and commits. from and
	// to name the same row and Epoch. The row stays locked until the end, or, in a
	// store whose transaction is one conditional request, the commit is refused with
	// once.ErrConflict if the row has changed.
	//
	//	the row is                            TransactAt
	//	as from, in Epoch, Log and Offset     moves it to to, and calls body
	//	as to, in Epoch, Log and Offset       returns nil and does not call body: the
	//	                                      reply to an earlier call was lost
	//	damaged in what it is compared by     returns once.ErrCorrupt and does not
	//	                                      call body
	//	anything else                         returns once.ErrLeaseLost and does not
	//	                                      call body
	//
	// Otherwise it is like Transact of once.TxStore. If body fails, panics or ends its
	// goroutine, everything is rolled back, and its error is returned, possibly
	// wrapped. once.ErrConflict means that everything was rolled back and the same
	// call may succeed. once.ErrOutcomeUnknown means that COMMIT was sent and it is
	// not known whether it was applied. After any other error nothing was committed.
	// The end of ctx does not end the transaction.
	TransactAt(ctx context.Context, from, to Position, body func(Tx) error) error

	// SetPosition writes a row and raises its Epoch, whoever has it open. People use
	// it to have a part of a log handled again. It ignores the Epoch of p. It repairs a
	// damaged row, whose Epoch becomes higher than any that the row can have had.
	SetPosition(ctx context.Context, p Position) error

	// Positions returns the rows of a consumer, by partition. A damaged row has Damaged
	// set, and keeps no other from being read.
	Positions(ctx context.Context, consumer string) ([]Position, error)
}

// Position is how far a consumer has come: the message at Offset and all before it
// are dealt with.
type Position struct {
	Consumer  string
	Partition string
	Log       string   // see [broker.Position]; empty: nothing was dealt with yet
	Offset    int64    // of the last message that was dealt with
	Digest    [16]byte // of that message; zero: not known
	Epoch     int64    // rises with each OpenPosition and SetPosition
	Shelved   bool     // when read: the consumer has Waiting or Parked messages on the [Shelf]

	// Damaged is why the row cannot be used, when Positions has read it. It wraps
	// once.ErrCorrupt. Log and Offset mean nothing then: the row is neither at the
	// beginning nor at the end. An empty Partition stands for rows that cannot be
	// listed.
	Damaged error `json:"-"`
}

// DamagedPosition returns the error for Damaged of a [Position].
func DamagedPosition(consumer, partition string, why error) error {
	return fmt.Errorf("%w: the position of %q in partition %q is damaged: %w. Find out how far the consumer has come, and set it there with "+
		"Admin.SetPosition. Do not remove it: the consumer would handle the whole partition again", once.ErrCorrupt, consumer, partition, why)
}

// Corrupt returns the error of the first damaged row, or nil.
func Corrupt(positions []Position) error {
	for _, p := range positions {
		if p.Damaged != nil {
			return p.Damaged
		}
	}
	return nil
}

// LagAfter returns what a log has after the positions of a consumer. One without a Log
// says that nothing of its partition was handled yet. If one is damaged, the lag is
// not known, and LagAfter returns its error.
func LagAfter(ctx context.Context, log broker.LogLagger, positions []Position) (broker.Lag, error) {
	if err := Corrupt(positions); err != nil {
		return broker.Lag{}, err
	}
	at := make(map[string]broker.Position, len(positions))
	for _, p := range positions {
		if p.Log != "" {
			at[p.Partition] = broker.Position{Log: p.Log, Partition: p.Partition, Offset: p.Offset}
		}
	}
	return log.LagFrom(ctx, at)
}
