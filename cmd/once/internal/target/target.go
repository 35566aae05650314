// Package target opens the store that a URL names, for the verbs of the command that work on one.
//
//	postgres://user@host:5432/database?sslmode=require&schema=payments&prefix=once_
//	mysql://user@host:3306/database?tls=true
//	mysql://user@localhost/database?socket=/run/mysqld/mysqld.sock
//	sqlite:/var/lib/shop/shop.db
//	sqlite:shop.db?prefix=shop_
//
// The parameters schema, prefix, partition, outbox and slot are those of the stores' Options, and are taken out before
// the driver sees the rest. ${NAME} is the environment's variable of that name, see [Expand].
package target

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// Store is what the stores of all targets are. A [store.OutboxLog] is found by type assertion.
type Store interface {
	once.Store
	once.Lister
	store.Registry
	store.Shelf
	store.Relayable
	store.Bell
	store.Reopener
	SetPosition(ctx context.Context, p store.Position) error
	Positions(ctx context.Context, consumer string) ([]store.Position, error)
	Migrate(ctx context.Context) error
}

// Engine is the database behind a target.
type Engine string

const (
	PostgreSQL Engine = "postgres"
	MySQL      Engine = "mysql" // and MariaDB
	SQLite     Engine = "sqlite"
)

// Options are the options of [Open]. The zero value works.
type Options struct {
	once.Options
	Connections int  // at most; default 4, or what the URL says
	Create      bool // make a SQLite file that is missing; without it, that is an error
}

const defaultConnections = 4

// Target is a store that is open.
type Target struct {
	Store  Store
	Engine Engine

	// DB is the same database, for what no store asks.
	DB *sql.DB

	// Names are those of the tables.
	Names sqlschema.Names

	// Partitioned says that the tables are, or are to be, made with partitions.
	Partitioned bool

	// Logged says that the outbox is read from the database's log: then Store has the OutboxSlot of pgstore.
	Logged bool

	printed string
	schema  func(from int) (string, error)
	close   func() error
	bare    func(ctx context.Context, statement string) error
	guarded func(ctx context.Context, w once.Work[struct{}], statement string) error
}

// String is the URL without its passwords.
func (t *Target) String() string { return t.printed }

// Close closes the connections.
func (t *Target) Close() error { return t.close() }

// Migrate makes the tables, or leads them to the version of this build.
func (t *Target) Migrate(ctx context.Context) error { return t.Store.Migrate(ctx) }

// SQL is what Migrate would run on tables of a version, 0 for none.
func (t *Target) SQL(from int) (string, error) { return t.schema(from) }

// ErrURL is wrapped by what is wrong with a URL, as opposed to the database that it names.
var ErrURL = errors.New("the target's URL is not usable")

// ErrNoFile is wrapped by the error for a SQLite file that is missing. It wraps ErrURL.
var ErrNoFile = fmt.Errorf("%w: there is no file", ErrURL)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}

// Open opens the store that a URL names. It connects to nothing: the first use does. A nil Options means the defaults.
// The URL's secrets are added to the [secret.Set] of the context, which is to hide them in errors of the first use.
func Open(ctx context.Context, from string, o *Options) (*Target, error) {
	secrets := secret.From(ctx)
	t, err := open(ctx, from, o, secrets)
	if err != nil {
		return nil, secrets.Error(err)
	}
	t.printed = secrets.Hide(t.printed)
	return t, nil
}

func open(ctx context.Context, from string, o *Options, secrets *secret.Set) (*Target, error) {
	if o == nil {
		o = new(Options)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Sealing == (once.Sealing{}) {
		sealing, err := sealingFromEnvironment()
		if err != nil {
			return nil, err
		}
		with := *o
		with.Sealing, o = sealing, &with
	}
	expanded, err := Expand(from)
	if err != nil {
		return nil, err
	}
	secrets.AddURL(expanded)
	u, err := parse(expanded)
	if err != nil {
		return nil, err
	}
	own, err := takeOwn(u)
	if err != nil {
		return nil, err
	}
	var t *Target
	switch engineOf(u.Scheme) {
	case PostgreSQL:
		t, err = openPostgres(ctx, u, own, o, secrets)
	case MySQL:
		t, err = openMySQL(u, own, o)
	case SQLite:
		t, err = openSQLite(u, own, o)
	}
	if err != nil {
		return nil, err
	}
	t.printed, err = Redact(expanded)
	return t, err
}

// Redact returns a URL without its passwords, to be printed. One with ${NAME} in it keeps that.
func Redact(from string) (string, error) {
	if whole.MatchString(from) {
		return from, nil
	}
	if _, err := parse(variable.ReplaceAllString(from, "x")); err != nil { // with ${NAME}, it is no URL yet
		return "", err
	}
	return hidePassword(from), nil
}

// hidePassword leaves a password that is nothing but a variable as it is, and values of parameters that cannot be one.
func hidePassword(from string) string {
	before, query, found := strings.Cut(from, "?")
	if found {
		parameters := strings.Split(query, "&")
		for i, parameter := range parameters {
			if name, value, _ := strings.Cut(parameter, "="); value != "" && !secret.Shows(name, value) {
				parameters[i] = name + "=" + secret.Hidden
			}
		}
		from = before + "?" + strings.Join(parameters, "&")
	}
	user, _ := userinfo(from)
	name, password, ok := strings.Cut(user, ":")
	if ok && password != "" && !whole.MatchString(password) {
		from = strings.Replace(from, "//"+user+"@", "//"+name+":"+secret.Hidden+"@", 1)
	}
	return new(secret.Set).Hide(from) // where it stands in a place of its own
}
