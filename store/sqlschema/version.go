package sqlschema

import (
	"context"
	"fmt"
)

// state is the version of the tables as the table of versions says. The zero
// state means that there are no tables.
type state struct{ version, compatible int }

// partitionedFrom is less than the versions of tables with partitions, and more
// than those of tables without will ever be.
const partitionedFrom = 1 << 20

// HasPartitions reports whether tables of this version have partitions.
func HasPartitions(version int) bool { return version > partitionedFrom }

// Version returns the version of the tables, or 0 if there are none, and the
// oldest version that a build must know to use them.
func (n Names) Version(ctx context.Context, q Querier) (version, compatible int, err error) {
	at, err := n.installed(ctx, q)
	return at.version, at.compatible, err
}

// installed first looks whether the table of versions exists. In PostgreSQL,
// reading a missing table would abort a transaction of the caller's.
func (n Names) installed(ctx context.Context, q Querier) (at state, err error) {
	found, err := number(ctx, q, map[Dialect]string{
		PostgreSQL: "SELECT count(to_regclass('" + n.Versions() + "'))",
		MySQL: "SELECT count(*) FROM information_schema.tables WHERE table_schema = " + n.Database() +
			" AND table_name = '" + n.prefix + "schema'",
		SQLite:    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '" + n.prefix + "schema'",
		SQLServer: "SELECT CASE WHEN OBJECT_ID(N'" + n.Versions() + "', N'U') IS NULL THEN 0 ELSE 1 END",
	}[n.dialect])
	if err != nil || found == 0 {
		return at, err
	}
	for _, column := range []struct {
		name string
		to   *int
	}{{"version", &at.version}, {"compatible", &at.compatible}} {
		largest, err := number(ctx, q, "SELECT COALESCE(MAX("+column.name+"), 0) FROM "+n.Versions())
		if err != nil {
			return at, err
		}
		*column.to = int(largest)
	}
	return at, nil
}

func tooOld(version, need int) Refusal {
	return Refusal(fmt.Sprintf("schema version %d is too old, this program needs %d: call Migrate, "+
		"or have a DBA run the SQL that Schema returns from version %d on", version, need, version))
}

func tooNew(at state, latest int) Refusal {
	return Refusal(fmt.Sprintf("schema version %d is newer than this program: it needs programs that know version %d, "+
		"and this one knows %d: upgrade it", at.version, at.compatible, latest))
}
