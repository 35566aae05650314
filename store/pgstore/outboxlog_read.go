package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// read takes in what the server sends, until that ends.
func (t *logTail) read() {
	defer close(t.ended)
	err := t.readAll()
	_ = t.fail(err)
	if !errors.Is(err, errEnded) {
		_ = t.conn.net.Close() // a server that shuts down would wait for it
	}
}

func (t *logTail) readAll() error {
	for {
		if err := t.conn.net.SetReadDeadline(time.Now().Add(logSilence)); err != nil {
			return err
		}
		msg, err := t.conn.frontend.Receive()
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			if err := t.take(msg.Data); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			return errEnded
		}
	}
}

// take takes one message of the stream. Its bytes are the connection's.
func (t *logTail) take(data []byte) error {
	b := &logBytes{rest: data}
	switch kind := b.byte(); kind {
	case 'k': // a sign of life
		end := b.uint64()
		b.uint64() // the server's time
		if ask := b.byte() != 0; ask {
			signal(t.asked)
		}
		t.mu.Lock()
		t.track.pass(end)
		t.mu.Unlock()
	case 'w': // a piece of the log
		at := b.uint64()
		b.take(16) // the server's end and time
		return t.change(b, at)
	}
	return b.end()
}

// change takes what pgoutput says, in the first version of its protocol: whole transactions, in the order of commits.
func (t *logTail) change(b *logBytes, at uint64) error {
	switch b.byte() {
	case 'B':
		t.tx = readBegin(b, t.now)
		t.now = max(t.now, t.tx.xid)
		t.mu.Lock()
		t.track.begin()
		t.mu.Unlock()
	case 'C':
		b.take(9) // flags, and where the commit begins
		end := b.uint64()
		t.mu.Lock()
		t.track.commit(end)
		t.mu.Unlock()
		signal(t.arrived) // the last of its messages may be received now
	case 'R':
		oid, relation := readRelation(b)
		t.relations[oid] = relation
	case 'I':
		return cmp.Or(t.inserted(b, at), b.end())
	case 'M':
		return cmp.Or(t.emitted(b), b.end())
	}
	return b.end()
}

// inserted takes a row. Rows that do not wait for a relay are the table's.
func (t *logTail) inserted(b *logBytes, at uint64) error {
	relation, known := t.relations[b.uint32()]
	if !known {
		return errors.New("a row of an unknown table is in the log")
	}
	if relation.schema != t.names.schema || relation.name != t.names.relation {
		return nil
	}
	m, err := readRow(b, relation.columns)
	if err != nil && (!errors.Is(err, errUnreadable) || m.Seq == 0) {
		return err
	}
	if m.State != store.Pending {
		return nil
	}
	m.LogPlace = at
	return t.put(m, err)
}

// emitted takes a message that is in the log only.
func (t *logTail) emitted(b *logBytes) error {
	transactional, at, prefix, content := readEmitted(b)
	if b.short || prefix != t.names.prefix {
		return nil
	}
	m := store.Outgoing{LogPlace: at, Created: t.tx.time}
	var err error
	if m.Message, m.Cause, err = readLogContent(bytes.Clone(content)); err != nil {
		m.Message = broker.Message{ID: fmt.Sprintf("unreadable-%X", at), Topic: "unreadable", Body: bytes.Clone(content)}
	}
	m.Lane = store.Lane(&m.Message)
	if transactional {
		return t.put(m, err)
	}
	// It belongs to no transaction, and is committed with itself.
	m.Created = time.Now()
	t.tx = logTx{at: at, time: m.Created}
	err = t.put(m, err)
	t.mu.Lock()
	t.track.commit(at + 1)
	t.mu.Unlock()
	signal(t.arrived)
	return err
}

// put queues a message, and waits for room. What is wrong with it is its Reason.
func (t *logTail) put(m store.Outgoing, wrong error) error {
	e := logEntry{message: m, xid: t.tx.xid, earlier: t.tx.at < t.opened, size: len(m.Message.Body) + rowBytes}
	if wrong != nil {
		e.bad, e.message.State, e.message.Reason = true, store.Stuck, wrong.Error()
	}
	for {
		t.mu.Lock()
		if t.closing { // it is nobody's any more, and never done
			t.track.arrive(e.key(), t.tx.xid)
			t.mu.Unlock()
			return nil
		}
		if t.bytes == 0 || t.bytes+e.size <= maxQueued {
			break
		}
		t.full = true
		t.mu.Unlock()
		signal(t.arrived)
		if err := t.awaitRoom(); err != nil {
			return err
		}
	}
	t.full = false
	t.track.arrive(e.key(), t.tx.xid)
	e.commit = t.track.open
	t.queue = append(t.queue, e)
	t.bytes += e.size
	t.mu.Unlock()
	signal(t.arrived)
	return nil
}

// awaitRoom waits until something was taken out of the queue. Meanwhile nothing is read, so what is asked of the server by
// another way is whether it goes on: it cannot shut down while it has something to send.
func (t *logTail) awaitRoom() error {
	tick := time.NewTicker(fullGap)
	defer tick.Stop()
	for {
		select {
		case <-t.room:
			return nil
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		err := t.store.pool.Ping(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
}

const fullGap = time.Second
