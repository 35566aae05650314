// Package target opens the store of a URL for the verbs of the command.
//
//	postgres://user@host:5432/database?sslmode=require&schema=payments&prefix=once_
//	mysql://user@host:3306/database?tls=true
//	mysql://user@localhost/database?socket=/run/mysqld/mysqld.sock
//	sqlite:/var/lib/shop/shop.db
//	sqlite:shop.db?prefix=shop_
//	redis://user@host:6379/0?prefix=shop:
//	rediss://host:6379?cluster=true&addr=host2:6379
//	redis://sentinel:26379?master_name=main
//	dynamodb://table?region=eu-central-1
//	cosmosdb://:key@account.documents.azure.com/database/container
//	azuretables://account:key@account.table.core.windows.net/table
//	nats://user@host:4222/bucket
//
// The parameters schema, prefix, partition, outbox, slot and cluster set Options of
// the store. They are removed before the URL is passed to the driver. ${NAME} is
// replaced by an environment variable, see [Expand].
package target

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/store/sqlschema"
)

// Engine is the kind of database of a target.
type Engine string

const (
	PostgreSQL Engine = "postgres"
	MySQL      Engine = "mysql" // and MariaDB
	SQLite     Engine = "sqlite"
	Redis      Engine = "redis"
	DynamoDB   Engine = "dynamodb"
	CosmosDB   Engine = "cosmosdb"
	NATS       Engine = "nats"

	AzureTables Engine = "azuretables"
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
	Store  once.Store // whose capabilities Need finds
	Engine Engine

	// Damaged has why List could not read some records. Who shows them empties it.
	Damaged []error

	// Tables are those of the store, or nil if it is not in an SQL database.
	Tables *Tables

	// Redis is the client of the store, or nil if it is not in Redis.
	Redis redis.UniversalClient

	// Dynamo is the table of the store, or nil if it is not in DynamoDB.
	Dynamo *Dynamo

	// Cosmos is the container of the store, or nil if it is not in Cosmos DB.
	Cosmos *Cosmos

	// Azure is the table of the store, or nil if it is not in Azure Table storage.
	Azure *Azure

	// Bucket is that of the store, or nil if it is not in NATS.
	Bucket *Bucket

	printed string
	close   func() error
	now     func(context.Context) (time.Time, error)
	byHand  func(ctx context.Context, key string, keep time.Duration) error
}

// Tables are those of a store in an SQL database.
type Tables struct {
	// DB is the database of the store, for queries that the store does not offer.
	DB *sql.DB

	// Names are the names of the tables.
	Names sqlschema.Names

	// Partitioned reports whether the tables have partitions, or will have
	// them.
	Partitioned bool

	// Logged reports whether the outbox is read from the PostgreSQL log. Then the
	// Store has the OutboxSlot of pgstore.
	Logged bool

	engine  Engine
	schema  func(from int) (string, error)
	migrate func(context.Context) error
	bare    func(ctx context.Context, statements []Statement) error
	guarded func(ctx context.Context, w once.Work[struct{}], statement Statement) error
}

// String returns the URL without passwords.
func (t *Target) String() string { return t.printed }

// Close closes the connections.
func (t *Target) Close() error { return t.close() }

// ByHand writes a key that is new, and then once more, both on condition. That is
// the least that a guard of work elsewhere does. The key is kept for a time. It is
// for stores without tables.
func (t *Target) ByHand(ctx context.Context, key string, keep time.Duration) error {
	return t.byHand(ctx, key, keep)
}

// ErrLacks is wrapped by the error of [Need].
var ErrLacks = errors.New("the store of this target cannot do that")

// Need returns a capability of the store. If the store does not have it, the error
// says that it has no such thing, and wraps [ErrLacks].
func Need[Capability any](t *Target, thing string) (Capability, error) {
	c, ok := once.As[Capability](t.Store)
	if !ok {
		return c, fmt.Errorf("%w: it has no %s, see docs/stores/README.md", ErrLacks, thing)
	}
	return c, nil
}

// What verbs need.
const (
	AList     = "list of keys"
	ASearch   = "search for a part of an ID"
	AShelf    = "shelf for messages"
	AnOutbox  = "outbox"
	ARegistry = "list of consumers"
	AnEditor  = "list of consumers that can be changed (set RenamedFrom in the program instead)"
	ATable    = "tables"
)

// Database returns the tables of the store, or an error that wraps [ErrLacks].
func (t *Target) Database() (*Tables, error) {
	if t.Tables == nil {
		return nil, fmt.Errorf("%w: it has no %s", ErrLacks, ATable)
	}
	return t.Tables, nil
}

// Now returns the time of the store's clock. It fails if the store cannot be
// reached.
func (t *Target) Now(ctx context.Context) (time.Time, error) { return t.now(ctx) }

// Migrate creates the tables or migrates them to the version of this build.
func (t *Tables) Migrate(ctx context.Context) error { return t.migrate(ctx) }

// SQL returns the statements of Migrate for tables of a version, 0 for none.
func (t *Tables) SQL(from int) (string, error) { return t.schema(from) }

// ErrURL is wrapped by errors about a URL, as opposed to errors of its
// database.
var ErrURL = errors.New("the target's URL is not usable")

// ErrNoFile is wrapped by the error for a missing SQLite file. It wraps ErrURL.
var ErrNoFile = fmt.Errorf("%w: there is no file", ErrURL)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}

// Open opens the store of a URL. Except for NATS, it does not connect; the first
// use does. A nil
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
	case Redis:
		t, err = openRedis(u, own, o)
	case DynamoDB:
		t, err = openDynamo(ctx, u, own, o)
	case CosmosDB:
		t, err = openCosmos(u, o)
	case AzureTables:
		t, err = openAzureTables(u, o)
	case NATS:
		t, err = openNATS(u, o)
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
