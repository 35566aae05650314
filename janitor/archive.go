package janitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

var errCannotArchive = invalid("Archive is set, and the store cannot show what it would forget")

// archiveError is one of Archive.
type archiveError struct{ error }

func (e archiveError) Unwrap() error { return e.error }

// ofArchive reports whether an error is one of Archive, whatever is in it.
func ofArchive(err error) bool {
	var its archiveError
	return errors.As(err, &its)
}

// archiving forgets keys, and hands over what is lost with them first. Whatever happens in between, it is still there
// then: it is forgotten only when Archive has returned nil, and only if it is still what Archive got. Each of the steps has
// its own time, so that what a slow Archive took after all does not come again for ever.
func (r *run) archiving(s store.Archivable) func(ctx context.Context, limit int) (batch, error) {
	return func(ctx context.Context, limit int) (b batch, err error) {
		due, more, err := r.forgettable(ctx, s, limit)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return b, fmt.Errorf("%w: %w", errCannotArchive, err)
		case err != nil:
			return b, err
		}
		due, damage := sound(due)
		if b.elsewhere, err = r.archive(ctx, due); err != nil {
			return b, archiveError{fmt.Errorf("janitor: the Archive: %w", err)}
		}
		limited, cancel := context.WithTimeout(ctx, r.BatchTime)
		defer cancel()
		if b.forgotten, err = s.ForgetRecords(limited, due); err != nil {
			return b, err
		}
		b.more = more && (b.forgotten > 0 || len(due) == 0 && damage == nil) // what others are changing is left to the next look
		if !b.more {
			err = damage
		}
		return b, err
	}
}

func (r *run) forgettable(ctx context.Context, s store.Archivable, limit int) (due []once.Record, more bool, err error) {
	limited, cancel := context.WithTimeout(ctx, r.BatchTime)
	defer cancel()
	return s.Forgettable(limited, limit)
}

// sound are the records whose outcomes are as they were recorded. What is wrong with the others is an error: they are neither
// archived nor forgotten.
func sound(due []once.Record) (whole []once.Record, damage error) {
	whole = slices.DeleteFunc(due, func(rec once.Record) bool {
		k, out := rec.Key, rec.Outcome
		if rec.Status != once.Done || out.Sum == checksum.Of(k.UUID(), out.ContentType, out.Body, out.Rejected, out.Omitted) {
			return false
		}
		damage = fmt.Errorf("%w: the outcome of %s %q in scope %q is not what was recorded, so it is neither archived nor forgotten: "+
			"repair its row, or delete it when no repeat can come any more", once.ErrCorrupt, k.Operation, k.ID, k.Scope)
		return true
	})
	return whole, damage
}

// archive hands over the records that have an outcome, and returns how long that took.
func (r *run) archive(ctx context.Context, due []once.Record) (time.Duration, error) {
	var done []once.Record
	for _, rec := range due {
		if rec.Status == once.Done {
			done = append(done, rec)
		}
	}
	if len(done) == 0 {
		return 0, nil
	}
	limited, cancel := context.WithTimeout(ctx, r.BatchTime)
	defer cancel()
	begun := time.Now()
	err := r.Archive(limited, done)
	return time.Since(begun), err
}

// complain logs what kept a look from its end.
func (r *run) complain(ctx context.Context, err error) {
	if ofArchive(err) {
		r.Logger.WarnContext(ctx, "janitor: the archive is in trouble, and what it did not take is not forgotten", logs.Spaced(""), "error", err)
		return
	}
	r.Logger.WarnContext(ctx, "janitor: the store is in trouble, and not all is forgotten", logs.Spaced(""), "error", err)
}
