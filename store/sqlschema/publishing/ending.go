package publishing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// atOnce bounds the rows of a statement.
const atOnce = 1000

// change is what a row becomes. Rows with equal changes can share a statement.
type change struct {
	from, to store.OutgoingState
	attempts int
	reason   string
	delay    time.Duration
}

// SentCalls returns the statements of Sent. If there are several, they need a
// transaction. In PostgreSQL, each of them counts the rows that it changes.
func (t *Tables) SentCalls(relay [16]byte, ms []store.Outgoing, then store.Ending) ([]Call, error) {
	var steps []pair
	switch {
	case then == store.Delete && t.knowsPlaces(ms):
		return t.removeAt(relay, ms), nil
	case then == store.Delete:
		steps = []pair{t.sql.remove}
	case then == store.Keep:
		steps = []pair{t.sql.keep}
	case then == store.Archive:
		steps = t.sql.archive[:]
	default:
		return nil, sqlschema.Refusal(fmt.Sprintf("%d is no ending of a message", then))
	}
	return t.change(relay, ms, steps, byState)
}

// knowsPlaces reports whether all messages are in one state and came with their
// places, and there is at least one.
func (t *Tables) knowsPlaces(ms []store.Outgoing) bool {
	for _, m := range ms {
		if m.Hint == 0 || m.State != ms[0].State {
			return false
		}
	}
	return t.newPlace != nil && len(ms) > 0
}

// removeAt returns the calls that delete rows at the places where they were
// read.
func (t *Tables) removeAt(relay [16]byte, ms []store.Outgoing) (all []Call) {
	for some := range slices.Chunk(ms, atOnce) {
		places, lanes, seqs := []byte{'{'}, []byte{'{'}, []byte{'{'}
		for i, m := range some {
			if i > 0 {
				places, lanes, seqs = append(places, ','), append(lanes, ','), append(seqs, ',')
			}
			places = append(places, `"(`...)
			places = strconv.AppendUint(places, m.Hint>>16, 10)
			places = append(places, ',')
			places = strconv.AppendUint(places, m.Hint&0xffff, 10)
			places = append(places, `)"`...)
			lanes, seqs = strconv.AppendInt(lanes, int64(m.Lane), 10), strconv.AppendInt(seqs, m.Seq, 10)
		}
		p := sqlschema.Params{"state": int64(ms[0].State), "who": t.names.UUID(relay),
			"places": string(append(places, '}')), "lanes": string(append(lanes, '}')), "seqs": string(append(seqs, '}'))}
		all = append(all, call(t.sql.removeAt.of(relay), p))
	}
	return all
}

// Sent implements Sent, inside a transaction unless SentCalls returns one
// statement.
func (t *Tables) Sent(ctx context.Context, q sqlschema.Querier, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	calls, err := t.SentCalls(relay, ms, then)
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

// Remove implements RemoveOutgoing, inside a transaction.
func (t *Tables) Remove(ctx context.Context, q sqlschema.Querier, relay [16]byte, ms []store.Outgoing) (int, error) {
	calls, err := t.change(relay, ms, []pair{t.sql.remove}, byState)
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

func byState(o store.Outgoing) change { return change{from: o.State} }

const longestReason = 64 << 10

// Move implements MoveOutgoing, inside a transaction.
func (t *Tables) Move(ctx context.Context, q sqlschema.Querier, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if err := checkState(to); err != nil {
		return 0, err
	}
	for _, m := range ms {
		if reason := m.Reason; len(reason) > longestReason {
			return 0, sqlschema.Refusal(fmt.Sprintf("the Reason has %d bytes, the limit is %d: shorten it",
				len(reason), longestReason))
		}
	}
	calls, err := t.change(relay, ms, []pair{t.sql.move}, func(o store.Outgoing) change {
		f := change{from: o.State, to: to, attempts: o.Attempts, reason: sqlschema.ValidText(o.Reason)}
		if to == store.Delayed {
			f.delay = o.Delay
		}
		return f
	})
	if err != nil {
		return 0, err
	}
	return run(ctx, q, calls)
}

// change returns the calls that take the steps with all messages. Messages with
// equal changes share calls.
func (t *Tables) change(relay [16]byte, ms []store.Outgoing, steps []pair,
	of func(store.Outgoing) change) (all []Call, err error) {

	group := make(map[change]*keyed)
	var order []change
	add := func(f change) {
		all = append(all, t.step(relay, steps, f, group[f])...)
		delete(group, f)
	}
	for _, m := range ms {
		if err := checkLanes([]int{m.Lane}); err != nil {
			return nil, err
		}
		f := of(m)
		if group[f] == nil {
			group[f] = new(keyed)
			order = append(order, f)
		}
		if group[f].add(m.Lane, m.Seq); group[f].count == atOnce {
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

// step returns the calls for rows with one change.
func (t *Tables) step(relay [16]byte, steps []pair, f change, rows *keyed) (all []Call) {
	p := sqlschema.Params{"state": int64(f.from), "who": t.names.UUID(relay), "to": int64(f.to),
		"attempts": int64(f.attempts), "reason": f.reason, "lanes": "", "seqs": ""}
	switch f.to {
	case store.Delayed:
		p["delay"] = f.delay.Microseconds()
	case store.Published:
		p["delay"] = int64(0)
	case store.Held, store.Stuck:
		if relay == ([16]byte{}) { // due is when a person decided
			p["delay"] = int64(0)
		}
	}
	if t.sql.dialect == sqlschema.PostgreSQL {
		p["lanes"], p["seqs"] = rows.arrays()
	}
	state := strconv.Itoa(int(f.from))
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

// keyed has the keys of rows in one state.
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

// arrays returns the keys as the texts of two PostgreSQL arrays, because not
// all drivers have arrays.
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
