package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// logTail reads the log. One goroutine takes in what the server sends, another tells it how far everything is done, so
// that neither waits for whoever publishes.
type logTail struct {
	store   *Store
	names   logNames
	conn    *logConn
	version int           // of the server
	opened  uint64        // the end of the log then: what is before may have been dealt with by another reader
	now     uint64        // the number of the latest transaction
	sign    time.Duration // between two signs of life

	backlog logBacklog
	marking sync.Mutex
	mark    logMark

	relations map[uint32]logRelation // these are the reading goroutine's
	tx        logTx

	mu       sync.Mutex
	track    logTrack
	queue    []logEntry
	bytes    int
	late     []lateRows
	catching bool
	full     bool // a message waits for room in the queue
	broken   error
	closing  bool

	arrived chan struct{} // there is something in the queue, or it broke
	room    chan struct{} // there is room in the queue
	asked   chan struct{} // the server wants to know how far everything is
	ended   chan struct{} // nothing is read any more
	told    chan struct{} // nor confirmed
}

// logEntry is a message that waits to be received.
type logEntry struct {
	message store.Outgoing
	commit  *logCommit
	xid     uint64
	size    int
	earlier bool // it was put before this reader came
	bad     bool // it cannot be read, and is set aside with its Reason
}

func (e *logEntry) key() logKey { return keyOf(&e.message) }

func keyOf(m *store.Outgoing) logKey { return logKey{place: m.LogPlace, seq: m.Seq} }

func keysOf(ms []store.Outgoing) []logKey {
	keys := make([]logKey, len(ms))
	for i := range ms {
		keys[i] = keyOf(&ms[i])
	}
	return keys
}

const (
	maxQueued  = 16 << 20 // bytes in the queue: then the server waits. One message may be larger
	rowBytes   = 512      // what a message costs besides its body
	confirmGap = 100 * time.Millisecond
)

// open takes the place and begins to read.
func (t *logTail) open(ctx context.Context) error {
	if err := t.takePlace(ctx); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.look(ctx); err != nil {
		return err
	}
	t.backlog.open = !t.mark.Settled
	command := `START_REPLICATION SLOT ` + t.names.slot + ` LOGICAL 0/0 (proto_version '1', publication_names '` +
		t.publication() + `'`
	if t.version >= messagesVersion { // also where rows are expected: a writer may be behind
		command += `, messages 'true'`
	}
	if err := t.conn.start(ctx, command+`)`); err != nil {
		return err
	}
	t.relations = make(map[uint32]logRelation)
	t.track.messages = make(map[logKey]delivered)
	for _, signal := range []*chan struct{}{&t.arrived, &t.room, &t.asked} {
		*signal = make(chan struct{}, 1)
	}
	t.ended, t.told = make(chan struct{}), make(chan struct{})
	go t.read()
	go t.tell()
	return nil
}

// takePlace takes a lock that ends with the connection: a slot that nobody reads yet is nobody's, and being made.
func (t *logTail) takePlace(ctx context.Context) error {
	h := fnv.New64a()
	h.Write([]byte(t.names.slot))
	row, err := t.conn.query(ctx, fmt.Sprintf(`SELECT pg_try_advisory_lock(%d), (SELECT setting FROM pg_settings
		WHERE name = 'wal_sender_timeout')`, int64(h.Sum64())))
	if err != nil {
		return err
	}
	if len(row) != 2 || string(row[0]) != "t" {
		if err := t.announce(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%w: another reader has the place", once.ErrConflict)
	}
	t.sign = logSign
	if limit, err := strconv.Atoi(string(row[1])); err == nil && limit > 0 { // in milliseconds
		t.sign = min(t.sign, time.Duration(limit)*time.Millisecond/3)
	}
	return nil
}

// look notes where the log and the numbers of transactions are.
func (t *logTail) look(ctx context.Context) (err error) {
	if t.opened, err = t.logEnd(ctx); err != nil {
		return err
	}
	var next int64
	err = t.store.pool.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&next)
	t.now = uint64(next)
	return err
}

// Receive returns messages in the order of commits, behind those that were pending when the slot was made.
func (t *logTail) Receive(ctx context.Context, limit int) ([]store.Outgoing, error) {
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

// pop takes messages from the queue, less those that are no one's to publish any more, and reports whether there was
// anything in it.
func (t *logTail) pop(ctx context.Context, limit int) (ms []store.Outgoing, any bool, err error) {
	batch, more := t.peek(limit)
	if len(batch) == 0 {
		return nil, false, nil
	}
	gone, until, err := t.sift(ctx, batch)
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
	clear(t.queue[:len(batch)])
	t.queue = t.queue[len(batch):]
	t.bytes -= size
	if len(gone) > 0 {
		t.track.ended(slices.Collect(maps.Keys(gone)), until)
	}
	t.mu.Unlock()
	signal(t.room)
	return ms, true, nil
}

// peek looks at what is to be taken from the queue, and at which of it more of the same transaction follows. The latest
// message of a transaction stays there until it is known whether it is the last one.
func (t *logTail) peek(limit int) (batch []logEntry, more []bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.queue)
	if n > 0 && t.track.open != nil && !t.full {
		n--
	}
	n = min(n, limit)
	more = make([]bool, n)
	for i := range more {
		if i+1 < len(t.queue) {
			more[i] = t.queue[i].commit == t.queue[i+1].commit
		} else {
			more[i] = t.track.open != nil
		}
	}
	return t.queue[:n:n], more
}

// sift finds what an earlier reader has dealt with, by its row, and sets aside what cannot be read. That is on the
// server's disk once the log is, up to a place.
func (t *logTail) sift(ctx context.Context, batch []logEntry) (gone map[logKey]bool, until uint64, err error) {
	var bad []store.Outgoing
	var earlier []logEntry
	for i := range batch {
		switch e := &batch[i]; {
		case e.bad:
			bad = append(bad, e.message)
		case e.earlier && e.message.Seq != 0:
			earlier = append(earlier, *e)
		}
	}
	if len(bad)+len(earlier) == 0 {
		return nil, 0, nil
	}
	// The context of one call must not break what the next one needs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if len(bad) > 0 {
		if err := t.SetAside(ctx, bad); err != nil {
			return nil, 0, err
		}
	}
	fates, err := t.rows(ctx, earlier)
	if err != nil {
		return nil, 0, err
	}
	gone = make(map[logKey]bool)
	for _, key := range keysOf(bad) {
		gone[key] = true
	}
	for i, fate := range fates {
		if fate == rowGone {
			gone[earlier[i].key()] = true
		}
	}
	until, err = t.logEnd(ctx)
	return gone, until, err
}

// logEnd is where the log ends now.
func (t *logTail) logEnd(ctx context.Context) (uint64, error) {
	var text string
	if err := t.store.pool.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		return 0, err
	}
	return parsePosition(text)
}

// Close ends the reading in order, so that the place is free at once. What was done is confirmed.
func (t *logTail) Close(ctx context.Context) error {
	t.mu.Lock()
	again := t.closing
	t.closing = true
	broken := t.broken
	t.mu.Unlock()
	if again {
		return nil
	}
	signal(t.room) // the reading goroutine drops what comes from now on
	defer t.abandon()
	if broken != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	t.awaitLate(ctx)
	t.confirm(false)
	if err := t.conn.finish(); err != nil {
		return nil // the connection broke at this moment, and the place is free
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("once: the server did not let go of the slot in time: %w", ctx.Err())
	case <-t.ended:
	}
	t.mu.Lock()
	broken = t.broken
	t.mu.Unlock()
	if !errors.Is(broken, errEnded) {
		return nil // the same
	}
	return t.conn.leave(ctx)
}

// awaitLate waits for a while for the ends of rows that were sent before they could be seen: the next reader would send
// them again.
func (t *logTail) awaitLate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lateTime)
	defer cancel()
	tick := time.NewTicker(unseenGap)
	defer tick.Stop()
	for {
		t.mu.Lock()
		late := t.catching && t.broken == nil
		t.mu.Unlock()
		if !late {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.ended:
			return
		case <-tick.C:
		}
	}
}

// abandon ends the connection, and with it everything else.
func (t *logTail) abandon() {
	t.conn.close()
	if t.ended != nil {
		<-t.ended
		<-t.told
	}
}

// fail breaks the tail. The first reason counts.
func (t *logTail) fail(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = fmt.Errorf("once: the log of the outbox is read no further: %w", explainLog(err))
	}
	signal(t.arrived)
	return t.broken
}

func (t *logTail) whyBroken() error {
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

// tell tells the server how far everything is done, often enough that it knows that somebody is there.
func (t *logTail) tell() {
	defer close(t.told)
	tick := time.NewTicker(min(confirmGap, t.sign))
	defer tick.Stop()
	var last time.Time
	var said uint64
	for {
		asked, ask := false, false
		select {
		case <-t.ended:
			return
		case <-t.asked:
			asked = true
		case <-tick.C:
			ask = time.Since(last) >= t.sign
		}
		t.mu.Lock()
		progress, closing := t.track.confirmed != said, t.closing
		said = t.track.confirmed
		t.mu.Unlock()
		if closing || !progress && !asked && !ask {
			continue
		}
		t.confirm(ask)
		if asked {
			t.excuse()
		}
		last = time.Now()
	}
}

// confirm sends a status. If that fails, the reading goroutine finds out why.
func (t *logTail) confirm(ask bool) {
	t.mu.Lock()
	received, confirmed := t.track.received, t.track.confirmed
	t.mu.Unlock()
	var answer byte
	if ask {
		answer = 1
	}
	if err := t.conn.confirm(received, confirmed, answer); err != nil {
		_ = t.conn.net.Close()
	}
}

// excuse tells the server that everything has arrived, whatever of it is done. A server that is to shut down asks, and
// waits until all of its log is confirmed, or, without a word about that, has arrived.
func (t *logTail) excuse() {
	t.mu.Lock()
	received := t.track.received
	t.mu.Unlock()
	if err := t.conn.confirm(received, 0, 0); err != nil {
		_ = t.conn.net.Close()
	}
}

var errEnded = errors.New("once: the server has ended the reading of the log")
