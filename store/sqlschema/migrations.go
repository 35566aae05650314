package sqlschema

import (
	"fmt"
	"strings"
)

// Migrations returns all migrations that this build knows, the oldest first. A
// released migration never changes.
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
	if n.dialect == PostgreSQL || n.dialect == SQLite { // elsewhere the index on due also has the rows without a due
		all = append(all, n.openRecords(len(all)+1, 1))
	}
	all = append(all, n.outboxCauses(len(all)+1, 1)...)
	if n.dialect == SQLite { // last, so that existing databases keep their versions
		fewer := Migration{Version: len(all) + 1, Compatible: 1, Name: "fewer indexes", SQL: []string{n.fill(dropOperationIndex)}}
		all = append(all, n.withRow(fewer))
	}
	all = append(all, n.recordCauses(len(all)+1, 1))
	return append(all, n.causeIndex(len(all)+1, 1))
}

// Latest is the version of the last migration, which this build needs.
func (n Names) Latest() int {
	all := n.Migrations()
	return all[len(all)-1].Version
}

// Print returns the SQL that upgrades tables from a version, or creates them if
// from is 0, for a database administrator to run.
func (n Names) Print(from int) string { return n.print(n.Migrations(), from) }

func (n Names) print(all []Migration, from int) string {
	begin, end := "BEGIN;\n", "COMMIT;\n"
	switch n.dialect {
	case MySQL: // where CREATE and ALTER commit implicitly
		begin, end = "", ""
	case SQLServer: // which continues after an error otherwise
		begin, end = "SET ANSI_NULL_DFLT_ON ON;\nSET XACT_ABORT ON;\nBEGIN TRANSACTION;\n", "COMMIT TRANSACTION;\n"
	}
	var b strings.Builder
	b.WriteString(begin)
	if n.schema != "" && from <= 0 {
		b.WriteString(n.createMissingSchema())
	}
	for _, m := range all {
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

// createMissingSchema is the SQL that creates the schema, for Print. A MySQL
// database is created by hand.
func (n Names) createMissingSchema() string {
	switch n.dialect {
	case PostgreSQL:
		return "CREATE SCHEMA IF NOT EXISTS " + n.quote(n.schema) + ";\n"
	case SQLServer: // where CREATE SCHEMA must be alone in its batch
		return "IF SCHEMA_ID(N'" + n.schema + "') IS NULL EXEC(N'CREATE SCHEMA " + n.quote(n.schema) + "');\n"
	}
	return ""
}
