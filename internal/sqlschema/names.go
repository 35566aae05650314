// Package sqlschema holds what the stores on SQL databases share, so that they can be used on one database at once:
// the names of their tables, their versions, and how to get from one version to the next. For the store behind
// database/sql it has the statements, and what the errors of drivers mean.
//
// The tables carry the prefix of a store: <prefix>record has a row for each key that is known, <prefix>schema one for
// each version that was applied, <prefix>consumer one for each consumer, <prefix>position one for each partition of a log
// that a consumer has opened, and <prefix>shelf one for each message that was put aside. <prefix>outbox has a row for each message
// that is to be published, <prefix>outbox_archive for those that were and are kept there, <prefix>lane has one for each lane of the
// outbox, and <prefix>relay one for each relay at work. The names of indexes carry the prefix too, so two prefixes in one database
// never touch each other.
//
// The rules of a record's row, which every store on it keeps:
//
//   - Times are microseconds since 1970 by the database's clock ([Names.Now]), durations are added there.
//   - status has the numbers of once.Status that do not change by themselves: 0 freed, 1 running, 2 unknown,
//     3 parked, 4 done. That a lease has lapsed, an outcome expired or a key is forgotten is computed at reading.
//   - owner stays when a key is freed, so that a repeated release is told from a stale one. Readers hide it.
//   - lease_until is null unless the status is 1 or 2; in 2 it is when the attempt ended.
//   - key_until is null unless the status is 0 or 4, outcome_until unless it is 4.
//   - due is the next time at which there is something to forget, null where there is nothing: it begins as the
//     earlier of outcome_until and key_until; when the outcome was dropped, it is key_until.
//   - flags: 1 rejected, 2 omitted.
//   - A claim writes all columns but the key and its parts; only created and attempt depend on what was there.
//
// A version is written by one build and read by others: [Migration.Compatible] says by which.
package sqlschema

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB
	SQLite
	SQLServer // and Azure SQL
)

// Refusal is an error about what was asked for, or found, and not about the way there. It says what to do.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// Names are where the tables of a store are. [For] makes them.
type Names struct {
	dialect        Dialect
	schema, prefix string
}

const (
	defaultPrefix = "once_"
	longestPrefix = 32 // so that no name built from it is cut off by a database
	longestSchema = 63
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// For checks and completes the names that a user gave. An empty schema is the one that the connection is in:
// in PostgreSQL by its search_path, in MySQL its database, in SQL Server the default schema of its user. An empty prefix is "once_". Errors are a [Refusal].
func For(d Dialect, schema, prefix string) (Names, error) {
	if prefix == "" {
		prefix = defaultPrefix
	}
	switch {
	case d < PostgreSQL || d > SQLServer:
		return Names{}, Refusal("the dialect is none of PostgreSQL, MySQL, SQLite and SQLServer")
	case !identifier.MatchString(prefix) || len(prefix) > longestPrefix:
		return Names{}, Refusal(fmt.Sprintf("the prefix %q is not made of letters, digits and underscores, "+
			"%d at most, without a digit in front", prefix, longestPrefix))
	case schema != "" && d == SQLite:
		return Names{}, Refusal("SQLite has no schemas: leave Schema empty and use another Prefix")
	case schema != "" && (!identifier.MatchString(schema) || len(schema) > longestSchema):
		return Names{}, Refusal(fmt.Sprintf("the schema %q is not made of letters, digits and underscores, "+
			"%d at most, without a digit in front", schema, longestSchema))
	}
	return Names{dialect: d, schema: schema, prefix: prefix}, nil
}

// Table is the table of records, as SQL.
func (n Names) Table() string { return n.table("record") }

// Versions is the table of versions, as SQL.
func (n Names) Versions() string { return n.table("schema") }

func (n Names) table(name string) string {
	if n.schema == "" {
		return n.quote(n.prefix + name)
	}
	return n.quote(n.schema) + "." + n.quote(n.prefix+name)
}

func (n Names) quote(name string) string {
	switch n.dialect {
	case MySQL:
		return "`" + name + "`"
	case SQLServer: // whose own tools often run with QUOTED_IDENTIFIER OFF
		return "[" + name + "]"
	}
	return `"` + name + `"`
}

// Now is the database's clock as SQL: microseconds since 1970, whatever time zone the session is in.
//
// In PostgreSQL it moves on within a statement. In MySQL and SQL Server it is the time at which the statement began.
// SQLite has no clock of its own: it is this machine's, in milliseconds.
func (n Names) Now() string {
	switch n.dialect {
	case PostgreSQL:
		return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
	case MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
	case SQLServer:
		return "DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(7)), SYSUTCDATETIME())"
	default:
		return "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)"
	}
}

// Lock is the number of the advisory lock that a PostgreSQL transaction holds while it claims key: the same for
// all stores on these names. Stores that name one schema in two ways, with and without search_path, do not see
// each other's locks; then the later claim waits for the transaction in flight.
func (n Names) Lock(key [16]byte) int64 {
	return int64(n.hash("key") ^ binary.BigEndian.Uint64(key[:8]) ^ binary.BigEndian.Uint64(key[8:]))
}

func (n Names) hash(purpose string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(strings.Join([]string{"once", purpose, n.schema, n.prefix}, "\x00")))
	return h.Sum64()
}
