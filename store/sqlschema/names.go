package sqlschema

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"strings"

	"github.com/effectively-once/once/internal/name"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB
	SQLite
	SQLServer // and Azure SQL
)

// Names names the tables of a store. [For] returns it.
type Names struct {
	dialect        Dialect
	schema, prefix string
	locks          cipher.Block // makes the numbers of locks; nil: they are computable
}

const (
	defaultPrefix = "once_"
	longestPrefix = 32 // so that no name built from it is cut off by a database
	longestSchema = 63
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// For checks and completes the names that a user gave. An empty schema is that
// of the connection: the first of its search_path in PostgreSQL, its database
// in MySQL, the default schema of its user in SQL Server. An empty prefix means
// "once_". Errors are a [Refusal].
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

// Table is the table of records as SQL.
func (n Names) Table() string { return n.table("record") }

// Versions is the table of versions as SQL.
func (n Names) Versions() string { return n.table("schema") }

// Consumers is the table of consumers as SQL.
func (n Names) Consumers() string { return n.table("consumer") }

// Positions is the table of the positions of consumers in logs as SQL.
func (n Names) Positions() string { return n.table("position") }

// Shelf is the table of messages that consumers put aside as SQL.
func (n Names) Shelf() string { return n.table("shelf") }

// Outbox is the table of messages to publish as SQL.
func (n Names) Outbox() string { return n.table("outbox") }

// OutboxArchive is the table of archived messages as SQL.
func (n Names) OutboxArchive() string { return n.table("outbox_archive") }

// Lanes is the table that says which relay has which lane as SQL.
func (n Names) Lanes() string { return n.table("lane") }

// Relays is the table of relays at work as SQL.
func (n Names) Relays() string { return n.table("relay") }

// Prefix is what the names of all tables and indexes begin with.
func (n Names) Prefix() string { return n.prefix }

// Named is the table whose name follows the prefix, as SQL.
func (n Names) Named(name string) string { return n.table(name) }

// Database is the MySQL database of the tables as SQL.
func (n Names) Database() string {
	if n.schema == "" {
		return "DATABASE()"
	}
	return "'" + n.schema + "'"
}

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
	case SQLServer: // whose tools often run with QUOTED_IDENTIFIER OFF
		return "[" + name + "]"
	}
	return `"` + name + `"`
}

// Same is a condition that compares a column with a parameter byte by byte. In
// SQL Server, = alone ignores spaces at the end of a text.
func (d Dialect) Same(column, parameter string) string {
	if d == SQLServer {
		return fmt.Sprintf("(%s = %s AND DATALENGTH(%[1]s) = DATALENGTH(%[2]s))", column, parameter)
	}
	return column + " = " + parameter
}

// Dialect is the SQL that the names are for.
func (n Names) Dialect() Dialect { return n.dialect }

// UUID returns an ID as drivers accept it.
func (n Names) UUID(id [16]byte) any {
	if n.dialect == PostgreSQL {
		return name.Format(id)
	}
	return id[:]
}

// Index is the name of an index as SQL, without the schema.
func (n Names) Index(name string) string { return n.quote(n.prefix + name) }

// Now is the database's clock as SQL, in microseconds since 1970. The time zone
// of the session does not matter.
//
// In PostgreSQL it advances during a statement. In MySQL and SQL Server it is
// the time at which the statement began. In SQLite it is the clock of this
// machine, in milliseconds.
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

// Begun is the time at which a statement of PostgreSQL arrived. It is cheaper
// than a clock, and the same in the whole statement. It is used where a
// statement waits for nothing.
func (n Names) Begun() string {
	return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
}

// WithSecret returns the names for a store with a secret: nobody without it can
// compute the number of a key's lock, and so take it. Whoever sees one number
// learns no other.
func (n Names) WithSecret(secret []byte) Names {
	if len(secret) == 0 {
		return n
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(strings.Join([]string{"once", "advisory locks", n.schema, n.prefix}, "\x00")))
	n.locks, _ = aes.NewCipher(h.Sum(nil)) // the sum has the right size
	return n
}

// Lock is the number of the advisory lock that a PostgreSQL transaction holds
// while it claims key. It is the same for all stores with these names. Stores
// that name one schema in two ways, with Schema set and by search_path, do not
// see each other's locks. Then the later claim waits for the transaction of the
// other. So do stores with different secrets: the lock saves that wait, and the
// primary key decides.
func (n Names) Lock(key [16]byte) int64 {
	if n.locks != nil {
		var number [aes.BlockSize]byte
		n.locks.Encrypt(number[:], key[:])
		return int64(binary.BigEndian.Uint64(number[:8]))
	}
	return int64(n.hash("key") ^ binary.BigEndian.Uint64(key[:8]) ^ binary.BigEndian.Uint64(key[8:]))
}

func (n Names) hash(purpose string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(strings.Join([]string{"once", purpose, n.schema, n.prefix}, "\x00")))
	return h.Sum64()
}

// explainNumbers returns the error of an INSERT into a table, by its name without
// the prefix, that SQLite has refused because a row has the last number. It says that
// the disk is full, and has ended the transaction.
func (n Names) explainNumbers(ctx context.Context, q Querier, name string, err error) error {
	if n.dialect != SQLite || n.dialect.Failure(err) != Ended {
		return err
	}
	of := "sqlite_sequence"
	if n.schema != "" {
		of = n.quote(n.schema) + "." + of
	}
	rows, failed := q.Query(ctx, fmt.Sprintf("SELECT 1 FROM %s WHERE name = '%s' AND seq >= %d", of, n.prefix+name, math.MaxInt64))
	if failed != nil { // the first error says more
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return err
	}
	return fmt.Errorf("sqlschema: %s has no number left for a row, because one has or had the last one, %d: delete that row, "+
		"and set seq of this table in sqlite_sequence to the greatest that is left (%w)", n.table(name), math.MaxInt64, err)
}

// ExplainShelf returns what the error of an INSERT into [Names.Shelf] means.
func (n Names) ExplainShelf(ctx context.Context, q Querier, err error) error {
	return n.explainNumbers(ctx, q, "shelf", err)
}

// ExplainOutbox returns what the error of an INSERT into [Names.Outbox] means.
func (n Names) ExplainOutbox(ctx context.Context, q Querier, err error) error {
	return n.explainNumbers(ctx, q, "outbox", err)
}
