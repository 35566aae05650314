package outboxlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// tail reads the log. One goroutine reads what the server sends, another
// confirms how far everything is done, so that neither waits for the caller.
type tail struct {
	log       *Log
	names     Names
	conn      *replicationConn
	version   int           // of the server
	opened    uint64        // the end of the log when the tail was opened; an earlier reader may have handled what is before
	latestXID uint64        // the number of the latest transaction
	keepalive time.Duration // between two status messages

	backlog backlog
	marking sync.Mutex
	mark    setupMark

	relations map[uint32]relation // used by the reading goroutine only, as tx
	tx        transaction

	mu         sync.Mutex
	progress   progress
	queue      []entry
	bytes      int
	hidden     []hiddenRows
	retrying   bool // a goroutine runs that ends hidden rows
	full       bool // a message waits for room in the queue
	broken     error
	closing    bool
	arrived    chan struct{} // the queue has a message, or the tail broke
	room       chan struct{} // the queue has room
	asked      chan struct{} // the server asks for a status message
	readEnded  chan struct{} // closed when nothing is read any more
	writeEnded chan struct{} // closed when nothing is confirmed any more
}

// entry is a message in the queue.
type entry struct {
	message    store.Outgoing
	commit     *openCommit
	xid        uint64
	size       int
	earlier    bool // it was committed before the tail was opened
	unreadable bool // it is set aside with its Reason
}

func (e *entry) key() messageKey { return keyOf(&e.message) }

func keyOf(m *store.Outgoing) messageKey { return messageKey{place: m.LogPlace, seq: m.Seq} }

func keysOf(ms []store.Outgoing) []messageKey {
	keys := make([]messageKey, len(ms))
	for i := range ms {
		keys[i] = keyOf(&ms[i])
	}
	return keys
}

const (
	maxQueued  = 16 << 20 // bytes in the queue; then the server waits. A single message may be larger
	entryBytes = 512      // the size of a message without its body
	confirmGap = 100 * time.Millisecond
	callTime   = 10 * time.Second // bounds calls that the caller's context does not end
)

// open takes the lock of the reader, sets up what is missing, and starts to
// read.
func (t *tail) open(ctx context.Context) error {
	if err := t.lockReader(ctx); err != nil {
		return err
	}
	if err := t.setUp(ctx); err != nil {
		return err
	}
	if err := t.readPositions(ctx); err != nil {
		return err
	}
	t.backlog.open = !t.mark.Settled
	command := `START_REPLICATION SLOT ` + t.names.slot + ` LOGICAL 0/0 (proto_version '1', publication_names '` +
		t.names.publicationSQL() + `'`
	if t.version >= messagesVersion { // in mode RowsByLog as well: a writer may not have changed its mode yet
		command += `, messages 'true'`
	}
	if err := t.conn.start(ctx, command+`)`); err != nil {
		return err
	}
	t.relations = make(map[uint32]relation)
	t.progress.messages = make(map[messageKey]delivery)
	for _, signal := range []*chan struct{}{&t.arrived, &t.room, &t.asked} {
		*signal = make(chan struct{}, 1)
	}
	t.readEnded, t.writeEnded = make(chan struct{}), make(chan struct{})
	go t.read()
	go t.confirmAll()
	return nil
}

// lockReader takes the lock of the reader, which ends with the session.
func (t *tail) lockReader(ctx context.Context) error {
	row, err := t.conn.query(ctx, fmt.Sprintf(`SELECT pg_try_advisory_lock(%d), (SELECT setting FROM pg_settings
		WHERE name = 'wal_sender_timeout')`, t.names.readLock()))
	if err != nil {
		return err
	}
	if len(row) != 2 || string(row[0]) != "t" {
		if err := t.requestLogOnly(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%w: another reader has the lock", once.ErrConflict)
	}
	t.keepalive = keepaliveTime
	if limit, err := strconv.Atoi(string(row[1])); err == nil && limit > 0 { // in milliseconds
		t.keepalive = min(t.keepalive, time.Duration(limit)*time.Millisecond/3)
	}
	return nil
}

// readPositions reads the end of the log and the number of the next
// transaction.
func (t *tail) readPositions(ctx context.Context) (err error) {
	if t.opened, err = t.logEnd(ctx); err != nil {
		return err
	}
	var next int64
	err = t.log.pool.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&next)
	t.latestXID = uint64(next)
	return err
}

// Receive returns messages in the order of commits, after those that were
// pending when the slot was created.
func (t *tail) Receive(ctx context.Context, limit int) ([]store.Outgoing, error) {
	limit = max(limit, 1)
	for {
		if err := cmp.Or(ctx.Err(), t.whyBroken()); err != nil {
			return nil, err
		}
		ms, err := t.readBacklog(ctx, limit)
		more := false
		if len(ms) == 0 && err == nil {
			ms, more, err = t.pop(ctx, limit)
		}
		if err != nil || len(ms) > 0 {
			return ms, err
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
		case <-t.arrived:
		}
	}
}

// pop takes messages from the queue, and drops those that are not to be
// published any more. It reports whether the queue had any.
func (t *tail) pop(ctx context.Context, limit int) (ms []store.Outgoing, any bool, err error) {
	batch, more := t.peek(limit)
	if len(batch) == 0 {
		return nil, false, nil
	}
	gone, until, err := t.findGone(ctx, batch)
	if err != nil {
		return nil, true, t.fail(err)
	}
	ms = make([]store.Outgoing, 0, len(batch))
	size := 0
	for i := range batch {
		size += batch[i].size
		switch {
		case !gone[batch[i].key()]:
			ms = append(ms, batch[i].message)
			ms[len(ms)-1].LogMore = more[i]
		case len(ms) > 0 && i > 0 && batch[i-1].commit == batch[i].commit && ms[len(ms)-1].LogMore:
			ms[len(ms)-1].LogMore = more[i]
		}
	}
	t.mu.Lock()
	t.queue = slices.Delete(t.queue, 0, len(batch)) // keeps the array: a queue that only moves on would grow all the time
	t.bytes -= size
	if len(gone) > 0 {
		t.progress.rowsEnded(slices.Collect(maps.Keys(gone)), until)
	}
	t.mu.Unlock()
	signal(t.room)
	return ms, true, nil
}

// peek returns the messages to take from the queue, and for each whether more
// of the same transaction follow. The latest message of a transaction stays in
// the queue until it is known whether it is the last one.
func (t *tail) peek(limit int) (batch []entry, more []bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.queue)
	if n > 0 && t.progress.arriving != nil && !t.full {
		n--
	}
	n = min(n, limit)
	more = make([]bool, n)
	for i := range more {
		if i+1 < len(t.queue) {
			more[i] = t.queue[i].commit == t.queue[i+1].commit
		} else {
			more[i] = t.progress.arriving != nil
		}
	}
	return t.queue[:n:n], more
}

// findGone returns the messages of a batch that are not to be published: those
// whose rows an earlier reader has ended, and those that cannot be read, which
// it sets aside. That is certain once the server's disk has the log up to
// until.
func (t *tail) findGone(ctx context.Context, batch []entry) (gone map[messageKey]bool, until uint64, err error) {
	var unreadable []store.Outgoing
	var earlier []entry
	for i := range batch {
		switch e := &batch[i]; {
		case e.unreadable:
			unreadable = append(unreadable, e.message)
		case e.earlier && e.message.Seq != 0:
			earlier = append(earlier, *e)
		}
	}
	if len(unreadable)+len(earlier) == 0 {
		return nil, 0, nil
	}
	// The end of this call's context must not break the tail.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if len(unreadable) > 0 {
		if err := t.SetAside(ctx, unreadable); err != nil {
			return nil, 0, err
		}
	}
	states, err := t.rowStates(ctx, earlier)
	if err != nil {
		return nil, 0, err
	}
	gone = make(map[messageKey]bool)
	for _, key := range keysOf(unreadable) {
		gone[key] = true
	}
	for i, state := range states {
		if state == rowGone {
			gone[earlier[i].key()] = true
		}
	}
	until, err = t.logEnd(ctx)
	return gone, until, err
}

// logEnd returns the current end of the log.
func (t *tail) logEnd(ctx context.Context) (uint64, error) {
	var text string
	if err := t.log.pool.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		return 0, err
	}
	return parsePosition(text)
}

// Close stops reading, confirms what is done, and releases the lock of the
// reader.
func (t *tail) Close(ctx context.Context) error {
	t.mu.Lock()
	again := t.closing
	t.closing = true
	broken := t.broken
	t.mu.Unlock()
	if again {
		return nil
	}
	signal(t.room) // from now on the reading goroutine drops messages
	defer t.abandon()
	if broken != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	t.awaitHidden(ctx)
	t.confirm(false)
	if err := t.conn.finish(); err != nil {
		return nil // the connection has just broken, which releases the lock
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("once: the server did not release the slot in time: %w", ctx.Err())
	case <-t.readEnded:
	}
	t.mu.Lock()
	broken = t.broken
	t.mu.Unlock()
	if !errors.Is(broken, errEnded) {
		return nil // the connection has just broken, which releases the lock
	}
	return t.conn.leave(ctx)
}

// awaitHidden waits for a while until hidden rows have ended: the next reader
// would deliver them again.
func (t *tail) awaitHidden(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	tick := time.NewTicker(hiddenGap)
	defer tick.Stop()
	for {
		t.mu.Lock()
		waiting := t.retrying && t.broken == nil
		t.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.readEnded:
			return
		case <-tick.C:
		}
	}
}

// abandon closes the connection, and waits for the goroutines.
func (t *tail) abandon() {
	t.conn.close()
	if t.readEnded != nil {
		<-t.readEnded
		<-t.writeEnded
	}
}

// fail breaks the tail, and returns the first error that did.
func (t *tail) fail(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = fmt.Errorf("once: the log of the outbox cannot be read any further: %w", explain(err))
	}
	signal(t.arrived)
	return t.broken
}

func (t *tail) whyBroken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil && t.closing {
		return fmt.Errorf("%w: the tail was closed", once.ErrClosed)
	}
	return t.broken
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// confirmAll confirms how far everything is done, often enough to keep the
// connection open.
func (t *tail) confirmAll() {
	defer close(t.writeEnded)
	tick := time.NewTicker(min(confirmGap, t.keepalive))
	defer tick.Stop()
	var last time.Time
	var sent uint64
	for {
		asked, ask := false, false
		select {
		case <-t.readEnded:
			return
		case <-t.asked:
			asked = true
		case <-tick.C:
			ask = time.Since(last) >= t.keepalive
		}
		t.mu.Lock()
		changed, closing := t.progress.confirmed != sent, t.closing
		sent = t.progress.confirmed
		t.mu.Unlock()
		if closing || !changed && !asked && !ask {
			continue
		}
		t.confirm(ask)
		if asked {
			t.confirmReceived()
		}
		last = time.Now()
	}
}

// confirm sends a status message. If that fails, it closes the connection, and
// the reading goroutine reports the error.
func (t *tail) confirm(ask bool) {
	t.mu.Lock()
	received, confirmed := t.progress.received, t.progress.confirmed
	t.mu.Unlock()
	var reply byte
	if ask {
		reply = 1
	}
	if err := t.conn.confirm(received, confirmed, reply); err != nil {
		_ = t.conn.net.Close()
	}
}

// confirmReceived tells the server that everything has arrived, done or not. A
// server that shuts down asks, and waits until all of its log is confirmed, or
// until it learns that everything has arrived from a message that confirms
// nothing.
func (t *tail) confirmReceived() {
	t.mu.Lock()
	received := t.progress.received
	t.mu.Unlock()
	if err := t.conn.confirm(received, 0, 0); err != nil {
		_ = t.conn.net.Close()
	}
}

var errEnded = errors.New("once: the server has stopped sending the log")
