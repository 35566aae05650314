package membroker

// Restart breaks all sessions, as if the broker had been killed and restarted.
// Unsettled messages are delivered again. No confirmed message is lost.
func (b *Broker) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.breakAll()
}

// Down(true) breaks all sessions and makes all calls fail. Down(false) ends that;
// broken sessions must be opened again. Messages are kept.
func (b *Broker) Down(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	if down {
		b.breakAll()
	}
}

// LoseAcks loses the next n acks: Ack returns nil, and the message is delivered
// again at once, without closing the session. LoseAcks adds to the acks that
// are still to be lost. With n below 1, no more acks are lost.
func (b *Broker) LoseAcks(n int) { b.plan(&b.lose.acks, n) }

// LoseConfirms loses the next n confirmations: a message is stored, and Publish
// returns an error for it. LoseConfirms adds to the confirmations that are still
// to be lost. With n below 1, no more confirmations are lost.
func (b *Broker) LoseConfirms(n int) { b.plan(&b.lose.confirms, n) }

// Duplicate stores the next n published messages twice, as if the publisher had
// sent them twice. The first delivery of either copy is not Redelivered.
// Duplicate adds to the messages that are still to be stored twice. With n below
// 1, no more are.
func (b *Broker) Duplicate(n int) { b.plan(&b.double, n) }

func (b *Broker) plan(count *int, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < 1 {
		*count = 0
		return
	}
	*count += n
}

// lost decrements a count and returns true, unless it is 0.
func lost(count *int) bool {
	if *count <= 0 {
		return false
	}
	*count--
	return true
}

func (b *Broker) breakAll() {
	for s := range b.open {
		s.breakOff()
	}
}
