package sqlschema

import (
	"fmt"
	"strings"
)

// Migration leads from the version before to its own.
type Migration struct {
	Version    int
	Compatible int // the oldest version that a build may know to work with this one
	Name       string
	SQL        []string // what it changes
	Row        string   // how it is recorded: the last statement

	// Applied is a query that yields a number other than 0 if SQL was applied already, although Row was not:
	// where changes of the schema cannot be rolled back and SQL cannot be repeated. Empty elsewhere.
	Applied string
}

// Migrations are all that this build knows, the oldest first. They are never changed, only added to.
func (n Names) Migrations() []Migration {
	tables := Migration{Version: 1, Compatible: 1, Name: "tables", SQL: []string{n.fill(recordTable), n.fill(versionTable)}}
	indexes := Migration{Version: 2, Compatible: 1, Name: "indexes", SQL: []string{n.fill(dueIndex), n.fill(operationIndex)}}
	switch n.dialect {
	case MySQL:
		indexes.SQL = []string{n.fill(mysqlIndexes)}
		indexes.Applied = n.fill(mysqlIndexed)
	case SQLServer:
		tables.SQL = append(tables.SQL, n.fill(sqlserverRowLocks))
		indexes.SQL = []string{n.fill(sqlserverDueIndex), n.fill(operationIndex)}
	}
	all := []Migration{n.withRow(tables), n.withRow(indexes)}
	if n.dialect == PostgreSQL {
		fewer := Migration{Version: 3, Compatible: 1, Name: "fewer indexes", SQL: []string{n.fill(dropOperationIndex)}}
		all = append(all, n.withRow(fewer))
	}
	all = append(all, n.consumerTables(len(all)+1, 1))
	all = append(all, n.outboxTables(len(all)+1, 1))
	if n.dialect == PostgreSQL || n.dialect == SQLite { // elsewhere the index on due has those that have no due
		all = append(all, n.openRecords(len(all)+1, 1))
	}
	all = append(all, n.outboxCauses(len(all)+1, 1)...)
	if n.dialect == SQLite { // last, because databases have the others in this order
		fewer := Migration{Version: len(all) + 1, Compatible: 1, Name: "fewer indexes", SQL: []string{n.fill(dropOperationIndex)}}
		all = append(all, n.withRow(fewer))
	}
	all = append(all, n.recordCauses(len(all)+1, 1))
	return append(all, n.causeIndex(len(all)+1, 1))
}

// recordCauses adds the column with the unit of work that put the message of
// a record.
func (n Names) recordCauses(version, compatible int) Migration {
	add := "ADD COLUMN"
	if n.dialect == SQLServer {
		add = "ADD"
	}
	m := Migration{Version: version, Compatible: compatible, Name: "causes of records",
		SQL: []string{n.fill("ALTER TABLE {record} " + add + " cause {uuid}")}}
	if n.dialect == MySQL {
		m.Applied = n.fill(strings.Replace(mysqlCaused, "{which}", "record", 1))
	}
	return n.withRow(m)
}

// causeIndex finds the records that the messages of a key have led to.
func (n Names) causeIndex(version, compatible int) Migration {
	m := Migration{Version: version, Compatible: compatible, Name: "index of causes", SQL: []string{n.fill(causeIndex)}}
	switch n.dialect {
	case MySQL:
		m.SQL, m.Applied = []string{n.fill(mysqlCauseIndex)}, n.fill(mysqlCauseIndexed)
	case SQLServer:
		m.SQL = []string{n.fill(sqlserverCauseIndex)}
	}
	return n.withRow(m)
}

// openRecords is an index that pages of records go along that are running, unknown or parked. Nothing fails without it.
func (n Names) openRecords(version, compatible int) Migration {
	index := openIndex
	if n.dialect == PostgreSQL {
		index = openIndexPostgreSQL
	}
	return n.withRow(Migration{Version: version, Compatible: compatible, Name: "open records", SQL: []string{n.fill(index)}})
}

func (n Names) withRow(m Migration) Migration {
	m.Row = fmt.Sprintf("INSERT INTO %s (version, compatible, name, applied) VALUES (%d, %d, '%s', %s)",
		n.Versions(), m.Version, m.Compatible, m.Name, n.Now())
	return m
}

// Latest is the version that this build knows, and needs.
func (n Names) Latest() int {
	all := n.Migrations()
	return all[len(all)-1].Version
}

// Print returns the SQL that leads from a version, 0 for none, to the latest one: for people who apply it by hand.
func (n Names) Print(from int) string {
	begin, end := "BEGIN;\n", "COMMIT;\n"
	switch n.dialect {
	case MySQL: // where CREATE and ALTER commit by themselves
		begin, end = "", ""
	case SQLServer: // which goes on after an error otherwise
		begin, end = "SET ANSI_NULL_DFLT_ON ON;\nSET XACT_ABORT ON;\nBEGIN TRANSACTION;\n", "COMMIT TRANSACTION;\n"
	}
	var b strings.Builder
	b.WriteString(begin)
	if n.schema != "" && from <= 0 {
		b.WriteString(n.createMissingSchema())
	}
	for _, m := range n.Migrations() {
		if m.Version <= from {
			continue
		}
		fmt.Fprintf(&b, "\n-- version %d: %s\n", m.Version, m.Name)
		for _, statement := range append(m.SQL, m.Row) {
			b.WriteString(statement + ";\n")
		}
	}
	b.WriteString(end)
	return b.String()
}

// createMissingSchema is for people, who run all of the SQL at once. A MySQL database is made by hand.
func (n Names) createMissingSchema() string {
	switch n.dialect {
	case PostgreSQL:
		return "CREATE SCHEMA IF NOT EXISTS " + n.quote(n.schema) + ";\n"
	case SQLServer: // where CREATE SCHEMA has a batch for itself
		return "IF SCHEMA_ID(N'" + n.schema + "') IS NULL EXEC(N'CREATE SCHEMA " + n.quote(n.schema) + "');\n"
	}
	return ""
}

// fill puts the names and types of the dialect into a statement that is written once for all of them.
func (n Names) fill(statement string) string {
	types := map[Dialect][]string{
		PostgreSQL: {"{uuid}", "uuid", "{part}", `text COLLATE "C"`, "{text}", "text", "{bytes}", "bytea",
			"{big}", "bigint", "{small}", "smallint", "{unless}", "", "{options}", "", `"key"`, `"key"`},
		MySQL: {"{uuid}", "binary(16)", "{part}", "varbinary(255)", "{text}", "blob", "{bytes}", "longblob",
			"{big}", "bigint", "{small}", "smallint", "{unless}", "IF NOT EXISTS ", "{options}", " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4", `"key"`, "`key`"},
		SQLite: {"{uuid}", "blob", "{part}", "text", "{text}", "text", "{bytes}", "blob",
			"{big}", "integer", "{small}", "integer", "{unless}", "", "{options}", "", `"key"`, `"key"`},
		SQLServer: {"{uuid}", "binary(16)", "{part}", "nvarchar(255) COLLATE Latin1_General_100_BIN2", "{text}", "nvarchar(max)",
			"{bytes}", "varbinary(max)", "{big}", "bigint", "{small}", "smallint", "{unless}", "", "{options}", "", `"key"`, "[key]"},
	}[n.dialect]
	names := []string{"{record}", n.Table(), "{schema}", n.Versions(), "{due}", n.quote(n.prefix + "record_due"), "{open}", n.quote(n.prefix + "record_open"),
		"{operation}", n.quote(n.prefix + "record_operation"), "{cause index}", n.quote(n.prefix + "record_cause"), "{named operation}", n.table("record_operation"), "{database}", n.database(), "{prefix}", n.prefix}
	marks := append(append(append(n.consumerNames(), n.outboxNames()...), names...), types...)
	return strings.NewReplacer(marks...).Replace(statement)
}

// database is the MySQL database of the tables, as SQL.
func (n Names) database() string {
	if n.schema == "" {
		return "DATABASE()"
	}
	return "'" + n.schema + "'"
}

// recordTable compares texts by their bytes, whatever the database's collation is: keys are exact, and an update of
// the operating system's collations cannot damage the index on them.
const recordTable = `CREATE TABLE {unless}{record} (
	"key" {uuid} NOT NULL PRIMARY KEY,
	scope {part} NOT NULL,
	operation {part} NOT NULL,
	id {part} NOT NULL,
	status {small} NOT NULL,
	attempt {big} NOT NULL,
	owner {uuid},
	lease_until {big},
	fingerprint {bytes},
	outcome {bytes},
	content_type {part} NOT NULL DEFAULT '',
	flags {small} NOT NULL DEFAULT 0,
	sum {big} NOT NULL DEFAULT 0,
	outcome_until {big},
	key_until {big},
	due {big},
	reason {text},
	created {big} NOT NULL,
	updated {big} NOT NULL
){options}`

const versionTable = `CREATE TABLE {unless}{schema} (
	version {big} NOT NULL PRIMARY KEY,
	compatible {big} NOT NULL,
	name {part} NOT NULL,
	applied {big} NOT NULL
){options}`

const (
	dueIndex       = `CREATE INDEX {due} ON {record} (due) WHERE due IS NOT NULL`
	operationIndex = `CREATE INDEX {operation} ON {record} (operation, "key")`

	openIndex = `CREATE INDEX IF NOT EXISTS {open} ON {record} ("key") WHERE due IS NULL`

	// In PostgreSQL a claim foresees when its row is due. The index is ordered by the bytes of the key, which no other one
	// is: so none is ever taken in its place, whatever the planner knows of a table that was small a moment ago.
	openIndexPostgreSQL = `CREATE INDEX IF NOT EXISTS {open} ON {record} (uuid_send("key")) WHERE ` + openSQL

	// A claim writes to each index, and Forget takes its entry out again: in SQLite a page of the file for each. In PostgreSQL it
	// took more room than the key's. People who list an operation look through the keys of others, page by page.
	dropOperationIndex = `DROP INDEX {named operation}`

	// causeIndex has the key, so that a page of a cause with many records need not sort all of them.
	causeIndex = `CREATE INDEX {cause index} ON {record} (cause, "key") WHERE cause IS NOT NULL`

	mysqlCauseIndex   = `ALTER TABLE {record} ADD INDEX {cause index} (cause, "key")`
	mysqlCauseIndexed = `SELECT count(*) FROM information_schema.statistics
WHERE table_schema = {database} AND table_name = '{prefix}record' AND index_name = '{prefix}record_cause'`

	mysqlIndexes = `ALTER TABLE {record} ADD INDEX {due} (due), ADD INDEX {operation} (operation, "key")`
	mysqlIndexed = `SELECT count(*) FROM information_schema.statistics
WHERE table_schema = {database} AND table_name = '{prefix}record' AND index_name = '{prefix}record_due'`

	// Without a condition: where a table has an index with one, sessions with QUOTED_IDENTIFIER OFF cannot write to it.
	sqlserverDueIndex   = `CREATE INDEX {due} ON {record} (due)`
	sqlserverCauseIndex = `CREATE INDEX {cause index} ON {record} (cause, "key")`
	// A statement that locks many rows would lock the table instead, and every claim would meet it.
	sqlserverRowLocks = `ALTER TABLE {record} SET (LOCK_ESCALATION = DISABLE)`
)
