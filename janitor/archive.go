package janitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

var errCannotArchive = invalid("Archive is set, and the store cannot show what it would forget")

// archiveError is one of Archive.
type archiveError struct{ error }

func (e archiveError) Unwrap() error { return e.error }

// archiving forgets keys, and hands over what is lost with them first. Whatever happens in between, it is still there
// then: it is forgotten only when Archive has returned nil, and only if it is still what Archive got.
func (r *run) archiving(s store.Archivable) func(ctx context.Context, limit int) (batch, error) {
	return func(ctx context.Context, limit int) (b batch, err error) {
		due, more, err := s.Forgettable(ctx, limit)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return b, fmt.Errorf("%w: %w", errCannotArchive, err)
		case err != nil:
			return b, err
		}
		if b.elsewhere, err = r.archive(ctx, due); err != nil {
			return b, archiveError{fmt.Errorf("janitor: the Archive: %w", err)}
		}
		b.forgotten, err = s.ForgetRecords(ctx, due)
		b.more = more && err == nil && (b.forgotten > 0 || len(due) == 0) // what others are changing is left to the next look
		return b, err
	}
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
	begun := time.Now()
	err := r.Archive(ctx, done)
	return time.Since(begun), err
}

// complain logs what kept a look from its end.
func (r *run) complain(ctx context.Context, err error) {
	var its archiveError
	if errors.As(err, &its) {
		r.Logger.WarnContext(ctx, "janitor: the archive is in trouble, and what it did not take is not forgotten", "error", err)
		return
	}
	r.Logger.WarnContext(ctx, "janitor: the store is in trouble, and not all is forgotten", "error", err)
}
