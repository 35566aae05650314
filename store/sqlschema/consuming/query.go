package consuming

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

const defaultPage, largestPage = 100, 1000

const (
	// The time is a column, because a difference of damaged numbers would be an
	// error of the whole query.
	shelvedSQL = `{with} SELECT {top}s.seq, s.version, s.consumer, s.key_id, s.message_id, s.topic, s.ordering_key,
	s.produced, s.origin, s.state, COALESCE(s.due, {now}), {now}, s.attempts, s.reason, s.history, s.created, s.updated, `

	shelvedNames = "seq, version, consumer, key_id, message_id, topic, ordering_key, produced, origin, state, due, now, " +
		"attempts, reason, history, created, updated, header, body, body"

	// readySQL looks for an earlier message that holds back each message.
	readySQL = ` AND s.state = 1 AND s.due <= {now} AND NOT EXISTS (SELECT 1 FROM {shelf} AS b{hint}
	WHERE b.lane = s.lane AND b.state IN (%s) AND b.seq < s.seq)`
)

// Shelved implements Shelved.
func (t *Tables) Shelved(ctx context.Context, q sqlschema.Querier, query store.ShelfQuery) (page []store.Shelved, err error) {
	st, p := t.query(query)
	err = t.each(ctx, q, st, p, func(rows sqlschema.Rows) error {
		s, err := readShelved(rows)
		page = append(page, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// query returns a statement with a condition for each field of q that is set.
func (t *Tables) query(q store.ShelfQuery) (sqlschema.Statement, sqlschema.Params) {
	p := sqlschema.Params{"seq": q.After, "limit": int64(min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage))}
	var b strings.Builder
	b.WriteString(shelvedSQL)
	if q.Bodiless {
		b.WriteString("'', {null}, NULL")
	} else {
		b.WriteString("s.header, " + t.names.Dialect().Bytes("s.body", "body"))
	}
	b.WriteString(" FROM {shelf} AS s{hint} WHERE s.seq > @seq")
	if q.Consumer != "" {
		b.WriteString(" AND s.consumer_id = @who")
		p["who"] = t.uuid("consumer", q.Consumer)
	}
	if len(q.States) > 0 {
		numbers := make([]string, len(q.States))
		for i, state := range q.States {
			numbers[i] = strconv.Itoa(int(state))
		}
		b.WriteString(" AND s.state IN (" + strings.Join(numbers, ", ") + ")")
	}
	if len(q.IDs) > 0 {
		b.WriteString(" AND " + t.anyID(q, p))
	}
	if q.OrderingKey != "" && q.Consumer != "" {
		b.WriteString(" AND s.lane = @lane")
		p["lane"] = t.lane(q.Consumer, q.OrderingKey)
	} else if q.OrderingKey != "" {
		b.WriteString(" AND " + t.names.Dialect().Same("s.ordering_key", "@ordering"))
		p["ordering"] = q.OrderingKey
	}
	if q.Topic != "" {
		b.WriteString(" AND " + t.names.Dialect().Same("s.topic", "@topic"))
		p["topic"] = q.Topic
	}
	if q.NoQueued {
		b.WriteString(" AND NOT (s.state = 1 AND s.consumer LIKE @queues)")
		p["queues"] = "%" + store.QueueOf("")
	}
	if q.Ready {
		states := "1"
		if q.BehindParked {
			states = "1, 2"
		}
		fmt.Fprintf(&b, readySQL, states)
	}
	return t.sql.compile(b.String() + " ORDER BY s.seq{limit}"), p
}

// anyID finds messages of one consumer by their unique digest, and those of any
// consumer by their text.
func (t *Tables) anyID(q store.ShelfQuery, p sqlschema.Params) string {
	each := make([]string, len(q.IDs))
	for i, id := range q.IDs {
		if q.Consumer != "" {
			name := fmt.Sprint("row", i)
			each[i], p[name] = "s.id = @"+name, t.uuid("shelf", q.Consumer, id)
			continue
		}
		name := fmt.Sprint("message", i)
		each[i], p[name] = t.names.Dialect().Same("s.message_id", "@"+name), id
	}
	return "(" + strings.Join(each, " OR ") + ")"
}

func readShelved(rows sqlschema.Rows) (s store.Shelved, err error) {
	m := &s.Message
	var produced, header string
	var state, due, now, attempts, created, updated int64
	unread, err := sqlschema.Scan(rows, shelvedNames, &s.Seq, &s.Version, &s.Consumer, &s.Key, &m.ID, &m.Topic, &m.OrderingKey,
		&produced, &s.Origin, &state, &due, &now, &attempts, &s.Reason, &s.History, &created, &updated, &header, &m.Body, sqlschema.Hex(&m.Body))
	if err != nil {
		return s, err
	}
	s.State, s.Due, s.Attempts = store.ShelfState(state), sqlschema.Between(now, due), int(attempts)
	s.Created, s.Updated = time.UnixMicro(created), time.UnixMicro(updated)
	var errHeader, errTime error
	m.Header, errHeader = sqlschema.DecodeHeader(header)
	m.Time, errTime = sqlschema.DecodeTime(produced)
	s.Unopened = sqlschema.Damaged(fmt.Sprintf("message %d on the shelf", s.Seq), unread, errHeader, errTime)
	return s, nil
}
