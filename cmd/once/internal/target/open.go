package target

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlstore"
)

const connectTime = 10 * time.Second

var outboxModes = map[string]pgstore.OutboxMode{
	"": pgstore.OutboxTable, "table": pgstore.OutboxTable,
	"rows-by-log": pgstore.OutboxRowsByLog, "log-only": pgstore.OutboxLogOnly,
}

func openPostgres(ctx context.Context, u *url.URL, own own, o *Options, secrets *secret.Set) (*Target, error) {
	mode, ok := outboxModes[own.outbox]
	if !ok {
		return nil, refuse("the parameter outbox is %q: use table, rows-by-log or log-only", own.outbox)
	}
	names, err := namesFor(sqlschema.PostgreSQL, own)
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, refuse("%v", err) // the error quotes the URL: pgx hides only a password before the @
	}
	secrets.Add(config.ConnConfig.Password) // which may come from a file or from PGPASSWORD
	switch q := u.Query(); {
	case o.Connections > 0:
		config.MaxConns = int32(o.Connections)
	case !q.Has("pool_max_conns"):
		config.MaxConns = defaultConnections
	}
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTime)
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "once"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	options := &pgstore.Options{Options: o.Options, Schema: own.schema, Prefix: own.prefix, Partition: own.partition,
		Outbox: mode, Slot: own.slot}
	db := stdlib.OpenDBFromPool(pool)
	keys := pgstore.New(pool, options)
	tables := &Tables{DB: db, Names: names, Partitioned: own.partition > 0, Logged: mode != pgstore.OutboxTable,
		engine: PostgreSQL, migrate: keys.Migrate, bare: barePostgres(pool), guarded: guarded(keys, execPostgres),
		schema: func(from int) (string, error) { return pgstore.Schema(options, from) }}
	return tables.target(keys, func() error {
		err := db.Close()
		pool.Close()
		return err
	}), nil
}

func openMySQL(u *url.URL, own own, o *Options) (*Target, error) {
	names, err := namesFor(sqlschema.MySQL, own)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	socket := q.Get("socket")
	q.Del("socket")
	config, err := mysql.ParseDSN("/?" + q.Encode()) // without the password, which its errors could show
	if err != nil {
		return nil, refuse("%v", err)
	}
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.DBName = strings.TrimPrefix(u.Path, "/")
	config.Net, config.Addr = "tcp", u.Host
	switch {
	case socket != "":
		config.Net, config.Addr = "unix", socket
	case u.Hostname() == "":
		return nil, refuse("it has neither a host nor a socket (?socket=/path)")
	case u.Port() == "":
		config.Addr += ":3306"
	}
	if config.DBName == "" && own.schema == "" {
		return nil, refuse("it has no database: write mysql://user@host:3306/database")
	}
	config.Timeout = cmp.Or(config.Timeout, connectTime)
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, refuse("%v", err)
	}
	return viaSQL(sql.OpenDB(connector), MySQL, sqlstore.MySQL, names, own, o), nil
}

// openSQLite keeps the journal mode of the file, which its application chose.
func openSQLite(u *url.URL, own own, o *Options) (*Target, error) {
	names, err := namesFor(sqlschema.SQLite, own)
	if err != nil {
		return nil, err
	}
	path := cmp.Or(u.Opaque, u.Path)
	if u.Opaque != "" {
		if path, err = url.PathUnescape(path); err != nil {
			return nil, refuse("the path cannot be parsed: write special characters as %%XX")
		}
	}
	switch {
	case u.Host != "":
		return nil, refuse("sqlite://%s has a host: write sqlite:file.db, or sqlite:/path/file.db", u.Host)
	case path == "" || strings.HasPrefix(path, ":"):
		return nil, refuse("it has no file: write sqlite:/path/file.db")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !o.Create {
		return nil, fmt.Errorf("%w %s", ErrNoFile, path)
	}
	q := u.Query()
	q.Set("mode", "rw")
	if o.Create {
		q.Set("mode", "rwc")
	}
	if !q.Has("_txlock") {
		q.Set("_txlock", "immediate")
	}
	pragmas := strings.Join(q["_pragma"], " ")
	for name, value := range map[string]string{"busy_timeout": "5000", "synchronous": "FULL"} {
		if !strings.Contains(pragmas, name) {
			q.Add("_pragma", name+"("+value+")")
		}
	}
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, refuse("%v", err)
	}
	if o.Create {
		db = sql.OpenDB(&creating{driver: db.Driver(), path: path, dsn: dsn})
	}
	return viaSQL(db, SQLite, sqlstore.SQLite, names, own, o), nil
}

// creating connects to a SQLite file and creates it first if it is missing. The
// file will contain outcomes and messages, so only its owner can read it,
// whatever the umask. SQLite treats an empty file as a new database and gives
// its mode to the files beside it (-wal, -shm and -journal).
type creating struct {
	driver    driver.Driver
	path, dsn string
	make      sync.Once
}

// Driver implements driver.Connector.
func (c *creating) Driver() driver.Driver { return c.driver }

// Connect implements driver.Connector.
func (c *creating) Connect(context.Context) (driver.Conn, error) {
	// Only before the first connection, and never for an existing file: on
	// Unix, closing it would release the locks of this process on it, including
	// those of SQLite.
	c.make.Do(func() {
		if f, err := os.OpenFile(linked(c.path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
		}
	})
	return c.driver.Open(c.dsn) // its error explains a bad path
}

// linked resolves the links at path to a file that need not exist, because
// O_EXCL follows none. It leaves directories to the system, because ".." may
// lead out of a directory that is itself a link.
func linked(path string) string {
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			dir, _ := filepath.Split(path)
			to = dir + to
		}
		path = to
	}
	return path
}

func viaSQL(db *sql.DB, e Engine, d sqlstore.Dialect, n sqlschema.Names, own own, o *Options) *Target {
	connections := cmp.Or(max(o.Connections, 0), defaultConnections)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	options := &sqlstore.Options{Options: o.Options, Schema: own.schema, Prefix: own.prefix}
	keys := sqlstore.New(db, d, options)
	tables := &Tables{DB: db, Names: n, engine: e, migrate: keys.Migrate, bare: bareSQL(db), guarded: guarded(keys, execSQL),
		schema: func(from int) (string, error) { return sqlstore.Schema(d, options, from) }}
	return tables.target(keys, db.Close)
}

// target returns a target with these tables.
func (t *Tables) target(s once.Store, close func() error) *Target {
	return &Target{Store: s, Engine: t.engine, Tables: t, close: close, now: t.now}
}

func (t *Tables) now(ctx context.Context) (time.Time, error) {
	var micros int64
	err := t.DB.QueryRowContext(ctx, "SELECT "+t.Names.Now()).Scan(&micros)
	return time.UnixMicro(micros), err
}

func namesFor(d sqlschema.Dialect, own own) (sqlschema.Names, error) {
	n, err := sqlschema.For(d, own.schema, own.prefix)
	if err != nil {
		return n, refuse("%v", err)
	}
	return n, nil
}
