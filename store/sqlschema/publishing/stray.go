package publishing

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// A program that is no relay may insert a row with state 4 or 5. It would never
// be published, nor be seen in a list of what waits. That state 4 is a relay's
// shows in changed, which each change of a state sets. State 5 is seen by nobody
// but the transaction that archives a row.
//
// The table cannot refuse such rows: builds that run beside this one give rows
// state 5, and checking the rows that exist would take too long. So relays make
// them stuck.

// strayEvery is how often the relays of a process look.
const strayEvery = time.Minute

// strayLimit bounds how many rows of a lane are read: the newest in state 4, and
// the oldest. Those in between are read a part at a time, strayRows in each look,
// so that a row among n kept ones is found after n/strayRows looks.
const strayLimit, strayPage, strayRows = 100, 1000, 5000

// strayPlace is where the next look goes on among the rows in state 4.
type strayPlace struct {
	lane  int
	after int64 // Seq
}

const walkSQL = "SELECT {top}o.seq, CASE WHEN o.changed IS NULL THEN 1 ELSE 0 END FROM {outbox} AS o{hint} " +
	"WHERE o.lane = @number AND o.state = 4 AND o.seq > @seq ORDER BY o.seq{limit}"

var straysSQL = func() string {
	all := make([]string, 0, 3*lanes)
	for lane := range lanes {
		for _, of := range []struct {
			state        int
			order, where string
		}{{4, "", " WHERE f.changed IS NULL"}, {4, " DESC", " WHERE f.changed IS NULL"}, {5, "", ""}} {
			all = append(all, fmt.Sprintf("SELECT f.lane, f.state, f.seq FROM (SELECT {top}o.lane, o.state, o.seq, o.changed FROM {outbox} AS o{hint} "+
				"WHERE o.lane = %d AND o.state = %d ORDER BY o.seq%s{limit}) AS f%s", lane, of.state, of.order, of.where))
		}
	}
	return strings.Join(all, "\nUNION ") // without copies
}()

// stickStrays makes rows stuck that another program inserted in a state that only
// relays give.
func (t *Tables) stickStrays(ctx context.Context, q sqlschema.Querier, relay [16]byte) error {
	looked, now := t.strays.Load(), time.Now()
	if relay == ([16]byte{}) || looked != nil && now.Sub(*looked) < strayEvery {
		return nil
	}
	var found []store.Outgoing
	err := each(ctx, q, call(t.sql.strays, sqlschema.Params{"limit": int64(strayLimit)}), func(rows sqlschema.Rows) error {
		var lane, state, seq int64
		err := rows.Scan(&lane, &state, &seq)
		found = append(found, stray(int(lane), store.OutgoingState(state), seq))
		return err
	})
	if err == nil && len(found) > 0 {
		_, err = t.Move(ctx, q, relay, found, store.Stuck)
	}
	if err == nil {
		err = t.walk(ctx, q, relay)
	}
	if err == nil {
		t.strays.Store(&now)
	}
	return err
}

func stray(lane int, state store.OutgoingState, seq int64) store.Outgoing {
	return store.Outgoing{Lane: lane, State: state, Seq: seq,
		Reason: fmt.Sprintf("it was inserted with state %d, which only relays give: insert 0, or 1 with due", state)}
}

// walk makes rows in state 4 stuck from where the last look has ended, lane by
// lane, and then from the first one again.
func (t *Tables) walk(ctx context.Context, q sqlschema.Querier, relay [16]byte) error {
	var at strayPlace
	if last := t.strayPlace.Load(); last != nil {
		at = *last
	}
	var found []store.Outgoing
	for read, ended := 0, 0; read < strayRows && ended < lanes; {
		n := 0
		where := sqlschema.Params{"number": int64(at.lane), "seq": at.after, "limit": int64(strayPage)}
		err := each(ctx, q, call(t.sql.walk, where), func(rows sqlschema.Rows) error {
			var foreign int64
			err := rows.Scan(&at.after, &foreign)
			if n++; foreign == 1 {
				found = append(found, stray(at.lane, store.Published, at.after))
			}
			return err
		})
		if err != nil {
			return err
		}
		if read += n; n < strayPage {
			at = strayPlace{lane: (at.lane + 1) % lanes}
			ended++
		}
	}
	if len(found) > 0 {
		if _, err := t.Move(ctx, q, relay, found, store.Stuck); err != nil {
			return err
		}
	}
	t.strayPlace.Store(&at)
	return nil
}
