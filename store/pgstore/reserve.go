package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// reservation is the claims of a transaction that has several. Those of keys that were never seen are locks at first:
// their records are written at the end, all in one statement, as they are then.
type reservation struct {
	store  *Store
	rs     []once.Request
	recs   []once.Record
	locked []bool            // which of rs are reserved
	ends   []once.Settlement // theirs; a zero Hold: not settled
	open   map[once.Hold]int // those that are not settled yet
}

// canReserve reports whether these are claims of different keys.
func canReserve(rs []once.Request) bool {
	seen := make(map[once.Key]bool, len(rs))
	for _, r := range rs {
		if seen[r.Key] {
			return false
		}
		seen[r.Key] = true
	}
	return len(rs) > 1
}

// reserve begins the transaction and takes the locks in one round trip. What has a record already is claimed in a second.
func (s *Store) reserve(ctx context.Context, conn *pgx.Conn, rs []once.Request) (*reservation, error) {
	v := &reservation{store: s, rs: rs, recs: make([]once.Record, len(rs)), locked: make([]bool, len(rs)),
		ends: make([]once.Settlement, len(rs)), open: make(map[once.Hold]int, len(rs))}
	keys, locks := make([]string, len(rs)), make([]int64, len(rs))
	for i, r := range rs {
		key := r.Key.UUID()
		keys[i], locks[i] = uuid(key), s.names.Lock(key)
	}
	b := new(pgx.Batch)
	b.Queue(s.begin)
	b.Queue(s.sql.reserve, keys, locks).Query(v.read)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return nil, explain(err)
	}
	return v, v.claimKnown(ctx, conn)
}

// read takes the answer: which keys have no record, and whether their locks are ours.
func (v *reservation) read(rows pgx.Rows) error {
	var nth, now int64
	var ours bool
	_, err := pgx.ForEachRow(rows, []any{&nth, &ours, &now}, func() error {
		i := nth - 1
		r := v.rs[i]
		v.recs[i] = once.Record{Key: r.Key, Status: once.Running}
		if ours {
			at := time.UnixMicro(now)
			v.recs[i] = once.Record{Key: r.Key, Status: once.Running, Attempt: 1, Owner: r.Owner, LeaseLeft: r.Lease,
				Fingerprint: bytes.Clone(r.Fingerprint), Created: at, Updated: at}
			v.locked[i] = true
			v.open[once.Hold{Key: r.Key, Owner: r.Owner, Attempt: 1}] = int(i)
		}
		return nil
	})
	return err
}

func (v *reservation) claimKnown(ctx context.Context, conn *pgx.Conn) error {
	var which []int
	var known []once.Request
	for i, rec := range v.recs {
		if rec.Status == once.Absent {
			which, known = append(which, i), append(known, v.rs[i])
		}
	}
	if len(known) == 0 {
		return nil
	}
	recs, err := v.store.claims(ctx, conn, new(pgx.Batch), known)
	for i, rec := range recs {
		v.recs[which[i]] = rec
	}
	return err
}

// settle queues the records that were reserved, and then the ends of the other claims.
func (v *reservation) settle(b *pgx.Batch, sets []once.Settlement) error {
	var others []once.Settlement
	for _, set := range sets {
		i, reserved := v.open[set.Hold]
		if !reserved {
			others = append(others, set)
			continue
		}
		delete(v.open, set.Hold)
		v.ends[i] = set
	}
	if err := v.queueRecords(b); err != nil {
		return err
	}
	return v.store.queueSettlements(b, others)
}

// columns of reserved records, as writeSQL takes them.
type columns struct {
	key, scope, operation, id, owner, kind, reason []string
	status, flags                                  []int16
	sum, grain, created                            []int64
	lease, keepOutcome, keepKey, due               []*int64
	fingerprint, body                              [][]byte
}

func (v *reservation) queueRecords(b *pgx.Batch) error {
	var c columns
	for i, locked := range v.locked {
		if !locked {
			continue
		}
		if err := c.add(v.rs[i], v.recs[i], v.ends[i]); err != nil {
			return err
		}
	}
	if len(c.key) > 0 {
		b.Queue(v.store.sql.write, c.key, c.scope, c.operation, c.id, c.status, c.owner, c.lease, c.fingerprint, c.body, c.kind,
			c.flags, c.sum, c.keepOutcome, c.keepKey, c.due, c.grain, c.reason, c.created)
	}
	return nil
}

// add appends a record as it is at the end of the transaction. One that was not settled is left running.
func (c *columns) add(r once.Request, rec once.Record, set once.Settlement) error {
	var out once.Outcome
	var lease, keepOutcome, keepKey, due *int64
	status, first := once.Running, set.KeepKey
	if set.Hold != (once.Hold{}) {
		status = set.Status
	}
	switch status {
	case once.Running:
		lease = micros(r.Lease)
	case once.Unknown:
		lease = new(int64)
	case once.Done:
		out, keepOutcome, keepKey, first = set.Outcome, micros(set.KeepOutcome), micros(set.KeepKey), min(first, set.KeepOutcome)
		due = micros(first)
	case once.Absent:
		keepKey, due = micros(set.KeepKey), micros(first)
	case once.Parked:
	default:
		return fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	c.key, c.owner = append(c.key, uuid(r.Key.UUID())), append(c.owner, uuid(r.Owner))
	c.scope, c.operation, c.id = append(c.scope, r.Key.Scope), append(c.operation, r.Key.Operation), append(c.id, r.Key.ID)
	c.status, c.flags = append(c.status, int16(status)), append(c.flags, flagsOf(out))
	c.lease, c.keepOutcome, c.keepKey, c.due = append(c.lease, lease), append(c.keepOutcome, keepOutcome), append(c.keepKey, keepKey), append(c.due, due)
	c.fingerprint, c.body, c.kind = append(c.fingerprint, r.Fingerprint), append(c.body, out.Body), append(c.kind, out.ContentType)
	c.sum, c.grain = append(c.sum, int64(out.Sum)), append(c.grain, sqlschema.Grain(first))
	c.reason, c.created = append(c.reason, clean(set.Reason)), append(c.created, rec.Created.UnixMicro())
	return nil
}

// has reports whether a key is reserved.
func (v *reservation) has(k once.Key) bool {
	i := slices.IndexFunc(v.rs, func(r once.Request) bool { return r.Key == k })
	return i >= 0 && v.locked[i]
}

// overtaken reports, after a rollback, whether a key that was reserved has a row all the same: then body may have failed
// over the rows of another, whose commit came between the look at the key and its lock.
func (v *reservation) overtaken(ctx context.Context, conn *pgx.Conn) bool {
	var keys []string
	for i, locked := range v.locked {
		if locked {
			keys = append(keys, uuid(v.rs[i].Key.UUID()))
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
