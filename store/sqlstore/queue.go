package sqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// queue makes the writers of a Store on SQLite take turns in the order in which
// they came. SQLite allows one writer at a time, and lets the others poll with
// growing pauses, so those that have waited longest lose to newcomers.
type queue chan struct{}

func newQueue(d sqlschema.Dialect) queue {
	if d != sqlschema.SQLite {
		return nil
	}
	return make(queue, 1) // a channel serves senders in their order
}

// longestTurn bounds the wait for a turn. After that, SQLite decides, as it
// does between processes. So no writer waits forever, not even a handler that
// waits for the end of its own transaction.
const longestTurn = sqltx.EndTime

// wait waits for the caller's turn to write. The caller ends its turn with end,
// which may be called more than once. Inside a transaction of [once.DoTx] it
// does not wait, since that has the turn.
func (q queue) wait(ctx context.Context) (end func(), err error) {
	if q == nil || scope.InsideTx(ctx) {
		return func() {}, ctx.Err()
	}
	select {
	case q <- struct{}{}:
		return q.end(), nil
	default:
	}
	timer := time.NewTimer(longestTurn)
	defer timer.Stop()
	select {
	case q <- struct{}{}:
		return q.end(), nil
	case <-timer.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (q queue) end() func() { return sync.OnceFunc(func() { <-q }) }
