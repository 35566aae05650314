package sqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/sqltx"
)

// queue is where the writers of a Store on SQLite wait for their turn, in the order in which they came. SQLite has one
// writer at a time, and the others ask again after pauses that grow: whoever has waited long asks seldom, and loses to
// those that come later.
type queue chan struct{}

func newQueue(d sqlschema.Dialect) queue {
	if d != sqlschema.SQLite {
		return nil
	}
	return make(queue, 1) // those that wait to send are served in their order
}

// longestTurn is how long somebody waits for another's turn to end. After that, SQLite decides, as it does between
// processes: so a turn is no lock that anybody could wait for for ever, for example a handler for the end of its own.
const longestTurn = sqltx.EndTime

// write waits until it is the caller's turn to write, and returns how to end that. It may be called more than once.
func (s *Store) write(ctx context.Context) (end func(), err error) {
	if s.queue == nil || scope.InsideTx(ctx) {
		return func() {}, ctx.Err()
	}
	select {
	case s.queue <- struct{}{}:
		return s.queue.end(), nil
	default:
	}
	timer := time.NewTimer(longestTurn)
	defer timer.Stop()
	select {
	case s.queue <- struct{}{}:
		return s.queue.end(), nil
	case <-timer.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (q queue) end() func() { return sync.OnceFunc(func() { <-q }) }
