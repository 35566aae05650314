package publishing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/internal/sqlschema/consuming"
)

// atOnce is how many rows a statement is about at most.
const atOnce = 1000

// result is what becomes of rows in one state: those that have an equal one can be in one statement.
type change struct {
	from, to, attempts int
	reason             string
	delay              time.Duration
}

// SentCalls are the statements of Sent. If there are several, they need a transaction. In PostgreSQL, each of them
// counts the rows that it has changed.
func (t *Tables[O, M, S]) SentCalls(relay [16]byte, ms []O, then int) ([]Call, error) {
	var steps []pair
	switch {
	case then == endDelete && t.knowsPlaces(ms):
		return t.removeAt(relay, ms), nil
	case then == endDelete:
		steps = []pair{t.sql.remove}
	case then == endKeep:
		steps = []pair{t.sql.keep}
	case then == endArchive:
		steps = t.sql.archive[:]
	default:
		return nil, sqlschema.Refusal(fmt.Sprintf("messages that were published have no ending %d", then))
	}
	return t.change(relay, ms, steps, byState[M, S])
}

// knowsPlaces reports whether all messages, of which there is at least one, are of one state, and came with their places.
func (t *Tables[O, M, S]) knowsPlaces(ms []O) bool {
	for _, m := range ms {
		if o := Outgoing[M, S](m); o.Hint == 0 || o.State != Outgoing[M, S](ms[0]).State {
			return false
		}
	}
	return t.newPlace != nil && len(ms) > 0
}

// removeAt are the calls that delete rows where they were read.
func (t *Tables[O, M, S]) removeAt(relay [16]byte, ms []O) (all []Call) {
	for some := range slices.Chunk(ms, atOnce) {
		places, lanes, seqs := []byte{'{'}, []byte{'{'}, []byte{'{'}
		for i, m := range some {
			o := Outgoing[M, S](m)
			if i > 0 {
				places, lanes, seqs = append(places, ','), append(lanes, ','), append(seqs, ',')
			}
			places = append(places, `"(`...)
			places = strconv.AppendUint(places, o.Hint>>16, 10)
			places = append(places, ',')
			places = strconv.AppendUint(places, o.Hint&0xffff, 10)
			places = append(places, `)"`...)
			lanes, seqs = strconv.AppendInt(lanes, int64(o.Lane), 10), strconv.AppendInt(seqs, o.Seq, 10)
		}
		p := sqlschema.Params{"state": int64(Outgoing[M, S](ms[0]).State), "who": t.names.UUID(relay),
			"places": string(append(places, '}')), "lanes": string(append(lanes, '}')), "seqs": string(append(seqs, '}'))}
		all = append(all, call(t.sql.removeAt.of(relay), p))
	}
	return all
}

// Sent is that of store.Relayable. It needs a transaction if SentCalls says so.
func (t *Tables[O, M, S]) Sent(ctx context.Context, q Querier, relay [16]byte, ms []O, then int) (int, error) {
	calls, err := t.SentCalls(relay, ms, then)
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

// Remove is RemoveOutgoing of store.Relayable. It needs a transaction.
func (t *Tables[O, M, S]) Remove(ctx context.Context, q Querier, relay [16]byte, ms []O) (int, error) {
	calls, err := t.change(relay, ms, []pair{t.sql.remove}, byState[M, S])
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

func byState[M message, S ~int](o Outgoing[M, S]) change { return change{from: int(o.State)} }

const longestReason = 64 << 10

// Move is MoveOutgoing of store.Relayable. It needs a transaction.
func (t *Tables[O, M, S]) Move(ctx context.Context, q Querier, relay [16]byte, ms []O, to S) (int, error) {
	if err := checkState(to); err != nil {
		return 0, err
	}
	for _, m := range ms {
		if reason := Outgoing[M, S](m).Reason; len(reason) > longestReason {
			return 0, sqlschema.Refusal(fmt.Sprintf("the Reason has %d bytes, the limit is %d: shorten it",
				len(reason), longestReason))
		}
	}
	calls, err := t.change(relay, ms, []pair{t.sql.move}, func(o Outgoing[M, S]) change {
		f := change{from: int(o.State), to: int(to), attempts: o.Attempts, reason: consuming.Clean(o.Reason)}
		if to == delayed {
			f.delay = o.Delay
		}
		return f
	})
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

// change makes the calls that take the steps with all messages, those of one fate together.
func (t *Tables[O, M, S]) change(relay [16]byte, ms []O, steps []pair,
	of func(Outgoing[M, S]) change) (all []Call, err error) {

	group := make(map[change]*keyed)
	var order []change
	add := func(f change) {
		all = append(all, t.step(relay, steps, f, group[f])...)
		delete(group, f)
	}
	for _, m := range ms {
		o := Outgoing[M, S](m)
		if err := checkLanes([]int{o.Lane}); err != nil {
			return nil, err
		}
		f := of(o)
		if group[f] == nil {
			group[f] = new(keyed)
			order = append(order, f)
		}
		if group[f].add(o.Lane, o.Seq); group[f].count == atOnce {
			add(f)
		}
	}
	for _, f := range order {
		if group[f] != nil {
			add(f)
		}
	}
	return all, nil
}

// step are the calls for some rows of one fate.
func (t *Tables[O, M, S]) step(relay [16]byte, steps []pair, f change, rows *keyed) (all []Call) {
	p := sqlschema.Params{"state": int64(f.from), "who": t.names.UUID(relay), "to": int64(f.to),
		"attempts": int64(f.attempts), "reason": f.reason, "lanes": "", "seqs": ""}
	switch f.to {
	case delayed:
		p["delay"] = f.delay.Microseconds()
	case published:
		p["delay"] = int64(0)
	}
	if t.sql.dialect == sqlschema.PostgreSQL {
		p["lanes"], p["seqs"] = rows.arrays()
	}
	state := strconv.Itoa(f.from)
	for i, step := range steps {
		c := call(step.of(relay), p)
		if c.Text == "" {
			continue
		}
		if t.sql.dialect != sqlschema.PostgreSQL {
			c.Text = strings.Replace(c.Text, keysMark, keys(state, rows.seqs), 1)
		}
		c.uncounted, state = i > 0, leaving
		all = append(all, c)
	}
	return all
}

// keyed are the keys of rows in one state.
type keyed struct {
	seqs  map[int][]int64
	count int
}

func (k *keyed) add(lane int, seq int64) {
	if k.seqs == nil {
		k.seqs = make(map[int][]int64)
	}
	k.seqs[lane] = append(k.seqs[lane], seq)
	k.count++
}

// arrays are the keys as the texts of two arrays of PostgreSQL: not all drivers have arrays.
func (k *keyed) arrays() (of, seqs string) {
	a, b := []byte{'{'}, []byte{'{'}
	for lane := range lanes {
		for _, seq := range k.seqs[lane] {
			if len(a) > 1 {
				a, b = append(a, ','), append(b, ',')
			}
			a, b = strconv.AppendInt(a, int64(lane), 10), strconv.AppendInt(b, seq, 10)
		}
	}
	return string(append(a, '}')), string(append(b, '}'))
}
