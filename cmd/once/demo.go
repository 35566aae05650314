package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

type demoCommand struct {
	Orders     *int   `xor:"size" placeholder:"N" help:"How many orders to pay (default 400)."`
	Deliveries *int   `xor:"size" placeholder:"N" help:"How many deliveries to make on each side, instead of --orders."`
	Workers    int    `default:"4" placeholder:"N" help:"Worker processes on each side, 2 to 64 (default 4)."`
	Seed       uint64 `default:"1" placeholder:"N" help:"Decides who is killed where, and what is duplicated (default 1)."`
	JSON       bool   `help:"Print one JSON object and nothing else."`
	Keep       bool   `help:"Keep the directory with the databases and the charges, and print its name."`
}

// Help is the long text of once demo --help.
func (demoCommand) Help() string {
	return `
A broker delivers orders at least once: some twice, some to two workers at the same moment, some again because
the ack was lost. Workers are processes, killed with SIGKILL at seeded points: before the charge, after it,
in the middle of the transaction, between commit and ack. Two handlers get the same schedule: one written by hand
(look, charge, write, ack) and one with once. Then the charges at the payment provider and the balances in the
database are counted.

The database is SQLite in a temporary directory, the payment provider an HTTP server on loopback.
Nothing else is needed, and nothing is left behind (unless this process is killed with -9).

  deliveries  those of the schedule, and one more for each that a handler refused
  crashes     workers that were killed
  effects     charges that the provider made; there should be one per order
  duplicated  charges, and bookings in the balance, beyond one per order
  lost        acknowledged orders without a charge, a row or their amount in the balance

Exit status: 0 the handler with once was right, 1 it was wrong, 2 wrong usage, 3 the demo could not run.

Examples:
  once demo
  once demo --orders 1000 --workers 8 --seed 7
  once demo --deliveries 200 --json`
}

const (
	defaultOrders = 400
	maxSize       = 1_000_000
)

// Validate is called by kong.
func (d *demoCommand) Validate() error {
	for name, n := range map[string]*int{"--orders": d.Orders, "--deliveries": d.Deliveries} {
		if n != nil && (*n < 1 || *n > maxSize) {
			return fmt.Errorf("%s is %d: give 1 to %d", name, *n, maxSize)
		}
	}
	if d.Workers < 2 || d.Workers > 64 {
		return fmt.Errorf("--workers is %d: give 2 to 64, a race needs two", d.Workers)
	}
	return nil
}

// Run runs the demo and prints its report.
func (d *demoCommand) Run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the workers are this program, and it cannot be found: %w", err)
	}
	screen := newScreen(os.Stdout)
	report, err := demo.Run(ctx, d.options(self, screen))
	if err != nil {
		return err
	}
	if err := d.print(screen, report); err != nil {
		return err
	}
	if !report.Right() {
		return errNo
	}
	return nil
}

func (d *demoCommand) options(self string, screen *screen) demo.Options {
	o := demo.Options{Seed: d.Seed, Workers: d.Workers, Keep: d.Keep, Command: []string{self, "demo-worker"}}
	switch {
	case d.Deliveries != nil:
		o.Deliveries = *d.Deliveries
	case d.Orders != nil:
		o.Orders = *d.Orders
	default:
		o.Orders = defaultOrders
	}
	if !d.JSON {
		o.Progress = screen.progress
	}
	return o
}

func (d *demoCommand) print(s *screen, r demo.Report) error {
	if d.JSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return s.final(r)
}
