package pgstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// ending is what records of one transaction mostly have in common: all but their names and sums.
type ending struct {
	scope, operation string
	lease            time.Duration
	created          time.Time
	set              once.Settlement // without a Hold and a sum
}

func (e *ending) equal(f *ending) bool {
	return e.scope == f.scope && e.operation == f.operation && e.lease == f.lease && e.created.Equal(f.created) &&
		e.set.Status == f.set.Status && e.set.KeepOutcome == f.set.KeepOutcome && e.set.KeepKey == f.set.KeepKey &&
		e.set.Reason == f.set.Reason && equal(e.set.Outcome, f.set.Outcome)
}

// written are new records as writeSQL takes them.
type written struct {
	key, owner  uuids
	cause       uuids // nil: none of them has one
	id          []string
	fingerprint [][]byte
	sum         []int64
	nth         []int64 // of its ending, from 1
	endings     []ending
}

// lookBack is how many endings a record is compared with. That of most is the last one.
const lookBack = 8

func newWritten(room int) *written {
	return &written{key: make(uuids, 0, room), owner: make(uuids, 0, room), id: make([]string, 0, room),
		fingerprint: make([][]byte, 0, room), sum: make([]int64, 0, room), nth: make([]int64, 0, room)}
}

// add takes a record as it is at the end of the transaction. One that was not settled is left running.
func (w *written) add(key [16]byte, r once.ClaimRequest, created time.Time, set *once.Settlement) {
	e := ending{scope: r.Key.Scope, operation: r.Key.Operation, lease: r.Lease, created: created,
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
		w.cause = make(uuids, len(w.nth), cap(w.nth))
	}
	if w.cause != nil {
		w.cause = append(w.cause, r.Cause)
	}
	w.fingerprint, w.sum = append(w.fingerprint, r.Fingerprint), append(w.sum, int64(sum))
	w.nth = append(w.nth, w.number(&e))
}

// number finds an ending, or adds it.
func (w *written) number(e *ending) int64 {
	n := len(w.endings)
	for i := n - 1; i >= max(0, n-lookBack); i-- {
		if e.equal(&w.endings[i]) {
			return int64(i + 1)
		}
	}
	w.endings = append(w.endings, *e)
	return int64(n + 1)
}

// queue queues the statement that writes them.
func (w *written) queue(b *pgx.Batch, sql string) error {
	if len(w.key) == 0 {
		return nil
	}
	var c columns
	for _, e := range w.endings {
		if err := c.add(e); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(w.fingerprint, func(f []byte) bool { return len(f) > 0 }) {
		w.fingerprint = nil // the statement takes what is missing as NULL
	}
	b.Queue(sql, w.key, w.id, w.owner, w.fingerprint, w.sum, w.nth, c.scope, c.operation, c.status, c.lease, c.body,
		c.kind, c.flags, c.keepOutcome, c.keepKey, c.due, c.grain, c.reason, c.created, w.cause)
	return nil
}

// columns of endings.
type columns struct {
	scope, operation, kind, reason   []string
	status, flags                    []int16
	grain, created                   []int64
	lease, keepOutcome, keepKey, due []*int64
	body                             [][]byte
}

func (c *columns) add(e ending) error {
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
		return fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	out := set.Outcome
	c.scope, c.operation = append(c.scope, e.scope), append(c.operation, e.operation)
	c.status, c.reason = append(c.status, int16(set.Status)), append(c.reason, clean(set.Reason))
	c.lease, c.created = append(c.lease, lease), append(c.created, e.created.UnixMicro())
	c.body, c.kind, c.flags = append(c.body, out.Body), append(c.kind, out.ContentType), append(c.flags, flagsOf(out))
	c.keepOutcome, c.keepKey = append(c.keepOutcome, keepOutcome), append(c.keepKey, keepKey)
	c.due, c.grain = append(c.due, due), append(c.grain, sqlschema.Grain(first))
	return nil
}
