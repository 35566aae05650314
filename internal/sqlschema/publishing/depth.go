package publishing

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// perLane is how many rows of a lane an estimate looks at.
const perLane = 256

// everyLane is a list for SQL, and not a range, which no index is read by.
func everyLane() string {
	numbers := make([]string, lanes)
	for i := range numbers {
		numbers[i] = fmt.Sprint(i)
	}
	return strings.Join(numbers, ", ")
}

// countsSQL has a row for each state but Published: how many messages it has, up to a limit, and the time of the oldest
// of the first ones of its lanes.
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
	COALESCE({now} - (SELECT MIN(f.created) FROM (%[3]s) AS f), 0)`,
			state, everyLane(), strings.Join(firsts, "\nUNION ALL "))
	}
	return "{with} " + strings.Join(states, "\nUNION ALL ")
}

// samplesSQL has a row for each lane: how many of its first rows in a state there are, up to a limit, from which seq to
// which, and the last seq of all.
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

// Depth is OutboxDepth of store.Relayable.
func (t *Tables) Depth(ctx context.Context, q Querier, count int) (all []store.Depth, err error) {
	count = max(count, 1)
	err = each(ctx, q, call(t.sql.counts, sqlschema.Params{"limit": int64(count)}), func(rows Rows) error {
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

// estimate takes it that all of a lane is as dense as its beginning.
func (t *Tables) estimate(ctx context.Context, q Querier, known store.Depth) (int, error) {
	sum := 0.0
	p := sqlschema.Params{"state": int64(known.State), "limit": int64(perLane)}
	err := each(ctx, q, call(t.sql.samples, p), func(rows Rows) error {
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
