// Package admission is what the guards of HTTP requests and of gRPC calls
// share: whether a call may claim its key, how far it has come, and whether it
// has left a record in the store. Other packages should not import it: it makes
// no promise of compatibility.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/errtree"
)

// Admit reserves room for a key. It is the type of Options.Admit of both
// guards.
type Admit = func(once.Key) (leave func(kept bool), wait time.Duration)

// NoRoomError is returned for a new key when its caller is over its limits.
type NoRoomError struct {
	RetryAfter time.Duration
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("no room for a new key for %v", e.RetryAfter)
}

// Enter asks admit, which may be nil, for room for a key. If there is none, it
// returns a [NoRoomError] for a new key and admits a known one. The caller of
// Enter calls leave once, when the call is over.
func Enter(ctx context.Context, s once.Store, admit Admit, key once.Key) (leave func(kept bool), err error) {
	leave = func(bool) {}
	if admit == nil {
		return leave, nil
	}
	reserved, wait := admit(key)
	if wait <= 0 {
		return reserved, nil
	}
	return leave, RequireRecord(ctx, s, key, wait, func(rec once.Record) bool { return rec.Attempt > 0 })
}

// RequireRecord returns a [NoRoomError] unless isKnown is true of the record of
// key.
func RequireRecord(ctx context.Context, s once.Store, key once.Key, retryAfter time.Duration, isKnown func(once.Record) bool) error {
	rec, err := s.Get(ctx, key)
	if err == nil && !isKnown(rec) {
		return &NoRoomError{RetryAfter: retryAfter}
	}
	return err
}

// Phase is how far a guarded call has come.
type Phase int

const (
	Waiting Phase = iota // the key may be that of another call
	Claimed              // this call has claimed the key
	Entered              // the handler has been called
)

// Progress is how far a guarded call has come, and what the store reported.
type Progress struct {
	Phase  Phase
	InTx   bool // the claim and the handler are one transaction
	Report once.Report
}

// LeftRecord reports whether a call that ended with err may have left a record
// that did not exist before. client is the context of the client. A client that
// disconnects while its key is being claimed may have left a record although
// the handler did not run. It counts, or a client that disconnects at the right
// moment could fill the store for free.
func (p *Progress) LeftRecord(client context.Context, err error) bool {
	switch {
	case p.Report.Replayed, p.Report.Attempt > 1:
		return false
	case p.InTx:
		return p.Phase >= Claimed && (err == nil || errtree.HasAny(err, once.ErrRejected, once.ErrOutcomeUnknown))
	case p.Phase >= Claimed:
		return true
	}
	return client.Err() != nil && err != nil && !isAboutAnotherCall(err)
}

// isAboutAnotherCall reports whether err is about the record of another call
// with the same key.
func isAboutAnotherCall(err error) bool {
	return errtree.HasAny(err, once.ErrInProgress, once.ErrMismatch, once.ErrExpired, once.ErrOutcomeUnavailable,
		once.ErrOutcomeUnknown, once.ErrParked, once.ErrLeaseLost, once.ErrCorrupt)
}

// ErrClientGone is the cause of a context that ended with the client.
var ErrClientGone = errors.New("the client has disconnected")

// UntilDetached returns a context that ends when the client's does, until
// detach is called. It keeps the values of client and not its deadline. detach
// reports whether it was in time. It may be called again, from one goroutine,
// and returns the same.
func UntilDetached(client context.Context) (ctx context.Context, detach func() bool) {
	if client.Done() == nil {
		return client, func() bool { return true }
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(client))
	stop := context.AfterFunc(client, func() { cancel(fmt.Errorf("%w: %w", ErrClientGone, context.Canceled)) })
	return ctx, sync.OnceValue(func() bool { return stop() && client.Err() == nil })
}
