package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/effectively-once/once/cmd/once/internal/demo"
	"github.com/effectively-once/once/cmd/once/internal/democommand"
	"github.com/effectively-once/once/cmd/once/internal/secret"
)

// cli is the command line, a field per verb.
type cli struct {
	Demo      democommand.Command `cmd:"" help:"Show a payment handler with and without once, under duplicates, races and kills."`
	Context   contextCommand      `cmd:"" help:"Name the databases to work on, and choose one."`
	Doctor    doctorCommand       `cmd:"" help:"Say what is unsafe about a database, and what waits for somebody."`
	Keys      keysCommand         `cmd:"" help:"Look at keys, and decide about those that nobody knows the outcome of."`
	Unknown   unknownCommand      `cmd:"" help:"Units of work that may have happened: find them, and say whether they did."`
	Parked    parkedCommand       `cmd:"" help:"Messages that consumers could not handle: look, replay, discard."`
	Outbox    outboxCommand       `cmd:"" help:"Messages on their way out: how they are, and what to do with those that are stuck."`
	Consumers consumersCommand    `cmd:"" help:"Who consumes, when it was seen last, and how far it has come."`
	Migrate   migrateCommand      `cmd:"" help:"Make the tables, or lead them to the version of this program."`
	Bench     benchCommand        `cmd:"" help:"Measure what protection costs on your database."`
	Serve     serveCommand        `cmd:"" help:"Publish the outbox of a database as a service: to webhooks, NATS or RabbitMQ."`
	Version   versionCommand      `cmd:"" help:"Print the version."`

	Completion completionCommand  `cmd:"" help:"Print the script that completes words in a shell."`
	Complete   completeCommand    `cmd:"" name:"complete-words" hidden:"" help:"Answers the script of once completion."`
	Worker     democommand.Worker `cmd:"" name:"demo-worker" hidden:"" help:"A worker process of the demo."`
}

const description = `Effectively-once processing for Go: sync.Once that survives crashes, restarts, retries and redelivery.

Start with: once demo

For a database: once context set --help, then once doctor`

// group reports whether words end where verbs begin: once, or once keys.
func group(at *kong.Node, words []string) bool {
	for _, word := range words {
		if at = childOf(at, word); at == nil {
			return false
		}
	}
	return len(at.Children) > 0
}

// run runs the command. The services are what the demo compares.
func run(args []string, services map[string]func(*demo.Shop) demo.Service) int {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	ctx, secrets := secret.With(ctx)
	for _, arg := range args {
		secrets.AddURL(arg)
	}
	for _, proxy := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		secrets.AddURL(os.Getenv(proxy))
		secrets.AddURL(os.Getenv(strings.ToLower(proxy)))
	}
	parser, err := kong.New(&cli{}, kong.Name("once"), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(services))
	if err != nil {
		return fail(ctx, exitFailed, err)
	}
	if group(parser.Model.Node, args) { // as --help does, for whoever asks what there is
		args = append(args, "--help")
	}
	verb, err := parser.Parse(args)
	if err != nil {
		return fail(ctx, exitUsage, fmt.Errorf("%w (see once --help)", err))
	}
	return exitOf(ctx, verb.Run(parser))
}
