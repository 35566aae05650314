package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// connUse says what the user of a transaction has done with its connection.
type connUse int

const (
	connGuarded   connUse = iota // the user has only the handle, which refuses COMMIT and ROLLBACK
	connHandedOut                // the user has, or had, the connection, where nothing is refused
	connEnded                    // the user has ended the transaction there, and may have committed it
)

// endedByWork is the reason of records that are parked here.
const endedByWork = "the transaction was ended by a statement of the work, so what it wrote may be committed"

var errEndedByWork = errors.New("once: " + endedByWork)

// run calls work, and then checks whether work has ended the transaction.
func (h *handle) run(ctx context.Context, recs []once.Record, work body) (sets []once.Settlement, err error) {
	if h.use == connHandedOut { // by a speculation that was rolled back: the work may still have it
		h.id = h.transactionID(ctx)
	}
	defer func() { err = h.checkEnded(ctx, err) }() // after a panic as well
	return work(h, recs)
}

// runAt is run for work on a position.
func (h *handle) runAt(ctx context.Context, work func(pgx.Tx) error) (err error) {
	defer func() { err = h.checkEnded(ctx, err) }()
	return work(h)
}

// checkEnded returns the error of work that returned err, or what is wrong with
// its transaction.
func (h *handle) checkEnded(ctx context.Context, err error) error {
	wasClosed := h.conn.IsClosed()
	if h.use == connHandedOut && h.isAnother(ctx) {
		h.use = connEnded
	}
	switch {
	case h.refused != nil && err != nil:
		return fmt.Errorf("%w: %w", h.refused, err)
	case h.refused != nil:
		return h.refused
	case err != nil:
		return err
	case h.use == connEnded:
		return errEndedByWork
	case !wasClosed && h.conn.IsClosed(): // by the check, so no COMMIT was sent
		return fmt.Errorf("%w: the connection was lost before the commit was sent", once.ErrConflict)
	}
	return nil
}

// isAnother reports whether the connection is in another transaction than when
// it was handed out, or in none.
func (h *handle) isAnother(ctx context.Context) bool {
	if h.conn.IsClosed() || h.isBusy() {
		return false
	}
	switch h.conn.PgConn().TxStatus() {
	case 'I':
		return true
	case 'T':
		now := h.transactionID(ctx)
		return h.id != "" && now != "" && now != h.id
	}
	return false // a statement has failed, and no query is possible
}

// transactionID returns the number of the transaction, or "" if it cannot be
// asked for. It uses no prepared statement: the user of the connection may have
// dropped those.
func (h *handle) transactionID(ctx context.Context) (id string) {
	if h.conn.IsClosed() || h.isBusy() || h.conn.PgConn().TxStatus() != 'T' {
		return ""
	}
	defer limit(h.conn).end()
	err := h.conn.QueryRow(context.WithoutCancel(ctx), "select pg_current_xact_id()::text", pgx.QueryExecModeSimpleProtocol).Scan(&id)
	if err != nil {
		return ""
	}
	return id
}

// parkAbandoned parks the keys of work that has ended its transaction, so that
// a person decides. Keys that another call has claimed since are left alone.
func (s *Store) parkAbandoned(ctx context.Context, rs []once.ClaimRequest, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	parked := fmt.Errorf("%w: %s", once.ErrParked, endedByWork)
	for _, r := range rs {
		rec, failed := s.Claim(ctx, r)
		switch {
		case failed == nil && !anyWon([]once.ClaimRequest{r}, []once.Record{rec}):
			continue
		case failed == nil:
			fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
			failed = s.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked, Reason: endedByWork})
		}
		if failed != nil {
			parked = fmt.Errorf("once: %s; the key could not be parked: %w", endedByWork, failed)
		}
	}
	if err == nil || errors.Is(err, errEndedByWork) || errors.Is(err, once.ErrConflict) { // a conflict would be tried again
		return parked
	}
	return fmt.Errorf("%w: %w", parked, err)
}
