package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/target"
)

type contextCommand struct {
	List   contextList   `cmd:"" help:"List the targets, and which is in use."`
	Set    contextSet    `cmd:"" help:"Name a database."`
	Use    contextUse    `cmd:"" help:"Choose the target that the other verbs work on."`
	Remove contextRemove `cmd:"" help:"Forget a target. The database is not touched."`
}

// Help is the long text of once context --help.
func (contextCommand) Help() string {
	return `
A target is a name for the URL of a database that holds a store. The names are in the file targets.json, below your
own directory of configuration, which nobody else can read. Keep passwords out of it all the same: ${NAME} in a URL is
the variable of the environment of that name, looked up when the target is used.

Which target a verb works on: --url, else --target, else $ONCE_TARGET, else the one in use.

Examples:
  once context set prod 'postgres://ops:${PROD_PASSWORD}@db.internal/shop?sslmode=verify-full'
  once context set shop 'mysql://ops:${SHOP_PASSWORD}@db.internal:3306/shop?prefix=shop_'
  once context set here sqlite:/var/lib/shop/shop.db
  once context use prod`
}

type contextList struct{ outputFlags }

type contextJSON struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

// Run prints the targets.
func (c *contextList) Run() error {
	f, err := target.Load()
	if err != nil {
		return err
	}
	all := []contextJSON{}
	for _, name := range f.Names() {
		printed, err := target.Redact(f.Targets[name].URL)
		if err != nil {
			printed = err.Error()
		}
		all = append(all, contextJSON{name, printed, name == f.Current})
	}
	if c.json() {
		return printJSON(map[string]any{"targets": all})
	}
	if len(all) == 0 {
		note("No target is set: see once context set --help.")
	}
	table := newTable("", "NAME", "URL")
	for _, one := range all {
		mark := "" // a dash
		if one.Current {
			mark = "*"
		}
		table.Row(mark, one.Name, one.URL)
	}
	return table.Print(os.Stdout)
}

type contextSet struct {
	Name string `arg:"" help:"Letters, digits, dots, dashes and underscores."`
	URL  string `arg:"" name:"url" help:"postgres://..., mysql://... or sqlite:/path."`
}

var targetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Help is the long text of once context set --help.
func (contextSet) Help() string {
	return `
Of the parameters of a URL, these are not the driver's, but say where the tables are:

  prefix=once_     of the names of tables
  schema=payments  of the tables (PostgreSQL), or their database (MySQL)
  partition=24h    the tables have partitions (PostgreSQL)
  outbox=log-only  where relays find messages: table, rows-by-log or log-only (PostgreSQL)
  slot=name        the replication slot of that
  socket=/path     of the server (MySQL)

Example:
  once context set prod 'postgres://ops:${PROD_PASSWORD}@db.internal/shop?schema=payments'`
}

// Run writes the target down. The first one is in use from then on.
func (c *contextSet) Run(ctx context.Context) error {
	if !targetName.MatchString(c.Name) {
		return usage("%q is no name for a target: use letters, digits, dots, dashes and underscores", c.Name)
	}
	printed, err := target.Redact(c.URL)
	if err != nil {
		return err
	}
	if file, ok := strings.CutPrefix(c.URL, "sqlite:"); ok && !strings.HasPrefix(file, "/") && !strings.HasPrefix(file,
		"${") {
		return usage("a target is used from any directory: give the whole path, sqlite:/path/file.db")
	}
	f, err := target.Update(ctx, func(f *target.File) error {
		f.Targets[c.Name] = target.Named{URL: c.URL}
		if f.Current == "" {
			f.Current = c.Name
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the file of targets: %w", err)
	}
	if target.HasPassword(c.URL) {
		note("The password is in %s now. Better put it into a variable, and write ${NAME} in its place.", f.Path())
	}
	note("%s is %s", c.Name, printed)
	return nil
}

type contextUse struct {
	Name string `arg:"" help:"The target."`
}

// Help is the long text of once context use --help.
func (contextUse) Help() string {
	return "\nExample:\n  once context use prod"
}

// Run chooses a target.
func (c *contextUse) Run(ctx context.Context) error {
	_, err := target.Update(ctx, func(f *target.File) error {
		if _, ok := f.Targets[c.Name]; !ok {
			return moved("there is no target %q", c.Name)
		}
		f.Current = c.Name
		return nil
	})
	return err
}

type contextRemove struct {
	Name string `arg:"" help:"The target."`
}

// Help is the long text of once context remove --help.
func (contextRemove) Help() string {
	return "\nExample:\n  once context remove old"
}

// Run forgets a target.
func (c *contextRemove) Run(ctx context.Context) error {
	_, err := target.Update(ctx, func(f *target.File) error {
		if _, ok := f.Targets[c.Name]; !ok {
			return moved("there is no target %q", c.Name)
		}
		delete(f.Targets, c.Name)
		if f.Current == c.Name {
			f.Current = ""
		}
		return nil
	})
	return err
}
