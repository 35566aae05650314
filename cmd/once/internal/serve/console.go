package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/asking"
	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/console"
)

var consoleWords = consoleserver.Words{Listen: "console.listen", Hosts: "console.hosts", People: "[[console.people]]",
	Proxy: "[console.proxy]", Trace: "console.trace"}

// console returns the console, which listens already, or nil if there is none. It
// needs people or a proxy: a token that is made for one run would have to be in
// the log.
func (c *Config) console(ctx context.Context, t *target.Target, by *asking.Asker, lag consoleserver.Lag, published func() int64, logger *slog.Logger) (*consoleserver.Server, error) {
	if c.Console == nil {
		return nil, nil
	}
	if len(c.Console.People) == 0 && c.Console.Proxy == nil {
		return nil, refuse("nobody could use the console: add [[console.people]] with a name, a role and a token, or [console.proxy]")
	}
	store := consoleserver.Store(t, c.Name)
	store.Doctor, store.Published = consoleserver.Doctor(ctx, t), published
	var err error
	if by != nil {
		if store.Ask, err = c.Reconcile.Questions(by, t.Store); err != nil {
			return nil, err
		}
	}
	s, err := consoleserver.New(ctx, *c.Console, []console.Store{store}, lag, logger, consoleWords)
	if errors.Is(err, consoleserver.ErrConfig) {
		return nil, refuse("console: %s", strings.TrimPrefix(err.Error(), consoleserver.ErrConfig.Error()+": "))
	}
	return s, err
}

// lag returns what the console asks for the lag of consumers: the broker that is
// published to, if it tells. A broker that cannot be asked is no reason not to
// publish. end ends its connections.
func (c *Config) lag(ctx context.Context) (lag consoleserver.Lag, end func()) {
	end = func() {}
	if c.Console == nil {
		return nil, end
	}
	urls, err := c.Brokers(secret.From(ctx))
	if err == nil && len(urls) == 0 {
		return nil, end
	}
	var from *doctor.Sources
	if err == nil {
		from, err = doctor.OpenSources(ctx, urls)
	}
	if err != nil {
		return consoleserver.NoLag(err), end
	}
	return consoleserver.LagOf(ctx, from), from.Close
}
