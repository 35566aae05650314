//go:build linux

// Package server brings up private instances of PostgreSQL, MariaDB, PgBouncer and RabbitMQ from the machine's own
// packages, for tests that need the real thing, and that kill it, stop it in mid-air and start it again.
//
// # What is promised
//
//   - An instance is private: data, configuration and socket are in a new temporary directory, it listens on a free
//     port of 127.0.0.1 only, and its password is random. No server that happens to run is touched.
//   - It is handed out after it has named its own data directory in answer to a query, or, a RabbitMQ, the name that
//     the directory gave to its cluster.
//   - What it acknowledges is on disk: fsync and its like stay on.
//   - It does not outlive the process that started it, however that ends. A directory that a killed process leaves
//     behind is removed at the next start.
//   - It never runs as root: root starts it as the account that its Debian package created.
//
// # What is not
//
// It needs Linux: the kernel's parent-death signal and /proc. Kill is a crash of the server, not of the machine: the
// page cache survives it, so torn writes and lost power are not shown.
//
// The API follows the needs of this repository's tests and is not released.
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
)

// The limits are generous: a loaded machine is slow, and a server that cannot start ends long before.
const startLimit, endLimit = 2 * time.Minute, 30 * time.Second

// Instance is one server. Its methods may be called from several goroutines; they run one after another.
type Instance struct {
	engine engine
	home   *home
	port   int // stays what it was when the start succeeded

	mu      sync.Mutex
	process *process // the latest, which may have ended
}

// engine is what differs between the servers.
type engine interface {
	kind() Kind
	// account is the system account that root runs the server as.
	account() string
	// prepare fills a new home with what the server needs before it is first started.
	prepare(ctx context.Context, h *home) error
	// launch starts the server in the foreground.
	launch(h *home, port int) (*process, error)
	// shutdown makes a server of this kind end in order: clients are told, nothing waits for them.
	shutdown(p *process) error
	dsn(port int) string
	// identity is what askIdentity must answer for a server in that home.
	identity(h *home) string
	askIdentity(ctx context.Context, dsn string) (string, error)
}

// StartPostgres starts a PostgreSQL. The context bounds the start only.
func StartPostgres(ctx context.Context) (*Instance, error) {
	e, err := newPostgres()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, freePort)
}

// StartMariaDB starts a MariaDB. The context bounds the start only.
func StartMariaDB(ctx context.Context) (*Instance, error) {
	e, err := newMariaDB()
	if err != nil {
		return nil, err
	}
	return start(ctx, e, freePort)
}

// StartPgBouncer starts a PgBouncer in transaction mode in front of a PostgreSQL of [StartPostgres], and with the
// same password. The context bounds the start only.
func StartPgBouncer(ctx context.Context, upstream *Instance) (*Instance, error) {
	e, err := newPgBouncer(upstream)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, freePort)
}

// StartRabbitMQ starts a RabbitMQ of one node, with settings that are lines of its rabbitmq.conf. The node takes part in
// no Erlang distribution: it listens for clients only, there is no epmd, and rabbitmqctl cannot reach it. The context
// bounds the start only.
func StartRabbitMQ(ctx context.Context, settings ...string) (*Instance, error) {
	e, err := newRabbitMQ(settings)
	if err != nil {
		return nil, err
	}
	return start(ctx, e, freePort)
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

// settle starts the server on a port. Between finding a port free and using it somebody else can take it.
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

// launch starts the server and returns when it answers queries as itself. If it fails, nothing runs.
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

// ask is one question, bounded so that a connection that hangs does not use up the time for the start.
func (i *Instance) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return i.engine.askIdentity(ctx, i.DSN())
}

// DSN names the server, as [testenv] documents it for each kind: parameters may be appended.
func (i *Instance) DSN() string { return i.engine.dsn(i.port) }

// Addr is the host and port that the server listens on, for a proxy in front of it.
func (i *Instance) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(i.port)) }

// Identity is what the server answers when it is asked for its data directory; a PgBouncer answers for the PostgreSQL
// behind it. A RabbitMQ is not asked that, but for the name of its cluster: see [testenv.CheckRabbitMQ].
func (i *Instance) Identity() string { return i.engine.identity(i.home) }

// Kill ends the server and all of its children by SIGKILL, also while it is paused, and returns when they are gone.
// Its data stay, for [Instance.Restart].
func (i *Instance) Kill() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process.kill()
}

// Restart starts the server again, on the same data and port, and returns when it answers queries. A server that
// still runs is shut down in order first: its clients are told, and do not just lose the connection.
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

// Pause stops the server and all of its children in mid-air, by SIGSTOP: connections stay open, nothing answers.
// It returns when all of them are stopped.
func (i *Instance) Pause() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.process.freeze(); err != nil {
		return fmt.Errorf("pause %s: %w", i.engine.kind(), err)
	}
	return nil
}

// Resume undoes [Instance.Pause]. So does the end of this process, so that the server can notice it and end.
func (i *Instance) Resume() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process.thaw()
}

// Stop shuts the server down in order and removes its directory. If the server had ended by itself, the error says
// so and holds the end of its log. Nothing but Stop may follow.
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

// end shuts the server down if it runs, by force if it must.
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
