package publishing

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// perLane is the number of rows of a lane that an estimate reads.
const perLane = 256

// everyLane is a list of all lanes. A range would not use the index.
func everyLane() string {
	numbers := make([]string, lanes)
	for i := range numbers {
		numbers[i] = fmt.Sprint(i)
	}
	return strings.Join(numbers, ", ")
}

// countsSQL returns a row for each state except Published: the number of its
// messages, up to a limit, and the age of the oldest among the first ones of
// the lanes.
func countsSQL() string {
	states := make([]string, store.Published)
	for state := range states {
		firsts := make([]string, lanes)
		for lane := range firsts {
			firsts[lane] = fmt.Sprintf("SELECT f%d.created FROM (SELECT {only one}o.created FROM {outbox} AS o{hint} "+
				"WHERE o.lane = %[1]d AND o.state = %d ORDER BY o.seq{just one}) AS f%[1]d", lane, state)
		}
		states[state] = fmt.Sprintf(`SELECT %d,
	(SELECT count(*) FROM (SELECT {top}o.seq FROM {outbox} AS o{hint}
		WHERE o.lane IN (%s) AND o.state = %[1]d{limit}) AS c),
	COALESCE({now} - (SELECT MIN(f.created) FROM (%[3]s) AS f WHERE f.created BETWEEN 0 AND {farthest}), 0)`,
			state, everyLane(), strings.Join(firsts, "\nUNION ALL "))
	}
	return "{with} " + strings.Join(states, "\nUNION ALL ")
}

// samplesSQL returns a row for each lane: the number of its first rows in a
// state, up to a limit, their first and last seq, and the last seq of the lane.
func samplesSQL() string {
	all := make([]string, lanes)
	for lane := range all {
		all[lane] = fmt.Sprintf(`SELECT count(*), COALESCE(MIN(c.seq), 0), COALESCE(MAX(c.seq), 0),
	COALESCE((SELECT MAX(o.seq) FROM {outbox} AS o{hint} WHERE o.lane = %d AND o.state = @state), 0)
FROM (SELECT {top}o.seq FROM {outbox} AS o{hint}
	WHERE o.lane = %[1]d AND o.state = @state ORDER BY o.seq{limit}) AS c`, lane)
	}
	return strings.Join(all, "\nUNION ALL ")
}

// Depth implements OutboxDepth.
func (t *Tables) Depth(ctx context.Context, q sqlschema.Querier, count int) (all []store.Depth, err error) {
	count = max(count, 1)
	err = each(ctx, q, call(t.sql.counts, sqlschema.Params{"limit": int64(count)}), func(rows sqlschema.Rows) error {
		var state, n, oldest int64
		if err := rows.Scan(&state, &n, &oldest); err != nil || n == 0 {
			return err
		}
		all = append(all, store.Depth{State: store.OutgoingState(state), Count: int(n), Estimated: int(n) >= count,
			Oldest: max(micros(oldest), 0)})
		return nil
	})
	for i := range all {
		if err == nil && all[i].Estimated {
			all[i].Count, err = t.estimate(ctx, q, all[i])
		}
	}
	return all, err
}

// estimate assumes that the rest of a lane is as dense as its beginning.
func (t *Tables) estimate(ctx context.Context, q sqlschema.Querier, known store.Depth) (int, error) {
	sum := 0.0
	p := sqlschema.Params{"state": int64(known.State), "limit": int64(perLane)}
	err := each(ctx, q, call(t.sql.samples, p), func(rows sqlschema.Rows) error {
		var n, first, last, end int64
		err := rows.Scan(&n, &first, &last, &end)
		if n < perLane || end <= last || last <= first {
			sum += float64(n)
			return err
		}
		sum += 1 + float64(end-first)*float64(n-1)/float64(last-first)
		return err
	})
	return max(known.Count, int(sum)), err
}
