package publishing

import (
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// decidedSQL reads along the index on (state, due). Only messages that people
// made held or stuck have a due in these states, so it reads nothing else.
const decidedSQL = `{with} SELECT o.lane, o.seq, o.state, o.attempts, o.id, o.topic, o.ordering_key
FROM {outbox} AS o{hint} WHERE o.state IN ({states}) AND o.due > {now} - @keep`

// DecidedCall returns the statement of DecidedOutgoing.
func (t *Tables) DecidedCall(onlyStuck bool) Call {
	st := t.sql.decided
	if onlyStuck {
		st = t.sql.decidedStuck
	}
	return call(st, sqlschema.Params{"keep": store.DecisionTime.Microseconds()})
}

// ReadDecided reads the result of a DecidedCall.
func ReadDecided(rows sqlschema.Rows) (ms []store.Outgoing, err error) {
	for rows.Next() {
		var m store.Outgoing
		var state int64
		err := rows.Scan(&m.Lane, &m.Seq, &state, &m.Attempts, &m.Message.ID, &m.Message.Topic, &m.Message.OrderingKey)
		if err != nil {
			return nil, err
		}
		m.State = store.OutgoingState(state)
		ms = append(ms, m)
	}
	return ms, rows.Err()
}
