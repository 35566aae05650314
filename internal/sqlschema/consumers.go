package sqlschema

import (
	"fmt"
	"strings"
)

// Consumers is the table of consumers, as SQL.
func (n Names) Consumers() string { return n.table("consumer") }

// Positions is the table of the positions of consumers in logs, as SQL.
func (n Names) Positions() string { return n.table("position") }

// Shelf is the table of messages that consumers put aside, as SQL.
func (n Names) Shelf() string { return n.table("shelf") }

// consumerTables makes the tables of consumers. Who knows the first version can work beside them.
func (n Names) consumerTables(version, compatible int) Migration {
	m := Migration{Version: version, Compatible: compatible, Name: "consumers"}
	for _, text := range []string{consumerTable, positionTable, shelfTable} {
		m.SQL = append(m.SQL, n.fill(text))
	}
	if n.dialect == MySQL { // whose tables come with their indexes, so that each statement can be repeated
		return n.withRow(m)
	}
	if n.dialect == SQLServer {
		m.SQL = append(m.SQL, n.fill(strings.Replace(sqlserverRowLocks, "{record}", "{shelf}", 1)))
	}
	for _, text := range []string{laneIndex, shelfIndex, endedIndex} {
		m.SQL = append(m.SQL, n.fill(text))
	}
	return n.withRow(m)
}

// consumerNames are what the names of tables and indexes of consumers stand for.
func (n Names) consumerNames() []string {
	inline := ""
	if n.dialect == MySQL {
		inline = fmt.Sprintf(",\n\tINDEX %s (lane, state, seq),\n\tINDEX %s (consumer_id, state, seq),\n\tINDEX %s (ended)",
			n.quote(n.prefix+"shelf_lane"), n.quote(n.prefix+"shelf_consumer"), n.quote(n.prefix+"shelf_ended"))
	}
	where := ""
	if n.dialect == PostgreSQL || n.dialect == SQLite {
		where = " WHERE ended IS NOT NULL"
	}
	return []string{"{consumer}", n.Consumers(), "{position}", n.Positions(), "{shelf}", n.Shelf(),
		"{shelf lane}", n.quote(n.prefix + "shelf_lane"), "{shelf consumer}", n.quote(n.prefix + "shelf_consumer"),
		"{shelf ended}", n.quote(n.prefix + "shelf_ended"), "{inline}", inline, "{where ended}", where,
		"{long}", map[Dialect]string{
			PostgreSQL: "text", MySQL: "longblob", SQLite: "text", SQLServer: "nvarchar(max)",
		}[n.dialect],
		"{serial}", n.serial()}
}

// serial is the type of a primary key that rises from insert to insert.
func (n Names) serial() string {
	return map[Dialect]string{
		PostgreSQL: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", // needs no right of its own, as a sequence does
		MySQL:      "bigint NOT NULL AUTO_INCREMENT PRIMARY KEY",
		SQLite:     "integer PRIMARY KEY AUTOINCREMENT", // gives no number twice
		SQLServer:  "bigint IDENTITY(1,1) NOT NULL PRIMARY KEY",
	}[n.dialect]
}

// Rows are found by digests of their names, as records are: so names are compared by their bytes everywhere, also
// where = passes over spaces at their ends, and no index is wide.
const (
	consumerTable = `CREATE TABLE {unless}{consumer} (
	id {uuid} NOT NULL PRIMARY KEY,
	name {part} NOT NULL,
	source {part} NOT NULL,
	key_name {part} NOT NULL,
	seen {big} NOT NULL
){options}`

	positionTable = `CREATE TABLE {unless}{position} (
	id {uuid} NOT NULL PRIMARY KEY,
	consumer_id {uuid} NOT NULL,
	consumer {part} NOT NULL,
	partition_name {part} NOT NULL,
	epoch {big} NOT NULL,
	log_name {part} NOT NULL,
	log_offset {big} NOT NULL,
	digest {uuid} NOT NULL
){options}`

	// The first columns are those that change: a database that stores large ones apart finds these without them.
	shelfTable = `CREATE TABLE {unless}{shelf} (
	seq {serial},
	version {big} NOT NULL,
	state {small} NOT NULL,
	due {big},
	attempts {big} NOT NULL,
	created {big} NOT NULL,
	updated {big} NOT NULL,
	ended {big},
	id {uuid} NOT NULL UNIQUE,
	consumer_id {uuid} NOT NULL,
	lane {uuid},
	consumer {part} NOT NULL,
	key_id {part} NOT NULL,
	message_id {part} NOT NULL,
	topic {part} NOT NULL,
	ordering_key {part} NOT NULL,
	produced {part} NOT NULL,
	origin {long} NOT NULL,
	reason {long} NOT NULL,
	history {long} NOT NULL,
	header {long} NOT NULL,
	body {bytes}{inline}
){options}`

	laneIndex  = `CREATE INDEX {shelf lane} ON {shelf} (lane, state, seq)`
	shelfIndex = `CREATE INDEX {shelf consumer} ON {shelf} (consumer_id, state, seq)`
	endedIndex = `CREATE INDEX {shelf ended} ON {shelf} (ended){where ended}`
)
