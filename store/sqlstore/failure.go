package sqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
)

// fail puts what the caller of a store has to know in front of an error.
func (s *Store) fail(err error) error {
	var refusal sqlschema.Refusal
	var moved consuming.Lost
	switch {
	case err == nil:
		return nil
	case errors.As(err, &moved):
		return fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
	case errors.As(err, &refusal):
		return fmt.Errorf("%w: %w", once.ErrInvalid, err)
	case strings.HasSuffix(err.Error(), "sql: database is closed"): // database/sql does not export it
		return fmt.Errorf("%w: %w", once.ErrClosed, err)
	}
	return s.conflict(err)
}

// conflict marks an error after which the database wants the whole transaction again.
func (s *Store) conflict(err error) error {
	failure := s.dialect.Failure(err)
	if failure != sqlschema.Conflict && failure != sqlschema.LockTimeout || errors.Is(err, once.ErrConflict) {
		return err
	}
	return fmt.Errorf("%w: %w", once.ErrConflict, err)
}

// settleFailed explains why the transaction of a body that returned no error is not committed.
func (s *Store) settleFailed(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("once: the work has ended the transaction itself: leave Commit and Rollback to the store: %w", err)
	case s.dialect.Failure(err) == sqlschema.Aborted:
		return fmt.Errorf("once: a statement of the work failed and its error was passed over, so nothing can be "+
			"committed: return that error, or, in PostgreSQL, put the statement behind a SAVEPOINT: %w", err)
	case errors.Is(err, once.ErrLeaseLost):
		return fmt.Errorf("rolled back; if an error was passed over, it may have ended the transaction: %w", err)
	}
	return err
}

// commitFailed tells the few errors of COMMIT that are a refusal by the database from all others.
func (s *Store) commitFailed(err error) error {
	switch s.dialect.Failure(err) {
	case sqlschema.Constraint:
		return fmt.Errorf("once: the commit was refused: %w", err)
	case sqlschema.Conflict:
		return s.conflict(err)
	default:
		return fmt.Errorf("%w: the commit was sent: %w", once.ErrOutcomeUnknown, err)
	}
}
