package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// leftByWork is the reason of records that are parked here.
const leftByWork = "the transaction was ended by a statement of the work, so what it wrote may be committed"

var errLeft = errors.New("once: " + leftByWork)

// noticing is body, and a look after it whether it has left its transaction. Only the connection itself lets it.
func noticing[R any](ctx context.Context, h *handle, body func() (R, error)) (result R, err error) {
	defer func() { // after a panic, too
		open := !h.Tx.Conn().IsClosed()
		switch h.left = h.left || h.leaves(ctx); {
		case err != nil:
		case h.left:
			err = errLeft
		case open && h.Tx.Conn().IsClosed(): // found while looking: no COMMIT was sent
			err = fmt.Errorf("%w: the connection was lost before the commit was sent", once.ErrConflict)
		}
	}()
	return body()
}

// leaves reports whether the transaction at hand is another one than that which the connection was handed out in.
func (h *handle) leaves(ctx context.Context) bool {
	if !h.raw || h.Tx.Conn().IsClosed() || h.isBusy() {
		return false
	}
	switch h.Tx.Conn().PgConn().TxStatus() {
	case 'I':
		return true
	case 'T':
		now := h.transactionID(ctx)
		return h.id != "" && now != "" && now != h.id
	}
	return false // a statement has failed, and nothing can be asked
}

// transactionID is empty if it cannot be asked for. It prepares nothing: the user of the connection may have dropped prepared statements.
func (h *handle) transactionID(ctx context.Context) (id string) {
	conn := h.Tx.Conn()
	if conn.IsClosed() || h.isBusy() || conn.PgConn().TxStatus() != 'T' {
		return ""
	}
	defer limit(conn).end()
	err := conn.QueryRow(context.WithoutCancel(ctx), "select pg_current_xact_id()::text", pgx.QueryExecModeSimpleProtocol).Scan(&id)
	if err != nil {
		return ""
	}
	return id
}

// parkLeft leaves the keys of work that has left its transaction to a person. What another has claimed since is another's.
func (s *Store) parkLeft(ctx context.Context, rs []once.ClaimRequest, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	parked := fmt.Errorf("%w: %s", once.ErrParked, leftByWork)
	for _, r := range rs {
		rec, cause := s.Claim(ctx, r)
		switch {
		case cause == nil && !anyWon([]once.ClaimRequest{r}, []once.Record{rec}):
			continue
		case cause == nil:
			fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
			cause = s.Settle(ctx, once.Settlement{Fence: fence, Status: once.Parked, Reason: leftByWork})
		}
		if cause != nil {
			parked = fmt.Errorf("once: %s; the key could not be parked: %w", leftByWork, cause)
		}
	}
	if err == nil || errors.Is(err, errLeft) || errors.Is(err, once.ErrConflict) { // which invites to another try
		return parked
	}
	return fmt.Errorf("%w: %w", parked, err)
}
