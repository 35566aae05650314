package pgstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/jackc/pgx/v5"
)

// sharedValues are the values that the records of a transaction mostly have in
// common: all but their keys and the checksums of their outcomes.
type sharedValues struct {
	scope, operation string
	lease            time.Duration
	created          time.Time
	set              once.Settlement // without a Fence and a sum
}

func (e *sharedValues) equal(f *sharedValues) bool {
	return e.scope == f.scope && e.operation == f.operation && e.lease == f.lease && e.created.Equal(f.created) &&
		e.set.Status == f.set.Status && e.set.KeepOutcome == f.set.KeepOutcome && e.set.KeepKey == f.set.KeepKey &&
		e.set.Reason == f.set.Reason && equal(e.set.Outcome, f.set.Outcome)
}

// newRecords are records to insert, in the form of writeSQL.
type newRecords struct {
	key, owner  uuidArray
	cause       uuidArray // nil: no record has a cause
	id          []string
	fingerprint [][]byte
	sum         []int64
	nth         []int64 // the number of its shared values, from 1
	shared      []sharedValues
}

// lookBack is with how many shared values those of a record are compared. Most
// records share the last.
const lookBack = 8

func newRecordsOf(room int) *newRecords {
	return &newRecords{key: make(uuidArray, 0, room), owner: make(uuidArray, 0, room), id: make([]string, 0, room),
		fingerprint: make([][]byte, 0, room), sum: make([]int64, 0, room), nth: make([]int64, 0, room)}
}

// add adds a record as it is at the end of the transaction. If set is nil, it
// stays running.
func (w *newRecords) add(key [16]byte, r once.ClaimRequest, created time.Time, set *once.Settlement) {
	e := sharedValues{scope: r.Key.Scope, operation: r.Key.Operation, lease: r.Lease, created: created,
		set: once.Settlement{Status: once.Running}}
	var sum uint32
	if set != nil {
		e.set, sum = *set, set.Outcome.Sum
		e.set.Fence, e.set.Outcome.Sum = once.Fence{}, 0
	}
	if e.set.Status != once.Done {
		e.set.Outcome, sum = once.Outcome{}, 0
	}
	w.key, w.owner, w.id = append(w.key, key), append(w.owner, r.Owner), append(w.id, r.Key.ID)
	if w.cause == nil && r.Cause != ([16]byte{}) {
		w.cause = make(uuidArray, len(w.nth), cap(w.nth))
	}
	if w.cause != nil {
		w.cause = append(w.cause, r.Cause)
	}
	w.fingerprint, w.sum = append(w.fingerprint, r.Fingerprint), append(w.sum, int64(sum))
	w.nth = append(w.nth, w.number(&e))
}

// number returns the number of shared values, which it adds if they are new.
func (w *newRecords) number(e *sharedValues) int64 {
	n := len(w.shared)
	for i := n - 1; i >= max(0, n-lookBack); i-- {
		if e.equal(&w.shared[i]) {
			return int64(i + 1)
		}
	}
	w.shared = append(w.shared, *e)
	return int64(n + 1)
}

// queue queues the statement that inserts the records.
func (w *newRecords) queue(b *pgx.Batch, sql string) error {
	if len(w.key) == 0 {
		return nil
	}
	var c columns
	for _, e := range w.shared {
		if err := c.add(e); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(w.fingerprint, func(f []byte) bool { return len(f) > 0 }) {
		w.fingerprint = nil // unnest fills up with NULL
	}
	b.Queue(sql, w.key, w.id, w.owner, w.fingerprint, w.sum, w.nth, c.scope, c.operation, c.status, c.lease, c.body,
		c.kind, c.flags, c.keepOutcome, c.keepKey, c.due, c.grain, c.reason, c.created, w.cause)
	return nil
}

// columns are the columns of shared values.
type columns struct {
	scope, operation, kind, reason   []string
	status, flags                    []int16
	grain, created                   []int64
	lease, keepOutcome, keepKey, due []*int64
	body                             [][]byte
}

func (c *columns) add(e sharedValues) error {
	var lease, keepOutcome, keepKey, due *int64
	set, first := e.set, e.set.KeepKey
	switch set.Status {
	case once.Running:
		lease = micros(e.lease)
	case once.Unknown:
		lease = new(int64)
	case once.Done:
		keepOutcome, keepKey, first = micros(set.KeepOutcome), micros(set.KeepKey), min(first, set.KeepOutcome)
		due = micros(first)
	case once.Absent:
		keepKey, due = micros(set.KeepKey), micros(first)
	case once.Parked:
	default:
		return fmt.Errorf("%w: a claim cannot be settled as %v", once.ErrInvalid, set.Status)
	}
	out := set.Outcome
	c.scope, c.operation = append(c.scope, e.scope), append(c.operation, e.operation)
	c.status, c.reason = append(c.status, int16(set.Status)), append(c.reason, sqlschema.ValidText(set.Reason))
	c.lease, c.created = append(c.lease, lease), append(c.created, e.created.UnixMicro())
	c.body, c.kind, c.flags = append(c.body, out.Body), append(c.kind, out.ContentType), append(c.flags, flagsOf(out))
	c.keepOutcome, c.keepKey = append(c.keepOutcome, keepOutcome), append(c.keepKey, keepKey)
	c.due, c.grain = append(c.due, due), append(c.grain, sqlschema.Grain(first))
	return nil
}
