package publishing

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// lanesMark is where the numbers of lanes are put into a statement.
const lanesMark = "{lanes}"

const (
	// gateSQL lets one transaction in at a time, who then sees what the one before has done. Statements that are no
	// transaction need it as little as its end: each is right by itself.
	gateSQL = `UPDATE {lane} SET lease_until = lease_until WHERE lane = 0`

	takeSQL = `{with} UPDATE {lane} SET relay = @who, lease_until = {now} + @lease
WHERE lane IN (` + lanesMark + `) AND (relay IS NULL OR relay = @who OR lease_until <= {now})`

	deadSQL = `{with} DELETE FROM {relay} WHERE lease_until <= {now}`

	leasesSQL = `{with} SELECT l.lane, {bytes}(l.relay), COALESCE(l.lease_until - {now}, 0),
	(SELECT count(*) FROM {relay} AS r{hint})
FROM {lane} AS l{hint} ORDER BY l.lane`

	releaseSQL = `UPDATE {lane} SET relay = NULL, lease_until = NULL WHERE lane IN (` + lanesMark + `) AND relay = @who`
	dismissSQL = `DELETE FROM {relay} WHERE id = @who`
)

// aliveSQL writes a sign of life.
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

// Lease is LeaseLanes of store.Relayable. It needs a transaction that is READ COMMITTED where there are levels, or none
// at all: that is the better way where the server does not end one soon whose client has vanished.
func (t *Tables) Lease(ctx context.Context, q Querier, relay [16]byte, ttl time.Duration,
	of []int) (store.Leases, error) {

	if relay == ([16]byte{}) {
		return store.Leases{}, sqlschema.Refusal("the zero relay is nobody: give a relay an id of its own")
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

func (t *Tables) leases(ctx context.Context, q Querier) (all store.Leases, err error) {
	found := 0
	err = each(ctx, q, call(t.sql.leases, nil), func(rows Rows) error {
		var lane, left, relays int64
		var relay []byte
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

// Release is ReleaseLanes of store.Relayable. It runs where Lease does.
func (t *Tables) Release(ctx context.Context, q Querier, relay [16]byte, of []int) error {
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
