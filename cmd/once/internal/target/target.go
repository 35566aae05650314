// Package target opens the store of a URL for the verbs of the command.
//
//	postgres://user@host:5432/database?sslmode=require&schema=payments&prefix=once_
//	mysql://user@host:3306/database?tls=true
//	mysql://user@localhost/database?socket=/run/mysqld/mysqld.sock
//	sqlite:/var/lib/shop/shop.db
//	sqlite:shop.db?prefix=shop_
//
// The parameters schema, prefix, partition, outbox and slot set Options of the
// store. They are removed before the URL is passed to the driver. ${NAME} is
// replaced by an environment variable, see [Expand].
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
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
)

// Store is implemented by the stores of all targets. [once.As] finds a
// [store.OutboxLog].
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

// Engine is the kind of database of a target.
type Engine string

const (
	PostgreSQL Engine = "postgres"
	MySQL      Engine = "mysql" // and MariaDB
	SQLite     Engine = "sqlite"
)

// Options are the options of [Open]. The zero value is valid.
type Options struct {
	once.Options
	Connections int  // at most; default 4, or the number in the URL
	Create      bool // create a missing SQLite file; otherwise it is an error
}

const defaultConnections = 4

// Target is an open store.
type Target struct {
	Store  Store
	Engine Engine

	// DB is the same database, for queries that the store does not offer.
	DB *sql.DB

	// Names are the names of the tables.
	Names sqlschema.Names

	// Partitioned reports whether the tables have partitions, or will have
	// them.
	Partitioned bool

	// Logged reports whether the outbox is read from the PostgreSQL log. Then
	// Store has the OutboxSlot of pgstore.
	Logged bool

	printed string
	schema  func(from int) (string, error)
	close   func() error
	bare    func(ctx context.Context, statements []Statement) error
	guarded func(ctx context.Context, w once.Work[struct{}], statement Statement) error
}

// String returns the URL without passwords.
func (t *Target) String() string { return t.printed }

// Close closes the connections.
func (t *Target) Close() error { return t.close() }

// Migrate creates the tables or migrates them to the version of this build.
func (t *Target) Migrate(ctx context.Context) error { return t.Store.Migrate(ctx) }

// SQL returns the statements of Migrate for tables of a version, 0 for none.
func (t *Target) SQL(from int) (string, error) { return t.schema(from) }

// ErrURL is wrapped by errors about a URL, as opposed to errors of its
// database.
var ErrURL = errors.New("the target's URL is not usable")

// ErrNoFile is wrapped by the error for a missing SQLite file. It wraps ErrURL.
var ErrNoFile = fmt.Errorf("%w: there is no file", ErrURL)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}

// Open opens the store of a URL. It does not connect; the first use does. A nil
// Options means the defaults. Open adds the secrets of the URL to the
// [secret.Set] of the context, so that errors of the first use can be redacted.
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

// Redact returns a URL without passwords, for printing. It keeps ${NAME}.
func Redact(from string) (string, error) {
	if whole.MatchString(from) {
		return from, nil
	}
	if _, err := parse(variable.ReplaceAllString(from, "x")); err != nil { // with ${NAME} it is not a URL yet
		return "", err
	}
	return hidePassword(from), nil
}

// hidePassword keeps a password that is only a variable, and parameters that
// cannot be passwords.
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
	return new(secret.Set).Hide(from) // hides it only where it stands alone
}
