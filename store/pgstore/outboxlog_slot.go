package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
)

// Slot is how the replication slot of the outbox is.
type Slot struct {
	Name     string
	Active   bool  // somebody reads it
	Retained int64 // bytes of log that PostgreSQL keeps for it
	Lag      int64 // bytes of log behind what is known to be published

	// Status is wal_status: "reserved", or "extended", with more log than max_wal_size, or "unreserved", which may be
	// lost at the next checkpoint, or "lost".
	Status string

	Safe int64 // bytes of log that may be written before it can be lost; -1: max_slot_wal_keep_size sets no limit
}

func (s Slot) lost() bool { return s.Status == "lost" }

// OutboxSlot tells how the slot is, for alarms: log that is kept fills the disk. [once.ErrInvalid]: there is none.
func (s *Store) OutboxSlot(ctx context.Context) (Slot, error) {
	slot, found, err := s.findSlot(ctx)
	if err == nil && !found {
		return slot, fmt.Errorf("%w: there is no replication slot %s: a relay makes it, in a mode that reads the log",
			once.ErrInvalid, slot.Name)
	}
	return slot, err
}

var _ store.LogLag = (*Store)(nil)

// OutboxLag tells how far the reader of the log is behind. With OutboxTable it does so only if there is a slot all the same:
// one that a log mode has left behind fills the disk, until ResetOutboxSlot drops it.
func (s *Store) OutboxLag(ctx context.Context) (*store.Lag, error) {
	slot, found, err := s.findSlot(ctx)
	switch {
	case err != nil:
		return nil, err
	case !found && s.log.mode == OutboxTable:
		return nil, nil
	case !found:
		return &store.Lag{Status: store.LagMissing}, nil
	}
	return lagOf(slot), nil
}

// lagOf goes by the words of wal_status.
func lagOf(slot Slot) *store.Lag {
	lag := &store.Lag{Behind: slot.Lag, Retained: slot.Retained, Active: slot.Active}
	for _, status := range store.LagStatuses() {
		if status.String() == slot.Status {
			lag.Status = status
		}
	}
	return lag
}

// findSlot looks for the slot, whose name it always has.
func (s *Store) findSlot(ctx context.Context) (slot Slot, found bool, err error) {
	if s.invalid != nil {
		return Slot{}, false, s.invalid
	}
	names, err := s.logNames(ctx, s.pool)
	if err != nil {
		return Slot{}, false, err
	}
	slot, err = readSlot(ctx, s.pool, names.slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return slot, false, nil
	}
	return slot, err == nil, explain(err)
}

func readSlot(ctx context.Context, q querier, name string) (slot Slot, err error) {
	slot.Name = name
	var ours bool
	err = q.QueryRow(ctx, `SELECT active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
		coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
		coalesce(wal_status, ''), coalesce(safe_wal_size, -1), coalesce(plugin = 'pgoutput' AND database = current_database(), false)
		FROM pg_replication_slots WHERE slot_name = $1`, name).
		Scan(&slot.Active, &slot.Retained, &slot.Lag, &slot.Status, &slot.Safe, &ours)
	if err == nil && !ours {
		return slot, fmt.Errorf("%w: the replication slot %s is not one of pgoutput in this database: give Options.Slot "+
			"another name", once.ErrInvalid, name)
	}
	return slot, err
}

// ResetOutboxSlot drops the slot, whatever is in it, so that the next reader makes a new one, and delivers the rows that
// are pending then. Messages that are in the log only, and not published, are lost by that: it is the answer to
// [ErrSlotLost], or the end of the log modes. [once.ErrConflict]: a relay reads the slot, and has to be stopped first.
func (s *Store) ResetOutboxSlot(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	names, err := s.logNames(ctx, s.pool)
	if err != nil {
		return err
	}
	if err := dropSlot(ctx, s.pool, names.slot); err != nil {
		if sqlState(err) == inUse {
			return fmt.Errorf("%w: a relay reads the slot %s: stop all relays first: %w", once.ErrConflict, names.slot, err)
		}
		return explainLog(err)
	}
	s.log.emits.Store(nil)
	_, err = s.pool.Exec(ctx, `DROP PUBLICATION IF EXISTS `+pgx.Identifier{names.publication}.Sanitize())
	return explainLog(err)
}

// dropSlot drops a slot, if it is there.
func dropSlot(ctx context.Context, q querier, name string) error {
	_, err := q.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, name)
	return err
}

func lostSlot(names logNames) error {
	return fmt.Errorf("%w: slot %s, by max_slot_wal_keep_size, by hand, or because the database was restored or another "+
		"server has taken over: messages that were only in the log and not yet published are lost, rows are not. "+
		"ResetOutboxSlot begins anew", ErrSlotLost, names.slot)
}

// logMark is what is known of a slot for as long as the database lives: the slot itself may vanish. It is the comment of
// the publication, as JSON.
type logMark struct {
	Made    bool `json:"made"`    // the slot was made once
	Sole    bool `json:"sole"`    // messages may be in the log only
	Settled bool `json:"settled"` // nothing is pending in the table that the log does not have, too
}

// readMark returns the mark, and whether there is a publication at all, and with the table.
func (t *logTail) readMark(ctx context.Context) (mark logMark, published, complete bool, err error) {
	var comment string
	err = t.store.pool.QueryRow(ctx, `SELECT coalesce(obj_description(p.oid, 'pg_publication'), ''), p.puballtables
		OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $2::regclass)
		FROM pg_publication p WHERE p.pubname = $1`, t.names.publication, t.names.table).Scan(&comment, &complete)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return mark, false, false, nil
	case err != nil:
		return mark, false, false, err
	}
	if comment != "" {
		if err := json.Unmarshal([]byte(comment), &mark); err != nil {
			return mark, true, complete, fmt.Errorf("%w: the comment on the publication %s is not once's: %w", once.ErrInvalid,
				t.names.publication, err)
		}
	}
	return mark, true, complete, nil
}

// writeMark waits for the disk, and not for standbys: without one, the log is read all the same.
func (t *logTail) writeMark(ctx context.Context, mark logMark) error {
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = local`)
		if err == nil {
			_, err = tx.Exec(ctx, `COMMENT ON PUBLICATION `+t.publication()+` IS '`+strings.ReplaceAll(string(text), "'", "''")+`'`)
		}
		return err
	})
	if err == nil {
		t.mark = mark
	}
	return err
}

func (t *logTail) publication() string { return pgx.Identifier{t.names.publication}.Sanitize() }

// prepare makes what is missing, in an order in which it may break off anywhere. The caller has the place of the reader.
func (t *logTail) prepare(ctx context.Context) error {
	mark, published, complete, err := t.readMark(ctx)
	if err != nil {
		return err
	}
	t.mark = mark
	slot, err := readSlot(ctx, t.store.pool, t.names.slot)
	missing := errors.Is(err, pgx.ErrNoRows)
	switch {
	case err != nil && !missing:
		return err
	case slot.Active:
		return fmt.Errorf("%w: another reader has the slot %s", once.ErrConflict, t.names.slot)
	}
	sole := t.store.log.mode == OutboxLogOnly
	// A slot is older than its publication only if that was dropped: then its log cannot be read.
	gone := missing && mark.Made || !missing && (slot.lost() || !published)
	if gone && (sole || mark.Sole) {
		return lostSlot(t.names)
	}
	if err := t.publish(ctx, published, complete); err != nil {
		return err
	}
	if gone || missing {
		return t.remake(ctx, sole)
	}
	// Rows that are put while the log is read for messages only are for the table's readers, until the mode changes back.
	if want := (logMark{Made: true, Sole: mark.Sole || sole, Settled: t.mark.Settled && !sole}); want != t.mark {
		return t.writeMark(ctx, want)
	}
	return nil
}

// publish makes the publication, or completes it. Only inserts are published.
func (t *logTail) publish(ctx context.Context, published, complete bool) (err error) {
	switch {
	case !published:
		_, err = t.store.pool.Exec(ctx, `CREATE PUBLICATION `+t.publication()+` FOR TABLE `+t.names.table+
			` WITH (publish = 'insert')`)
	case !complete: // the table was made anew
		mark := t.mark
		mark.Settled = false
		if err := t.writeMark(ctx, mark); err != nil {
			return err
		}
		_, err = t.store.pool.Exec(ctx, `ALTER PUBLICATION `+t.publication()+` ADD TABLE `+t.names.table)
	}
	return err
}

// remake makes a slot in the place of none, or of one that nothing can be read from.
func (t *logTail) remake(ctx context.Context, sole bool) error {
	if err := t.writeMark(ctx, logMark{Made: t.mark.Made, Sole: t.mark.Sole}); err != nil {
		return err
	}
	if err := dropSlot(ctx, t.store.pool, t.names.slot); err != nil {
		return err
	}
	_, err := t.conn.query(ctx, `CREATE_REPLICATION_SLOT `+t.names.slot+` LOGICAL pgoutput NOEXPORT_SNAPSHOT`)
	if err != nil {
		return err
	}
	return t.writeMark(ctx, logMark{Made: true, Sole: sole})
}
