package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltx"
)

func schema(ctx context.Context, e *examination) error {
	now, err := e.Tables.Schema(ctx)
	if ctx.Err() != nil {
		return err
	}
	switch {
	case err != nil:
		e.found("schema", Unsafe, "The tables cannot be read: "+err.Error(), "Nothing is known about them.",
			"Give the role the privilege to read all of them, or check that once created them.")
	case now.Misfit != nil:
		e.found("schema", Unsafe, now.Misfit.Error(),
			"Programs of this version cannot work with the tables.",
			"Run once migrate up, or have an administrator run the output of once migrate sql. If the tables are newer, upgrade this program.")
	case now.Version > now.Latest:
		e.fits = true
		e.found("schema-newer", Note, fmt.Sprintf("The tables have version %d, and this program knows version %d.", now.Version,
			now.Latest),
			"A newer program migrated the tables. This version may still use them.", "Upgrade this program when convenient.")
	default:
		e.fits = true
	}
	return nil
}

var (
	indexMade    = regexp.MustCompile("(?:CREATE (?:UNIQUE )?|ADD |\n\\s*(?:UNIQUE )?)INDEX (?:IF NOT EXISTS )?[\"`\\[]([A-Za-z0-9_]+)")
	indexDropped = regexp.MustCompile("DROP INDEX (?:IF EXISTS )?(?:[\"`][A-Za-z0-9_]+[\"`]\\.)?[\"`]([A-Za-z0-9_]+)")
)

// indexes are the indexes that the migrations create.
func indexes(ms []sqlschema.Migration) (names []string) {
	for _, m := range ms {
		for _, statement := range m.SQL {
			for _, found := range indexMade.FindAllStringSubmatch(statement, -1) {
				names = append(names, found[1])
			}
			if found := indexDropped.FindStringSubmatch(statement); found != nil {
				names = slices.DeleteFunc(names, func(name string) bool { return name == found[1] })
			}
		}
	}
	return names
}

// drift compares the schema with the one that the migrations create: an index
// may have been dropped, or a dump half restored.
func drift(ctx context.Context, e *examination) error {
	now, err := e.Tables.Schema(ctx)
	if err != nil || now.Misfit != nil || now.Version > now.Latest {
		return err
	}
	want, err := model(ctx, e)
	if err != nil {
		return err
	}
	var missing, indexed []string
	for table, names := range want {
		have, err := e.Tables.Columns(ctx, table)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			missing = append(missing, "the table "+e.Tables.Names.Prefix()+table)
			continue
		}
		for _, name := range names {
			if !slices.Contains(have, name) {
				missing = append(missing, "the column "+name+" of "+e.Tables.Names.Prefix()+table)
			}
		}
		have, err = e.indexes(ctx, table)
		if err != nil {
			return err
		}
		indexed = append(indexed, have...)
		unique, err := e.unique(ctx, table)
		if err != nil {
			return err
		}
		if key := keyOf[table]; key != "" && !slices.Contains(unique, key) && !(e.Tables.Partitioned && table == "record") {
			missing = append(missing, "the unique key "+key+" of "+e.Tables.Names.Prefix()+table)
		}
	}
	ms := e.Tables.Names.Migrations()
	if e.Tables.Partitioned {
		ms = e.Tables.Names.Partitioned().Migrations()
	}
	for _, name := range indexes(ms) {
		if !slices.Contains(indexed, name) && !ofPartition.MatchString(name) {
			missing = append(missing, "the index "+name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		e.found("schema-drift", Unsafe, "Missing or unusable: "+strings.Join(missing, ", ")+".",
			fmt.Sprintf("The tables claim version %d but lack parts of it. Calls fail, scan whole tables or, "+
				"without a unique key, run work twice.", now.Version),
			"Compare with the output of once migrate sql --from 0, and create the missing parts.")
	}
	return nil
}

// ofPartition reports whether an index belongs to a partition and is dropped
// with it.
var ofPartition = regexp.MustCompile(`record_[0-9]+_key$`)

// model returns the columns of each table, without the prefix, as SQLite
// creates them. The column names are the same on all engines.
func model(ctx context.Context, e *examination) (map[string][]string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	names, err := sqlschema.For(sqlschema.SQLite, "", "")
	if err != nil {
		return nil, err
	}
	if err := names.Migrate(ctx, sqltx.Querier{DB: db}); err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "+
		"WHERE m.type = 'table' AND m.name LIKE 'once!_%' ESCAPE '!'")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[string][]string{}
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			return nil, err
		}
		table = strings.TrimPrefix(table, names.Prefix())
		all[table] = append(all[table], column)
	}
	if e.Tables.Partitioned {
		all["record"], all["part"] = append(all["record"], "part"), []string{"id", "begun", "due", "tried"}
	}
	return all, rows.Err()
}

// indexes returns the usable indexes of a table. A renamed copy of the table
// has other indexes with the same names.
func (e *examination) indexes(ctx context.Context, table string) ([]string, error) {
	switch e.Engine {
	case target.PostgreSQL:
		return e.texts(ctx, "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "+
			"WHERE x.indisvalid AND x.indrelid = to_regclass($1)", e.Tables.Names.Named(table))
	case target.MySQL:
		return e.texts(ctx, "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = "+
			e.Tables.Names.Database()+" AND table_name = ?", e.Tables.Names.Prefix()+table)
	}
	return e.texts(ctx, "SELECT name FROM pragma_index_list(?)", e.Tables.Names.Prefix()+table)
}

// keyOf returns the key column of each table. Without its unique index, two
// claims of a key would create two rows.
var keyOf = map[string]string{"schema": "version", "record": "key", "consumer": "id", "position": "id", "shelf": "id",
	"lane": "lane", "relay": "id"}

// unique returns the columns of a table that have a unique index of their own.
func (e *examination) unique(ctx context.Context, table string) ([]string, error) {
	switch e.Engine {
	case target.PostgreSQL:
		return e.texts(ctx, "SELECT a.attname FROM pg_index x "+
			"JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0] WHERE x.indrelid = to_regclass($1) "+
			"AND x.indisunique AND x.indisvalid AND x.indpred IS NULL AND x.indnkeyatts = 1", e.Tables.Names.Named(table))
	case target.MySQL:
		return e.texts(ctx, "SELECT min(column_name) FROM information_schema.statistics WHERE table_schema = "+
			e.Tables.Names.Database()+" AND table_name = ? AND non_unique = 0 GROUP BY index_name HAVING count(*) = 1",
			e.Tables.Names.Prefix()+table)
	}
	return e.texts(ctx, "SELECT min(c.name) FROM pragma_index_list(?1) i, pragma_index_info(i.name) c "+
		`WHERE i."unique" = 1 AND i.partial = 0 GROUP BY i.name HAVING count(*) = 1 `+
		"UNION ALL SELECT name FROM pragma_table_info(?1) WHERE pk = 1", e.Tables.Names.Prefix()+table)
}
