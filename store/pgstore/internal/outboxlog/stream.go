package outboxlog

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

// read handles what the server sends, until that ends.
func (t *tail) read() {
	defer close(t.readEnded)
	err := t.readAll()
	_ = t.fail(err)
	if !errors.Is(err, errEnded) {
		_ = t.conn.net.Close() // a server that shuts down would wait for it
	}
}

func (t *tail) readAll() error {
	for {
		if err := t.conn.net.SetReadDeadline(time.Now().Add(silenceTime)); err != nil {
			return err
		}
		msg, err := t.conn.frontend.Receive()
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			if err := t.handle(msg.Data); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			return errEnded
		}
	}
}

// handle handles one message of the stream. Its bytes belong to the connection.
func (t *tail) handle(data []byte) error {
	b := &buffer{rest: data}
	switch kind := b.byte(); kind {
	case 'k': // keepalive
		end := b.uint64()
		b.uint64() // the server's time
		if ask := b.byte() != 0; ask {
			signal(t.asked)
		}
		t.mu.Lock()
		t.progress.pass(end)
		t.mu.Unlock()
	case 'w': // a piece of the log
		at := b.uint64()
		b.take(16) // the server's end and time
		return t.change(b, at)
	}
	return b.err()
}

// change handles a message of pgoutput. The first version of its protocol sends
// whole transactions, in the order of commits.
func (t *tail) change(b *buffer, at uint64) error {
	switch b.byte() {
	case 'B':
		t.tx = readBegin(b, t.latestXID)
		t.latestXID = max(t.latestXID, t.tx.xid)
		t.mu.Lock()
		t.progress.begin()
		t.mu.Unlock()
	case 'C':
		b.take(9) // flags, and the position of the commit record
		end := b.uint64()
		t.mu.Lock()
		t.progress.commit(end)
		t.mu.Unlock()
		signal(t.arrived) // the last of its messages may be received now
	case 'R':
		oid, relation := readRelation(b)
		t.relations[oid] = relation
	case 'I':
		return cmp.Or(t.inserted(b, at), b.err())
	case 'M':
		return cmp.Or(t.emitted(b), b.err())
	}
	return b.err()
}

// inserted handles a row. It ignores rows that are not pending.
func (t *tail) inserted(b *buffer, at uint64) error {
	relation, known := t.relations[b.uint32()]
	if !known {
		return errors.New("the log contains a row of an unknown table")
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
	return t.enqueue(m, err)
}

// emitted handles a message without a row.
func (t *tail) emitted(b *buffer) error {
	transactional, at, prefix, content := readEmitted(b)
	if b.short || prefix != t.names.prefix {
		return nil
	}
	m := store.Outgoing{LogPlace: at, Created: t.tx.time}
	var err error
	if m.Message, m.Cause, err = decodeContent(bytes.Clone(content)); err != nil {
		m.Message = broker.Message{ID: fmt.Sprintf("unreadable-%X", at), Topic: "unreadable", Body: bytes.Clone(content)}
	}
	m.Lane = store.Lane(&m.Message)
	if transactional {
		return t.enqueue(m, err)
	}
	// It belongs to no transaction, so it counts as one of its own.
	m.Created = time.Now()
	t.tx = transaction{commit: at, time: m.Created}
	err = t.enqueue(m, err)
	t.mu.Lock()
	t.progress.commit(at + 1)
	t.mu.Unlock()
	signal(t.arrived)
	return err
}

// enqueue queues a message, and waits for room. If the message could not be
// read, unreadable says why.
func (t *tail) enqueue(m store.Outgoing, unreadable error) error {
	e := entry{message: m, xid: t.tx.xid, earlier: t.tx.commit < t.opened, size: len(m.Message.Body) + entryBytes}
	if unreadable != nil {
		e.unreadable, e.message.State, e.message.Reason = true, store.Stuck, unreadable.Error()
	}
	for {
		t.mu.Lock()
		if t.closing { // it is dropped, and never counts as done
			t.progress.arrive(e.key(), t.tx.xid)
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
	t.progress.arrive(e.key(), t.tx.xid)
	e.commit = t.progress.arriving
	t.queue = append(t.queue, e)
	t.bytes += e.size
	t.mu.Unlock()
	signal(t.arrived)
	return nil
}

// awaitRoom waits until something was taken from the queue. Nothing is read
// from the connection meanwhile, so it pings the server on another one: a
// server cannot shut down while it has log to send.
func (t *tail) awaitRoom() error {
	tick := time.NewTicker(pingGap)
	defer tick.Stop()
	for {
		select {
		case <-t.room:
			return nil
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		err := t.log.pool.Ping(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
}

const pingGap = time.Second
