package pgstore

import (
	"context"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// txClaims are the claims of a transaction. If there are several, the keys that
// are new are reserved: the transaction holds their locks, and writes their
// records at its end, as they are then, in one statement. A single one may be
// foreseen.
type txClaims struct {
	store      *Store
	rs         []once.ClaimRequest
	keys       uuidArray
	recs       []once.Record
	isReserved []bool
	settled    []*once.Settlement // of reserved keys; nil: not settled
	foreseen   *foreseen          // of the only key
	look       *lookAhead         // at the shelf; nil: none
}

// newReservations returns nil if keys cannot be reserved: for a single claim,
// and for claims of the same key.
func (s *Store) newReservations(rs []once.ClaimRequest) *txClaims {
	if !s.records.reserves() || len(rs) < 2 {
		return nil
	}
	keys, seen := make(uuidArray, len(rs)), make(map[[16]byte]bool, len(rs))
	for i, r := range rs {
		keys[i] = r.Key.UUID()
		if seen[keys[i]] {
			return nil
		}
		seen[keys[i]] = true
	}
	return &txClaims{store: s, rs: rs, keys: keys, recs: make([]once.Record, len(rs)), isReserved: make([]bool, len(rs)),
		settled: make([]*once.Settlement, len(rs))}
}

// begin begins the transaction and takes the locks in one round trip. Records
// that exist are read in a second one. Those that may be free are claimed in a
// third.
func (c *txClaims) begin(ctx context.Context, conn *pgx.Conn) error {
	locks := make([]int64, len(c.keys))
	for i, key := range c.keys {
		locks[i] = c.store.names.Lock(key)
	}
	b := new(pgx.Batch)
	b.Queue(c.store.begin)
	b.Queue(c.store.sql.lockMany, locks).Query(c.readLocked)
	b.Queue(c.store.sql.absent, c.keys).Query(c.readAbsent)
	c.look.queue(b)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return explain(err)
	}
	if err := c.readKnown(ctx, conn); err != nil {
		return err
	}
	return c.claimFree(ctx, conn)
}

// readLocked reads which locks were taken.
func (c *txClaims) readLocked(rows pgx.Rows) error {
	var nth int64
	_, err := pgx.ForEachRow(rows, []any{&nth}, func() error {
		c.isReserved[nth-1] = true
		return nil
	})
	return err
}

// readAbsent reads which keys have no record. It reserves them if their locks
// were taken. The lock of a key that has a record means nothing.
func (c *txClaims) readAbsent(rows pgx.Rows) error {
	locked := c.isReserved
	c.isReserved = make([]bool, len(c.rs))
	var nth, now int64
	_, err := pgx.ForEachRow(rows, []any{&nth, &now}, func() error {
		c.add(int(nth-1), locked[nth-1], now)
		return nil
	})
	return err
}

// add adds a key without a record: reserved, or claimed by another transaction.
func (c *txClaims) add(i int, locked bool, created int64) {
	r := c.rs[i]
	c.recs[i] = once.Record{Key: r.Key, Status: once.Running}
	if locked {
		c.recs[i] = sqlschema.NewRecord(r, created)
		c.isReserved[i] = true
	}
}

// unanswered returns the claims about which nothing is known yet.
func (c *txClaims) unanswered() (which []int) {
	for i, rec := range c.recs {
		if rec.Status == once.Absent {
			which = append(which, i)
		}
	}
	return which
}

// readKnown reads the records that are not free. A repeated batch costs no more
// than that.
func (c *txClaims) readKnown(ctx context.Context, conn *pgx.Conn) error {
	which := c.unanswered()
	if len(which) == 0 {
		return nil
	}
	c.look.discard()
	keys := make(uuidArray, len(which))
	for n, i := range which {
		keys[n] = c.keys[i]
	}
	rows, _ := conn.Query(ctx, c.store.sql.taken, keys)
	defer rows.Close()
	for rows.Next() {
		var nth int64
		rec, err := readRecordAfter(rows, &nth)
		if err != nil {
			return explain(err)
		}
		c.recs[which[nth-1]] = rec
	}
	return explain(rows.Err())
}

// claimFree claims the keys that may be free.
func (c *txClaims) claimFree(ctx context.Context, conn *pgx.Conn) error {
	which := c.unanswered()
	if len(which) == 0 {
		return nil
	}
	rs := make([]once.ClaimRequest, len(which))
	for n, i := range which {
		rs[n] = c.rs[i]
	}
	recs, err := c.store.claims(ctx, conn, new(pgx.Batch), rs)
	for n, rec := range recs {
		c.recs[which[n]] = rec
	}
	return err
}

// beginForeseen begins the transaction, and claims the key in the same round
// trip if it is new.
func (c *txClaims) beginForeseen(ctx context.Context, conn *pgx.Conn) error {
	f := c.store.newForeseen(c.rs[0])
	rec, err := f.begin(ctx, conn, c.look)
	switch {
	case err != nil:
		return err
	case rec.HeldBy(f.r.Owner):
		c.foreseen = &f
	case rec.Status == once.Absent:
		c.look.discard()
		recs, err := c.store.claims(ctx, conn, new(pgx.Batch), c.rs)
		if err != nil {
			return err
		}
		rec = recs[0]
	}
	c.recs = []once.Record{rec}
	c.store.losses.transact.Count(c.foreseen == nil)
	return nil
}

// settle queues the records of reserved keys, and the settlements of the
// others.
func (c *txClaims) settle(b *pgx.Batch, sets []once.Settlement) error {
	if c.foreseen != nil {
		return c.foreseen.settle(b, sets)
	}
	var others []once.Settlement
	next := 0
	for n := range sets {
		i := c.find(sets[n].Fence, next)
		if i < 0 {
			others = append(others, sets[n])
			continue
		}
		c.settled[i], next = &sets[n], i+1
	}
	if err := c.queueRecords(b); err != nil {
		return err
	}
	return c.store.queueSettlements(b, others)
}

// find returns the index of a claim that is reserved and not settled yet, or
// -1. It starts at from: settlements mostly come in the order of the claims.
func (c *txClaims) find(fence once.Fence, from int) int {
	for n := range c.rs {
		i := (from + n) % len(c.rs)
		if c.rs[i].Owner == fence.Owner && c.isReserved[i] && c.settled[i] == nil && c.rs[i].Key == fence.Key && fence.Attempt == 1 {
			return i
		}
	}
	return -1
}

func (c *txClaims) queueRecords(b *pgx.Batch) error {
	w := newRecordsOf(len(c.rs))
	for i, reserved := range c.isReserved {
		if reserved {
			w.add(c.keys[i], c.rs[i], c.recs[i].Created, c.settled[i])
		}
	}
	return w.queue(b, c.store.sql.write)
}

// reserved reports whether a key is reserved.
func (c *txClaims) reserved(k once.Key) bool {
	i := slices.IndexFunc(c.rs, func(r once.ClaimRequest) bool { return r.Key == k })
	return i >= 0 && c.isReserved[i]
}

// overtaken rolls back, and reports whether a key that was reserved has a
// record. Then work may have failed because of rows of another transaction,
// which does not know the lock: that of a store that names the same tables in
// another way.
func (c *txClaims) overtaken(ctx context.Context, conn *pgx.Conn) bool {
	var keys uuidArray
	for i, reserved := range c.isReserved {
		if reserved {
			keys = append(keys, c.keys[i])
		}
	}
	if f := c.foreseen; f != nil && !f.known && !f.ran {
		keys = uuidArray{f.r.Key.UUID()}
	}
	if len(keys) == 0 {
		return false
	}
	rollback(ctx, conn)
	found := false
	err := conn.QueryRow(context.WithoutCancel(ctx), c.store.sql.exist, keys).Scan(&found)
	return err == nil && found
}
