package pgstore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5/pgconn"
)

// explain wraps an error in the error of package once that the caller matches.
func explain(err error) error { return outboxlog.ExplainEmit(err) }

// failedWith reports whether one of the store's own statements has failed on
// purpose, with one of these texts.
func failedWith(pe *pgconn.PgError, texts ...string) bool {
	return pe.Code == pgerr.InvalidText && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(pe.Message, text) })
}

// refused marks an error by which PostgreSQL says that it can never store this
// outcome.
func refused(set once.Settlement, err error) error {
	pe, ok := pgerr.Refused(err)
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

// settleFailed explains an error of a settlement that was sent together with
// COMMIT. Only an ERROR from the server proves that it has skipped the COMMIT:
// a connection may have broken after it. A unique violation can only come from
// a new record, if a store that does not know the lock has committed another.
func settleFailed(err error) error {
	switch pe, refused := pgerr.Refused(err); {
	case !refused:
		return unknown(err)
	case failedWith(pe, claimLost, notMoved):
		return fmt.Errorf("%w: a claim of this transaction is no longer its own: rolled back", once.ErrLeaseLost)
	case pe.Code == pgerr.NoStatement:
		return deallocated(err)
	case pe.Code == "23505":
		return fmt.Errorf("%w: another claim was committed at the same moment: %w", once.ErrConflict, err)
	case isRefusal(pe.Code):
		return fmt.Errorf("%w: %w", once.ErrOutcomeRefused, err)
	}
	return explain(err)
}

// putFailed explains an error of messages that were sent together with COMMIT.
func putFailed(err error) error {
	switch pe, refused := pgerr.Refused(err); {
	case !refused:
		return unknown(err)
	case pe.Code == pgerr.Aborted:
		return explain(err)
	}
	return fmt.Errorf("once: the messages that were put were refused, so nothing was committed: %w", explain(err))
}

// commitFailed explains an error of COMMIT. It does not rely on the driver's
// opinion whether anything was sent.
func commitFailed(err error) error {
	switch state := pgerr.State(err); {
	case strings.HasPrefix(state, "40") && state != "40003": // statement completion unknown
		return fmt.Errorf("%w: %w", once.ErrConflict, err)
	case state == pgerr.NoStatement: // it was not run
		return deallocated(err)
	case strings.HasPrefix(state, "23"):
		return fmt.Errorf("once: the commit was refused: %w", err)
	}
	return unknown(err)
}

func deallocated(err error) error {
	return fmt.Errorf("%w: the work has deallocated prepared statements: %w", once.ErrConflict, err)
}

func unknown(err error) error {
	return fmt.Errorf("%w: the commit was sent: %w", once.ErrOutcomeUnknown, err)
}
