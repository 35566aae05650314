// Package doctor examines a database with a store and reports what is unsafe
// about it and what needs attention. It only reads.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// Severity ranks a finding.
type Severity string

const (
	Unsafe  Severity = "unsafe"  // a promise does not hold: effects can be lost or doubled, or nothing works
	Warning Severity = "warning" // needs attention soon
	Note    Severity = "note"    // for information
)

// Finding is the result of a check.
type Finding struct {
	Name     string // stable; docs/command.md lists it
	Severity Severity
	What     string // what the check saw
	Means    string
	Do       string
}

// Report is the result of an examination.
type Report struct {
	Checks   []string // names of the checks that ran
	Findings []Finding
}

// ranks orders the severities.
var ranks = map[Severity]int{Note: 1, Warning: 2, Unsafe: 3}

// Worst reports whether there is a finding of this severity or worse.
func (r Report) Worst(least Severity) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return ranks[f.Severity] >= ranks[least] })
}

// Unmade returns the number of checks that could not run.
func (r Report) Unmade() (n int) {
	for _, f := range r.Findings {
		if f.Name == notChecked {
			n++
		}
	}
	return n
}

const notChecked = "not-checked"

// check is a single check.
type check struct {
	name   string
	engine target.Engine // empty: all engines
	sql    bool          // it needs tables, whether or not they fit this program
	fits   bool          // it needs tables that fit this program, if the store has any
	look   func(context.Context, *examination) error
}

// examination is the state that checks share.
type examination struct {
	*target.Target
	fits   bool
	report *Report
}

func (e *examination) found(name string, s Severity, what, means, do string) {
	e.report.Findings = append(e.report.Findings, Finding{name, s, what, means, do})
}

// checks are ordered so that causes come before consequences.
func checks() []check {
	return []check{
		{name: "schema", sql: true, look: schema},
		{name: "schema-drift", sql: true, look: drift},
		{name: "server", engine: target.PostgreSQL, look: postgresServer},
		{name: "durability", engine: target.PostgreSQL, look: postgresDurability},
		{name: "failover", engine: target.PostgreSQL, look: postgresFailover},
		{name: "idle-transactions", engine: target.PostgreSQL, look: postgresIdle},
		{name: "outbox-log", engine: target.PostgreSQL, look: postgresLog},
		{name: "server", engine: target.MySQL, look: mysqlServer},
		{name: "durability", engine: target.MySQL, look: mysqlDurability},
		{name: "replica", engine: target.MySQL, look: mysqlReplica},
		{name: "failover", engine: target.MySQL, look: mysqlFailover},
		{name: "tables", engine: target.MySQL, look: mysqlTables},
		{name: "idle-transactions", engine: target.MySQL, look: mysqlIdle},
		{name: "durability", engine: target.SQLite, look: sqliteDurability},
		{name: "server", engine: target.Redis, look: redisServer},
		{name: "durability", engine: target.Redis, look: redisDurability},
		{name: "table", engine: target.DynamoDB, look: dynamoTable},
		{name: "expiry", engine: target.DynamoDB, look: dynamoExpiry},
		{name: "recovery", engine: target.DynamoDB, look: dynamoBackups},
		{name: "table", engine: target.AzureTables, look: azureTable},
		{name: "bucket", engine: target.NATS, look: natsBucket},
		{name: "container", engine: target.CosmosDB, look: cosmosContainer},
		{name: "clock", look: clock},
		{name: "keys", fits: true, look: keys},
		{name: "retention", sql: true, fits: true, look: retention},
		{name: "shelf", fits: true, look: shelf},
		{name: "outbox", fits: true, look: outgoing},
		{name: "consumers", fits: true, look: consumers},
		{name: "queues", fits: true, look: queues},
	}
}

// Examine runs all checks. It returns an error only if the database cannot be
// reached. A check that fails for another reason, such as a missing privilege,
// becomes a note.
func Examine(ctx context.Context, t *target.Target) (Report, error) {
	r := Report{Findings: []Finding{}}
	if _, err := t.Now(ctx); err != nil {
		return r, err
	}
	e := &examination{Target: t, fits: t.Tables == nil, report: &r}
	for _, c := range checks() {
		if c.engine != "" && c.engine != t.Engine || c.sql && t.Tables == nil || c.fits && !e.fits {
			continue
		}
		err := c.look(ctx, e)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case errors.Is(err, target.ErrLacks): // there is nothing to look at
		case err != nil:
			e.found(notChecked, Note, fmt.Sprintf("%s: %v", c.name, secret.From(ctx).Error(err)),
				"This check could not run.",
				"Give the role the privilege to read this, or check it by hand.")
		default:
			r.Checks = append(r.Checks, c.name)
		}
	}
	return r, nil
}

// text returns the result of a query with one row and one column.
func (e *examination) text(ctx context.Context, query string, args ...any) (value string, err error) {
	var given *string
	if err = e.Tables.DB.QueryRowContext(ctx, query, args...).Scan(&given); err == nil && given != nil {
		value = *given
	}
	return value, err
}

func (e *examination) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = e.Tables.DB.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// texts returns the result of a query with one column.
func (e *examination) texts(ctx context.Context, query string, args ...any) (values []string, err error) {
	rows, err := e.Tables.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, rows.Err()
}
