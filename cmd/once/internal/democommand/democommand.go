// Package democommand is the verb demo of the commands once and demo.
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

// Command is the command line of the demo for kong.
type Command struct {
	Orders   *int    `xor:"size" placeholder:"N" help:"How many orders to place on each side (default 150, with --scenario 20)."`
	Minutes  float64 `xor:"size" placeholder:"N" help:"Place orders for this long instead."`
	Scenario string  `placeholder:"NAME" help:"Inject only this fault, and explain it. Default: everything. Use list to see all names."`
	Workers  int     `default:"2" placeholder:"N" help:"Processes of the shop on each side, 2 to 32 (default 2)."`
	Seed     uint64  `default:"1" placeholder:"N" help:"Decides which order gets which fault (default 1)."`
	JSON     bool    `help:"Print one JSON object and nothing else."`
	Keep     bool    `help:"Keep the directory with the databases and the charges, and print its name."`

	lasting *demo.Lasting
}

// Help is the long text of once demo --help.
func (Command) Help() string {
	return `
A shop accepts orders over HTTP, writes them to its database and publishes a message for each. Three consumers charge
the customer, add points and send a letter. Two versions of the shop run side by side under the same faults: customers
click twice, replies and acks are lost, messages are redelivered, the broker goes down, and processes are killed with
SIGKILL at the worst points. One version is written by hand: check, act, record, acknowledge. The other uses once: an
atomic HTTP handler, an outbox with its relay, and consumers. In the end the demo counts the effects: rows, charges at
the payment provider, points, letters.

The database is SQLite in a temporary directory. The demo has its own broker on loopback, which keeps messages in
memory, delivers them at least once and outlives the shops. The payment provider and the mail server are simulated. The
demo needs nothing else, and leaves nothing behind unless this process is killed with SIGKILL.

  killed      processes of the shop, with SIGKILL
  duplicates  orders, charges, points and letters beyond one per order
  lost        orders that were acknowledged to the customer but lack their row, charge, points or letter
  parked      letters that may or may not have been sent: a person decides

The table at the end has one line per scenario. An order of any scenario may also be hit by a kill that was meant for
another order of the same process.

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

// ErrWrong reports that the shop with once was wrong. The result has already
// been printed.
var ErrWrong = errors.New("the shop with once was wrong")

// Validate is called by kong.
func (d *Command) Validate() error {
	if d.Orders != nil && (*d.Orders < 1 || *d.Orders > maxOrders) {
		return fmt.Errorf("--orders is %d: use 1 to %d", *d.Orders, maxOrders)
	}
	if !(d.Minutes >= 0 && d.Minutes <= maxMinutes) {
		return fmt.Errorf("--minutes is %v: use up to %d", d.Minutes, maxMinutes)
	}
	if d.Workers < 2 || d.Workers > maxWorkers {
		return fmt.Errorf("--workers is %d: use 2 to %d, a race needs two", d.Workers, maxWorkers)
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

// meant returns the scenario whose name is closest to a word.
func meant(word string) string {
	names := []string{everything, listOfScenarios}
	for _, w := range demo.Windows {
		names = append(names, w.Name)
	}
	best, least := "", 3 // maximum distance
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

// distance is the edit distance of two words.
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

// endTime limits how long a run that lasts may take to finish its orders.
const endTime = 30 * time.Second

// RunLasting runs the demo until ctx ends, and then prints its report. open is called
// with the shop with once.
func (d *Command) RunLasting(ctx context.Context, open func(context.Context, demo.Place) error) error {
	d.lasting = &demo.Lasting{Enough: ctx, Open: open}
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(endTime)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(fmt.Errorf("the orders under way were not finished within %v", endTime))
		case <-running.Done():
		}
	})()
	return d.Run(running)
}

// Run runs the demo and prints its report.
func (d *Command) Run(ctx context.Context) error {
	if d.Scenario == listOfScenarios {
		return d.list(newScreen(os.Stdout))
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the workers run this program, which cannot be found: %w", err)
	}
	signal.Ignore(syscall.SIGPIPE) // the reader of a pipe may exit first, but files still have to be removed
	screen := newScreen(os.Stdout)
	switch w, err := demo.Find(d.Scenario); {
	case d.JSON:
	case err == nil:
		fmt.Println(screen.explain(w))
	default:
		fmt.Print(screen.wrap(intro, 0))
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
	o := demo.Options{Seed: d.Seed, Orders: defaultOrders, Scenario: d.Scenario, Workers: d.Workers, Keep: d.Keep, Lasting: d.lasting,
		Duration: time.Duration(d.Minutes * float64(time.Minute)), Command: []string{self, "demo-worker"}}
	switch {
	case d.lasting != nil:
		o.Orders = 0
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
func (d *Command) list(s *screen) error {
	if d.JSON {
		return json.NewEncoder(s.out).Encode(demo.Windows)
	}
	var texts []string
	for _, w := range demo.Windows {
		texts = append(texts, s.explain(w))
	}
	_, err := io.WriteString(s.out, strings.Join(texts, "\n"))
	return err
}
