// Package pgerr tells what an error of pgx means to the caller of a store.
package pgerr

import (
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// SQLSTATE codes that decide something in more than one place.
const (
	InvalidText = "22P02" // a text cannot be cast
	Aborted     = "25P02" // an earlier statement of the transaction failed
	LockTimeout = "55P03"
	Deadlock    = "40P01"
	NoTable     = "42P01"
	NoStatement = "26000" // a prepared statement was deallocated, and pgx does not know it
)

// State returns the SQLSTATE of an error, or "" if it is not the server's.
func State(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// Refused reports whether err is an ERROR that the server answered a statement
// with. The server then skips the statements that follow in the batch.
func Refused(err error) (pe *pgconn.PgError, refused bool) {
	refused = errors.As(err, &pe) && (pe.Severity == "ERROR" || pe.SeverityUnlocalized == "ERROR")
	return pe, refused
}

// Explain wraps an error in the error of package once that the caller of a
// store matches, if there is one.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	var refused sqlschema.Refusal
	var moved sqlschema.Lost
	switch {
	case errors.As(err, &moved):
		return fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", once.ErrInvalid, err)
	case errors.Is(err, puddle.ErrClosedPool):
		return fmt.Errorf("%w: %w", once.ErrClosed, err)
	case State(err) == Aborted:
		return fmt.Errorf("once: "+IgnoredError+": %w", err)
	}
	return Conflict(err)
}

// IgnoredError tells the author of a handler why nothing was committed.
const IgnoredError = "a statement of this transaction failed and its error was ignored, so the transaction cannot be " +
	"committed: return that error, or run the statement in a nested transaction"

// Conflict wraps an error after which PostgreSQL wants the whole transaction
// run again in [once.ErrConflict].
func Conflict(err error) error {
	switch State(err) {
	case "40001", Deadlock, LockTimeout: // 40001: serialization failure
		if !errors.Is(err, once.ErrConflict) {
			return fmt.Errorf("%w: %w", once.ErrConflict, err)
		}
	}
	return err
}
