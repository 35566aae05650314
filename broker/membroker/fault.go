package membroker

// Restart breaks all sessions, as if the broker had been killed and started again: what was delivered and not settled
// comes again. Nothing that was confirmed is lost.
func (b *Broker) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.breakAll()
}

// Down lets everything fail from now on, and breaks all sessions; Down(false) ends that. Sessions that were broken are
// opened anew then. Messages stay.
func (b *Broker) Down(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	if down {
		b.breakAll()
	}
}

// LoseAcks lets the next n messages that are acknowledged come again: the caller is told that all is well, and the
// broker behaves as if it had never heard of it and the session had broken right after. They come at once, so the
// session need not be closed. It adds to what is still to be lost; with n below 1 nothing more is lost.
func (b *Broker) LoseAcks(n int) { b.plan(&b.lose.acks, n) }

// LoseConfirms lets the next n messages that are published be stored, and Publish return an error for them. It adds to
// what is still to be lost; with n below 1 nothing more is lost.
func (b *Broker) LoseConfirms(n int) { b.plan(&b.lose.confirms, n) }

// Duplicate lets the next n messages that are published be stored twice, one behind the other, as if the publisher had
// sent them twice: neither of the two is Redelivered when it comes first. It adds to what is still to be doubled; with
// n below 1 nothing more is.
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

// lost counts one down, if there is one.
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
