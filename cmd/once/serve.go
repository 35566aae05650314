package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"

	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

type serveCommand struct {
	storeFlags
	Config  string `short:"c" required:"" type:"path" placeholder:"FILE" help:"Configuration file, see docs/operating.md."`
	Listen  string `placeholder:"HOST:PORT" help:"Address for health and metrics. Overrides listen in the file."`
	Console string `placeholder:"HOST:PORT" help:"Serve the console here, to the people in the file. Overrides console.listen in the file."`
}

// Help is the long text of once serve --help.
func (serveCommand) Help() string {
	return `
Runs the background work of one database: a relay that publishes the outbox to webhooks, Azure Event Grid, NATS
JetStream, RabbitMQ, Redis Streams, SQS, Google Pub/Sub, Azure Event Hubs or Azure Service Bus, a janitor, and a
reconciler that asks a URL about abandoned work or parks it. Several processes share the work. With [console] it also
serves the console of that database, see once console --help. It logs JSON to stderr and shuts down gracefully on
SIGTERM and SIGINT.

  GET /healthz   the process is running
  GET /readyz    the database answers and its tables fit this program
  GET /metrics   metrics in Prometheus text format

The configuration is a TOML file. ${NAME} in its URLs and secrets is replaced by that environment variable. The database
is --url or --target, then the url in the file, then the current target (see once context).

  url = "${SHOP_URL}"          # postgres://, mysql:// or sqlite:
  [webhook]
  source = "https://shop.example/orders"
  [webhook.topics."order.paid"]
  url = "https://partner.example/hooks"
  secrets = ["${PARTNER_SECRET}"]

Exit status: 0 graceful shutdown, 2 wrong usage or configuration, 3 failure.

Examples:
  once serve --config once.toml
  once serve --config once.toml --url sqlite:/var/lib/shop/shop.db --listen 127.0.0.1:9465`
}

// Run serves until it is interrupted.
func (s *serveCommand) Run(ctx context.Context) error {
	config, err := serve.Load(ctx, s.Config)
	if err != nil {
		return err
	}
	if s.URL != "" || s.Target != "" || config.URL == "" {
		if config.URL, config.Name, err = target.Choose(string(s.URL), string(s.Target)); err != nil {
			return err
		}
	}
	config.Listen = cmp.Or(s.Listen, config.Listen)
	if s.Console != "" {
		if config.Console == nil {
			config.Console = new(consoleserver.Config)
		}
		config.Console.Listen = s.Console
	}
	return serve.Run(ctx, config, slog.New(slog.NewJSONHandler(show.EscapedJSON(secret.From(ctx).Writer(os.Stderr)), nil)))
}
