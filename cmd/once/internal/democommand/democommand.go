// Package democommand is the verb demo: of the command once, and of the command demo, which has no other.
package democommand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// Command is the command line of the demo, as kong reads it.
type Command struct {
	Orders   *int    `xor:"size" placeholder:"N" help:"How many orders to place on each side (default 150, with --scenario 20)."`
	Minutes  float64 `xor:"size" placeholder:"N" help:"Place orders for so long instead."`
	Scenario string  `placeholder:"NAME" help:"Do nothing but this to orders, and explain it; everything is the default, and list names them all."`
	Workers  int     `default:"2" placeholder:"N" help:"Processes of the shop on each side, 2 to 32 (default 2)."`
	Seed     uint64  `default:"1" placeholder:"N" help:"Decides what is done to which order (default 1)."`
	JSON     bool    `help:"Print one JSON object and nothing else."`
	Keep     bool    `help:"Keep the directory with the databases and the charges, and print its name."`
}

// Help is the long text of once demo --help.
func (Command) Help() string {
	return `
A shop takes orders over HTTP, writes them to its database, tells a broker of them, and three consumers charge the
customer, add points and send a letter. It runs twice, side by side, and the same is done to both: customers click
twice, replies and acks get lost, messages come again, alone or two at one moment, the broker goes down, and processes
are killed with SIGKILL at the worst points. One shop is written by hand: look, do it, note it, acknowledge. The other
one is the same with once: an atomic HTTP handler, an outbox and its relay, and consumers. Then what is left is counted:
rows, charges at the payment provider, points, letters.

The database is SQLite in a temporary directory. The broker is one of the demo's own, on loopback: it keeps messages in
memory, delivers at least once as others do, and outlives the shops. The payment provider and the mail server are played. Nothing else is needed, and nothing is left behind (unless this process is
killed with -9).

  killed      processes of the shop, with SIGKILL
  twice       orders, charges, points and letters beyond one per order
  lost        orders that were acknowledged to the customer, and miss their row, charge, points or letter
  parked      letters of which nobody can know whether they were sent: a person decides

At the end, a table tells for each thing that was done to orders what became of them. What was done to none of them
can hit one too: it is in the hands of a process that is killed for another.

Exit status: 0 the shop with once was right, 1 it was wrong, 2 wrong usage, 3 the demo could not run.

Examples:
  once demo
  once demo --scenario list
  once demo --scenario crash-before-publish
  once demo --orders 1000 --workers 4 --seed 7
  once demo --minutes 10
  once demo --orders 50 --json`
}

const (
	defaultOrders   = 150
	scenarioOrders  = 20
	maxOrders       = 1_000_000
	maxMinutes      = 24 * 60
	maxWorkers      = 32
	listOfScenarios = "list"
	everything      = "everything" // the default
)

// ErrWrong says that the shop with once was wrong. It has been printed already.
var ErrWrong = errors.New("the shop with once was wrong")

// Validate is called by kong.
func (d *Command) Validate() error {
	if d.Orders != nil && (*d.Orders < 1 || *d.Orders > maxOrders) {
		return fmt.Errorf("--orders is %d: give 1 to %d", *d.Orders, maxOrders)
	}
	if !(d.Minutes >= 0 && d.Minutes <= maxMinutes) {
		return fmt.Errorf("--minutes is %v: give up to %d", d.Minutes, maxMinutes)
	}
	if d.Workers < 2 || d.Workers > maxWorkers {
		return fmt.Errorf("--workers is %d: give 2 to %d, a race needs two", d.Workers, maxWorkers)
	}
	if d.Scenario == everything {
		d.Scenario = ""
	}
	if d.Scenario != "" && d.Scenario != listOfScenarios {
		if _, err := demo.Find(d.Scenario); err != nil {
			return fmt.Errorf("%w, or %s, or %s%s", err, everything, listOfScenarios, meant(d.Scenario))
		}
	}
	return nil
}

// meant names the scenario that a word is like.
func meant(word string) string {
	names := []string{everything, listOfScenarios}
	for _, w := range demo.Windows {
		names = append(names, w.Name)
	}
	best, least := "", 3 // letters that may be wrong
	for _, name := range names {
		if d := distance(word, name); d < least || d == least && strings.HasPrefix(name, word) {
			best, least = name, d
		}
		if best == "" && len(word) > 3 && (strings.HasPrefix(name, word) || strings.HasSuffix(name, word)) {
			best = name
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(". Did you mean %q?", best)
}

// distance is how many letters have to be changed, added or left out to make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Run runs the demo and prints its report.
func (d *Command) Run(ctx context.Context) error {
	if d.Scenario == listOfScenarios {
		return d.list(os.Stdout)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the workers are this program, and it cannot be found: %w", err)
	}
	signal.Ignore(syscall.SIGPIPE) // what it is piped to may end first, and then there is something to remove
	screen := newScreen(os.Stdout)
	switch w, err := demo.Find(d.Scenario); {
	case d.JSON:
	case err == nil:
		fmt.Println(w.Explain())
	default:
		fmt.Print(intro)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	report, err := demo.Run(ctx, d.options(self, func(r demo.Report) {
		if err := screen.progress(r); err != nil {
			cancel(err)
		}
	}))
	if err != nil {
		if report.Directory != "" {
			fmt.Fprintln(os.Stderr, "Kept:", report.Directory)
		}
		return err
	}
	if err := d.print(screen, report); err != nil {
		return err
	}
	if !report.Right() {
		return ErrWrong
	}
	return nil
}

func (d *Command) options(self string, progress func(demo.Report)) demo.Options {
	o := demo.Options{Seed: d.Seed, Orders: defaultOrders, Scenario: d.Scenario, Workers: d.Workers, Keep: d.Keep,
		Duration: time.Duration(d.Minutes * float64(time.Minute)), Command: []string{self, "demo-worker"}}
	switch {
	case d.Orders != nil:
		o.Orders = *d.Orders
	case o.Duration > 0:
		o.Orders = 0
	case d.Scenario != "":
		o.Orders = scenarioOrders
	}
	if !d.JSON {
		o.Progress = progress
	}
	return o
}

func (d *Command) print(s *screen, r demo.Report) error {
	if d.JSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return s.final(r)
}

// list explains all scenarios.
func (d *Command) list(out io.Writer) error {
	if d.JSON {
		return json.NewEncoder(out).Encode(demo.Windows)
	}
	var texts []string
	for _, w := range demo.Windows {
		texts = append(texts, w.Explain())
	}
	_, err := io.WriteString(out, strings.Join(texts, "\n"))
	return err
}
