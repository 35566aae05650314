package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/asking"
	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/console"
)

var consoleWords = consoleserver.Words{Listen: "console.listen", Hosts: "console.hosts", People: "[[console.people]]",
	Proxy: "[console.proxy]", Trace: "console.trace"}

// console returns the console, which listens already, or nil if there is none. It
// needs people or a proxy: a token that is made for one run would have to be in
// the log.
func (c *Config) console(ctx context.Context, t *target.Target, by *asking.Asker, logger *slog.Logger) (*consoleserver.Server, error) {
	if c.Console == nil {
		return nil, nil
	}
	if len(c.Console.People) == 0 && c.Console.Proxy == nil {
		return nil, refuse("nobody could use the console: add [[console.people]] with a name, a role and a token, or [console.proxy]")
	}
	store := consoleserver.Store(t, c.Name)
	store.Doctor = consoleserver.Doctor(ctx, t)
	var err error
	if by != nil {
		if store.Ask, err = c.Reconcile.Questions(by, t.Store); err != nil {
			return nil, err
		}
	}
	s, err := consoleserver.New(ctx, *c.Console, []console.Store{store}, logger, consoleWords)
	if errors.Is(err, consoleserver.ErrConfig) {
		return nil, refuse("console: %s", strings.TrimPrefix(err.Error(), consoleserver.ErrConfig.Error()+": "))
	}
	return s, err
}
