package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
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
	turn    int
	waiting [2][]*waiter // by whether they commit asynchronously
}

// waiter is a claim that waits for its statement.
type waiter struct {
	r    once.ClaimRequest
	rec  once.Record
	won  bool
	err  error
	done chan struct{} // closed when the others are set
}

// most bounds the claims of a statement.
const most = 256

// claim takes a key that was never seen; won is false if it is another's, or was seen.
func (c *claimer) claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	w := c.enter(r)
	if w == nil {
		defer c.leave()
		return c.store.claimNew(ctx, r)
	}
	select {
	case <-w.done:
		return w.rec, w.won, w.err
	case <-ctx.Done():
		if c.withdraw(w) {
			return rec, false, fmt.Errorf("once: the claim was not sent: %w", ctx.Err())
		}
		return rec, false, fmt.Errorf("once: the claim may have been sent: %w", ctx.Err())
	}
}

// enter returns nil if the caller is to send its claim, and else what it has to wait for.
func (c *claimer) enter(r once.ClaimRequest) *waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flying < c.width {
		c.flying++
		return nil
	}
	r.Fingerprint = bytes.Clone(r.Fingerprint) // the caller may leave before it is sent
	w := &waiter{r: r, done: make(chan struct{})}
	at := &c.waiting[index(r.AsyncCommit)]
	*at = append(*at, w)
	return w
}

func index(async bool) int {
	if async {
		return 1
	}
	return 0
}

// leave hands the place on to those that wait. Nobody's claim waits for theirs.
func (c *claimer) leave() {
	if c.wanted() {
		go func() {
			defer c.leave()
			c.send()
		}()
	}
}

// wanted reports whether anybody waits; else it gives the place back.
func (c *claimer) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting[0])+len(c.waiting[1]) > 0 {
		return true
	}
	c.flying--
	return false
}

// next takes those that wait, by turns those that commit asynchronously and those that are not.
func (c *claimer) next() []*waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn = 1 - c.turn
	for _, i := range []int{c.turn, 1 - c.turn} {
		if waiting := c.waiting[i]; len(waiting) > 0 {
			n := min(len(waiting), most)
			c.waiting[i] = waiting[n:]
			return waiting[:n:n]
		}
	}
	return nil
}

// withdraw takes back a claim that was not taken to be sent.
func (c *claimer) withdraw(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.waiting[index(w.r.AsyncCommit)]
	i := slices.Index(*at, w)
	if i >= 0 {
		*at = slices.Concat((*at)[:i], (*at)[i+1:])
	}
	return i >= 0
}

// send claims for all that wait when there is a connection: who leaves before that has claimed nothing. The time that it
// may take is its own: that one caller leaves does not concern the others.
func (c *claimer) send() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	conn, err := c.store.pool.Acquire(ctx)
	batch := c.next()
	if err == nil {
		defer conn.Release()
		if len(batch) > 0 {
			err = c.store.claimTogether(ctx, conn, batch)
		}
	}
	for _, w := range batch {
		w.err = err
		close(w.done)
	}
}

// claimTogether sends the claims of different keys. One of a key that comes twice is not won: it will meet the first.
func (s *Store) claimTogether(ctx context.Context, q querier, batch []*waiter) error {
	var keys, owners, causes uuids
	var scopes, operations, ids []string
	var leases, locks, grains []int64
	var fingerprints [][]byte
	var keeps []*int64
	places := make(map[[16]byte]*waiter, len(batch))
	for _, w := range batch {
		key := w.r.Key.UUID()
		if places[key] != nil {
			continue
		}
		places[key] = w
		keep, grain := foreseen(w.r)
		keys, owners, locks = append(keys, key), append(owners, w.r.Owner), append(locks, s.names.Lock(key))
		scopes, operations, ids = append(scopes, w.r.Key.Scope), append(operations, w.r.Key.Operation), append(ids, w.r.Key.ID)
		leases, fingerprints = append(leases, w.r.Lease.Microseconds()), append(fingerprints, w.r.Fingerprint)
		keeps, grains, causes = append(keeps, keep), append(grains, grain), append(causes, w.r.Cause)
	}
	sql := s.sql.claimMany
	if batch[0].r.AsyncCommit {
		sql = s.sql.claimManyAsync
	}
	rows, _ := q.Query(ctx, sql, keys, scopes, operations, ids, owners, leases, fingerprints, locks, keeps, grains, causes)
	var key [16]byte
	var created int64
	_, err := pgx.ForEachRow(rows, []any{&key, &created}, func() error {
		w, at := places[key], time.UnixMicro(created)
		w.won = true
		w.rec = once.Record{Key: w.r.Key, Status: once.Running, Attempt: 1, Owner: w.r.Owner, LeaseLeft: w.r.Lease,
			Fingerprint: bytes.Clone(w.r.Fingerprint), Cause: w.r.Cause, Created: at, Updated: at}
		return nil
	})
	return err
}
