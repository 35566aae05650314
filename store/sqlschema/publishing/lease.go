package publishing

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// lanesMark is replaced by the numbers of lanes.
const lanesMark = "{lanes}"

var (
	// gateSQL makes transactions that change leases wait for each other, so
	// that each sees what the one before did. Without a transaction it is not
	// needed: each statement is correct by itself.
	gateSQL = `UPDATE {lane} SET lease_until = lease_until WHERE lane = 0`

	takeSQL = `{with} UPDATE {lane} SET relay = @who, lease_until = {now} + @lease
WHERE lane IN (` + lanesMark + `) AND (relay IS NULL OR relay = @who OR lease_until <= {now})`

	deadSQL = `{with} DELETE FROM {relay} WHERE lease_until <= {now}`

	leasesSQL = `{with} SELECT l.lane, {digest}(l.relay), ` + sqlschema.Until("l.lease_until") + `,
	(SELECT count(*) FROM {relay} AS r{hint})
FROM {lane} AS l{hint} ORDER BY l.lane`

	releaseSQL = `UPDATE {lane} SET relay = NULL, lease_until = NULL WHERE lane IN (` + lanesMark + `) AND relay = @who`
	dismissSQL = `DELETE FROM {relay} WHERE id = @who`
)

// aliveSQL records a sign of life of a relay.
var aliveSQL = map[sqlschema.Dialect]string{
	sqlschema.PostgreSQL: `{with} INSERT INTO {relay} (id, lease_until) VALUES (@who, {now} + @lease)
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until`,
	sqlschema.MySQL: `INSERT INTO {relay} (id, lease_until) VALUES (@who, {now} + @lease)
ON DUPLICATE KEY UPDATE lease_until = VALUES(lease_until)`,
	sqlschema.SQLite: `INSERT INTO {relay} (id, lease_until) VALUES (@who, {now} + @lease)
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until`,
	sqlschema.SQLServer: `UPDATE {relay} SET lease_until = {now} + @lease WHERE id = @who;
IF @@ROWCOUNT = 0 INSERT INTO {relay} (id, lease_until) VALUES (@who, {now} + @lease)`,
}

// Lease implements LeaseLanes. It needs a READ COMMITTED transaction, or none
// at all. The latter is better where the server does not soon end a transaction
// whose client has disappeared.
func (t *Tables) Lease(ctx context.Context, q sqlschema.Querier, relay [16]byte, ttl time.Duration,
	of []int) (store.Leases, error) {

	if relay == ([16]byte{}) {
		return store.Leases{}, sqlschema.Refusal("the ID of the relay is zero: give each relay an ID of its own")
	}
	if err := checkLanes(of); err != nil {
		return store.Leases{}, err
	}
	p := sqlschema.Params{"who": t.names.UUID(relay), "lease": ttl.Microseconds()}
	calls := []Call{call(t.sql.gate, nil), call(t.sql.alive, p), call(t.sql.dead, nil)}
	if len(of) > 0 {
		calls = append(calls, onLanes(call(t.sql.take, p), of))
	}
	if _, err := run(ctx, q, calls); err != nil {
		return store.Leases{}, err
	}
	return t.leases(ctx, q)
}

func onLanes(c Call, of []int) Call {
	numbers := make([]string, len(of))
	for i, lane := range of {
		numbers[i] = strconv.Itoa(lane)
	}
	c.Text = strings.Replace(c.Text, lanesMark, strings.Join(numbers, ", "), 1)
	return c
}

func (t *Tables) leases(ctx context.Context, q sqlschema.Querier) (all store.Leases, err error) {
	found := 0
	err = each(ctx, q, call(t.sql.leases, nil), func(rows sqlschema.Rows) error {
		var lane, left, relays int64
		var relay sqlschema.Digest
		if err := rows.Scan(&lane, &relay, &left, &relays); err != nil {
			return err
		}
		if lane < 0 || lane >= lanes {
			return nil // of a later version
		}
		found++
		all.Relays, all.Lanes[lane].Left = int(relays), micros(left)
		copy(all.Lanes[lane].Relay[:], relay)
		return nil
	})
	if err == nil && found < lanes {
		err = sqlschema.Refusal(fmt.Sprintf("the table %s has %d of its %d rows: insert those of lanes 0 to %d",
			t.names.Lanes(), found, lanes, lanes-1))
	}
	return all, err
}

// Release implements ReleaseLanes. It needs what Lease needs.
func (t *Tables) Release(ctx context.Context, q sqlschema.Querier, relay [16]byte, of []int) error {
	if err := checkLanes(of); err != nil {
		return err
	}
	p := sqlschema.Params{"who": t.names.UUID(relay)}
	calls := []Call{call(t.sql.gate, nil)}
	switch {
	case of == nil:
		every := make([]int, lanes)
		for i := range every {
			every[i] = i
		}
		calls = append(calls, onLanes(call(t.sql.release, p), every), call(t.sql.dismiss, p))
	case len(of) > 0:
		calls = append(calls, onLanes(call(t.sql.release, p), of))
	}
	_, err := run(ctx, q, calls)
	return err
}
