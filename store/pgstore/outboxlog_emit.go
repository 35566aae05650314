package pgstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// logVersion is the end of the prefix of messages in the log, and names the form of their content. Another form gets
// another number, so that a reader never takes one for the other.
const logVersion = ".1"

// logHead is the first line of a message in the log, as JSON. The body is what comes behind the line.
type logHead struct {
	ID     string            `json:"id"`
	Topic  string            `json:"topic"`
	Key    string            `json:"key,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Time   string            `json:"time,omitempty"`  // RFC 3339
	Cause  string            `json:"cause,omitempty"` // as in the column
}

// logContent is a message as the log keeps it.
func logContent(o *store.Outgoing) ([]byte, error) {
	m := &o.Message
	head := logHead{ID: m.ID, Topic: m.Topic, Key: m.OrderingKey, Header: m.Header, Time: consuming.EncodeTime(m.Time), Cause: o.Cause}
	line, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	content := make([]byte, 0, len(line)+1+len(m.Body))
	return append(append(append(content, line...), '\n'), m.Body...), nil
}

// readLogContent is the way back. It looks closely, because writers in other languages make contents, too.
func readLogContent(content []byte) (m broker.Message, cause string, err error) {
	line, body, found := bytes.Cut(content, []byte{'\n'})
	if !found {
		return m, "", errors.New("its first line has no end")
	}
	var head logHead
	if err := json.Unmarshal(line, &head); err != nil {
		return m, "", fmt.Errorf("its first line: %w", err)
	}
	m = broker.Message{ID: head.ID, Topic: head.Topic, OrderingKey: head.Key, Header: head.Header, Body: body}
	if head.Time != "" {
		if m.Time, err = time.Parse(time.RFC3339, head.Time); err != nil {
			return m, "", fmt.Errorf("its time: %w", err)
		}
	}
	return m, head.Cause, m.Check()
}

// emitStatement is what puts messages into the log as part of a transaction, in their order, without a row. Their
// Delay is not looked at: what has one belongs into the table. The names are those of [Store.emitReady].
func emitStatement(names logNames, ms []store.Outgoing) (text string, args []any, err error) {
	contents := make([][]byte, len(ms))
	for i := range ms {
		if contents[i], err = logContent(&ms[i]); err != nil {
			return "", nil, fmt.Errorf("%w: message %q: %w", once.ErrInvalid, ms[i].Message.ID, err)
		}
	}
	args = []any{names.prefix, contents, names.slot, names.publication, names.putLock()}
	if len(contents) == 1 {
		args[1] = contents[0]
		return `SELECT ` + emitSQL(`$2::bytea`), args, nil
	}
	return `SELECT count(` + emitSQL(`content`) + `) FROM unnest($2::bytea[]) AS content`, args, nil
}

// emitSQL writes a message to the log, if it will be delivered: that is asked where the message is written, because
// whatever was known of the slot before may be wrong by now. The shared lock comes first, and lasts as long as the
// transaction: ResetOutboxSlot does not drop a slot under one that goes by it. If the answer is no, a text that is no
// place in the log fails the statement.
func emitSQL(content string) string {
	return `CASE WHEN pg_advisory_xact_lock_shared($5::bigint)::text IS NOT NULL THEN
		CASE WHEN (SELECT CASE WHEN count(*) > 0 THEN '0/0' ELSE '` + unreadyText + `' END
			FROM pg_replication_slots WHERE slot_name = $3::text AND ` + slotReady + `
			AND ` + soleSQL("$4::text") + `)::pg_lsn IS NOT NULL
		THEN pg_logical_emit_message(true, $1::text, ` + content + `) END END`
}

// unreadyText is what the server's log and callers of QueueOutbox see.
const unreadyText = `once: no replication slot of the outbox delivers what is put into the log`

// soleSQL is the condition that the relay that has the slot knows that messages may be in the log only: it does not
// replace the slot in silence if that is lost.
func soleSQL(publication string) string {
	// Not by obj_description: a function in SQL is planned anew at each call, which costs more than all the rest.
	return `EXISTS (SELECT FROM pg_publication p JOIN pg_description d ON d.objoid = p.oid
		AND d.classoid = 'pg_publication'::regclass AND d.objsubid = 0
		WHERE p.pubname = ` + publication + ` AND d.description LIKE '%"sole":true%')`
}

// isUnready reports whether a message was refused because nobody would have read it.
func isUnready(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && strings.Contains(pe.Message, unreadyText)
}

const startRelay = "so a message in the log would be lost: start a relay before anything is put: it makes the slot, or " +
	"logs why it cannot"

// slotLook is how long writers go without another look at the slot. What they then put is refused by the server if the
// look has become wrong; the look says it earlier, and says why.
const slotLook = 5 * time.Second

// emitReady returns the names for [emitStatement]. It asks now and then, by way of what is at hand, whether the slot
// delivers.
func (s *Store) emitReady(ctx context.Context, q querier) (logNames, error) {
	if known := s.log.emits.Load(); known != nil && time.Now().Before(known.until) {
		return known.names, nil
	}
	names, err := s.logNames(ctx, q)
	if err != nil {
		return names, err
	}
	slot, err := readSlot(ctx, q, names.slot)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return names, fmt.Errorf("%w: there is no replication slot %s yet, %s", once.ErrInvalid, names.slot, startRelay)
	case err != nil:
		return names, explain(err)
	case slot.lost():
		return names, lostSlot(names)
	case !slot.Ready:
		return names, fmt.Errorf("%w: the replication slot %s is being made, which waits for transactions that are open, %s",
			once.ErrInvalid, names.slot, startRelay)
	}
	var sole bool
	switch err := q.QueryRow(ctx, `SELECT `+soleSQL("$1"), names.publication).Scan(&sole); {
	case err != nil:
		return names, explain(err)
	case !sole:
		return names, fmt.Errorf("%w: no relay with OutboxLogOnly has read the replication slot %s yet, %s", once.ErrInvalid,
			names.slot, startRelay)
	}
	s.log.emits.Store(&emission{names: names, until: time.Now().Add(slotLook)})
	return names, nil
}
