package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

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

	// Ready says that what is committed from now on will be delivered. A slot is listed from the moment in which
	// somebody begins to make it, but delivers nothing that is committed before all transactions have ended that were
	// open then.
	Ready bool
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
	case !found, !slot.Ready && !slot.lost():
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

const (
	// slotOurs is the condition that a slot of our name can be the outbox's: a temporary one ends with its session.
	slotOurs = `plugin = 'pgoutput' AND database = current_database() AND NOT temporary`

	// slotReady is the condition that it delivers what is committed from now on. PostgreSQL writes down the place from
	// which it delivers when it has found one, and not when the slot is first listed.
	slotReady = slotOurs + ` AND confirmed_flush_lsn IS NOT NULL AND wal_status IS DISTINCT FROM 'lost'`
)

func readSlot(ctx context.Context, q querier, name string) (slot Slot, err error) {
	slot.Name = name
	var ours bool
	err = q.QueryRow(ctx, `SELECT active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
		coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
		coalesce(wal_status, ''), coalesce(safe_wal_size, -1), coalesce(`+slotOurs+`, false), coalesce(`+slotReady+`, false)
		FROM pg_replication_slots WHERE slot_name = $1`, name).
		Scan(&slot.Active, &slot.Retained, &slot.Lag, &slot.Status, &slot.Safe, &ours, &slot.Ready)
	if err == nil && !ours {
		return slot, fmt.Errorf("%w: the replication slot %s is not a lasting one of pgoutput in this database: give Options.Slot "+
			"another name", once.ErrInvalid, name)
	}
	return slot, err
}

// ResetOutboxSlot drops the slot, so that the next reader makes a new one, or relays with OutboxTable read the table again:
// it is the end of the log modes, and the answer to [ErrSlotLost]. Rows stay. It waits for transactions that have put
// messages into the log only. [once.ErrConflict]: a relay reads the slot, and has to be stopped first, or such messages
// are in it that may not be published yet: a relay publishes them, or [Store.DiscardOutboxLog] gives them up.
func (s *Store) ResetOutboxSlot(ctx context.Context) error { return s.reset(ctx, false) }

// DiscardOutboxLog is ResetOutboxSlot, whatever is in the slot: messages that are in the log only, and not published, are
// lost by that. It is for a disk that the log fills while no relay can run.
func (s *Store) DiscardOutboxLog(ctx context.Context) error { return s.reset(ctx, true) }

func (s *Store) reset(ctx context.Context, discard bool) error {
	if s.invalid != nil {
		return s.invalid
	}
	names, err := s.logNames(ctx, s.pool)
	if err != nil {
		return err
	}
	s.log.emits.Store(nil)
	for {
		err := s.resetSlot(ctx, names, discard)
		switch state := sqlState(err); {
		case err == nil:
			return nil
		case state == inUse:
			return fmt.Errorf("%w: a relay reads the slot %s: stop all relays first: %w", once.ErrConflict, names.slot, err)
		case state != lockTimedOut:
			return explainLog(err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("once: transactions that have put messages into the log are still open, and would lose them: %w",
				ctx.Err())
		case <-time.After(resetPause):
		}
	}
}

const (
	lockTimedOut = "55P03" // SQLSTATE
	resetPause   = 100 * time.Millisecond
)

// resetSlot drops the slot and the publication while no transaction is open that has put messages because the slot was
// there. Those that put meanwhile wait for it, so it gives up soon if it has to wait itself.
func (s *Store) resetSlot(ctx context.Context, names logNames, discard bool) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1s'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, names.putLock()); err != nil {
			return err
		}
		if !discard {
			if err := checkPublished(ctx, tx, names); err != nil {
				return err
			}
		}
		if err := dropSlot(ctx, tx, names.slot); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DROP PUBLICATION IF EXISTS `+pgx.Identifier{names.publication}.Sanitize())
		return err
	})
}

// checkPublished looks for messages in the log that are nowhere else, and not known to be published. In a slot that can
// deliver nothing it finds none: they are lost already.
func checkPublished(ctx context.Context, tx pgx.Tx, names logNames) error {
	var sole bool
	err := tx.QueryRow(ctx, `SELECT `+soleSQL("$1")+` AND EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = $2::text AND `+slotReady+`)`, names.publication, names.slot).Scan(&sole)
	if err != nil || !sole {
		return err
	}
	var n int
	err = tx.QueryRow(ctx, `SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1',
		'publication_names', $2, 'messages', 'true')
		WHERE get_byte(data, 0) = ascii('M') AND substring(data FROM 11 FOR octet_length($3::bytea)) = $3::bytea`,
		names.slot, names.publication, append([]byte(names.prefix), 0)).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%w: %d messages are in the log and nowhere else, and are not known to be published: start a relay, "+
			"stop it when the Lag of OutboxSlot is small, and try again; DiscardOutboxLog gives them up", once.ErrConflict, n)
	}
	return err
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
// the publication, as JSON. While it is there, pending rows are for the reader of the log, in whatever mode processes are.
type logMark struct {
	Made    bool `json:"made"`    // the slot was made once
	Sole    bool `json:"sole"`    // messages may be in the log only
	Settled bool `json:"settled"` // nothing is pending that the slot does not deliver

	// Snapshot shows the rows that the slot does not deliver, and no others, until they are settled. Without it the slot was
	// not finished.
	Snapshot string `json:"snapshot,omitempty"`
}

// finished reports whether what the slot delivers, and what it does not, is all there is.
func (m logMark) finished() bool { return m.Made && (m.Settled || m.Snapshot != "") }

// markedSQL is the condition that an outbox, whose table is an argument, is read from the log, whatever the slot is called.
const markedSQL = `EXISTS (SELECT FROM pg_publication p
	JOIN pg_description d ON d.objoid = p.oid AND d.classoid = 'pg_publication'::regclass AND d.description LIKE '{"made"%'
	WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = to_regclass($1::text)))`

// readMark returns the mark, and whether there is a publication at all, and with the table.
func (t *logTail) readMark(ctx context.Context, q querier) (mark logMark, published, complete bool, err error) {
	var comment string
	err = q.QueryRow(ctx, `SELECT coalesce(obj_description(p.oid, 'pg_publication'), ''), p.puballtables
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

// changeMark changes the mark, one process at a time. It waits for the disk, and not for standbys: without one, the log is
// read all the same.
func (t *logTail) changeMark(ctx context.Context, change func(*logMark) error) error {
	return pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error { return t.changeMarkIn(ctx, tx, change) })
}

func (t *logTail) changeMarkIn(ctx context.Context, tx pgx.Tx, change func(*logMark) error) error {
	if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = local`); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, t.names.markLock()); err != nil {
		return err
	}
	mark, published, _, err := t.readMark(ctx, tx)
	if err != nil {
		return err
	}
	if !published {
		return fmt.Errorf("%w: the publication %s was dropped meanwhile", once.ErrConflict, t.names.publication)
	}
	if err := change(&mark); err != nil {
		return err
	}
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `COMMENT ON PUBLICATION `+t.publication()+` IS '`+strings.ReplaceAll(string(text), "'", "''")+`'`)
	if err == nil {
		t.mark = mark
	}
	return err
}

// announce notes that messages may be in the log only, although another process has the place of the reader: its mode may
// be another one, and writers with OutboxLogOnly wait for this.
func (t *logTail) announce(ctx context.Context) error {
	if t.store.log.mode != OutboxLogOnly {
		return nil
	}
	mark, published, _, err := t.readMark(ctx, t.store.pool)
	if err != nil || !published || mark.Sole || !mark.finished() {
		return err
	}
	return t.changeMark(ctx, func(mark *logMark) error {
		mark.Sole = mark.Sole || mark.finished()
		return nil
	})
}

func (t *logTail) publication() string { return pgx.Identifier{t.names.publication}.Sanitize() }

// errNotLogged is that the outbox is not read from the log any more, or not yet, in a process that does not begin it.
var errNotLogged = errors.New("once: nobody reads the outbox from the log")

// prepare makes what is missing, in an order in which it may break off anywhere. The caller has the place of the reader.
func (t *logTail) prepare(ctx context.Context) error {
	mark, published, complete, err := t.readMark(ctx, t.store.pool)
	if err != nil {
		return err
	}
	t.mark = mark
	begins := t.store.log.mode != OutboxTable
	if !published && !begins {
		return errNotLogged
	}
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
	switch {
	case gone && (sole || mark.Sole):
		return lostSlot(t.names)
	case !begins && (gone || missing || !mark.finished()): // all there is are rows, and the table has them
		return cmp.Or(t.store.resetSlot(ctx, t.names, true), errNotLogged)
	}
	if err := t.publish(ctx, published, complete); err != nil {
		return err
	}
	if gone || missing || !mark.finished() {
		return t.remake(ctx, sole)
	}
	if sole && !t.mark.Sole {
		return t.changeMark(ctx, func(mark *logMark) error {
			mark.Sole = true
			return nil
		})
	}
	return nil
}

// publish makes the publication, or completes it. Only inserts are published.
func (t *logTail) publish(ctx context.Context, published, complete bool) (err error) {
	switch {
	case !published:
		_, err = t.store.pool.Exec(ctx, `CREATE PUBLICATION `+t.publication()+` FOR TABLE `+t.names.table+
			` WITH (publish = 'insert')`)
		return err
	case complete:
		return nil
	}
	// The table was made anew. What is inserted into it comes out of the log from the moment on in which nobody inserts.
	return pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE `+t.names.table+` IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ALTER PUBLICATION `+t.publication()+` ADD TABLE `+t.names.table); err != nil {
			return err
		}
		var shown string
		if err := tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&shown); err != nil {
			return err
		}
		return t.changeMarkIn(ctx, tx, func(mark *logMark) error {
			if mark.finished() {
				mark.Settled, mark.Snapshot = false, shown
			}
			return nil
		})
	})
}

// remake makes a slot in the place of none, or of one that nothing can be read from. Relays that read the table leave
// pending rows alone from the first mark on, which is before the slot looks for its place: so each row is either in the
// snapshot that comes with the slot, or is delivered by it.
func (t *logTail) remake(ctx context.Context, sole bool) error {
	err := t.changeMark(ctx, func(mark *logMark) error {
		if mark.Sole {
			return lostSlot(t.names)
		}
		mark.Settled, mark.Snapshot = false, ""
		return nil
	})
	if err != nil {
		return err
	}
	if err := dropSlot(ctx, t.store.pool, t.names.slot); err != nil {
		return err
	}
	row, err := t.conn.query(ctx, `CREATE_REPLICATION_SLOT `+t.names.slot+` LOGICAL pgoutput EXPORT_SNAPSHOT`)
	if err != nil {
		return err
	}
	if len(row) < 3 {
		return errors.New("once: PostgreSQL exported no snapshot")
	}
	shown, err := t.store.snapshotOf(ctx, string(row[2]))
	if err != nil {
		return err
	}
	return t.changeMark(ctx, func(mark *logMark) error {
		*mark = logMark{Made: true, Sole: sole, Snapshot: shown}
		return nil
	})
}
