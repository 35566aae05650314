package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
)

// Traces are what a unit of work has left in a store besides its record.
type Traces struct {
	// Cause is the key whose work put the message that this work is for. It is zero
	// if there is none, or if this store has no record of it.
	Cause once.Key

	// LedTo are the records of work for messages that this work put, without the
	// bodies of outcomes. Reasons are opened.
	LedTo []once.Record

	// Put are messages that this work put and that the outbox still has, without
	// their bodies.
	Put []Outgoing

	// Cut reports that there may be more than this.
	Cut bool
}

// FindTraces finds traces of a unit of work, at most limit records, and limit
// messages in each state. Only Key and Cause of rec count, so the record may be of
// another store. What it led to and its cause are found by index if the store has
// one. The outbox has none for this, so it is read through: bound the time with
// ctx. After an error, FindTraces returns what it had found. The error is
// errors.ErrUnsupported if the store is no once.Lister.
//
// A store that lists open records only finds those.
func FindTraces(ctx context.Context, s once.Store, rec once.Record, limit int) (found Traces, err error) {
	if found.Cause, err = FindKey(ctx, s, rec.Cause); err != nil {
		return found, err
	}
	l, ok := once.As[once.Lister](s)
	if !ok {
		return found, noLister(s)
	}
	for q := (once.RecordQuery{Cause: rec.Key.UUID()}); ; {
		q.Limit = limit - len(found.LedTo)
		page, err := l.List(ctx, q)
		if errors.Is(err, once.ErrInvalid) && len(q.Status) == 0 {
			q.Status = []once.Status{once.Running, once.Unknown, once.Parked}
			continue
		}
		if err != nil {
			return found, err
		}
		for _, r := range page.Records {
			r.Reason = s.Options().Sealing.OpenReason(r)
			found.LedTo = append(found.LedTo, r)
		}
		if q.After = page.Next; q.After == (once.Key{}) {
			break
		}
		if len(found.LedTo) >= limit {
			found.Cut = true
			break
		}
	}
	messages, ok := once.As[Relayable](s)
	if !ok {
		return found, nil // it has put none
	}
	for state := Pending; state <= Published; state++ {
		ms, err := messages.Outgoing(ctx, OutgoingQuery{State: state, Cause: FormatCause(rec.Key), Limit: limit, Bodiless: true})
		if err != nil {
			return found, err
		}
		found.Put = append(found.Put, ms...)
		found.Cut = found.Cut || len(ms) == limit
	}
	return found, nil
}

// FindKey returns the key with this UUID. It is zero if the store has no record of
// it, or if the UUID is zero. If that record is damaged, the error says so.
func FindKey(ctx context.Context, s once.Store, id [16]byte) (once.Key, error) {
	if id == [16]byte{} {
		return once.Key{}, nil
	}
	l, ok := once.As[once.Lister](s)
	if !ok {
		return once.Key{}, noLister(s)
	}
	for q := (once.RecordQuery{UUID: id}); ; {
		page, err := l.List(ctx, q)
		if err == nil && len(page.Damaged) > 0 {
			err = page.Damaged[0]
		}
		if err != nil || len(page.Records) > 0 {
			return first(page.Records).Key, err
		}
		if q.After = page.Next; q.After == (once.Key{}) {
			return once.Key{}, nil
		}
	}
}

func first(of []once.Record) (r once.Record) {
	if len(of) > 0 {
		r = of[0]
	}
	return r
}

func noLister(s once.Store) error {
	return fmt.Errorf("%w: %T is no once.Lister", errors.ErrUnsupported, s)
}
