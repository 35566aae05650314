package sqlschema

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Partitioned are the tables of a store that forgets by dropping partitions, in PostgreSQL. [Names.Partitioned] makes them.
//
// The table of records is partitioned by its column part, which is the id of a row in <prefix>part. The partition with
// the largest id takes all new rows; the others are closed. No unique index is on the table as a whole, each partition has
// one on its keys, so that a key is in one partition at most is for the store to see to, by these rules:
//
//   - Whoever inserts a key holds its advisory lock since an earlier statement than the one that looked for the key.
//   - A row that has a key_until is never updated, only deleted: so what is past its time in a closed partition stays so.
//   - The set of partitions changes under ACCESS EXCLUSIVE on the table. With less, a transaction that has the
//     table locked already would go on without a partition that was added, and not find the keys in it.
type Partitioned struct{ Names }

// Partitioned returns the names of the tables with partitions.
func (n Names) Partitioned() Partitioned { return Partitioned{n} }

// partitionedFrom is where the versions of tables with partitions begin: further than those of tables without will get.
const partitionedFrom = 1 << 20

// Parts is the table of partitions, as SQL.
func (p Partitioned) Parts() string { return p.table("part") }

// Part is a partition, as SQL.
func (p Partitioned) Part(id int64) string { return p.table(fmt.Sprintf("record_%d", id)) }

// Lock is the number of the advisory lock that a transaction holds while it claims key, before [Partitioned.OID] is put
// into it. It depends on no name, so that stores that name one schema in two ways hold the same.
func (p Partitioned) Lock(key [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(key[:8]) ^ binary.BigEndian.Uint64(key[8:]))
}

// OID is the identity of the table in its database, as a bigint in SQL.
func (p Partitioned) OID() string { return "'" + p.Table() + "'::regclass::oid::bigint" }

// Create is the SQL of a new partition, which takes no rows before [Partitioned.Attach].
//
// A partition is not analyzed while it is small: a plan for a few rows reads them all, and is still in use when
// there are many.
func (p Partitioned) Create(id int64) []string {
	return []string{
		fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS) WITH (autovacuum_analyze_threshold = 5000, autovacuum_vacuum_threshold = 5000)",
			p.Part(id), p.Table()),
		fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (key)", p.quote(fmt.Sprintf("%srecord_%d_key", p.prefix, id)), p.Part(id)),
	}
}

// Attach is the SQL that makes a partition the newest.
func (p Partitioned) Attach(id int64) []string {
	return []string{
		fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES IN (%d)", p.Table(), p.Part(id), id),
		fmt.Sprintf("INSERT INTO %s (id, begun) VALUES (%d, %s)", p.Parts(), id, p.Now()),
	}
}

// Drop is the SQL that forgets a partition.
func (p Partitioned) Drop(id int64) []string {
	return []string{
		"DROP TABLE " + p.Part(id),
		fmt.Sprintf("DELETE FROM %s WHERE id = %d", p.Parts(), id),
	}
}

// Migrations are all that this build knows for tables with partitions.
func (p Partitioned) Migrations() []Migration {
	tables := Migration{Version: partitionedFrom + 1, Compatible: partitionedFrom + 1, Name: "partitions",
		SQL: []string{p.fill(partitionedTable()), p.fill(versionTable), "CREATE TABLE " + p.Parts() + partColumns}}
	tables.SQL = append(append(tables.SQL, p.Create(1)...), p.Attach(1)...)
	all := []Migration{p.withRow(tables), p.consumerTables(partitionedFrom+2, partitionedFrom+1),
		p.outboxTables(partitionedFrom+3, partitionedFrom+1), p.openRecords(partitionedFrom+4, partitionedFrom+1)}
	all = append(all, p.outboxCauses(partitionedFrom+5, partitionedFrom+1)...)
	return append(all, p.recordCauses(partitionedFrom+7, partitionedFrom+1), p.causeIndex(partitionedFrom+8, partitionedFrom+1))
}

func partitionedTable() string {
	return strings.Replace(recordTable, `"key" {uuid} NOT NULL PRIMARY KEY`, "part {big} NOT NULL,\n\t\"key\" {uuid} NOT NULL", 1) +
		" PARTITION BY LIST (part)"
}

// partColumns: due is when it is worth while to look whether a partition can go, tried when its change was last given up.
const partColumns = ` (
	id bigint NOT NULL PRIMARY KEY,
	begun bigint NOT NULL,
	due bigint NOT NULL DEFAULT 0,
	tried bigint NOT NULL DEFAULT 0
)`

// Latest is the version that this build knows, and needs.
func (p Partitioned) Latest() int {
	all := p.Migrations()
	return all[len(all)-1].Version
}

// Migrate is [Names.Migrate] for tables with partitions.
func (p Partitioned) Migrate(ctx context.Context, x Executor) error {
	if err := p.CheckSession(ctx, x); err != nil {
		return err
	}
	if err := x.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	if err := p.migrateInTx(ctx, x); err != nil {
		return errors.Join(err, finish(ctx, x, "ROLLBACK"))
	}
	return finish(ctx, x, "COMMIT")
}

func (p Partitioned) migrateInTx(ctx context.Context, x Executor) error {
	if err := p.lockInTx(ctx, x); err != nil {
		return err
	}
	if err := p.ensureSchema(ctx, x); err != nil {
		return err
	}
	at, err := p.installed(ctx, x)
	if err == nil && at.version != 0 {
		err = p.refuse(at)
	}
	if err != nil {
		return err
	}
	for _, m := range p.Migrations() {
		if m.Version <= at.version {
			continue
		}
		if err := apply(ctx, x, m); err != nil {
			return fmt.Errorf("schema version %d (%s): %w", m.Version, m.Name, err)
		}
	}
	return nil
}

// Check is [Names.Check] for tables with partitions.
func (p Partitioned) Check(ctx context.Context, x Executor) error {
	at, err := p.installed(ctx, x)
	switch {
	case err != nil:
		return err
	case at.version == 0:
		return Refusal(fmt.Sprintf("the tables %s, %s and %s are missing: call Migrate, "+
			"or have a DBA run the SQL that Schema returns", p.Table(), p.Parts(), p.Versions()))
	case at.version > partitionedFrom && at.version < p.Latest():
		return tooOld(at.version, p.Latest())
	}
	return p.refuse(at)
}

// refuse finds tables that this build cannot work with.
func (p Partitioned) refuse(at state) error {
	switch {
	case at.version <= partitionedFrom:
		return Refusal(fmt.Sprintf("the table %s has no partitions, and is not given any: leave Partition 0, or set another Prefix", p.Table()))
	case at.compatible > p.Latest():
		return Refusal(fmt.Sprintf("schema version %d is from the future: it works with programs that know version %d, "+
			"this one knows %d: upgrade this program", at.version, at.compatible, p.Latest()))
	}
	return nil
}

// Print is [Names.Print] for tables with partitions.
func (p Partitioned) Print(from int) string {
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	if p.schema != "" && from <= 0 {
		b.WriteString(p.createMissingSchema())
	}
	for _, m := range p.Migrations() {
		if m.Version <= from {
			continue
		}
		fmt.Fprintf(&b, "\n-- version %d: %s\n", m.Version, m.Name)
		for _, statement := range append(m.SQL, m.Row) {
			b.WriteString(statement + ";\n")
		}
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// Whole are the names of tables without partitions, which say so where they find some. [Names.Whole] makes them.
type Whole struct{ Names }

// Whole returns the names of the tables without partitions.
func (n Names) Whole() Whole { return Whole{n} }

// Migrate is [Names.Migrate].
func (w Whole) Migrate(ctx context.Context, x Executor) error {
	return w.clarify(ctx, x, w.Names.Migrate(ctx, x))
}

// Check is [Names.Check].
func (w Whole) Check(ctx context.Context, x Executor) error {
	return w.clarify(ctx, x, w.Names.Check(ctx, x))
}

// clarify says what is wrong with tables that look as if they came from the future.
func (w Whole) clarify(ctx context.Context, x Executor, err error) error {
	var refused Refusal
	if !errors.As(err, &refused) {
		return err
	}
	if at, looked := w.installed(ctx, x); looked == nil && at.version > partitionedFrom {
		return Refusal(fmt.Sprintf("the table %s has partitions: set Partition of the Options of pgstore, or another Prefix", w.Table()))
	}
	return err
}
