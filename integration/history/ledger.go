package history

import (
	"context"
	"sync"

	"github.com/effectively-once/once"
)

// ledger has effects in memory: another system, which nothing reaches late.
type ledger struct {
	mu     sync.Mutex
	values map[once.Key][]int64
}

func newLedger() *ledger { return &ledger{values: map[once.Key][]int64{}} }

func (l *ledger) write(ctx context.Context, k once.Key, value int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	l.values[k] = append(l.values[k], value)
	return nil
}

func (l *ledger) read(_ context.Context, k once.Key) (n, value int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.values[k] {
		n, value = n+1, max(value, v)
	}
	return n, value, nil
}

// apart has the effects of transactions beside the records, and others in a
// ledger.
type apart struct {
	*ledger
	beside interface {
		read(ctx context.Context, k once.Key) (n, value int64, err error)
	}
}

func (a apart) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	if k.Operation == inside.Name {
		return a.beside.read(ctx, k)
	}
	return a.ledger.read(ctx, k)
}
