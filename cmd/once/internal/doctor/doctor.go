// Package doctor looks at a database that holds a store, and says in plain words what is unsafe about it, and what
// waits for somebody. It only reads.
package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// Severity is how bad a finding is.
type Severity string

const (
	Unsafe  Severity = "unsafe"  // a promise does not hold: effects can be lost or doubled, or nothing works
	Warning Severity = "warning" // somebody has to look, soon
	Note    Severity = "note"    // it is good to know
)

// Finding is one thing that was found.
type Finding struct {
	Name     string // the same for ever: docs/command.md explains it
	Severity Severity
	What     string // that was seen
	Means    string
	Do       string
}

// Report is what an examination has come to.
type Report struct {
	Checks   []string // that were made
	Findings []Finding
}

// ranks are how bad severities are.
var ranks = map[Severity]int{Note: 1, Warning: 2, Unsafe: 3}

// Worst reports whether there is a finding of this severity, or of a worse one.
func (r Report) Worst(least Severity) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return ranks[f.Severity] >= ranks[least] })
}

// Unmade is how many checks could not be made.
func (r Report) Unmade() (n int) {
	for _, f := range r.Findings {
		if f.Name == notChecked {
			n++
		}
	}
	return n
}

const notChecked = "not-checked"

// check looks at one thing.
type check struct {
	name   string
	engine target.Engine // empty: every one
	tables bool          // it needs tables that fit
	look   func(context.Context, *examination) error
}

// examination is what checks work on.
type examination struct {
	*target.Target
	fits   bool
	report *Report
}

func (e *examination) found(name string, s Severity, what, means, do string) {
	e.report.Findings = append(e.report.Findings, Finding{name, s, what, means, do})
}

// checks are in an order that shows first what explains the rest.
func checks() []check {
	return []check{
		{name: "schema", look: schema},
		{name: "schema-drift", look: drift},
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
		{name: "clock", look: clock},
		{name: "keys", tables: true, look: keys},
		{name: "retention", tables: true, look: retention},
		{name: "shelf", tables: true, look: shelf},
		{name: "outbox", tables: true, look: outgoing},
		{name: "consumers", tables: true, look: consumers},
	}
}

// Examine makes all checks. Only a database that cannot be reached is an error: a check that fails for another reason,
// for example for the lack of a right, is a note.
func Examine(ctx context.Context, t *target.Target) (Report, error) {
	r := Report{Findings: []Finding{}}
	if err := t.DB.PingContext(ctx); err != nil {
		return r, err
	}
	e := &examination{Target: t, report: &r}
	for _, c := range checks() {
		if c.engine != "" && c.engine != t.Engine || c.tables && !e.fits {
			continue
		}
		err := c.look(ctx, e)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			e.found(notChecked, Note, fmt.Sprintf("%s: %v", c.name, secret.From(ctx).Error(err)),
				"This could not be looked at, so nothing is known about it.",
				"Give the role the right to read it, or look yourself.")
		default:
			r.Checks = append(r.Checks, c.name)
		}
	}
	return r, nil
}

// text is what a query of one row and one column yields.
func (e *examination) text(ctx context.Context, query string, args ...any) (value string, err error) {
	var given *string
	if err = e.DB.QueryRowContext(ctx, query, args...).Scan(&given); err == nil && given != nil {
		value = *given
	}
	return value, err
}

func (e *examination) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = e.DB.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// texts is what a query of one column yields.
func (e *examination) texts(ctx context.Context, query string, args ...any) (values []string, err error) {
	rows, err := e.DB.QueryContext(ctx, query, args...)
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
