package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/demo"
	"github.com/effectively-once/once/cmd/once/internal/democommand"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/console"
)

// demoCommand is the demo, which can also be looked at in a browser.
type demoCommand struct {
	democommand.Command
	Console bool          `help:"Keep the shop running until Ctrl-C, and show it in the console."`
	For     time.Duration `placeholder:"DURATION" help:"With --console: end after this long."`
	Listen  string        `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"With --console: its address on this machine. Default: a free port."`
}

// Help is the long text of once demo --help.
func (d demoCommand) Help() string {
	return d.Command.Help() + `
  once demo --console
  once demo --console --for 10m

With --console, orders are placed at a human pace until Ctrl-C or --for, and the console shows the shop with once: its
backlog while the broker is down, letters that are parked, and refunds whose outcome is unknown. Whoever has the printed
token may change everything there, which the counts at the end include. Keys are forgotten after an hour, so it can run
for days.`
}

// Validate is called by kong.
func (d *demoCommand) Validate() error {
	switch {
	case !d.Console && d.For != 0:
		return fmt.Errorf("--for needs --console")
	case d.For < 0:
		return fmt.Errorf("--for is %v: use a time such as 10m", d.For)
	case d.Console && (d.Orders != nil || d.Minutes > 0 || d.JSON || d.Scenario != ""):
		return fmt.Errorf("--console keeps the whole shop running: leave out --orders, --minutes, --scenario and --json")
	case d.Console && !consoleserver.Loopback(d.Listen):
		return fmt.Errorf("--listen is %s, which other machines may reach: use 127.0.0.1", d.Listen)
	}
	return d.Command.Validate()
}

// Run runs the demo.
func (d *demoCommand) Run(ctx context.Context) error {
	if !d.Console {
		return d.Command.Run(ctx)
	}
	if d.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.For)
		defer cancel()
	}
	return d.Command.RunLasting(ctx, d.serve)
}

var demoWords = consoleserver.Words{Listen: "--listen"}

// serve serves the console of the demo. Its log would break the table on the screen,
// and its page has all deeds.
func (d *demoCommand) serve(ctx context.Context, at demo.Place) error {
	token := newToken()
	server, err := consoleserver.New(ctx, consoleserver.Config{Listen: d.Listen, Write: true,
		People: []consoleserver.Person{{Name: "demo", Role: console.Administer.String(), Token: token}}},
		[]console.Store{{Name: "shop", Store: at.Store}}, console.LagOf(at.Sources...), slog.New(slog.DiscardHandler), demoWords)
	if err != nil {
		return err
	}
	width := show.Width(os.Stdout)
	fmt.Printf("Console: %s\nToken:   %s\n\n", server.URL(), token) // never in the URL, which browsers keep
	fmt.Println(show.Wrap(fmt.Sprintf("Try:     search for %s. Its customer asks: was I charged twice? Its timeline has the charge, and a refund whose outcome is unknown.", at.Disputed), width, 9))
	fmt.Println(show.Wrap(fmt.Sprintf("Then:    open %s, which is what the payment provider knows, and settle the refund with a reason.", at.Provider+at.Disputed), width, 9))
	fmt.Println("\nCtrl-C ends it.")
	fmt.Println()
	return server.Run(ctx)
}
