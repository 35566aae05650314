package sqlstore

import (
	"context"
	"database/sql"
	"sync"
)

// bell tells relays that use this Store that messages were put through it.
type bell struct {
	mu   sync.Mutex
	ears map[*ear]bool
	open map[*sql.Tx]bool // the transactions of Transact and TransactAt; whether messages were put in them
}

// begun is called when a transaction of Transact or TransactAt begins. The bell
// rings for its messages when it is committed, and not before.
func (b *bell) begun(tx *sql.Tx) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = make(map[*sql.Tx]bool)
	}
	b.open[tx] = false
}

// sent is called when COMMIT was sent, and rings if the transaction has
// messages.
func (b *bell) sent(tx *sql.Tx) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[tx] {
		b.ring()
	}
}

// ended is called when the transaction is over.
func (b *bell) ended(tx *sql.Tx) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, tx)
}

// put is called when messages were put in a transaction. It rings at once for a
// transaction of the caller's, whose commit it cannot see.
func (b *bell) put(tx *sql.Tx) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ours := b.open[tx]; ours {
		b.open[tx] = true
		return
	}
	b.ring()
}

func (b *bell) ring() {
	for e := range b.ears {
		select {
		case e.rung <- struct{}{}:
		default: // it has not been waited for since the last ring
		}
	}
}

// ear implements [store.Ear]. It keeps one ring until Wait.
type ear struct {
	bell *bell
	rung chan struct{}
}

// hear returns a new ear.
func (b *bell) hear() *ear {
	e := &ear{bell: b, rung: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ears == nil {
		b.ears = make(map[*ear]bool)
	}
	b.ears[e] = true
	return e
}

func (e *ear) Wait(ctx context.Context) error {
	select {
	case <-e.rung:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *ear) Far() bool { return false }

func (e *ear) Close() {
	e.bell.mu.Lock()
	defer e.bell.mu.Unlock()
	delete(e.bell.ears, e)
}
