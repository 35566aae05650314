package sqlschema

import "strings"

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

// causeIndex adds the index that finds the records caused by the messages of a
// key.
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

// openRecords adds the index on records that are running, unknown or parked,
// for List. Nothing fails without it.
func (n Names) openRecords(version, compatible int) Migration {
	index := openIndex
	if n.dialect == PostgreSQL {
		index = openIndexPostgreSQL
	}
	return n.withRow(Migration{Version: version, Compatible: compatible, Name: "open records", SQL: []string{n.fill(index)}})
}

// recordTable compares texts by their bytes, whatever the collation of the
// database. So keys are exact, and an update of the operating system's
// collations cannot damage their index.
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

	// In PostgreSQL, a claim already sets due. This index alone is ordered by
	// the bytes of the key. So the planner never takes another index instead,
	// whatever it knows of a table that was small a moment ago.
	openIndexPostgreSQL = `CREATE INDEX IF NOT EXISTS {open} ON {record} (uuid_send("key")) WHERE ` + OpenSQL

	// A claim writes to each index, and Forget removes its entry again. In
	// SQLite, each index costs a page of the file. In PostgreSQL, this one took
	// more room than that on keys. Without it, listing an operation reads all
	// keys, page by page.
	dropOperationIndex = `DROP INDEX {named operation}`

	// causeIndex includes the key, so a page of a cause with many records needs
	// no sort.
	causeIndex = `CREATE INDEX {cause index} ON {record} (cause, "key") WHERE cause IS NOT NULL`

	mysqlCauseIndex   = `ALTER TABLE {record} ADD INDEX {cause index} (cause, "key")`
	mysqlCauseIndexed = `SELECT count(*) FROM information_schema.statistics
WHERE table_schema = {database} AND table_name = '{prefix}record' AND index_name = '{prefix}record_cause'`

	mysqlIndexes = `ALTER TABLE {record} ADD INDEX {due} (due), ADD INDEX {operation} (operation, "key")`
	mysqlIndexed = `SELECT count(*) FROM information_schema.statistics
WHERE table_schema = {database} AND table_name = '{prefix}record' AND index_name = '{prefix}record_due'`

	// In SQL Server the index has no condition: sessions with QUOTED_IDENTIFIER
	// OFF could not write to the table.
	sqlserverDueIndex   = `CREATE INDEX {due} ON {record} (due)`
	sqlserverCauseIndex = `CREATE INDEX {cause index} ON {record} (cause, "key")`
)
