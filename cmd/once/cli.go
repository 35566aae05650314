package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/effectively-once/once/cmd/once/internal/demo"
	"github.com/effectively-once/once/cmd/once/internal/democommand"
	"github.com/effectively-once/once/cmd/once/internal/secret"
)

// cli is the command line, with one field per verb.
type cli struct {
	Demo      demoCommand      `cmd:"" help:"Run a shop with and without once, under duplicates, outages and kills."`
	Context   contextCommand   `cmd:"" help:"Manage targets: named databases."`
	Doctor    doctorCommand    `cmd:"" help:"Report what is unsafe and what needs attention."`
	Keys      keysCommand      `cmd:"" help:"Inspect and settle keys."`
	Unknown   unknownCommand   `cmd:"" help:"Inspect and settle keys with an unknown outcome."`
	Reconcile reconcileCommand `cmd:"" help:"Compare a report of another system with the keys, and settle what it decides."`
	Parked    parkedCommand    `cmd:"" help:"Inspect, replay or discard messages that consumers could not handle."`
	Outbox    outboxCommand    `cmd:"" help:"Inspect the outbox; retry, park or discard its messages."`
	Consumers consumersCommand `cmd:"" help:"List consumers and their positions."`
	Migrate   migrateCommand   `cmd:"" help:"Create the tables, or migrate them to the version of this program."`
	Prove     proveCommand     `cmd:"" help:"Run your program under kills and broken connections, and count its effects."`
	Bench     benchCommand     `cmd:"" help:"Measure the cost of guarded work on your database."`
	Serve     serveCommand     `cmd:"" help:"Run the relay, janitor and reconciler of a database as a service."`
	Console   consoleCommand   `cmd:"" help:"Show stores in a browser, and settle what needs a person."`
	Version   versionCommand   `cmd:"" help:"Print the version."`

	Completion completionCommand  `cmd:"" help:"Print the completion script of a shell."`
	Man        manCommand         `cmd:"" help:"Print the manual page."`
	Complete   completeCommand    `cmd:"" name:"complete-words" hidden:"" help:"Answer the completion script."`
	Line       completeLine       `cmd:"" name:"complete-line" hidden:"" help:"Answer the completion script of bash."`
	Worker     democommand.Worker `cmd:"" name:"demo-worker" hidden:"" help:"Run a worker process of the demo."`
}

const description = `Effectively-once processing for Go: sync.Once that survives crashes, restarts, retries and redelivery.

Start with: once demo

For a database: once context set --help, then once doctor`

// group reports whether args name a group of verbs and no verb, as in "once" or
// "once keys".
func group(at *kong.Node, words []string) bool {
	for _, word := range words {
		if at = childOf(at, word); at == nil {
			return false
		}
	}
	return len(at.Children) > 0
}

// usual translates what people type at other commands: once --version, and once
// help VERB.
func usual(root *kong.Node, args []string) []string {
	switch {
	case len(args) == 1 && args[0] == "--version":
		return []string{"version"}
	case len(args) > 0 && args[0] == "help" && childOf(root, "help") == nil:
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// namedBy returns the verb that args name, as it is typed, or the group or the
// command if they name none.
func namedBy(at *kong.Node, args []string) string {
	name := []string{"once"}
	for _, word := range args {
		if at = childOf(at, word); at == nil {
			break
		}
		name = append(name, word)
	}
	return strings.Join(name, " ")
}

// run runs the command. services are the services that the demo compares.
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
	args = usual(parser.Model.Node, args)
	if group(parser.Model.Node, args) { // as --help does, for whoever asks what there is
		args = append(args, "--help")
	}
	verb, err := parser.Parse(args)
	if err != nil {
		at := namedBy(parser.Model.Node, args)
		verb := ""
		if rest, ok := strings.CutPrefix(at, "once "); ok && !strings.HasPrefix(err.Error(), rest+": ") { // which some errors have
			verb = rest + ": "
		}
		return fail(ctx, exitUsage, fmt.Errorf("%s%w (see %s --help)", verb, err, at))
	}
	return exitOf(ctx, verb.Run(parser))
}
