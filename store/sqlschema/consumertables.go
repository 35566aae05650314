package sqlschema

import (
	"strings"
)

// consumerTables creates the tables of consumers.
func (n Names) consumerTables(version, compatible int) Migration {
	m := Migration{Version: version, Compatible: compatible, Name: "consumers"}
	for _, text := range []string{consumerTable, positionTable, shelfTable} {
		m.SQL = append(m.SQL, n.fill(text))
	}
	if n.dialect == MySQL { // whose CREATE TABLE includes the indexes, so each statement can be repeated
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

// Rows are found by digests of their names, as records are. So names are
// compared by their bytes, even where = ignores spaces at the end, and no index
// is wide.
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

	// The columns that change come first: a database that stores large columns
	// separately can read them without those.
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
