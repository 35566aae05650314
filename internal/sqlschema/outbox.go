package sqlschema

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/store"
)

// Outbox is the table of messages that are to be published, as SQL.
func (n Names) Outbox() string { return n.table("outbox") }

// OutboxArchive is the table of messages that were published and are kept for ever, as SQL.
func (n Names) OutboxArchive() string { return n.table("outbox_archive") }

// Lanes is the table that says which relay has which lane, as SQL.
func (n Names) Lanes() string { return n.table("lane") }

// Relays is the table of relays that are at work, as SQL.
func (n Names) Relays() string { return n.table("relay") }

// outboxTables makes the tables of the outbox. Who knows the first version can work beside them.
func (n Names) outboxTables(version, compatible int) Migration {
	m := Migration{Version: version, Compatible: compatible, Name: "outbox"}
	for _, text := range []string{outboxTable, archiveTable, laneTable, relayTable} {
		m.SQL = append(m.SQL, n.fill(text))
	}
	m.SQL = append(m.SQL, n.fill(laneRows()))
	if n.dialect == MySQL { // whose tables come with their indexes, so that each statement can be repeated
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

// outboxCauses add the column that says which unit of work has put a message. They are two, because not all databases can
// undo the first one if the second one fails.
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

const mysqlCaused = `SELECT count(*) FROM information_schema.columns
WHERE table_schema = {database} AND table_name = '{prefix}{which}' AND column_name = 'cause'`

// outboxNames are what the names of tables and indexes of the outbox stand for.
func (n Names) outboxNames() []string {
	inline, where, ignore := "", "", ""
	switch n.dialect {
	case MySQL:
		inline = fmt.Sprintf(",\n\tINDEX %s (lane, state, seq),\n\tINDEX %s (state, due)",
			n.quote(n.prefix+"outbox_lane"), n.quote(n.prefix+"outbox_due"))
		ignore = "IGNORE "
	case PostgreSQL, SQLite:
		where = " WHERE due IS NOT NULL"
	}
	serial := n.serial()
	key := ""
	if n.dialect == PostgreSQL {
		serial = "bigint GENERATED ALWAYS AS IDENTITY"
		key = ",\n\tPRIMARY KEY (lane, state, seq)"
	}
	return []string{"{outbox}", n.Outbox(), "{archive}", n.OutboxArchive(), "{lane}", n.Lanes(), "{relay}", n.Relays(),
		"{outbox lane}", n.quote(n.prefix + "outbox_lane"), "{outbox due}", n.quote(n.prefix + "outbox_due"),
		"{outbox inline}", inline, "{where due}", where, "{ignore}", ignore, "{outbox seq}", serial,
		"{outbox key}", key,
		"{now default}", "(" + n.Now() + ")",
		"{empty}", map[Dialect]string{PostgreSQL: "''", MySQL: "('')", SQLite: "''", SQLServer: "''"}[n.dialect]}
}

// laneRows are there from the beginning: so a lane is taken by changing a row, which nobody else can do at once.
func laneRows() string {
	var rows []string
	for lane := range store.Lanes {
		rows = append(rows, fmt.Sprintf("(%d)", lane))
	}
	return "INSERT {ignore}INTO {lane} (lane) VALUES " + strings.Join(rows, ", ")
}

// In PostgreSQL the primary key is what relays read by, and the only index that a producer pays for. An other
// database keeps its rows in the order of seq, and has an index for relays.
//
// A state above those of package store is of a row that a transaction takes to the archive: nobody else sees it.
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

	// archiveTable has a key that others can empty it by.
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

	// outboxDueIndex is for what is delayed, and for what was published and is kept: others have no due.
	outboxDueIndex = `CREATE INDEX {outbox due} ON {outbox} (state, due){where due}`
)
