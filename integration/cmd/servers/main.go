//go:build linux

// Command servers starts private PostgreSQL, MariaDB, PgBouncer, RabbitMQ, Redis,
// Azurite and Kafka servers, runs a command with their addresses in its environment, and
// stops them.
//
// Package server documents the servers. The tool forwards signals to the
// command, exits with its exit code, and kills it if the tool dies. If packages
// are missing and cannot be installed, but a Docker engine is available, the
// servers run in containers, with the limits described in docker.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/integration/server"
)

const usage = `usage: servers [-only KINDS] [--] COMMAND [ARGUMENT...]
       servers [-only KINDS]
       servers [-only KINDS] -install

The first form starts private servers on free loopback ports, runs the command with their addresses in its
environment, stops the servers, and exits with the command's exit code. Nothing that already runs is touched.

    go run ./integration/cmd/servers -- go test work
    go run ./integration/cmd/servers -only postgres -- sh -c 'psql "$ONCE_TEST_POSTGRES"'

The second form prints the environment for your shell and keeps the servers up until SIGINT or SIGTERM.
The third form installs what is missing and starts nothing.

    -only KINDS   of postgres, mariadb, pgbouncer, rabbitmq, redis, azurite, dynamodb, kafka, sqs, galera, rabbitmqs,
                  chromium and spin, separated by commas (default: all but azurite, which npm installs, dynamodb, an imitation that pip
                  installs, kafka and sqs, an imitation, which Maven fetches, and galera, rabbitmqs, chromium
                  and spin, whose tests start their own clusters, browser and model checker);
                  pgbouncer starts its postgres too
    -install      only install what is missing, as root on a machine with apt-get

The environment:

    ONCE_TEST_POSTGRES, ONCE_TEST_MARIADB, ONCE_TEST_PGBOUNCER, ONCE_TEST_RABBITMQ, ONCE_TEST_REDIS   DSNs
    ONCE_TEST_POSTGRES_DATA, ONCE_TEST_MARIADB_DATA, ONCE_TEST_REDIS_DATA   data directories, to recognise
                                                                            the servers by
    ONCE_TEST_DYNAMODB, ONCE_TEST_DYNAMODB_HOME, ONCE_TEST_SQS, ONCE_TEST_SQS_HOME   the same for dynamodb and sqs
    ONCE_TEST_KAFKA, ONCE_TEST_KAFKA_CLUSTER   an address, and the name of the cluster to recognise it by
    ONCE_TEST_RABBITMQ_CLUSTER   and what the name of the cluster begins with
    ONCE_TEST_AZURITE, ONCE_TEST_AZURITE_ACCOUNT   a connection string, and the account to recognise the server by
    ONCE_TEST_POSTGRES_VERSION   yours to set: 16, 17 or 18, which npm installs; otherwise PostgreSQL is Debian's
    ONCE_TEST_GALERA=1, ONCE_TEST_RABBITMQS=1   set for galera and rabbitmqs: tests may start clusters
    ONCE_TEST_BROWSER=1, ONCE_TEST_SPIN=1   set for chromium and spin: tests may use them
    ONCE_TEST_REQUIRE=1   set when all of the default run: tests fail, rather than skip, if an address is missing

Missing packages are installed with apt-get by root, with no service started; otherwise the tool says what to
install, or, if a Docker engine answers, runs the servers in containers. Exit codes of its own: 2 for wrong usage,
125 if it fails before or after the command, 127 if the command cannot be started, 128+N if signal N ended it.
`

const (
	exitUsage       = 2
	exitFailed      = 125
	exitNotFound    = 127
	exitSignalPlus  = 128
	forwardedBuffer = 16
)

func main() { os.Exit(run(os.Args[1:])) }

// task is the parsed command line.
type task struct {
	kinds   []server.Kind
	install bool
	command []string
}

func run(args []string) int {
	t, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "servers: %v\n\n%s", err, usage)
		return exitUsage
	case t.install:
		return t.installOnly()
	default:
		return t.serve()
	}
}

func parse(args []string) (*task, error) {
	t := &task{kinds: []server.Kind{server.Postgres, server.MariaDB, server.PgBouncer, server.RabbitMQ, server.Redis}}
	flags := flag.NewFlagSet("servers", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error
	flags.BoolVar(&t.install, "install", false, "")
	flags.Func("only", "", func(list string) error {
		known := append(t.kinds, server.Azurite, server.DynamoDB, server.Kafka, server.SQS, server.Galera, server.RabbitMQs, server.Chromium,
			server.Spin)
		t.kinds = nil
		for name := range strings.SplitSeq(list, ",") {
			if !slices.Contains(known, server.Kind(name)) {
				return fmt.Errorf("no such server: %q", name)
			}
			t.kinds = append(t.kinds, server.Kind(name))
		}
		return nil
	})
	err := flags.Parse(args)
	t.command = flags.Args()
	if slices.Contains(t.kinds, server.PgBouncer) && !slices.Contains(t.kinds, server.Postgres) {
		t.kinds = append(t.kinds, server.Postgres)
	}
	if err == nil && t.install && len(t.command) > 0 {
		err = errors.New("-install runs no command")
	}
	return t, err
}

func (t *task) installOnly() int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	missing := server.Missing(t.kinds...)
	if err := server.Install(ctx, os.Stderr, t.kinds...); err != nil {
		return failed(err)
	}
	if len(missing) == 0 {
		say("nothing is missing")
	} else {
		say("installed %s", strings.Join(missing, " "))
	}
	return 0
}

// servers is a server.Set or equivalent containers.
type servers interface {
	Env() []string
	Stop() error
}

func (t *task) serve() (code int) {
	// From here on a signal cancels the start. Once the command runs, signals
	// go to it. They never end this tool.
	signals := make(chan os.Signal, forwardedBuffer)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	s, err := t.start(ctx)
	cancel()
	if err != nil {
		return failed(err)
	}
	defer func() {
		if err := s.Stop(); err != nil && code == 0 {
			code = failed(err)
		} else if err != nil {
			failed(err)
		}
	}()
	if len(t.command) == 0 {
		printExports(s.Env())
		say("stop the servers with Ctrl-C, or kill %d", os.Getpid())
		<-signals
		return 0
	}
	return runCommand(t.command, s.Env(), signals)
}

func (t *task) start(ctx context.Context) (servers, error) {
	err := server.Install(ctx, os.Stderr, t.kinds...)
	begin := time.Now()
	var s servers
	switch {
	case errors.Is(err, server.ErrMayNotInstall) && dockerAnswers(ctx):
		s, err = startContainers(ctx, t.kinds)
	case err == nil:
		s, err = server.Start(ctx, t.kinds...)
	}
	if err != nil {
		return nil, err
	}
	say("ready after %v: %v", time.Since(begin).Round(10*time.Millisecond), t.kinds)
	return s, nil
}

func printExports(env []string) {
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		fmt.Printf("export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "servers: "+format+"\n", args...) }

func failed(err error) int {
	say("%v", err)
	return exitFailed
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return failed(err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalPlus + int(status.Signal())
	}
	return exit.ExitCode()
}
