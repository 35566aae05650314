package outboxlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// setupMark records how far a slot has been set up. The slot itself may vanish,
// so the mark is stored with the database: it is the comment on the
// publication, as JSON. While it exists, pending rows belong to the reader of
// the log, in whatever mode processes run.
type setupMark struct {
	Made    bool `json:"made"`    // the slot was created once
	LogOnly bool `json:"sole"`    // the log may hold messages that have no row
	Settled bool `json:"settled"` // no pending row is left that the slot does not deliver

	// Snapshot shows the rows that the slot does not deliver, and no others,
	// until they are settled. It is empty while the slot is being created.
	Snapshot string `json:"snapshot,omitempty"`
}

// finished reports whether the slot was created completely.
func (m setupMark) finished() bool { return m.Made && (m.Settled || m.Snapshot != "") }

// inUseSQL asks whether an outbox, whose table is an argument, is read from the
// log, through a slot of any name.
const inUseSQL = `SELECT EXISTS (SELECT FROM pg_publication p
	JOIN pg_description d ON d.objoid = p.oid AND d.classoid = 'pg_publication'::regclass AND d.description LIKE '{"made"%'
	WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = to_regclass($1::text)))`

// logOnlySQL is the condition that the mark says LogOnly: then the relay does
// not silently replace a slot that is lost.
func logOnlySQL(publication string) string {
	// obj_description is a function in SQL, which is planned anew at each call.
	// That would cost more than the rest of the statement.
	return `EXISTS (SELECT FROM pg_publication p JOIN pg_description d ON d.objoid = p.oid
		AND d.classoid = 'pg_publication'::regclass AND d.objsubid = 0
		WHERE p.pubname = ` + publication + ` AND d.description LIKE '%"sole":true%')`
}

// publicationState says whether the outbox is published.
type publicationState int

const (
	publicationMissing publicationState = iota
	publicationEmpty                    // it exists, and the table is not part of it
	publicationComplete
)

func (n Names) publicationSQL() string { return pgx.Identifier{n.publication}.Sanitize() }

// readMark returns the mark, which is zero if there is none, and the state of
// the publication.
func (t *tail) readMark(ctx context.Context, q Querier) (mark setupMark, state publicationState, err error) {
	var comment string
	var complete bool
	err = q.QueryRow(ctx, `SELECT coalesce(obj_description(p.oid, 'pg_publication'), ''), p.puballtables
		OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $2::regclass)
		FROM pg_publication p WHERE p.pubname = $1`, t.names.publication, t.names.table).Scan(&comment, &complete)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return mark, publicationMissing, nil
	case err != nil:
		return mark, publicationMissing, err
	}
	if state = publicationEmpty; complete {
		state = publicationComplete
	}
	if comment != "" {
		if err := json.Unmarshal([]byte(comment), &mark); err != nil {
			return mark, state, fmt.Errorf("%w: the comment on the publication %s was not written by once: %w", once.ErrInvalid,
				t.names.publication, err)
		}
	}
	return mark, state, nil
}

// changeMark changes the mark in a transaction of its own.
func (t *tail) changeMark(ctx context.Context, change func(*setupMark) error) error {
	return pgx.BeginFunc(ctx, t.log.pool, func(tx pgx.Tx) error { return t.changeMarkIn(ctx, tx, change) })
}

// changeMarkIn changes the mark. One process does that at a time. The commit
// waits for the disk, and not for a standby: the log can be read without one.
func (t *tail) changeMarkIn(ctx context.Context, tx pgx.Tx, change func(*setupMark) error) error {
	if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = local`); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, t.names.markLock()); err != nil {
		return err
	}
	mark, publication, err := t.readMark(ctx, tx)
	if err != nil {
		return err
	}
	if publication == publicationMissing {
		return fmt.Errorf("%w: the publication %s was dropped in the meantime", once.ErrConflict, t.names.publication)
	}
	if err := change(&mark); err != nil {
		return err
	}
	text, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `COMMENT ON PUBLICATION `+t.names.publicationSQL()+` IS '`+strings.ReplaceAll(string(text), "'", "''")+`'`)
	if err == nil {
		t.mark = mark
	}
	return err
}

// requestLogOnly sets LogOnly in the mark although another process reads the
// slot: that process may run in another mode, and writers in mode LogOnly wait
// for the mark.
func (t *tail) requestLogOnly(ctx context.Context) error {
	if t.log.mode != LogOnly {
		return nil
	}
	mark, publication, err := t.readMark(ctx, t.log.pool)
	if err != nil || publication == publicationMissing || mark.LogOnly || !mark.finished() {
		return err
	}
	return t.changeMark(ctx, func(m *setupMark) error {
		m.LogOnly = m.LogOnly || m.finished()
		return nil
	})
}
