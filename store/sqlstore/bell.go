package sqlstore

import (
	"context"
	"database/sql"
	"sync"

	"github.com/effectively-once/once/store"
)

// bell tells relays of this store that messages were put through it.
type bell struct {
	mu   sync.Mutex
	ears map[*ear]bool
	open map[*sql.Tx]bool // those that end here, and whether messages were put in them
}

// begun is told of a transaction that ends here. The bell rings when it has ended, and not before.
func (b *bell) begun(tx *sql.Tx) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = make(map[*sql.Tx]bool)
	}
	b.open[tx] = false
}

// ended rings for the messages of a transaction that may be committed.
func (b *bell) ended(tx *sql.Tx, committed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[tx] && committed {
		b.ring()
	}
	delete(b.open, tx)
}

// put is told that messages were put in a transaction. One that does not end here is about to, sooner or later.
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
		default: // it rings already
		}
	}
}

// ear keeps one ringing until it is waited for.
type ear struct {
	bell *bell
	rung chan struct{}
}

// HearOutbox begins to listen for messages that are put through this Store.
func (s *Store) HearOutbox(context.Context) (store.Ear, error) {
	if s.invalid != nil {
		return nil, s.invalid
	}
	e := &ear{bell: &s.bell, rung: make(chan struct{}, 1)}
	s.bell.mu.Lock()
	defer s.bell.mu.Unlock()
	if s.bell.ears == nil {
		s.bell.ears = make(map[*ear]bool)
	}
	s.bell.ears[e] = true
	return e, nil
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
