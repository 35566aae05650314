package pgstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// reservation is the claims of a transaction that has several. Those of keys that were never seen are locks at first:
// their records are written at the end, all in one statement, as they are then.
type reservation struct {
	store  *Store
	rs     []once.ClaimRequest
	keys   uuids // theirs
	recs   []once.Record
	locked []bool             // which of rs are reserved
	ends   []*once.Settlement // theirs; nil: not settled
}

// newReservation returns nil if these are not several claims, of different keys.
func (s *Store) newReservation(rs []once.ClaimRequest) *reservation {
	if s.partition != nil || len(rs) < 2 {
		return nil
	}
	keys, seen := make(uuids, len(rs)), make(map[[16]byte]bool, len(rs))
	for i, r := range rs {
		keys[i] = r.Key.UUID()
		if seen[keys[i]] {
			return nil
		}
		seen[keys[i]] = true
	}
	return &reservation{store: s, rs: rs, keys: keys, recs: make([]once.Record, len(rs)), locked: make([]bool, len(rs)),
		ends: make([]*once.Settlement, len(rs))}
}

// begin begins the transaction and takes the locks in one round trip. What has a record already is read in a second,
// and what of it may be free is claimed in a third.
func (v *reservation) begin(ctx context.Context, conn *pgx.Conn) error {
	locks := make([]int64, len(v.keys))
	for i, key := range v.keys {
		locks[i] = v.store.names.Lock(key)
	}
	b := new(pgx.Batch)
	b.Queue(v.store.begin)
	b.Queue(v.store.sql.lockMany, locks).Query(v.readLocked)
	b.Queue(v.store.sql.absent, v.keys).Query(v.readAbsent)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return explain(err)
	}
	if err := v.readKnown(ctx, conn); err != nil {
		return err
	}
	return v.claimFree(ctx, conn)
}

// readLocked takes the answer whose locks are ours.
func (v *reservation) readLocked(rows pgx.Rows) error {
	var nth int64
	_, err := pgx.ForEachRow(rows, []any{&nth}, func() error {
		v.locked[nth-1] = true
		return nil
	})
	return err
}

// readAbsent takes the answer which keys have no record, and reserves those whose locks are ours. The lock of a key that
// has a record counts for nothing.
func (v *reservation) readAbsent(rows pgx.Rows) error {
	locked := v.locked
	v.locked = make([]bool, len(v.rs))
	var nth, now int64
	_, err := pgx.ForEachRow(rows, []any{&nth, &now}, func() error {
		v.reserve(int(nth-1), locked[nth-1], time.UnixMicro(now))
		return nil
	})
	return err
}

func (v *reservation) reserve(i int, ours bool, at time.Time) {
	r := v.rs[i]
	v.recs[i] = once.Record{Key: r.Key, Status: once.Running}
	if ours {
		v.recs[i] = once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease,
			Fingerprint: bytes.Clone(r.Fingerprint), Cause: r.Cause, Created: at, Updated: at}
		v.locked[i] = true
	}
}

// unanswered are those of the claims that nothing is known of yet.
func (v *reservation) unanswered() (which []int) {
	for i, rec := range v.recs {
		if rec.Status == once.Absent {
			which = append(which, i)
		}
	}
	return which
}

// readKnown reads the records that no claim could have: a repeated batch costs no more than that.
func (v *reservation) readKnown(ctx context.Context, conn *pgx.Conn) error {
	which := v.unanswered()
	if len(which) == 0 {
		return nil
	}
	keys := make(uuids, len(which))
	for n, i := range which {
		keys[n] = v.keys[i]
	}
	rows, _ := conn.Query(ctx, v.store.sql.stand, keys)
	defer rows.Close()
	for rows.Next() {
		var nth int64
		rec, err := readRecordBehind(rows, &nth)
		if err != nil {
			return explain(err)
		}
		v.recs[which[nth-1]] = rec
	}
	return explain(rows.Err())
}

// claimFree claims what is free, or may be.
func (v *reservation) claimFree(ctx context.Context, conn *pgx.Conn) error {
	which := v.unanswered()
	if len(which) == 0 {
		return nil
	}
	rs := make([]once.ClaimRequest, len(which))
	for n, i := range which {
		rs[n] = v.rs[i]
	}
	recs, err := v.store.claims(ctx, conn, new(pgx.Batch), rs)
	for n, rec := range recs {
		v.recs[which[n]] = rec
	}
	return err
}

// settle queues the records that were reserved, and then the ends of the other claims.
func (v *reservation) settle(b *pgx.Batch, sets []once.Settlement) error {
	var others []once.Settlement
	next := 0
	for n := range sets {
		i := v.find(sets[n].Fence, next)
		if i < 0 {
			others = append(others, sets[n])
			continue
		}
		v.ends[i], next = &sets[n], i+1
	}
	if err := v.queueRecords(b); err != nil {
		return err
	}
	return v.store.queueSettlements(b, others)
}

// find returns which of the claims is reserved, not settled yet, and this one; -1 if none is. It begins at a place:
// settlements mostly come in the order of the claims.
func (v *reservation) find(fence once.Fence, from int) int {
	for n := range v.rs {
		i := (from + n) % len(v.rs)
		if v.rs[i].Owner == fence.Owner && v.locked[i] && v.ends[i] == nil && v.rs[i].Key == fence.Key && fence.Attempt == 1 {
			return i
		}
	}
	return -1
}

func (v *reservation) queueRecords(b *pgx.Batch) error {
	w := newWritten(len(v.rs))
	for i, locked := range v.locked {
		if locked {
			w.add(v.keys[i], v.rs[i], v.recs[i].Created, v.ends[i])
		}
	}
	return w.queue(b, v.store.sql.write)
}

// has reports whether a key is reserved.
func (v *reservation) has(k once.Key) bool {
	i := slices.IndexFunc(v.rs, func(r once.ClaimRequest) bool { return r.Key == k })
	return i >= 0 && v.locked[i]
}

// overtaken reports, after a rollback, whether a key that was reserved has a row all the same: then body may have failed
// over the rows of another, which does not know the lock: a store that names the same tables in another way.
func (v *reservation) overtaken(ctx context.Context, conn *pgx.Conn) bool {
	var keys uuids
	for i, locked := range v.locked {
		if locked {
			keys = append(keys, v.keys[i])
		}
	}
	if len(keys) == 0 {
		return false
	}
	rollback(ctx, conn)
	found := false
	err := conn.QueryRow(context.WithoutCancel(ctx), v.store.sql.exist, keys).Scan(&found)
	return err == nil && found
}
