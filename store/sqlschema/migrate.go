package sqlschema

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Migrate creates the tables or upgrades them to the latest version. It changes
// nothing if they have that version. It holds a lock on these names, so any
// number of processes may call it at once.
//
// Q is a connection for exclusive use, outside a transaction.
// After an error it may be left in a transaction, or with the lock, so the
// caller closes it.
//
// In PostgreSQL, SQLite and SQL Server, all is one transaction. In MySQL, where
// CREATE commits, Migrate continues where an interrupted call stopped. It
// returns a [Refusal] if a newer build has upgraded the tables to a version
// that this build cannot use.
func (n Names) Migrate(ctx context.Context, q Querier) error {
	if err := n.CheckSession(ctx, q); err != nil {
		return err
	}
	if n.dialect == MySQL {
		return n.migrateMySQL(ctx, q)
	}
	return n.migrateInTx(ctx, q, n.Migrations(), n.refuseFuture)
}

// migrateInTx applies migrations in one transaction, unless refuse returns an
// error for the version that is installed.
func (n Names) migrateInTx(ctx context.Context, q Querier, all []Migration, refuse func(state) error) error {
	if err := exec(ctx, q, map[Dialect]string{
		PostgreSQL: "BEGIN ISOLATION LEVEL READ COMMITTED", // after the lock, it sees what the last holder did
		SQLite:     "BEGIN IMMEDIATE",
		SQLServer:  "BEGIN TRANSACTION",
	}[n.dialect]); err != nil {
		return err
	}
	if err := n.lockAndUpgrade(ctx, q, all, refuse); err != nil {
		return errors.Join(err, finish(ctx, q, "ROLLBACK"))
	}
	return finish(ctx, q, "COMMIT")
}

// finish runs the last statement of a migration, even if ctx has ended.
func finish(ctx context.Context, q Querier, statement string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return exec(ctx, q, statement)
}

func (n Names) lockAndUpgrade(ctx context.Context, q Querier, all []Migration, refuse func(state) error) error {
	if err := n.lockInTx(ctx, q); err != nil {
		return err
	}
	if err := n.ensureSchema(ctx, q); err != nil {
		return err
	}
	return n.upgrade(ctx, q, all, refuse)
}

// lockInTx takes a lock that ends with the transaction. In SQLite, BEGIN has
// taken it.
func (n Names) lockInTx(ctx context.Context, q Querier) error {
	switch n.dialect {
	case PostgreSQL:
		return exec(ctx, q, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(n.hash("migrate"))))
	case SQLServer:
		got, err := number(ctx, q, fmt.Sprintf("DECLARE @got int; EXEC @got = sp_getapplock N'once migrates %s', N'Exclusive', "+
			"N'Transaction', %d; SELECT @got", n.prefix, lockSeconds*1000))
		if err == nil && got < 0 {
			err = errLocked
		}
		return err
	}
	return nil
}

// ensureSchema creates the schema if it is missing. IF NOT EXISTS would need
// the right to create schemas even if there is nothing to create.
func (n Names) ensureSchema(ctx context.Context, q Querier) error {
	if n.schema == "" {
		return nil
	}
	found, err := number(ctx, q, map[Dialect]string{
		PostgreSQL: "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = '" + n.schema + "'",
		// A role may see the tables in a schema that it does not see itself.
		SQLServer: "SELECT CASE WHEN SCHEMA_ID(N'" + n.schema + "') IS NULL AND OBJECT_ID(N'" + n.Versions() + "', N'U') IS NULL THEN 0 ELSE 1 END",
	}[n.dialect])
	if err != nil || found > 0 {
		return err
	}
	return exec(ctx, q, "CREATE SCHEMA "+n.quote(n.schema))
}

const lockSeconds = 60

var errLocked = fmt.Errorf("another connection has been changing these tables for %d seconds: try again later", lockSeconds)

// migrateMySQL holds a named lock, which belongs to the connection and so
// survives the implicit commits of CREATE.
func (n Names) migrateMySQL(ctx context.Context, q Querier) error {
	name, err := n.lockName(ctx, q)
	if err != nil {
		return err
	}
	got, err := number(ctx, q, fmt.Sprintf("SELECT COALESCE(GET_LOCK(%s, %d), 0)", name, lockSeconds))
	if err != nil {
		return err
	}
	if got != 1 {
		return errLocked
	}
	err = n.upgrade(ctx, q, n.Migrations(), n.refuseFuture)
	return errors.Join(err, finish(ctx, q, "DO RELEASE_LOCK("+name+")"))
}

// lockName is the name of the lock as SQL: a digest of the names of the database
// and of the tables, because a name may have 64 characters. It is computed here,
// because MySQL has no MD5 without a component from 9.6 on. And it stays what it
// was, so that a process of an earlier build waits for this one.
func (n Names) lockName(ctx context.Context, q Querier) (string, error) {
	var digits string
	query := fmt.Sprintf("SELECT COALESCE(HEX(CONCAT(%s, '.%s')), '')", n.Database(), n.prefix)
	err := Each(ctx, q, query, nil, func(rows Rows) error { return rows.Scan(&digits) })
	if err != nil {
		return "", err
	}
	tables, err := hex.DecodeString(digits)
	return fmt.Sprintf("'once%x'", md5.Sum(tables)), err
}

// upgrade applies the migrations that are newer than the version installed.
func (n Names) upgrade(ctx context.Context, q Querier, all []Migration, refuse func(state) error) error {
	at, err := n.installed(ctx, q)
	if err == nil {
		err = refuse(at)
	}
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Version <= at.version {
			continue
		}
		if err := apply(ctx, q, m); err != nil {
			return fmt.Errorf("schema version %d (%s): %w", m.Version, m.Name, err)
		}
	}
	return nil
}

func apply(ctx context.Context, q Querier, m Migration) error {
	applied := int64(0)
	if m.Applied != "" {
		var err error
		if applied, err = number(ctx, q, m.Applied); err != nil {
			return err
		}
	}
	if applied == 0 {
		for _, statement := range m.SQL {
			if err := exec(ctx, q, statement); err != nil {
				return err
			}
		}
	}
	return exec(ctx, q, m.Row)
}

// Check returns a [Refusal] that says what to do if this build cannot use the
// tables as they are. It only reads, and so does not abort a transaction.
func (n Names) Check(ctx context.Context, q Querier) error {
	at, err := n.installed(ctx, q)
	switch {
	case err != nil:
		return err
	case at.version == 0:
		return Refusal(fmt.Sprintf("the tables %s and %s are missing: call Migrate, "+
			"or have a DBA run the SQL that Schema returns", n.Table(), n.Versions()))
	case at.version < n.Latest():
		return tooOld(at.version, n.Latest())
	}
	return n.refuseFuture(at)
}

// refuseFuture refuses tables that a newer build has upgraded to a version that
// this build cannot use.
func (n Names) refuseFuture(at state) error {
	if at.compatible <= n.Latest() {
		return nil
	}
	if n.dialect == PostgreSQL && at.version >= partitionedFrom {
		return Refusal("these tables have partitions: use them with pgstore and Options.Partition, or choose another Prefix")
	}
	return tooNew(at, n.Latest())
}
