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
	List   contextList   `cmd:"" help:"List the targets and mark the current one."`
	Set    contextSet    `cmd:"" help:"Save a database under a name."`
	Use    contextUse    `cmd:"" help:"Make a target the current one."`
	Remove contextRemove `cmd:"" help:"Delete a target. The database is not changed."`
}

// Help is the long text of once context --help.
func (contextCommand) Help() string {
	return `
A target is a name for the URL of a database with a store. Targets are saved in targets.json in your configuration
directory, readable only by you. Keep passwords out of it: ${NAME} in a URL is replaced by that environment variable
when the target is used.

A verb works on --url, then --target, then $ONCE_TARGET, then the current target.

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
		note("There are no targets. See once context set --help.")
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
	Name string `arg:"" help:"Name of the target: letters, digits, dots, dashes and underscores."`
	URL  string `arg:"" name:"url" help:"postgres://, mysql://, sqlite:, redis://, dynamodb://, cosmosdb://, azuretables:// or nats://, see below."`
}

var targetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Help is the long text of once context set --help.
func (contextSet) Help() string {
	return `
These parameters of a URL are for once. All others are passed to the driver.

  prefix=once_     prefix of table names, or of keys (Redis, DynamoDB)
  schema=payments  schema of the tables (PostgreSQL) or their database (MySQL)
  partition=24h    length of the partitions of the tables (PostgreSQL)
  outbox=log-only  outbox mode: table, rows-by-log or log-only (PostgreSQL)
  slot=name        replication slot of the outbox mode; the slot of a store in a cluster (Redis)
  socket=/path     Unix socket of the server (MySQL)
  cluster=true     a cluster (Redis); addr=host:port adds a server

Redis with Sentinel: redis://sentinel:26379?master_name=main&addr=sentinel2:26379

DynamoDB: dynamodb://table?region=eu-central-1, with index, expiry, partition_key and sort_key as in your programs, and
credentials from where the AWS command line finds them

Cosmos DB: cosmosdb://:${COSMOS_KEY}@account.documents.azure.com/database/container, with partition_key=scope if your
programs use cosmosstore.ByScope; without a key, Microsoft Entra ID decides

Azure Tables: azuretables://account:${TABLES_KEY}@account.table.core.windows.net/table

NATS: nats://user:${NATS_PASSWORD}@host:4222/bucket, with addr=host:port for more servers, or creds=FILE

Example:
  once context set prod 'postgres://ops:${PROD_PASSWORD}@db.internal/shop?schema=payments'`
}

// Run saves the target. The first saved target becomes the current one.
func (c *contextSet) Run(ctx context.Context) error {
	if !targetName.MatchString(c.Name) {
		return usage("%q is not a valid name for a target: use letters, digits, dots, dashes and underscores", c.Name)
	}
	printed, err := target.Redact(c.URL)
	if err != nil {
		return err
	}
	if file, ok := strings.CutPrefix(c.URL, "sqlite:"); ok && !strings.HasPrefix(file, "/") && !strings.HasPrefix(file,
		"${") {
		return usage("a target needs an absolute path: sqlite:/path/file.db")
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
		note("The password is now stored in %s. Consider an environment variable instead: write ${NAME} in the URL.", f.Path())
	}
	note("%s is %s", c.Name, printed)
	return nil
}

type contextUse struct {
	Name string `arg:"" complete:"target" help:"Name of the target."`
}

// Help is the long text of once context use --help.
func (contextUse) Help() string {
	return "\nExample:\n  once context use prod"
}

// Run makes a target the current one.
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
	Name string `arg:"" complete:"target" help:"Name of the target."`
}

// Help is the long text of once context remove --help.
func (contextRemove) Help() string {
	return "\nExample:\n  once context remove old"
}

// Run deletes a target.
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
