package pgstore

// logKey names a message that came out of the log, or a row that was pending before. Rows that one record of the log
// holds have one place, messages have no seq.
type logKey struct {
	place uint64
	seq   int64
}

// logCommit is a transaction with messages that are not all done.
type logCommit struct {
	end    uint64 // of its commit; what is confirmed up to here does not come again
	left   int
	closed bool // all of its messages have arrived
}

// delivered is a message on its way.
type delivered struct {
	commit *logCommit // nil: of the backlog
	xid    uint64     // the transaction that put it
}

// unflushed are messages whose rows have ended, which is not on the server's disk before the log is, up to a place.
type unflushed struct {
	until uint64
	keys  []logKey
}

// logTrack knows how far everything is done. What the server confirms it forgets, so a position is only ever the end of a
// commit of which, and of all before it, every message is done, or a place in between where nothing is open.
type logTrack struct {
	commits   []*logCommit // in the order of the log
	open      *logCommit   // the last of them, while its messages arrive
	inside    bool         // a transaction has begun, with messages or without
	messages  map[logKey]delivered
	backlog   int  // of messages, those of the backlog
	whole     bool // all of the backlog has been received
	unflushed []unflushed
	received  uint64 // how far the server has come, on disk and in sending
	confirmed uint64
}

// begin is that a transaction begins.
func (t *logTrack) begin() { t.inside = true }

// arrive is that a message arrives, of the transaction that has begun.
func (t *logTrack) arrive(key logKey, xid uint64) {
	if t.open == nil {
		t.open = new(logCommit)
		t.commits = append(t.commits, t.open)
	}
	t.open.left++
	t.messages[key] = delivered{commit: t.open, xid: xid}
}

// commit is that a transaction has arrived as a whole.
func (t *logTrack) commit(end uint64) {
	if t.open != nil {
		t.open.end, t.open.closed, t.open = end, true, nil
	}
	t.inside = false
	t.pass(end)
}

// pass is that the server has sent everything up to here, and has it on its disk.
func (t *logTrack) pass(until uint64) {
	if !t.inside {
		t.received = max(t.received, until)
	}
	n := 0
	for ; n < len(t.unflushed) && t.unflushed[n].until <= t.received; n++ {
		t.finish(t.unflushed[n].keys)
	}
	t.unflushed = t.unflushed[n:]
	t.advance()
}

// ended is that rows have ended, for certain once the server's disk has its log up to here. For those of the backlog
// that is looked after by the mark that it is done, which is written behind them.
func (t *logTrack) ended(keys []logKey, until uint64) {
	var logged []logKey
	for _, key := range keys {
		if d, known := t.messages[key]; known && d.commit == nil {
			t.finish([]logKey{key})
		} else {
			logged = append(logged, key)
		}
	}
	t.unflushed = append(t.unflushed, unflushed{until: until, keys: logged})
	t.pass(t.received)
}

// done is that nothing is left to do for messages, whatever happens.
func (t *logTrack) done(keys []logKey) {
	t.finish(keys)
	t.advance()
}

func (t *logTrack) finish(keys []logKey) {
	for _, key := range keys {
		d, known := t.messages[key]
		if !known {
			continue // done before
		}
		delete(t.messages, key)
		if d.commit == nil {
			t.backlog--
		} else {
			d.commit.left--
		}
	}
}

func (t *logTrack) advance() {
	n := 0
	for ; n < len(t.commits) && t.commits[n].closed && t.commits[n].left == 0; n++ {
		t.confirmed = max(t.confirmed, t.commits[n].end)
		t.commits[n] = nil
	}
	if t.commits = t.commits[n:]; len(t.commits) == 0 {
		t.confirmed = max(t.confirmed, t.received)
	}
}
