package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// claimBatcher sends the claims of new keys. While fewer than maxSending are
// being sent, each claim is sent by itself. Later ones would only wait for a
// connection, so they are sent together: in one statement, one round trip and
// one commit.
type claimBatcher struct {
	store      *Store
	maxSending int

	mu      sync.Mutex
	sending int
	turn    int
	waiting [2][]*waitingClaim // by whether they commit asynchronously
}

// waitingClaim is a claim that waits to be sent with others.
type waitingClaim struct {
	r    once.ClaimRequest
	rec  once.Record
	won  bool
	err  error
	done chan struct{} // closed when rec, won and err are set
}

// maxBatch bounds the claims of a statement.
const maxBatch = 256

// claim claims a key that was never seen. If it was, won is false.
func (c *claimBatcher) claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, won bool, err error) {
	w := c.enter(r)
	if w == nil {
		defer c.leave()
		return c.store.insertClaim(ctx, r)
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

// enter returns nil if the caller is to send its claim itself.
func (c *claimBatcher) enter(r once.ClaimRequest) *waitingClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending < c.maxSending {
		c.sending++
		return nil
	}
	r.Fingerprint = bytes.Clone(r.Fingerprint) // the caller may return before it is sent
	w := &waitingClaim{r: r, done: make(chan struct{})}
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

// leave ends sending a claim. If claims wait, it lets another goroutine send
// them in its place.
func (c *claimBatcher) leave() {
	if c.keepSending() {
		go func() {
			defer c.leave()
			c.send()
		}()
	}
}

// keepSending reports whether claims wait.
func (c *claimBatcher) keepSending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting[0])+len(c.waiting[1]) > 0 {
		return true
	}
	c.sending--
	return false
}

// next takes claims that wait, by turns those that commit asynchronously and
// the others.
func (c *claimBatcher) next() []*waitingClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn = 1 - c.turn
	for _, i := range []int{c.turn, 1 - c.turn} {
		if waiting := c.waiting[i]; len(waiting) > 0 {
			n := min(len(waiting), maxBatch)
			c.waiting[i] = waiting[n:]
			return waiting[:n:n]
		}
	}
	return nil
}

// withdraw removes a claim that still waits, and reports whether it did.
func (c *claimBatcher) withdraw(w *waitingClaim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.waiting[index(w.r.AsyncCommit)]
	i := slices.Index(*at, w)
	if i >= 0 {
		*at = slices.Concat((*at)[:i], (*at)[i+1:])
	}
	return i >= 0
}

// send sends the claims that wait once it has a connection. It has a context of
// its own, so that a caller that returns early does not disturb the others.
func (c *claimBatcher) send() {
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

// claimTogether sends claims in one statement. If two have the same key, the
// second is not won.
func (s *Store) claimTogether(ctx context.Context, q querier, batch []*waitingClaim) error {
	var keys, owners, causes uuidArray
	var scopes, operations, ids []string
	var leases, locks, grains []int64
	var fingerprints [][]byte
	var keeps []*int64
	places := make(map[[16]byte]*waitingClaim, len(batch))
	for _, w := range batch {
		key := w.r.Key.UUID()
		if places[key] != nil {
			continue
		}
		places[key] = w
		keep, grain := expectedKeep(w.r)
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
		w := places[key]
		w.won, w.rec = true, sqlschema.NewRecord(w.r, created)
		return nil
	})
	return err
}
