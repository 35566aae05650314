package sqlschema

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Executor runs SQL without arguments on one connection, which nobody else uses meanwhile. Both database/sql and
// pgx are behind it with a few lines.
type Executor interface {
	// Exec runs one statement and throws away what it yields.
	Exec(ctx context.Context, statement string) error
	// Number runs a query that yields one row with one number.
	Number(ctx context.Context, query string) (int64, error)
}

// Migrate leads the tables to the latest version; where they are, it changes nothing. It holds a lock on these
// names, so any number of processes may call it at once. The connection is outside a transaction; after an error
// it may be left inside one, or with the lock, and is to be closed.
//
// In PostgreSQL, SQLite and SQL Server it is one transaction, all or nothing. In MySQL, where CREATE commits, it goes on
// where an interrupted one stopped. A [Refusal]: the tables are of a newer build that this one cannot work with.
func (n Names) Migrate(ctx context.Context, x Executor) error {
	if err := n.CheckSession(ctx, x); err != nil {
		return err
	}
	if n.dialect == MySQL {
		return n.locked(ctx, x)
	}
	if err := x.Exec(ctx, map[Dialect]string{
		PostgreSQL: "BEGIN ISOLATION LEVEL READ COMMITTED", // after the lock, see what its last holder did
		SQLite:     "BEGIN IMMEDIATE",
		SQLServer:  "BEGIN TRANSACTION",
	}[n.dialect]); err != nil {
		return err
	}
	if err := n.lockedInTx(ctx, x); err != nil {
		return errors.Join(err, finish(ctx, x, "ROLLBACK"))
	}
	return finish(ctx, x, "COMMIT")
}

// finish ends what was begun, also when ctx is over.
func finish(ctx context.Context, x Executor, statement string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return x.Exec(ctx, statement)
}

func (n Names) lockedInTx(ctx context.Context, x Executor) error {
	if err := n.lockInTx(ctx, x); err != nil {
		return err
	}
	if err := n.ensureSchema(ctx, x); err != nil {
		return err
	}
	return n.upgrade(ctx, x)
}

// lockInTx takes a lock that ends with the transaction. In SQLite, its beginning was that.
func (n Names) lockInTx(ctx context.Context, x Executor) error {
	switch n.dialect {
	case PostgreSQL:
		return x.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(n.hash("migrate"))))
	case SQLServer:
		got, err := x.Number(ctx, fmt.Sprintf("DECLARE @got int; EXEC @got = sp_getapplock N'once migrates %s', N'Exclusive', "+
			"N'Transaction', %d; SELECT @got", n.prefix, lockSeconds*1000))
		if err == nil && got < 0 {
			err = errLocked
		}
		return err
	}
	return nil
}

// ensureSchema looks before it creates: IF NOT EXISTS asks for the right to create even where nothing is to do.
func (n Names) ensureSchema(ctx context.Context, x Executor) error {
	if n.schema == "" {
		return nil
	}
	found, err := x.Number(ctx, map[Dialect]string{
		PostgreSQL: "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = '" + n.schema + "'",
		// A role may see the tables in a schema that it does not see itself.
		SQLServer: "SELECT CASE WHEN SCHEMA_ID(N'" + n.schema + "') IS NULL AND OBJECT_ID(N'" + n.Versions() + "', N'U') IS NULL THEN 0 ELSE 1 END",
	}[n.dialect])
	if err != nil || found > 0 {
		return err
	}
	return x.Exec(ctx, "CREATE SCHEMA "+n.quote(n.schema))
}

const lockSeconds = 60

var errLocked = fmt.Errorf("another connection has been changing these tables for %d seconds: try again later", lockSeconds)

// locked holds MySQL's named lock, which belongs to the connection and outlives the commits of CREATE.
func (n Names) locked(ctx context.Context, x Executor) error {
	name := fmt.Sprintf("CONCAT('once', MD5(CONCAT(%s, '.%s')))", n.database(), n.prefix)
	got, err := x.Number(ctx, fmt.Sprintf("SELECT COALESCE(GET_LOCK(%s, %d), 0)", name, lockSeconds))
	if err != nil {
		return err
	}
	if got != 1 {
		return errLocked
	}
	err = n.upgrade(ctx, x)
	return errors.Join(err, finish(ctx, x, "DO RELEASE_LOCK("+name+")"))
}

func (n Names) upgrade(ctx context.Context, x Executor) error {
	at, err := n.installed(ctx, x)
	if err == nil {
		err = n.refuseFuture(at)
	}
	if err != nil {
		return err
	}
	for _, m := range n.Migrations() {
		if m.Version <= at.version {
			continue
		}
		if err := apply(ctx, x, m); err != nil {
			return fmt.Errorf("schema version %d (%s): %w", m.Version, m.Name, err)
		}
	}
	return nil
}

func apply(ctx context.Context, x Executor, m Migration) error {
	applied := int64(0)
	if m.Applied != "" {
		var err error
		if applied, err = x.Number(ctx, m.Applied); err != nil {
			return err
		}
	}
	if applied == 0 {
		for _, statement := range m.SQL {
			if err := x.Exec(ctx, statement); err != nil {
				return err
			}
		}
	}
	return x.Exec(ctx, m.Row)
}

// Check reports whether this build can keep keys in the tables as they are, with a [Refusal] that says what to do.
// It only reads, and does not fail a transaction that it is in.
func (n Names) Check(ctx context.Context, x Executor) error {
	at, err := n.installed(ctx, x)
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

func tooOld(version, need int) Refusal {
	return Refusal(fmt.Sprintf("schema version %d is too old, this program needs %d: call Migrate, "+
		"or have a DBA run the SQL that Schema returns from version %d on", version, need, version))
}

// state is the version of the tables; 0: there are none.
type state struct{ version, compatible int }

func (n Names) refuseFuture(at state) error {
	if at.compatible <= n.Latest() {
		return nil
	}
	if n.dialect == PostgreSQL && at.version >= partitionedFrom {
		return Refusal("these tables have partitions: use them with pgstore and Options.Partition, or choose another Prefix")
	}
	return Refusal(fmt.Sprintf("schema version %d is from the future: it works with programs that know version %d, "+
		"this one knows %d: upgrade this program", at.version, at.compatible, n.Latest()))
}

// installed looks whether there is a table before it reads it: in PostgreSQL, an error would end a transaction
// of the caller's.
func (n Names) installed(ctx context.Context, x Executor) (at state, err error) {
	found, err := x.Number(ctx, map[Dialect]string{
		PostgreSQL: "SELECT count(to_regclass('" + n.Versions() + "'))",
		MySQL: "SELECT count(*) FROM information_schema.tables WHERE table_schema = " + n.database() +
			" AND table_name = '" + n.prefix + "schema'",
		SQLite:    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '" + n.prefix + "schema'",
		SQLServer: "SELECT CASE WHEN OBJECT_ID(N'" + n.Versions() + "', N'U') IS NULL THEN 0 ELSE 1 END",
	}[n.dialect])
	if err != nil || found == 0 {
		return at, err
	}
	for _, part := range []struct {
		name string
		to   *int
	}{{"version", &at.version}, {"compatible", &at.compatible}} {
		number, err := x.Number(ctx, "SELECT COALESCE(MAX("+part.name+"), 0) FROM "+n.Versions())
		if err != nil {
			return at, err
		}
		*part.to = int(number)
	}
	return at, nil
}
