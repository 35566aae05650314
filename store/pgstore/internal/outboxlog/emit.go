package outboxlog

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
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore/internal/pgerr"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5/pgconn"
)

// contentVersion ends the prefix of messages in the log, and identifies the
// format of their content. Another format gets another number, so that a reader
// never mistakes one for the other.
const contentVersion = ".1"

// contentHead is the first line of a message in the log, as JSON. The body
// follows the line.
type contentHead struct {
	ID     string            `json:"id"`
	Topic  string            `json:"topic"`
	Key    string            `json:"key,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Time   string            `json:"time,omitempty"`  // RFC 3339
	Cause  string            `json:"cause,omitempty"` // as in the column
}

// encodeContent returns a message in the form that the log stores.
func encodeContent(o *store.Outgoing) ([]byte, error) {
	m := &o.Message
	head := contentHead{ID: m.ID, Topic: m.Topic, Key: m.OrderingKey, Header: m.Header, Time: sqlschema.EncodeTime(m.Time), Cause: o.Cause}
	line, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	content := make([]byte, 0, len(line)+1+len(m.Body))
	return append(append(append(content, line...), '\n'), m.Body...), nil
}

// decodeContent reverses encodeContent. It checks everything, because programs
// in other languages write contents as well.
func decodeContent(content []byte) (m broker.Message, cause string, err error) {
	line, body, found := bytes.Cut(content, []byte{'\n'})
	if !found {
		return m, "", errors.New("its first line has no end")
	}
	var head contentHead
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

// EmitCall returns the statement that writes messages to the log as part of a
// transaction, in their order and without a row. It ignores their Delay: a
// message with a delay needs a row. The names are those of [Log.CheckReady].
func EmitCall(names Names, ms []store.Outgoing) (text string, args []any, err error) {
	contents := make([][]byte, len(ms))
	for i := range ms {
		if contents[i], err = encodeContent(&ms[i]); err != nil {
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

// EmitFunction is the function of PostgreSQL that writes to the log.
const EmitFunction = "pg_logical_emit_message"

// emitSQL writes a message to the log if it will be delivered. Whatever was
// known about the slot before may be wrong by now, so the same statement checks
// it. It first takes the shared lock, which lasts as long as the transaction,
// so that [Log.Reset] does not drop the slot before the transaction has ended.
// If the slot is not ready, the statement fails on a text that is no position
// of the log.
func emitSQL(content string) string {
	return `CASE WHEN pg_advisory_xact_lock_shared($5::bigint)::text IS NOT NULL THEN
		CASE WHEN (SELECT CASE WHEN count(*) > 0 THEN '0/0' ELSE '` + unreadyText + `' END
			FROM pg_replication_slots WHERE slot_name = $3::text AND ` + ReadySQL + `
			AND ` + logOnlySQL("$4::text") + `)::pg_lsn IS NOT NULL
		THEN ` + EmitFunction + `(true, $1::text, ` + content + `) END END`
}

// unreadyText is what the server logs, and what callers of QueueOutbox see.
const unreadyText = `once: no replication slot of the outbox delivers what is put into the log`

const startRelay = "so a message in the log would be lost: start a relay before anything is put: it creates the slot, or " +
	"logs why it cannot"

// ExplainEmit is [pgerr.Explain] with what the errors of [EmitCall] mean.
func ExplainEmit(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && strings.Contains(pe.Message, unreadyText) {
		return fmt.Errorf("%w: no replication slot delivers, %s: %w", once.ErrInvalid, startRelay, err)
	}
	return pgerr.Explain(err)
}

// recheckAfter is how long writers rely on one check of the slot. If the slot
// has gone since, the server refuses the message; the check only finds it
// earlier, and returns a better error.
const recheckAfter = 5 * time.Second

// CheckReady returns the names for [EmitCall]. From time to time it asks the
// server whether the slot delivers.
func (l *Log) CheckReady(ctx context.Context, q Querier) (Names, error) {
	if last := l.checked.Load(); last != nil && time.Now().Before(last.until) {
		return last.names, nil
	}
	names, err := l.Names(ctx, q)
	if err != nil {
		return names, err
	}
	state, _, err := lookUpSlot(ctx, q, names.slot)
	switch {
	case err != nil:
		return names, pgerr.Explain(err)
	case state == slotMissing:
		return names, fmt.Errorf("%w: there is no replication slot %s yet, %s", once.ErrInvalid, names.slot, startRelay)
	case state == slotLost:
		return names, lostSlot(names)
	case state != slotReady:
		return names, fmt.Errorf("%w: the replication slot %s is still being created, which waits for open transactions, %s",
			once.ErrInvalid, names.slot, startRelay)
	}
	var logOnly bool
	switch err := q.QueryRow(ctx, `SELECT `+logOnlySQL("$1"), names.publication).Scan(&logOnly); {
	case err != nil:
		return names, pgerr.Explain(err)
	case !logOnly:
		return names, fmt.Errorf("%w: no relay with OutboxLogOnly has read the replication slot %s yet, %s", once.ErrInvalid,
			names.slot, startRelay)
	}
	l.checked.Store(&readySlot{names: names, until: time.Now().Add(recheckAfter)})
	return names, nil
}

// LastReady returns the names that the last successful [Log.CheckReady] found.
func (l *Log) LastReady() (names Names, ok bool) {
	last := l.checked.Load()
	if last == nil {
		return names, false
	}
	return last.names, true
}
