package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/serve"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

type serveCommand struct {
	storeFlags
	Config string `short:"c" required:"" type:"path" placeholder:"FILE" help:"The configuration, see docs/operating.md."`
	Listen string `placeholder:"HOST:PORT" help:"Where health and metrics are served, instead of the listen in the file."`
}

// Help is the long text of once serve --help.
func (serveCommand) Help() string {
	return `
Runs, for one database, what its outbox needs beside the application: a relay that publishes to webhooks,
NATS JetStream or RabbitMQ, a janitor, and what becomes of abandoned work: it asks a URL, or parks it. Run as
many as you like: they share the work. It logs JSON to stderr, and stops in order on SIGTERM and SIGINT.

  GET /healthz   the process lives
  GET /readyz    the database answers, and its tables fit this program
  GET /metrics   in the text form of Prometheus

The configuration is a TOML file. In its URLs and secrets, ${NAME} is the environment's variable. The database is
that of --url or --target, else the url of the file, else the one in use, see once context.

  url = "${SHOP_URL}"          # postgres://, mysql:// or sqlite:
  [webhook]
  source = "https://shop.example/orders"
  [webhook.topics."order.paid"]
  url = "https://partner.example/hooks"
  secrets = ["${PARTNER_SECRET}"]

Exit status: 0 stopped in order, 2 wrong usage or configuration, 3 it could not go on.

Examples:
  once serve --config once.toml
  once serve --config once.toml --url sqlite:/var/lib/shop/shop.db --listen 127.0.0.1:9465`
}

// Run serves until it is told to stop.
func (s *serveCommand) Run(ctx context.Context) error {
	config, err := serve.Load(ctx, s.Config)
	if err != nil {
		return err
	}
	if s.URL != "" || s.Target != "" || config.URL == "" {
		if config.URL, _, err = target.Choose(string(s.URL), string(s.Target)); err != nil {
			return err
		}
	}
	config.Listen = cmp.Or(s.Listen, config.Listen)
	return serve.Run(ctx, config, slog.New(slog.NewJSONHandler(show.EscapedJSON(secret.From(ctx).Writer(os.Stderr)), nil)))
}
