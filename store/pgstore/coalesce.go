package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// claimer sends the claims of new keys. As long as fewer than width are on their way, each goes by itself. Those that would
// only wait for a connection then go together: in one statement, one round trip and one commit.
type claimer struct {
	store *Store
	width int

	mu      sync.Mutex
	flying  int
	waiting [2][]*waiter // by whether they are soft
}

// waiter is a claim that waits for its statement.
type waiter struct {
	r    once.Request
	rec  once.Record
	won  bool
	err  error
	done chan struct{} // closed when the others are set
}

// most bounds the claims of a statement.
const most = 256

// claim takes a key that was never seen; won is false if it is another's, or was seen.
func (c *claimer) claim(ctx context.Context, r once.Request) (rec once.Record, won bool, err error) {
	w := c.enter(r)
	if w == nil {
		defer c.leave()
		return c.store.claimNew(ctx, r)
	}
	select {
	case <-w.done:
		return w.rec, w.won, w.err
	case <-ctx.Done():
		return rec, false, fmt.Errorf("once: the claim may have been sent: %w", ctx.Err())
	}
}

// enter returns nil if the caller is to send its claim, and else what it has to wait for.
func (c *claimer) enter(r once.Request) *waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flying < c.width {
		c.flying++
		return nil
	}
	w := &waiter{r: r, done: make(chan struct{})}
	at := &c.waiting[index(r.Soft)]
	*at = append(*at, w)
	return w
}

func index(soft bool) int {
	if soft {
		return 1
	}
	return 0
}

// leave hands the place on to those that wait. Nobody's claim waits for theirs.
func (c *claimer) leave() {
	if batch := c.next(); len(batch) > 0 {
		go func() {
			defer c.leave()
			c.send(batch)
		}()
	}
}

// next takes those that wait, or gives the place back.
func (c *claimer) next() []*waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, waiting := range c.waiting {
		if len(waiting) > 0 {
			n := min(len(waiting), most)
			c.waiting[i] = waiting[n:]
			return waiting[:n]
		}
	}
	c.flying--
	return nil
}

// send claims for all of them. The time that it may take is its own: that one caller leaves does not concern the others.
func (c *claimer) send(batch []*waiter) {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	err := c.store.claimTogether(ctx, batch)
	for _, w := range batch {
		w.err = err
		close(w.done)
	}
}

// claimTogether sends the claims of different keys. One of a key that comes twice is not won: it will meet the first.
func (s *Store) claimTogether(ctx context.Context, batch []*waiter) error {
	var c columns
	var locks []int64
	places := make(map[[16]byte]*waiter, len(batch))
	for _, w := range batch {
		key := w.r.Key.UUID()
		if places[key] != nil {
			continue
		}
		places[key] = w
		keep, grain := foreseen(w.r)
		c.key, c.owner, locks = append(c.key, uuid(key)), append(c.owner, uuid(w.r.Owner)), append(locks, s.names.Lock(key))
		c.scope, c.operation, c.id = append(c.scope, w.r.Key.Scope), append(c.operation, w.r.Key.Operation), append(c.id, w.r.Key.ID)
		c.lease, c.fingerprint = append(c.lease, micros(w.r.Lease)), append(c.fingerprint, w.r.Fingerprint)
		c.due, c.grain = append(c.due, keep), append(c.grain, grain)
	}
	sql := s.sql.claimMany
	if batch[0].r.Soft {
		sql = s.sql.claimManySoft
	}
	rows, _ := s.pool.Query(ctx, sql, c.key, c.scope, c.operation, c.id, c.owner, c.lease, c.fingerprint, locks, c.due, c.grain)
	var key [16]byte
	var created int64
	_, err := pgx.ForEachRow(rows, []any{&key, &created}, func() error {
		w, at := places[key], time.UnixMicro(created)
		w.won = true
		w.rec = once.Record{Key: w.r.Key, Status: once.Running, Attempt: 1, Owner: w.r.Owner, LeaseLeft: w.r.Lease,
			Fingerprint: bytes.Clone(w.r.Fingerprint), Created: at, Updated: at}
		return nil
	})
	return err
}
