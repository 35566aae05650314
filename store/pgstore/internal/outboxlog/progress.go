package outboxlog

// messageKey identifies a message. The rows that one record of the log holds
// share a place. A message without a row has no seq, and a row of the backlog
// has no place.
type messageKey struct {
	place uint64
	seq   int64
}

// openCommit is a transaction with messages that are not all done.
type openCommit struct {
	end      uint64 // of its commit record; once confirmed, the server does not send it again
	left     int    // messages that are not done
	complete bool   // all of its messages have arrived
}

// delivery is a message that is not done.
type delivery struct {
	commit *openCommit // nil: the backlog
	xid    uint64      // the transaction that wrote it
}

// unflushed are messages whose rows have ended. That is certain when the
// server's disk has the log up to a position.
type unflushed struct {
	until uint64
	keys  []messageKey
}

// progress computes the position that may be confirmed. The server forgets what
// was confirmed. So the position is only ever the end of a commit for which all
// messages of it and of all earlier commits are done, or a later position up to
// which no message is open.
type progress struct {
	commits     []*openCommit // in the order of the log
	arriving    *openCommit   // the last of them, while its messages arrive
	inside      bool          // a transaction has begun, with messages or without
	messages    map[messageKey]delivery
	backlog     int  // how many of messages are of the backlog
	backlogRead bool // all of the backlog was received
	unflushed   []unflushed
	received    uint64 // position up to which the server has written to disk and sent
	confirmed   uint64
}

// begin records the begin of a transaction.
func (p *progress) begin() { p.inside = true }

// arrive records a message of the transaction that has begun.
func (p *progress) arrive(key messageKey, xid uint64) {
	if p.arriving == nil {
		p.arriving = new(openCommit)
		p.commits = append(p.commits, p.arriving)
	}
	p.arriving.left++
	p.messages[key] = delivery{commit: p.arriving, xid: xid}
}

// commit records that all of a transaction has arrived.
func (p *progress) commit(end uint64) {
	if p.arriving != nil {
		p.arriving.end, p.arriving.complete, p.arriving = end, true, nil
	}
	p.inside = false
	p.pass(end)
}

// pass records that the server has sent everything up to a position, and has it
// on its disk.
func (p *progress) pass(position uint64) {
	if !p.inside {
		p.received = max(p.received, position)
	}
	n := 0
	for ; n < len(p.unflushed) && p.unflushed[n].until <= p.received; n++ {
		p.finish(p.unflushed[n].keys...)
	}
	p.unflushed = p.unflushed[n:]
	p.advance()
}

// rowsEnded records that rows have ended, which is certain once the server's
// disk has the log up to a position. Rows of the backlog are done at once: the
// mark that says so is written after their ends.
func (p *progress) rowsEnded(keys []messageKey, until uint64) {
	var logged []messageKey
	for _, key := range keys {
		if d, known := p.messages[key]; known && d.commit == nil {
			p.finish(key)
		} else {
			logged = append(logged, key)
		}
	}
	p.unflushed = append(p.unflushed, unflushed{until: until, keys: logged})
	p.pass(p.received)
}

// done records that nothing is left to do for messages, even after a crash.
func (p *progress) done(keys []messageKey) {
	p.finish(keys...)
	p.advance()
}

func (p *progress) finish(keys ...messageKey) {
	for _, key := range keys {
		d, known := p.messages[key]
		if !known {
			continue // it was done before
		}
		delete(p.messages, key)
		if d.commit == nil {
			p.backlog--
		} else {
			d.commit.left--
		}
	}
}

func (p *progress) advance() {
	n := 0
	for ; n < len(p.commits) && p.commits[n].complete && p.commits[n].left == 0; n++ {
		p.confirmed = max(p.confirmed, p.commits[n].end)
		p.commits[n] = nil
	}
	if p.commits = p.commits[n:]; len(p.commits) == 0 {
		p.confirmed = max(p.confirmed, p.received)
	}
}
