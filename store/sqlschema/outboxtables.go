package sqlschema

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/store"
)

// outboxTables creates the tables of the outbox.
func (n Names) outboxTables(version, compatible int) Migration {
	m := Migration{Version: version, Compatible: compatible, Name: "outbox"}
	for _, text := range []string{outboxTable, archiveTable, laneTable, relayTable} {
		m.SQL = append(m.SQL, n.fill(text))
	}
	m.SQL = append(m.SQL, n.fill(laneRows()))
	if n.dialect == MySQL { // whose CREATE TABLE includes the indexes, so each statement can be repeated
		return n.withRow(m)
	}
	if n.dialect == SQLServer {
		m.SQL = append(m.SQL, n.fill(strings.Replace(sqlserverRowLocks, "{record}", "{outbox}", 1)))
	}
	if n.dialect != PostgreSQL { // where that is the primary key
		m.SQL = append(m.SQL, n.fill(outboxIndex))
	}
	m.SQL = append(m.SQL, n.fill(outboxDueIndex))
	return n.withRow(m)
}

// outboxCauses adds the column that names the unit of work that put a message.
// These are two migrations, because not all databases can undo the first change
// if the second one fails.
func (n Names) outboxCauses(version, compatible int) []Migration {
	add := "ADD COLUMN"
	if n.dialect == SQLServer {
		add = "ADD"
	}
	var all []Migration
	for i, table := range []string{"{archive}", "{outbox}"} {
		m := Migration{Version: version + i, Compatible: compatible, Name: "causes of messages",
			SQL: []string{n.fill("ALTER TABLE " + table + " " + add + " cause {long} NOT NULL DEFAULT {empty}")}}
		if table == "{archive}" {
			m.Name = "causes of archived messages"
		}
		if n.dialect == MySQL {
			m.Applied = n.fill(strings.Replace(mysqlCaused, "{which}", [...]string{"outbox_archive", "outbox"}[i], 1))
		}
		all = append(all, n.withRow(m))
	}
	return all
}

// laneRows inserts the rows of all lanes. They always exist, so a relay takes a
// lane by changing a row, which only one relay can do at a time.
func laneRows() string {
	var rows []string
	for lane := range store.Lanes {
		rows = append(rows, fmt.Sprintf("(%d)", lane))
	}
	return "INSERT {ignore}INTO {lane} (lane) VALUES " + strings.Join(rows, ", ")
}

// In PostgreSQL, relays read by the primary key, which is the only index that
// producers pay for. Other databases keep rows in the order of seq, and have an
// index for relays.
//
// State 5, which package store does not have, marks a row that a transaction is
// moving to the archive. Nobody else sees it.
const (
	outboxTable = `CREATE TABLE {unless}{outbox} (
	seq {outbox seq},
	created {big} NOT NULL DEFAULT {now default},
	due {big},
	changed {big},
	attempts integer NOT NULL DEFAULT 0,
	lane {small} NOT NULL DEFAULT 0 CHECK (lane BETWEEN 0 AND 15),
	state {small} NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 5),
	id {part} NOT NULL,
	topic {part} NOT NULL,
	ordering_key {part} NOT NULL DEFAULT '',
	produced {part} NOT NULL DEFAULT '',
	reason {long} NOT NULL DEFAULT {empty},
	header {long} NOT NULL DEFAULT {empty},
	body {bytes},
	CHECK (state <> 1 OR due IS NOT NULL){outbox key}{outbox inline}
){options}`

	// archiveTable has a key by which other programs can empty it.
	archiveTable = `CREATE TABLE {unless}{archive} (
	seq {big} NOT NULL,
	created {big} NOT NULL,
	due {big},
	changed {big},
	attempts integer NOT NULL,
	lane {small} NOT NULL,
	state {small} NOT NULL,
	id {part} NOT NULL,
	topic {part} NOT NULL,
	ordering_key {part} NOT NULL,
	produced {part} NOT NULL,
	reason {long} NOT NULL,
	header {long} NOT NULL,
	body {bytes},
	PRIMARY KEY (created, seq)
){options}`

	laneTable = `CREATE TABLE {unless}{lane} (
	lane {small} NOT NULL PRIMARY KEY,
	relay {uuid},
	lease_until {big}
){options}`

	relayTable = `CREATE TABLE {unless}{relay} (
	id {uuid} NOT NULL PRIMARY KEY,
	lease_until {big} NOT NULL
){options}`

	outboxIndex = `CREATE INDEX {outbox lane} ON {outbox} (lane, state, seq)`

	// outboxDueIndex is for delayed messages, and for published ones that are
	// kept. Others have no due.
	outboxDueIndex = `CREATE INDEX {outbox due} ON {outbox} (state, due){where due}`
)
