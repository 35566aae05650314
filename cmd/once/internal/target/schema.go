package target

import (
	"context"
	"errors"
	"time"

	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

// Schema describes the tables.
type Schema struct {
	Version    int // 0: there are no tables
	Compatible int // the oldest version that a program must know to work with them
	Latest     int // the latest version that this program knows
	Applied    []Applied

	// Misfit says why this program cannot use the tables, and what to do. It is
	// nil if it can.
	Misfit error
}

// Applied is an applied version.
type Applied struct {
	Version int
	Name    string
	At      time.Time
}

// versioned has the versions of tables, with or without partitions.
type versioned interface {
	Version(ctx context.Context, q sqlschema.Querier) (version, compatible int, err error)
	Latest() int
	Check(ctx context.Context, q sqlschema.Querier) error
}

func (t *Tables) versioned() versioned {
	if t.Partitioned {
		return t.Names.Partitioned()
	}
	return t.Names.Whole()
}

// Latest returns the latest version of the tables that this program knows.
func (t *Tables) Latest() int { return t.versioned().Latest() }

// Schema reads the state of the tables without changing it.
func (t *Tables) Schema(ctx context.Context) (s Schema, err error) {
	names := t.versioned()
	q := sqltx.Querier{DB: t.DB}
	if s.Version, s.Compatible, err = names.Version(ctx, q); err != nil {
		return s, err
	}
	s.Latest, s.Misfit = names.Latest(), names.Check(ctx, q)
	if s.Misfit != nil && sqlschema.HasPartitions(s.Version) && !t.Partitioned {
		s.Misfit = errors.New(
			"the tables have partitions: add partition=24h, or the value of your programs, to the URL of the target")
	}
	if s.Version == 0 {
		return s, nil
	}
	rows, err := t.DB.QueryContext(ctx, "SELECT version, name, applied FROM "+t.Names.Versions()+" ORDER BY version")
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		var a Applied
		var micros int64
		if err := rows.Scan(&a.Version, &a.Name, &micros); err != nil {
			return s, err
		}
		a.At = time.UnixMicro(micros)
		s.Applied = append(s.Applied, a)
	}
	return s, rows.Err()
}

// Columns returns the columns of the table with this name after the prefix, or
// none if there is no such table.
func (t *Tables) Columns(ctx context.Context, table string) (names []string, err error) {
	query, name := "SELECT name FROM pragma_table_info(?)", t.Names.Prefix()+table
	switch t.engine {
	case PostgreSQL:
		query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped"
		name = t.Names.Named(table)
	case MySQL:
		query = "SELECT column_name FROM information_schema.columns WHERE table_schema = " + t.Names.Database() +
			" AND table_name = ?"
	}
	rows, err := t.DB.QueryContext(ctx, query, name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var column string
		if err := rows.Scan(&column); err != nil {
			return nil, err
		}
		names = append(names, column)
	}
	return names, rows.Err()
}
