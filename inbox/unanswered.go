package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
)

// unansweredError is the error of a call that ran nothing, because it is not known
// yet what became of an earlier attempt. That is a question without an answer, and
// not an attempt at the message, which is not to blame for it.
type unansweredError struct {
	error
	since time.Time // when the outcome became unknown
}

func isUnanswered(err error) bool {
	var u *unansweredError
	return errors.As(err, &u)
}

func (u *unansweredError) Unwrap() error { return u.error }

// asUnanswered returns the error of a call about a key as an unansweredError, if it
// is one. ran reports whether the call has run the work.
func (e *env) asUnanswered(ctx context.Context, key once.Key, ran bool, err error) error {
	if ran || !errors.Is(err, once.ErrOutcomeUnknown) {
		return err
	}
	since := time.Now()
	if rec, getErr := e.store.Get(ctx, key); getErr == nil && rec.Status == once.Unknown {
		since = since.Add(rec.Updated.Sub(rec.Created) - rec.Age) // by the clock here
	}
	return &unansweredError{err, since}
}

// waitForAnswer reports whether an error means that a question is to be asked again,
// and after how long: a quarter of the time for which there has been no answer.
// After Retry.Outage, questions are attempts, and the message is parked in the end.
// A run that has just begun asks for a while nevertheless.
func (e *env) waitForAnswer(ctx context.Context, it *item, err error) (after time.Duration, waits bool) {
	var u *unansweredError
	after, retry := once.MayRetry(err)
	if !retry || !errors.As(err, &u) {
		return 0, false
	}
	unknown := time.Since(u.since)
	if unknown >= e.Retry.Outage && time.Since(e.begun) >= min(e.Retry.Outage, outageKept) {
		return 0, false
	}
	e.logger.WarnContext(ctx, "inbox: it is not known yet what became of an attempt, and the message waits", logs.Spaced(""),
		"message", it.Message.ID, "origin", it.Origin, "for", unknown.Round(time.Second), "error", err)
	return max(after, min(max(unknown/4, e.Retry.First), e.Retry.Limit)), true
}
