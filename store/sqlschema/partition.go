package sqlschema

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Partitioned names the tables of a store in PostgreSQL that forgets records by
// dropping partitions. [Names.Partitioned] returns it.
//
// The table of records is partitioned by its column part, which is the id of a
// row in <prefix>part. The partition with the largest id takes all new rows.
// The others are closed. No unique index covers the whole table. Each partition
// has one on its keys. The store makes sure that a key is in at most one
// partition, by these rules:
//
//   - A transaction that inserts a key has taken its advisory lock in an
//     earlier statement than the one that looked for the key.
//   - A row that has a key_until is never updated, only deleted. So in a closed
//     partition, rows past their time remain past their time.
//   - The set of partitions changes under ACCESS EXCLUSIVE on the table. With a
//     weaker lock, a transaction that has already locked the table would
//     continue without a partition that was added, and not find the keys in it.
type Partitioned struct{ Names }

// Partitioned returns the names of the tables with partitions.
func (n Names) Partitioned() Partitioned { return Partitioned{n} }

// Parts is the table of partitions, as SQL.
func (p Partitioned) Parts() string { return p.table("part") }

// Part is a partition, as SQL.
func (p Partitioned) Part(id int64) string { return p.table(fmt.Sprintf("record_%d", id)) }

// Lock is the number of the advisory lock that a transaction holds while it
// claims key. Statements combine it with [Partitioned.OID]. It does not depend
// on names, so stores that name one schema in two ways take the same lock.
func (p Partitioned) Lock(key [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(key[:8]) ^ binary.BigEndian.Uint64(key[8:]))
}

// OID is the object ID of the table, as a bigint in SQL.
func (p Partitioned) OID() string { return "'" + p.Table() + "'::regclass::oid::bigint" }

// Create is the SQL that creates a partition. It takes no rows before
// [Partitioned.Attach].
//
// A small partition is not analyzed: the plan for a few rows reads all of them,
// and would still be in use when there are many.
func (p Partitioned) Create(id int64) []string {
	return []string{
		fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS) WITH (autovacuum_analyze_threshold = 5000, autovacuum_vacuum_threshold = 5000)",
			p.Part(id), p.Table()),
		fmt.Sprintf("CREATE UNIQUE INDEX %s ON %s (key)", p.quote(fmt.Sprintf("%srecord_%d_key", p.prefix, id)), p.Part(id)),
	}
}

// Attach is the SQL that makes a partition the newest one.
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

// Migrations returns all migrations of tables with partitions that this build
// knows.
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

// partColumns: due is the next time to check whether the partition can be
// dropped, tried the time at which a change of it was last given up.
const partColumns = ` (
	id bigint NOT NULL PRIMARY KEY,
	begun bigint NOT NULL,
	due bigint NOT NULL DEFAULT 0,
	tried bigint NOT NULL DEFAULT 0
)`

// Latest is the version of the last migration.
func (p Partitioned) Latest() int {
	all := p.Migrations()
	return all[len(all)-1].Version
}

// Migrate is [Names.Migrate] for tables with partitions.
func (p Partitioned) Migrate(ctx context.Context, q Querier) error {
	if err := p.CheckSession(ctx, q); err != nil {
		return err
	}
	return p.migrateInTx(ctx, q, p.Migrations(), func(at state) error {
		if at.version == 0 {
			return nil
		}
		return p.refuse(at)
	})
}

// Check is [Names.Check] for tables with partitions.
func (p Partitioned) Check(ctx context.Context, q Querier) error {
	at, err := p.installed(ctx, q)
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

// refuse refuses tables that this build cannot use.
func (p Partitioned) refuse(at state) error {
	switch {
	case at.version <= partitionedFrom:
		return Refusal(fmt.Sprintf("the table %s has no partitions, and is not given any: leave Partition 0, or set another Prefix", p.Table()))
	case at.compatible > p.Latest():
		return tooNew(at, p.Latest())
	}
	return nil
}

// Print is [Names.Print] for tables with partitions.
func (p Partitioned) Print(from int) string { return p.print(p.Migrations(), from) }

// Whole names tables without partitions. Where it finds tables with partitions,
// its errors say so. [Names.Whole] returns it.
type Whole struct{ Names }

// Whole returns the names of the tables without partitions.
func (n Names) Whole() Whole { return Whole{n} }

// Migrate is [Names.Migrate].
func (w Whole) Migrate(ctx context.Context, q Querier) error {
	return w.clarify(ctx, q, w.Names.Migrate(ctx, q))
}

// Check is [Names.Check].
func (w Whole) Check(ctx context.Context, q Querier) error {
	return w.clarify(ctx, q, w.Names.Check(ctx, q))
}

// clarify replaces the error for tables with partitions, whose versions look
// like those of a newer build.
func (w Whole) clarify(ctx context.Context, q Querier, err error) error {
	var refused Refusal
	if !errors.As(err, &refused) {
		return err
	}
	if at, looked := w.installed(ctx, q); looked == nil && at.version > partitionedFrom {
		return Refusal(fmt.Sprintf("the table %s has partitions: set Partition of the Options of pgstore, or another Prefix", w.Table()))
	}
	return err
}
