package janitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/contain"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

var errCannotArchive = invalid("Archive is set, and the store cannot show what it would forget")

// archiveError is an error of Archive.
type archiveError struct{ error }

func (e archiveError) Unwrap() error { return e.error }

// ofArchive reports whether err is an error of Archive.
func ofArchive(err error) bool {
	var its archiveError
	return errors.As(err, &its)
}

// archiving forgets keys, and gives what is lost with them to Archive first. A
// record is forgotten only after Archive has returned nil, and only if it is
// unchanged since. Each step has its own time limit, so that records that a
// slow Archive took in the end do not come again for ever.
func (r *run) archiving(s store.Archivable) func(ctx context.Context, limit int) (batch, error) {
	return func(ctx context.Context, limit int) (b batch, err error) {
		due, more, err := r.forgettable(ctx, s, limit)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return b, fmt.Errorf("%w: %w", errCannotArchive, err)
		case err != nil && !errors.Is(err, once.ErrCorrupt):
			return b, err
		}
		due, damage := sound(due)
		if damage == nil {
			damage = err // of other records
		}
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

// sound returns the records whose outcomes are as they were recorded. The
// others are neither archived nor forgotten, and an error says why.
func sound(due []once.Record) (whole []once.Record, damage error) {
	whole = slices.DeleteFunc(due, func(rec once.Record) bool {
		k := rec.Key
		if rec.Status != once.Done || rec.Intact() {
			return false
		}
		damage = fmt.Errorf("%w: the outcome of %s %q in scope %q is not what was recorded, so it is neither archived nor forgotten: "+
			"repair its row, or delete it when no repeat can come any more", once.ErrCorrupt, k.Operation, k.ID, k.Scope)
		return true
	})
	return whole, damage
}

// archive gives the records that have an outcome to Archive, and returns how
// long that took.
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
	err := contain.Logged(ctx, r.Logger, "the Archive", func() error { return r.Archive(limited, done) })
	return time.Since(begun), err
}

// complain logs why a look failed.
func (r *run) complain(ctx context.Context, err error) {
	if ofArchive(err) {
		r.Logger.WarnContext(ctx, "janitor: the archive failed, and records that it did not take are not deleted", logs.Spaced(""), "error", err)
		return
	}
	r.Logger.WarnContext(ctx, "janitor: the store failed, and some records are not deleted", logs.Spaced(""), "error", err)
}
