package pgstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// invalidText is the error of a text that cannot be cast.
const invalidText = "22P02"

// saysWhy reports whether one of our own statements has failed on purpose, with one of these texts.
func saysWhy(pe *pgconn.PgError, why ...string) bool {
	return pe.Code == invalidText && slices.ContainsFunc(why, func(text string) bool { return strings.Contains(pe.Message, text) })
}

func sqlState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// explain puts what the caller of a store has to know in front of an error.
func explain(err error) error {
	var refused sqlschema.Refusal
	var moved consuming.Lost
	switch {
	case errors.As(err, &moved):
		return fmt.Errorf("%w: %w", once.ErrLeaseLost, err)
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", once.ErrInvalid, err)
	case errors.Is(err, puddle.ErrClosedPool):
		return fmt.Errorf("%w: %w", once.ErrClosed, err)
	case isUnready(err):
		return fmt.Errorf("%w: no replication slot delivers, %s: %w", once.ErrInvalid, startRelay, err)
	case sqlState(err) == aborted:
		return fmt.Errorf("once: "+passedOver+": %w", err)
	}
	return conflict(err)
}

// aborted is how statements fail after one that failed.
const aborted = "25P02"

const passedOver = "a statement of this transaction failed and its error was passed over, so nothing of it can be " +
	"committed: return that error, or put the statement into a nested transaction"

// conflict marks an error after which PostgreSQL wants the whole transaction again.
func conflict(err error) error {
	switch sqlState(err) {
	case "40001", "40P01", "55P03": // serialization failure, deadlock, lock not available
		if !errors.Is(err, once.ErrConflict) {
			return fmt.Errorf("%w: %w", once.ErrConflict, err)
		}
	}
	return err
}

// refused marks an error by which PostgreSQL says that it can never store this outcome.
func refused(set once.Settlement, err error) error {
	pe, ok := serverError(err)
	if ok && set.Status == once.Done && isRefusal(pe.Code) {
		return fmt.Errorf("%w: its body has %d bytes: %w", once.ErrOutcomeRefused, len(set.Outcome.Body), err)
	}
	return err
}

func isRefusal(state string) bool {
	switch state {
	case "22001", "22021", "22P05", "54000": // too long; not in the encoding, twice; over a limit
		return true
	}
	return strings.HasPrefix(state, "23") // a constraint
}

// serverError is an error that the server answered a statement with: it runs nothing that was sent behind it.
func serverError(err error) (pe *pgconn.PgError, refused bool) {
	refused = errors.As(err, &pe) && (pe.Severity == "ERROR" || pe.SeverityUnlocalized == "ERROR")
	return pe, refused
}

// settleFailed explains an error of a settlement that was sent together with COMMIT. Only an ERROR from the
// server is proof that it has skipped the COMMIT; what ends the connection may have come after it. No settlement makes a
// duplicate but a record that was reserved, if another was committed by a store that does not know its lock.
func settleFailed(err error) error {
	switch pe, refused := serverError(err); {
	case !refused:
		return unknown(err)
	case saysWhy(pe, claimLost, notMoved):
		return fmt.Errorf("%w: a claim of this transaction is no longer its own: rolled back", once.ErrLeaseLost)
	case pe.Code == "23505":
		return fmt.Errorf("%w: another claim was committed at the same moment: %w", once.ErrConflict, err)
	case isRefusal(pe.Code):
		return fmt.Errorf("%w: %w", once.ErrOutcomeRefused, err)
	}
	return explain(err)
}

// putFailed explains an error of messages that were sent together with COMMIT.
func putFailed(err error) error {
	switch pe, refused := serverError(err); {
	case !refused:
		return unknown(err)
	case pe.Code == aborted:
		return explain(err)
	}
	return fmt.Errorf("once: the messages that were put were refused, so nothing was committed: %w", explain(err))
}

// commitFailed explains an error of COMMIT. Whether the driver thinks that nothing was sent is not asked.
func commitFailed(err error) error {
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "40") && state != "40003": // which says that nobody knows
		return fmt.Errorf("%w: %w", once.ErrConflict, err)
	case strings.HasPrefix(state, "23"):
		return fmt.Errorf("once: the commit was refused: %w", err)
	}
	return unknown(err)
}

func unknown(err error) error {
	return fmt.Errorf("%w: the commit was sent: %w", once.ErrOutcomeUnknown, err)
}
