//go:build linux

// Package server starts private instances of PostgreSQL, MariaDB, PgBouncer,
// RabbitMQ and Redis from the packages installed on the machine, of Azurite, which
// npm installs into a cache, of imitations of DynamoDB and SQS, which pip and Maven
// do, and of Kafka, which Maven does.
// Tests use them to kill, pause and restart real servers.
//
// # Guarantees
//
//   - An instance is private. Its data, configuration and socket are in a new
//     temporary directory, it listens only on a free port of 127.0.0.1, and its
//     password is random. Other running servers are not touched.
//   - An instance is returned only after a query has confirmed its data
//     directory or, for RabbitMQ, the cluster name derived from the directory,
//     for Azurite, Kafka and a cluster of RabbitMQ the random name of the account
//     or cluster, and for SQS the name of a queue.
//   - Acknowledged writes are on disk: fsync and similar settings stay on. Azurite
//     writes every five seconds, and when it is shut down. Kafka relies on the
//     page cache.
//   - An instance does not outlive the process that started it, however that
//     process ends. The next start removes directories left by killed processes.
//   - It never runs as root. Root starts it as the account that its Debian
//     package created, or as nobody.
//
// # Limits
//
// The package needs Linux: the parent-death signal and /proc. Kill crashes the
// server, not the machine. The page cache survives, so torn writes and power
// loss are not tested.
//
// The API serves the tests of this repository and promises no compatibility.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

// Kind is a kind of server.
type Kind string

const (
	Postgres  Kind = "postgres"
	MariaDB   Kind = "mariadb"
	PgBouncer Kind = "pgbouncer" // in transaction mode, in front of a Postgres
	RabbitMQ  Kind = "rabbitmq"
	Redis     Kind = "redis"
	RabbitMQs Kind = "rabbitmqs" // a cluster, see [StartRabbitMQs]
	Galera    Kind = "galera"    // a cluster of MariaDB, see StartGalera
	Azurite   Kind = "azurite"   // its table service
	DynamoDB  Kind = "dynamodb"  // moto, only if it is asked for
	Kafka     Kind = "kafka"     // only if it is asked for
	SQS       Kind = "sqs"       // ElasticMQ, only if it is asked for
	Chromium  Kind = "chromium"  // no server: tests start the browser, and npm installs what examines its pages
	Spin      Kind = "spin"      // no server: tests run the model checker
)

// The limits are generous for loaded machines. A server that cannot start ends
// long before.
const startLimit, endLimit = 2 * time.Minute, 30 * time.Second

// Instance is one server. Its methods may be called concurrently; they run one
// at a time.
type Instance struct {
	engine engine
	home   *home
	port   int // stays the same after a successful start

	mu      sync.Mutex
	process *process // the latest one, which may have ended
}

// engine is what differs between the kinds of servers.
type engine interface {
	kind() Kind
	// account is the system account that root runs the server as.
	account() string
	// prepare fills a new home with what the server needs before its first
	// start.
	prepare(ctx context.Context, h *home) error
	// launch starts the server in the foreground.
	launch(h *home, port int) (*process, error)
	// shutdown ends a server cleanly without waiting for its clients.
	shutdown(p *process) error
	dsn(port int) string
	// identity is the answer that askIdentity expects from a server in that
	// home.
	identity(h *home) string
	askIdentity(ctx context.Context, dsn string) (string, error)
}

// StartPostgres starts a PostgreSQL. The context limits only the start.
func StartPostgres(ctx context.Context) (*Instance, error) {
	e, err := newPostgres()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartMariaDB starts a MariaDB. The context limits only the start.
func StartMariaDB(ctx context.Context) (*Instance, error) {
	e, err := newMariaDB()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartPgBouncer starts a PgBouncer in transaction mode in front of a
// PostgreSQL of [StartPostgres], with the same password. The context limits
// only the start.
func StartPgBouncer(ctx context.Context, upstream *Instance) (*Instance, error) {
	e, err := newPgBouncer(upstream)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartRabbitMQ starts a RabbitMQ with a single node. The settings are lines of
// its rabbitmq.conf. The node takes no part in Erlang distribution: it listens
// only for clients, there is no epmd, and rabbitmqctl cannot reach it. The
// context limits only the start.
func StartRabbitMQ(ctx context.Context, settings ...string) (*Instance, error) {
	e, err := newRabbitMQ(settings)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartRedis starts a Redis that writes to disk before it answers, and never
// evicts keys. The context limits only the start.
func StartRedis(ctx context.Context) (*Instance, error) {
	e, err := newRedis()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartAzurite starts the table service of an Azurite. Acknowledged writes
// survive Restart, and not Kill. The context limits only the start.
func StartAzurite(ctx context.Context) (*Instance, error) {
	e, err := newAzurite(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartDynamoDB starts a moto, which it installs into a cache first. The context
// limits only the start.
func StartDynamoDB(ctx context.Context) (*Instance, error) {
	e, err := newDynamoDB()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

// StartSQS starts an ElasticMQ, which Maven fetches into a cache first. The
// context limits only the start.
func StartSQS(ctx context.Context) (*Instance, error) {
	e, err := newElasticMQ(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, FreePort)
}

func start(ctx context.Context, e engine, ports func() (int, error)) (*Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	h, err := newHome(e.kind(), e.account())
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", e.kind(), err)
	}
	i := &Instance{engine: e, home: h}
	err = e.prepare(ctx, h)
	if err == nil {
		err = i.settle(ctx, ports)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", e.kind(), err), h.remove())
	}
	return i, nil
}

// settle starts the server on a port, and tries again if another process takes
// the port first.
func (i *Instance) settle(ctx context.Context, ports func() (int, error)) (err error) {
	for range 5 {
		if i.port, err = ports(); err != nil {
			return err
		}
		if err = i.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// launch starts the server and returns when it answers queries with its
// identity. If launch fails, nothing runs.
func (i *Instance) launch(ctx context.Context) error {
	p, err := i.engine.launch(i.home, i.port)
	if err != nil {
		return err
	}
	i.process = p
	if err := i.awaitAnswer(ctx); err != nil {
		return errors.Join(err, p.kill())
	}
	return nil
}

func (i *Instance) awaitAnswer(ctx context.Context) error {
	want := i.Identity()
	pause := backoff.Backoff{First: 20 * time.Millisecond, Limit: 100 * time.Millisecond}
	for {
		got, err := i.ask(ctx)
		switch {
		case i.process.ended() && portTaken(i.port):
			return errPortTaken
		case i.process.ended():
			return i.endedByItself()
		case err == nil && got == want:
			return nil
		case err == nil:
			return fmt.Errorf("%w, which serves %s", errPortTaken, got)
		}
		if late := backoff.Sleep(ctx, pause.Next()); late != nil {
			return fmt.Errorf("no answer in time: %w (%w); the end of the log:\n%s", late, err, i.home.logTail())
		}
	}
}

// ask asks once, with a time limit, so that a hanging connection does not use
// up the time for the start.
func (i *Instance) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return i.engine.askIdentity(ctx, i.DSN())
}

// DSN returns the address of the server in the form that [testenv] documents
// for its kind. Parameters may be appended.
func (i *Instance) DSN() string { return i.engine.dsn(i.port) }

// Addr returns the host and port of the server, for a proxy in front of it.
func (i *Instance) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(i.port)) }

// Identity returns the data directory of the server, or of the PostgreSQL
// behind a PgBouncer. For a RabbitMQ it is the prefix of the cluster's name, see
// [testenv.CheckRabbitMQ], and for an Azurite the name of its account.
func (i *Instance) Identity() string { return i.engine.identity(i.home) }

// Kill ends the server and its children with SIGKILL, even while it is paused,
// and returns when they are gone. Its data stay for [Instance.Restart].
func (i *Instance) Kill() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process.kill()
}

// Restart restarts the server with the same data and port, and returns when it
// answers queries. It shuts a running server down cleanly first.
func (i *Instance) Restart(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := i.end()
	if err == nil {
		err = i.launch(ctx)
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", i.engine.kind(), err)
	}
	return nil
}

// Pause stops the server and its children with SIGSTOP: connections stay open,
// nothing answers. It returns when all of them are stopped.
func (i *Instance) Pause() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.process.freeze(); err != nil {
		return fmt.Errorf("pause %s: %w", i.engine.kind(), err)
	}
	return nil
}

// Resume undoes [Instance.Pause]. The end of this process does the same, so
// that the server can notice it and end.
func (i *Instance) Resume() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process.thaw()
}

// LogTail returns the end of the server's log.
func (i *Instance) LogTail() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.home.logTail()
}

// Stop shuts the server down cleanly and removes its directory. If the server
// had already ended, the error contains the end of its log. No other method may
// be called after Stop.
func (i *Instance) Stop() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var err error
	if i.process.ended() && !i.process.dismissed {
		err = i.endedByItself()
	}
	return errors.Join(err, i.end(), i.home.remove())
}

func (i *Instance) endedByItself() error {
	return fmt.Errorf("%s ended by itself (%v); the end of its log:\n%s", i.engine.kind(), i.process, i.home.logTail())
}

// end shuts the server down if it runs, and kills it if necessary.
func (i *Instance) end() error {
	if i.process.ended() {
		return nil
	}
	i.process.dismissed = true
	err := i.process.thaw()
	if err == nil {
		err = i.engine.shutdown(i.process)
	}
	if err == nil && !i.process.endsWithin(endLimit) {
		err = fmt.Errorf("%s did not shut down within %v and was killed; the end of its log:\n%s", i.engine.kind(), endLimit, i.home.logTail())
	}
	return errors.Join(err, i.process.kill())
}
