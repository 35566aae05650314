package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/presence"
)

// mysqlLock is the lock of a relay in MySQL.
type mysqlLock struct {
	conn  *sql.Conn
	place presence.Place
	id    [16]byte
}

// placeSQL returns what tells a running server, which has the lock in its memory,
// from others, and what tells a node of Galera.
const placeSQL = `SHOW GLOBAL VARIABLES WHERE Variable_name IN
	('hostname', 'port', 'datadir', 'server_id', 'server_uuid', 'server_uid', 'wsrep_on', 'wsrep_provider')`

// take takes the lock of a new relay, and reports whether others see it.
func (l *mysqlLock) take(ctx context.Context, pool *sql.DB) (seen bool, err error) {
	galera, err := l.ask(ctx)
	if err != nil || galera {
		return false, err
	}
	var locked, other sql.NullBool
	err = l.conn.QueryRowContext(ctx, "SELECT GET_LOCK("+lockName(l.id)+", 0)").Scan(&locked)
	if err != nil || !locked.Bool {
		return false, err
	}
	err = pool.QueryRowContext(ctx, "SELECT IS_FREE_LOCK("+lockName(l.id)+")").Scan(&other)
	return err == nil && other.Valid && !other.Bool, err
}

// ask sets the place and the ID.
func (l *mysqlLock) ask(ctx context.Context) (galera bool, err error) {
	rows, err := l.conn.QueryContext(ctx, placeSQL)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	properties := []string{"mysql"}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return false, err
		}
		name = strings.ToLower(name)
		galera = galera || name == "wsrep_on" && value != "OFF" || name == "wsrep_provider" && value != "" && value != "none"
		properties = append(properties, name+"="+value)
	}
	l.place = presence.PlaceOf(properties...)
	l.id = l.place.NewID()
	return galera, rows.Err()
}

// lockName returns the name of a relay's lock, in quotes.
func lockName(id [16]byte) string { return fmt.Sprintf("'once-relay-%x'", id) }

func (l *mysqlLock) ID() [16]byte { return l.id }

func (l *mysqlLock) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	query := "SELECT IS_USED_LOCK(" + lockName(l.id) + ") = CONNECTION_ID()"
	var here sql.NullBool
	answers := []any{&here}
	var of [][16]byte
	for _, id := range others {
		if l.place.Has(id) && id != l.id {
			query += ", IS_FREE_LOCK(" + lockName(id) + ")"
			answers, of = append(answers, new(sql.NullBool)), append(of, id)
		}
	}
	if err := l.conn.QueryRowContext(ctx, query).Scan(answers...); err != nil {
		return nil, err
	}
	if !here.Bool {
		return nil, errors.New("once: the server has ended the lock of the relay")
	}
	for i, id := range of {
		if free := answers[i+1].(*sql.NullBool); free.Valid && free.Bool {
			missing = append(missing, id)
		}
	}
	return missing, nil
}
