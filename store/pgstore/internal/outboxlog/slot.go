package outboxlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/jackc/pgx/v5"
)

// slotState is what a replication slot is good for.
type slotState int

const (
	slotMissing slotState = iota
	slotForeign           // it has our name, and is not a lasting slot of pgoutput in this database
	slotLost              // PostgreSQL removed log that it needs: it delivers nothing any more
	slotPending           // it is being created, and delivers nothing that is committed now
	slotReady             // it delivers all that is committed from now on
)

const (
	// OursSQL is the condition that a slot with our name can be the outbox's. A
	// temporary slot ends with its session.
	OursSQL = `plugin = 'pgoutput' AND database = current_database() AND NOT temporary`

	// ReadySQL is the condition that it delivers what is committed from now on.
	// PostgreSQL lists a slot as soon as its creation begins, and sets
	// confirmed_flush_lsn when it has found the place from which it delivers.
	ReadySQL = OursSQL + ` AND confirmed_flush_lsn IS NOT NULL AND wal_status IS DISTINCT FROM 'lost'`
)

// lookUpSlot returns the state of a slot, and whether a session reads it. A
// foreign slot is an error.
func lookUpSlot(ctx context.Context, q Querier, name string) (state slotState, active bool, err error) {
	err = q.QueryRow(ctx, `SELECT active, CASE WHEN NOT coalesce(`+OursSQL+`, false) THEN 1 WHEN wal_status = 'lost' THEN 2
		WHEN coalesce(`+ReadySQL+`, false) THEN 4 ELSE 3 END
		FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&active, &state)
	if errors.Is(err, pgx.ErrNoRows) {
		return slotMissing, false, nil
	}
	if err == nil && state == slotForeign {
		err = ForeignSlot(name)
	}
	return state, active, err
}

// ForeignSlot is the error of a slot with our name for which [OursSQL] is
// false.
func ForeignSlot(name string) error {
	return fmt.Errorf("%w: the replication slot %s is not a permanent slot of pgoutput in this database: give Options.Slot "+
		"another name", once.ErrInvalid, name)
}

func lostSlot(names Names) error {
	return fmt.Errorf("%w: slot %s, by max_slot_wal_keep_size, by hand, or because the database was restored or another "+
		"server has taken over: messages that were only in the log and not yet published are lost, rows are not. "+
		"ResetOutboxSlot begins anew", ErrSlotLost, names.slot)
}

// Reset drops the slot and its publication, so that the next reader starts over
// with the rows of the table. It waits for transactions that have written
// messages to the log. Unless discard is set, it refuses while the slot holds
// messages that have no row and may not be published yet.
func (l *Log) Reset(ctx context.Context, discard bool) error {
	names, err := l.Names(ctx, l.pool)
	if err != nil {
		return err
	}
	l.checked.Store(nil)
	for {
		err := l.dropAll(ctx, names, discard)
		switch state := pgerr.State(err); {
		case err == nil:
			return nil
		case state == slotInUse:
			return fmt.Errorf("%w: a relay reads the slot %s: stop all relays first: %w", once.ErrConflict, names.slot, err)
		case state != pgerr.LockTimeout:
			return explain(err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("once: transactions that have put messages into the log are still open, and would lose them: %w",
				ctx.Err())
		case <-time.After(resetPause):
		}
	}
}

const resetPause = 100 * time.Millisecond

// dropAll drops the slot and the publication while no transaction is open that
// has written messages because the slot existed. Transactions that write in the
// meantime wait for it, so it soon gives up if it has to wait itself.
func (l *Log) dropAll(ctx context.Context, names Names, discard bool) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
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
		_, err := tx.Exec(ctx, `DROP PUBLICATION IF EXISTS `+names.publicationSQL())
		return err
	})
}

// checkPublished returns an error if the slot holds messages that have no row
// and are not known to be published. A slot that cannot deliver holds none: its
// messages are lost already.
func checkPublished(ctx context.Context, tx pgx.Tx, names Names) error {
	var logOnly bool
	err := tx.QueryRow(ctx, `SELECT `+logOnlySQL("$1")+` AND EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = $2::text AND `+ReadySQL+`)`, names.publication, names.slot).Scan(&logOnly)
	if err != nil || !logOnly {
		return err
	}
	var n int
	err = tx.QueryRow(ctx, `SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1',
		'publication_names', $2, 'messages', 'true')
		WHERE get_byte(data, 0) = ascii('M') AND substring(data FROM 11 FOR octet_length($3::bytea)) = $3::bytea`,
		names.slot, names.publication, append([]byte(names.prefix), 0)).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%w: %d messages are in the log and nowhere else, and are not known to be published: start a relay, "+
			"stop it when the Lag of OutboxSlot is small, and try again; DiscardOutboxLog discards them", once.ErrConflict, n)
	}
	return err
}

// dropSlot drops a slot if it exists.
func dropSlot(ctx context.Context, q Querier, name string) error {
	_, err := q.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, name)
	return err
}

// errNotInUse is returned when the outbox is not read from the log, and this
// process is not to begin with that.
var errNotInUse = errors.New("once: the outbox is not read from the log")

// setUp creates what is missing, in an order in which it may stop at any point
// and be called again. The caller holds the lock of the reader.
func (t *tail) setUp(ctx context.Context) error {
	mark, publication, err := t.readMark(ctx, t.log.pool)
	if err != nil {
		return err
	}
	t.mark = mark
	creates := t.log.mode != Table
	if publication == publicationMissing && !creates {
		return errNotInUse
	}
	slot, active, err := lookUpSlot(ctx, t.log.pool, t.names.slot)
	switch {
	case err != nil:
		return err
	case active:
		return fmt.Errorf("%w: another reader has the slot %s", once.ErrConflict, t.names.slot)
	}
	logOnly := t.log.mode == LogOnly
	// A slot without its publication is older than any that will be created, so
	// its log cannot be read.
	gone := slot == slotMissing && mark.Made || slot == slotLost || slot != slotMissing && publication == publicationMissing
	fresh := gone || slot == slotMissing || !mark.finished()
	switch {
	case gone && (logOnly || mark.LogOnly):
		return lostSlot(t.names)
	case !creates && fresh: // all messages have rows, so relays can read the table again
		if err := t.log.dropAll(ctx, t.names, true); err != nil {
			return err
		}
		return errNotInUse
	}
	if err := t.publish(ctx, publication); err != nil {
		return err
	}
	if fresh {
		return t.createSlot(ctx, logOnly)
	}
	if logOnly && !t.mark.LogOnly {
		return t.changeMark(ctx, func(m *setupMark) error {
			m.LogOnly = true
			return nil
		})
	}
	return nil
}

// publish creates the publication, or adds the table to it. It publishes
// inserts only.
func (t *tail) publish(ctx context.Context, publication publicationState) (err error) {
	switch publication {
	case publicationMissing:
		_, err = t.log.pool.Exec(ctx, `CREATE PUBLICATION `+t.names.publicationSQL()+` FOR TABLE `+t.names.table+
			` WITH (publish = 'insert')`)
		return err
	case publicationComplete:
		return nil
	}
	// The table was created anew. The log delivers what is inserted into it
	// from a moment on in which no transaction inserts.
	return pgx.BeginFunc(ctx, t.log.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE `+t.names.table+` IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ALTER PUBLICATION `+t.names.publicationSQL()+` ADD TABLE `+t.names.table); err != nil {
			return err
		}
		var snapshot string
		if err := tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&snapshot); err != nil {
			return err
		}
		return t.changeMarkIn(ctx, tx, func(m *setupMark) error {
			if m.finished() {
				m.Settled, m.Snapshot = false, snapshot
			}
			return nil
		})
	})
}

// createSlot creates the slot, in the place of one that cannot be read if there
// is such a slot. From the first change of the mark on, relays that read the
// table leave pending rows alone, and that is before the slot has found its
// place. So each row is either in the snapshot that comes with the slot, or is
// delivered by it.
func (t *tail) createSlot(ctx context.Context, logOnly bool) error {
	err := t.changeMark(ctx, func(m *setupMark) error {
		if m.LogOnly {
			return lostSlot(t.names)
		}
		m.Settled, m.Snapshot = false, ""
		return nil
	})
	if err != nil {
		return err
	}
	if err := dropSlot(ctx, t.log.pool, t.names.slot); err != nil {
		return err
	}
	row, err := t.conn.query(ctx, `CREATE_REPLICATION_SLOT `+t.names.slot+` LOGICAL pgoutput EXPORT_SNAPSHOT`)
	if err != nil {
		return err
	}
	if len(row) < 3 {
		return errors.New("once: PostgreSQL exported no snapshot")
	}
	snapshot, err := t.log.exportedSnapshot(ctx, string(row[2]))
	if err != nil {
		return err
	}
	return t.changeMark(ctx, func(m *setupMark) error {
		*m = setupMark{Made: true, LogOnly: logOnly, Snapshot: snapshot}
		return nil
	})
}
