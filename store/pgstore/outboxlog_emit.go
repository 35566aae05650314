package pgstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
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
	Time   string            `json:"time,omitempty"` // RFC 3339
}

// logContent is a message as the log keeps it.
func logContent(m *broker.Message) ([]byte, error) {
	head := logHead{ID: m.ID, Topic: m.Topic, Key: m.OrderingKey, Header: m.Header, Time: consuming.EncodeTime(m.Time)}
	line, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	content := make([]byte, 0, len(line)+1+len(m.Body))
	return append(append(append(content, line...), '\n'), m.Body...), nil
}

// readLogContent is the way back. It looks closely, because writers in other languages make contents, too.
func readLogContent(content []byte) (m broker.Message, err error) {
	line, body, found := bytes.Cut(content, []byte{'\n'})
	if !found {
		return m, errors.New("its first line has no end")
	}
	var head logHead
	if err := json.Unmarshal(line, &head); err != nil {
		return m, fmt.Errorf("its first line: %w", err)
	}
	m = broker.Message{ID: head.ID, Topic: head.Topic, OrderingKey: head.Key, Header: head.Header, Body: body}
	if head.Time != "" {
		if m.Time, err = time.Parse(time.RFC3339, head.Time); err != nil {
			return m, fmt.Errorf("its time: %w", err)
		}
	}
	return m, m.Check()
}

// emitStatement is what puts messages into the log as part of a transaction, in their order, without a row. Their
// Delay is not looked at: what has one belongs into the table. The names are those of [Store.emitReady].
func emitStatement(names logNames, ms []store.Outgoing) (text string, args []any, err error) {
	contents := make([][]byte, len(ms))
	for i := range ms {
		if contents[i], err = logContent(&ms[i].Message); err != nil {
			return "", nil, fmt.Errorf("%w: message %q: %w", once.ErrInvalid, ms[i].Message.ID, err)
		}
	}
	if len(contents) == 1 {
		return `SELECT pg_logical_emit_message(true, $1::text, $2::bytea)`, []any{names.prefix, contents[0]}, nil
	}
	return `SELECT count(pg_logical_emit_message(true, $1::text, content)) FROM unnest($2::bytea[]) AS content`,
		[]any{names.prefix, contents}, nil
}

// slotLook is how long the slot is taken to be there without another look.
const slotLook = 5 * time.Second

// emitReady returns the names for [emitStatement]. It asks now and then, by way of what is at hand, whether the slot is
// there: what is written to the log without it is read by nobody.
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
		return names, fmt.Errorf("%w: there is no replication slot %s yet, so a message in the log would be lost: start a "+
			"relay before anything is put: it makes the slot, or logs why it cannot", once.ErrInvalid, names.slot)
	case err != nil:
		return names, explain(err)
	case slot.lost():
		return names, lostSlot(names)
	}
	s.log.emits.Store(&emission{names: names, until: time.Now().Add(slotLook)})
	return names, nil
}
