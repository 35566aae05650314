package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/outboxlog"
	"github.com/jackc/pgx/v5"
)

// OutboxMode is where relays find messages. docs/outbox-log.md describes what
// each mode costs, and how to change it.
type OutboxMode = outboxlog.Mode

const (
	// OutboxTable makes relays read the table.
	OutboxTable = outboxlog.Table

	// OutboxRowsByLog writes messages to the table. One relay reads them from
	// PostgreSQL's log, in the order of commits. If the log is lost, the rows
	// are read again.
	OutboxRowsByLog = outboxlog.RowsByLog

	// OutboxLogOnly writes messages to the log and nowhere else, so the table
	// does not grow. If the log is lost, messages that were not published yet
	// are lost with it. Messages that have a Delay or that failed are rows all
	// the same.
	OutboxLogOnly = outboxlog.LogOnly
)

// ErrSlotLost is returned when a replication slot is gone or can no longer be
// read, and messages were lost with it: those that were in the log only, and
// not yet published. Nothing is read from the log until [Store.ResetOutboxSlot]
// is called.
var ErrSlotLost = outboxlog.ErrSlotLost

var (
	_ store.OutboxLog = (*Store)(nil)
	_ store.LogLag    = (*Store)(nil)
)

// LogsRows reports whether the log delivers pending rows. With OutboxTable it
// returns what the last look found.
func (s *Store) LogsRows() bool { return s.log != nil && s.log.InUse() }

// TailOutbox reads the log from where the last reader stopped. It creates the
// slot and the publication if they are missing. Rows that were pending when the
// slot was created are delivered first, and nothing is delivered twice. With
// OutboxTable it creates nothing: it reads what processes in another mode have
// created, until ResetOutboxSlot is called.
//
// The error is [once.ErrConflict] if another reader has the slot, or had it
// until a moment ago, [ErrSlotLost] if messages may have been lost, and
// [once.ErrInvalid] if the server or the role is not set up for replication:
// the text says what to do.
func (s *Store) TailOutbox(ctx context.Context) (store.OutboxTail, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	return s.log.Tail(ctx)
}

// ResetOutboxSlot drops the slot. The next reader creates a new one; with
// OutboxTable, relays read the table again. Call it to leave the log modes, and
// after [ErrSlotLost]. Rows stay. It waits for transactions that have put
// messages into the log only.
//
// The error is [once.ErrConflict] if a relay reads the slot, and has to be
// stopped first, or if the slot holds messages without rows that may not be
// published yet: a relay publishes them, and [Store.DiscardOutboxLog] discards
// them.
func (s *Store) ResetOutboxSlot(ctx context.Context) error { return s.resetOutbox(ctx, false) }

// DiscardOutboxLog is ResetOutboxSlot whatever the slot holds: messages that
// are in the log only, and not published, are lost. Call it when the log fills
// the disk and no relay can run.
func (s *Store) DiscardOutboxLog(ctx context.Context) error { return s.resetOutbox(ctx, true) }

func (s *Store) resetOutbox(ctx context.Context, discard bool) error {
	if s.invalid != nil {
		return s.invalid
	}
	return s.log.Reset(ctx, discard)
}

// Slot describes the replication slot of the outbox.
type Slot struct {
	Name     string
	Active   bool  // a reader is connected
	Retained int64 // bytes of log that PostgreSQL keeps for it
	Lag      int64 // bytes of log after what is known to be published

	// Status is wal_status: "reserved"; "extended", if more log is kept than
	// max_wal_size; "unreserved", if the slot may be lost at the next
	// checkpoint; or "lost".
	Status string

	Safe int64 // bytes of log that may be written before it can be lost; -1 if max_slot_wal_keep_size sets no limit

	// Ready is set if messages that are committed from now on will be
	// delivered. PostgreSQL lists a slot as soon as its creation begins. It
	// delivers nothing that is committed before the transactions that were open
	// then have ended.
	Ready bool
}

func (s Slot) lost() bool { return s.Status == "lost" }

// OutboxSlot describes the slot, for alarms: log that is kept fills the disk.
// The error is [once.ErrInvalid] if there is no slot.
func (s *Store) OutboxSlot(ctx context.Context) (Slot, error) {
	slot, found, err := s.findSlot(ctx)
	if err == nil && !found {
		return slot, fmt.Errorf("%w: there is no replication slot %s: a relay creates it, in a mode that reads the log",
			once.ErrInvalid, slot.Name)
	}
	return slot, err
}

// OutboxLag returns how far the reader of the log lags behind. With OutboxTable
// it returns nil if there is no slot. A slot that was left over from a log mode
// fills the disk until ResetOutboxSlot drops it.
func (s *Store) OutboxLag(ctx context.Context) (*store.Lag, error) {
	slot, found, err := s.findSlot(ctx)
	switch {
	case err != nil:
		return nil, err
	case !found && s.log.TableOnly():
		return nil, nil
	case !found, !slot.Ready && !slot.lost():
		return &store.Lag{Status: store.LagMissing}, nil
	}
	return lagOf(slot), nil
}

// lagOf translates the Status of a slot.
func lagOf(slot Slot) *store.Lag {
	lag := &store.Lag{Behind: slot.Lag, Retained: slot.Retained, Active: slot.Active}
	for _, status := range store.LagStatuses() {
		if status.String() == slot.Status {
			lag.Status = status
		}
	}
	return lag
}

// findSlot reads the slot. Its Name is set even if there is no slot.
func (s *Store) findSlot(ctx context.Context) (slot Slot, found bool, err error) {
	if s.invalid != nil {
		return Slot{}, false, s.invalid
	}
	names, err := s.log.Names(ctx, s.pool)
	if err != nil {
		return Slot{}, false, err
	}
	slot.Name = names.Slot()
	var ours bool
	err = s.pool.QueryRow(ctx, `SELECT active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
		coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
		coalesce(wal_status, ''), coalesce(safe_wal_size, -1), coalesce(`+outboxlog.OursSQL+`, false), coalesce(`+outboxlog.ReadySQL+`, false)
		FROM pg_replication_slots WHERE slot_name = $1`, slot.Name).
		Scan(&slot.Active, &slot.Retained, &slot.Lag, &slot.Status, &slot.Safe, &ours, &slot.Ready)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return slot, false, nil
	case err != nil:
		return slot, false, explain(err)
	case !ours:
		return slot, false, outboxlog.ForeignSlot(slot.Name)
	}
	return slot, true, nil
}
