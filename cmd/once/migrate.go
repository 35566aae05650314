package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

type migrateCommand struct {
	Status migrateStatus `cmd:"" help:"Compare the version of the tables with the one that this program needs."`
	Up     migrateUp     `cmd:"" help:"Create the tables, or migrate them to the version of this program."`
	SQL    migrateSQL    `cmd:"" name:"sql" help:"Print the SQL of the migration."`
}

// Help is the long text of once migrate --help.
func (migrateCommand) Help() string {
	return `
Examples:
  once migrate status
  once migrate sql > once.sql
  once migrate up

` + exitHelp
}

type migrateStatus struct {
	storeFlags
	outputFlags
}

// Help is the long text of once migrate status --help.
func (migrateStatus) Help() string {
	return `
Exit status: 0 the tables fit this program, 1 they do not, and the output says what to do.

Example:
  once migrate status -o json`
}

// schemaJSON is the JSON form of the state of the tables.
type schemaJSON struct {
	Version    int           `json:"version"`
	Compatible int           `json:"compatible"`
	Latest     int           `json:"latest"`
	Fits       bool          `json:"fits"`
	Misfit     string        `json:"misfit,omitempty"`
	Applied    []appliedJSON `json:"applied"`
}

type appliedJSON struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	At      string `json:"at"`
}

// Run prints the versions.
func (c *migrateStatus) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	tables, err := s.Database()
	if err != nil {
		return err
	}
	now, err := tables.Schema(ctx)
	if err != nil {
		return err
	}
	if err := c.print(now); err != nil {
		return err
	}
	if now.Misfit != nil {
		return errNo
	}
	return nil
}

func (c *migrateStatus) print(now target.Schema) error {
	if c.json() {
		j := schemaJSON{now.Version, now.Compatible, now.Latest, now.Misfit == nil, "", []appliedJSON{}}
		if now.Misfit != nil {
			j.Misfit = now.Misfit.Error()
		}
		for _, a := range now.Applied {
			j.Applied = append(j.Applied, appliedJSON{a.Version, a.Name, stamp(a.At)})
		}
		return printJSON(j)
	}
	table := newTable("VERSION", "NAME", "APPLIED")
	for _, a := range now.Applied {
		table.Row(fmt.Sprint(a.Version), a.Name, show.Ago(time.Since(a.At)))
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	verdict := "The tables fit this program.\n"
	if now.Misfit != nil {
		verdict = "The tables do not fit: " + string(show.Text(now.Misfit.Error())) + "\n"
	}
	_, err := os.Stdout.WriteString(verdict)
	return err
}

type migrateUp struct {
	storeFlags
	Yes bool `short:"y" help:"Skip confirmation."`
}

// Help is the long text of once migrate up --help.
func (migrateUp) Help() string {
	return `
The migration can be interrupted, repeated, and run while programs use the tables. A missing SQLite file is created.

Example:
  once migrate up --yes`
}

// Run creates or migrates the tables.
func (c *migrateUp) Run(ctx context.Context) error {
	s, err := c.open(ctx)
	if errors.Is(err, target.ErrNoFile) {
		return c.make(ctx)
	}
	if err != nil {
		return err
	}
	defer s.Close()
	tables, err := s.Database()
	if err != nil {
		return err
	}
	before, err := tables.Schema(ctx)
	if err != nil {
		return err
	}
	if before.Misfit == nil && before.Version >= before.Latest {
		note("Nothing to do: %s has version %d.", s, before.Version)
		return nil
	}
	ask := changeFlags{Yes: c.Yes}
	if err := ask.confirm(ctx, s, fmt.Sprintf("  The tables are migrated from version %d to %d.", before.Version,
		before.Latest)); err != nil {
		return err
	}
	return migrate(ctx, s)
}

// make creates a SQLite file. It runs after the confirmation, because the name may
// be a typing error.
func (c *migrateUp) make(ctx context.Context) error {
	s, err := c.openWith(ctx, &target.Options{Create: true})
	if err != nil {
		return err
	}
	defer s.Close()
	ask := changeFlags{Yes: c.Yes}
	if err := ask.confirm(ctx, s, "  The file does not exist. It is created with the tables."); err != nil {
		return err
	}
	return migrate(ctx, s)
}

func migrate(ctx context.Context, s *session) error {
	line := newProgress(outputFlags{})
	if err := line.during("Migrating the tables", func() error { return s.Tables.Migrate(ctx) }); err != nil {
		return err
	}
	after, err := s.Tables.Schema(ctx)
	if err == nil {
		note("The tables now have version %d.", after.Version)
	}
	return err
}

type migrateSQL struct {
	storeFlags
	From *int `placeholder:"VERSION" help:"Version to start from, 0 for no tables. Default: the version of the database."`
}

// Help is the long text of once migrate sql --help.
func (migrateSQL) Help() string {
	return `
With --from, the database is not read.

Examples:
  once migrate sql
  once migrate sql --from 0 --url postgres://host/shop`
}

// Run prints the SQL.
func (c *migrateSQL) Run(ctx context.Context) error {
	s, err := c.openWith(ctx, &target.Options{Create: c.From != nil}) // which makes no file before it is used
	if err != nil {
		return err
	}
	defer s.Close()
	tables, err := s.Database()
	if err != nil {
		return err
	}
	from := 0
	if c.From != nil {
		from = *c.From
	} else {
		now, err := tables.Schema(ctx)
		if err != nil {
			return err
		}
		from = now.Version
	}
	switch latest := tables.Latest(); {
	case c.From != nil && from < 0:
		return usage("--from is %d: use the version of the tables, or 0 if there are none", from)
	case c.From != nil && from > latest:
		return usage("--from is %d, but the latest version that this program knows is %d: once migrate status prints the version "+
			"of the tables. If that is %[1]d, use the program that created them", from, latest)
	case from >= latest:
		note("Nothing to do: %s", map[bool]string{true: fmt.Sprintf("version %d is the latest that this program knows.", from),
			false: fmt.Sprintf("%s has version %d.", s, from)}[c.From != nil])
		return nil
	}
	text, err := tables.SQL(from)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(text)
	return err
}
