package sqlschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Migration upgrades tables from the version before to its own.
type Migration struct {
	Version    int
	Compatible int // the oldest version that a build must know to use these tables
	Name       string
	SQL        []string // the changes
	Row        string   // the last statement, which records the version

	// Applied is a query that returns a number other than 0 if SQL was applied
	// before, but Row was not. It is set where SQL can neither be rolled back
	// nor repeated.
	Applied string
}

func (n Names) withRow(m Migration) Migration {
	m.Row = fmt.Sprintf("INSERT INTO %s (version, compatible, name, applied) VALUES (%d, %d, '%s', %s)",
		n.Versions(), m.Version, m.Compatible, m.Name, n.Now())
	return m
}

// fill replaces the marks in a statement by the names and types of the dialect.
func (n Names) fill(statement string) string {
	if n.dialect == SQLite {
		statement = checkNumbers(statement)
	}
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
		"{operation}", n.quote(n.prefix + "record_operation"), "{cause index}", n.quote(n.prefix + "record_cause"), "{named operation}", n.table("record_operation"), "{database}", n.Database(), "{prefix}", n.prefix}
	marks := append(append(append(n.consumerNames(), n.outboxNames()...), names...), types...)
	return strings.NewReplacer(marks...).Replace(statement)
}

// numbers matches the columns of a CREATE TABLE that have whole numbers.
var numbers = regexp.MustCompile(`(?m)^\t(\w+) (?:\{big\}|\{small\}|integer)`)

// checkNumbers adds a CHECK for each of them to a CREATE TABLE, because SQLite keeps
// any value in any column. It is no STRICT table, in which other programs could not
// put a text into a body. Each column has a CHECK of its own, so that a row that is
// damaged nevertheless can still be changed in others. The archive has none, because
// it takes damaged rows. Tables that an earlier build has created lack them: they would
// have to be copied.
func checkNumbers(statement string) string {
	if !strings.HasPrefix(statement, "CREATE TABLE {unless}") || strings.HasPrefix(statement, "CREATE TABLE {unless}{archive}") {
		return statement
	}
	var checks strings.Builder
	for _, column := range numbers.FindAllStringSubmatch(statement, -1) {
		checks.WriteString(",\n\tCHECK (typeof(" + column[1] + ") IN ('integer', 'null'))")
	}
	return strings.Replace(statement, "\n){options}", checks.String()+"\n){options}", 1)
}

// consumerNames are the marks for the tables of consumers and their indexes.
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

// serial is the type of a primary key that increases with each insert.
func (n Names) serial() string {
	return map[Dialect]string{
		PostgreSQL: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", // unlike a sequence, it needs no privilege of its own
		MySQL:      "bigint NOT NULL AUTO_INCREMENT PRIMARY KEY",
		SQLite:     "integer PRIMARY KEY AUTOINCREMENT", // never reuses a number
		SQLServer:  "bigint IDENTITY(1,1) NOT NULL PRIMARY KEY",
	}[n.dialect]
}

// outboxNames are the marks for the tables of the outbox and their indexes.
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

const mysqlCaused = `SELECT count(*) FROM information_schema.columns
WHERE table_schema = {database} AND table_name = '{prefix}{which}' AND column_name = 'cause'`

// sqlserverRowLocks keeps a statement that locks many rows from locking the
// whole table, which would block every claim.
const sqlserverRowLocks = `ALTER TABLE {record} SET (LOCK_ESCALATION = DISABLE)`
