package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/bench"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

type benchCommand struct {
	storeFlags
	outputFlags
	Workers int     `default:"8" placeholder:"N" help:"Number of workers, 1 to 256, with one connection each (default 8)."`
	Seconds float64 `default:"7" placeholder:"N" help:"Seconds per variant, 0.1 to 60 (default 7)."`
	Yes     bool    `short:"y" help:"Skip confirmation."`
}

// Help is the long text of once bench --help.
func (benchCommand) Help() string {
	return `
Measures guarded transactions on your database as multiples of the same transaction without a guard, in about a minute.
All variants run in turns of at most half a second, so that other load on the machine affects all of them:

  bare transaction        inserts one row into a scratch table and commits
  bare, half the workers  the same; not on SQLite, which has one writer
  by hand                 the transaction also inserts a random key into the scratch table, the least that a guard does
  DoTx, new key           the bare transaction in once.DoTx, each time with a new key
  DoTx, speculative       the same with Operation.Speculative, on PostgreSQL
  DoTx, duplicate         the same call with a key that is done: the cost of a redelivery
  Do, nothing             once.Do around an empty function: two commits
  Do, async commit        the same with Operation.AsyncCommit, on PostgreSQL

On a store without tables, such as Redis:

  two writes              two conditional writes, the least that a guard of work elsewhere does by hand
  Do, nothing             once.Do around an empty function
  Do, duplicate           the same call with a key that is done

  cost                    time for as many as the bare transaction does, divided by its time: the median over the rounds

Below the table it says what to change, if anything: the size of the pool, an option of the operation, or the isolation
level.

It writes as fast as it can, so do not run it on a busy database. The scratch table is dropped at the end, even after
Ctrl-C. Keys have the operation once-bench and are kept for a minute. At the end, expired keys are forgotten; the next
Forget drops the rest.

Examples:
  once bench
  once bench --workers 1 --seconds 5
  once bench --url sqlite:copy.db --yes -o json | jq '.operations[] | {name, cost}'

` + exitHelp
}

// Validate is called by kong.
func (c *benchCommand) Validate() error {
	if c.Workers < 1 || c.Workers > bench.MaxWorkers {
		return fmt.Errorf("--workers is %d: use 1 to %d", c.Workers, bench.MaxWorkers)
	}
	if !(c.Seconds >= 0.1 && c.Seconds <= 60) {
		return fmt.Errorf("--seconds is %v: use 0.1 to 60", c.Seconds)
	}
	return nil
}

// benchJSON is the JSON form of the measurements.
type benchJSON struct {
	Target     string          `json:"target"`
	Engine     string          `json:"engine"`
	Workers    int             `json:"workers"`
	Seconds    float64         `json:"seconds"`
	Rounds     int             `json:"rounds"`
	Operations []operationJSON `json:"operations"`
	Advice     []adviceJSON    `json:"advice"`
	KeysLeft   int             `json:"keys_left"`
	KeysDue    string          `json:"keys_due,omitempty"`
}

type adviceJSON struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

type operationJSON struct {
	Name      string  `json:"name"`
	Workers   int     `json:"workers"`
	Count     int     `json:"count"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_seconds"`
	P95       float64 `json:"p95_seconds"`
	P99       float64 `json:"p99_seconds"`
	Cost      float64 `json:"cost"`
}

// Run measures.
func (c *benchCommand) Run(ctx context.Context) error {
	s, err := c.openWith(ctx, &target.Options{Connections: c.Workers})
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Store.Get(ctx, once.Key{Operation: bench.Operation, ID: "tables"}); err != nil {
		return err // so also if there are none
	}
	o := bench.Options{Workers: c.Workers, Length: time.Duration(c.Seconds * float64(time.Second))}
	plan, err := c.plan(ctx, s, o)
	if err != nil {
		return err
	}
	ask := changeFlags{Yes: c.Yes}
	if err := ask.confirm(ctx, s, plan); err != nil {
		return err
	}
	line := newProgress(c.outputFlags)
	o.Progress = func(done, of int) { line.say("%3d%%", 100*done/of) }
	r, err := bench.Run(ctx, s.Target, o)
	line.end()
	tellKeys(ctx, s, r.Keys)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, bench.ErrStays) { // else only the interruption is told of
			note("%v", secret.From(ctx).Error(err))
		}
		return err
	}
	return c.print(s, r)
}

// plan describes what the benchmark will do, for confirmation.
func (c *benchCommand) plan(ctx context.Context, s *session, o bench.Options) (string, error) {
	duration := time.Duration(bench.Variants(s.Target, c.Workers)) * o.Length
	if s.Tables == nil {
		return fmt.Sprintf("  %d workers write as fast as they can for %v. Their keys are kept for a minute.", c.Workers, duration), nil
	}
	state, err := bench.Find(ctx, s.Target)
	if err != nil {
		return "", err
	}
	table := bench.Scratch(s.Target)
	plan := fmt.Sprintf("  %d workers write as fast as they can for %v into the table %s, which is created and dropped,\n"+
		"  and claim keys of the operation %s, which are kept for a minute.",
		c.Workers, duration, table, bench.Operation)
	switch state {
	case bench.Foreign:
		return "", fmt.Errorf("the table %s exists and is not a scratch table of once bench. Nothing was changed. "+
			"Rename it, or use another database", table)
	case bench.Left:
		plan += fmt.Sprintf("\n  The table %s of an earlier or still running once bench is dropped.", table)
	}
	return plan, nil
}

func tellKeys(ctx context.Context, s *session, k bench.Keys) {
	if k.Err != nil {
		note("The keys of %s could not be forgotten: %v", bench.Operation, secret.From(ctx).Error(k.Err))
	}
	if k.Left == 0 {
		return
	}
	goes := "are forgotten by the next janitor or once bench"
	switch {
	case s.Tables == nil:
		goes = "are dropped by the database"
	case s.Tables.Partitioned:
		goes = "are dropped with their partition by the janitor"
	}
	note("%d keys of %s are left. They expire at %s and %s.", k.Left, bench.Operation,
		k.Due.UTC().Format(time.RFC3339), goes)
}

var benchNames = map[string]string{bench.Bare: "bare transaction", bench.Half: "bare, half the workers", bench.ByHand: "by hand",
	bench.New: "DoTx, new key", bench.Speculative: "DoTx, speculative", bench.Duplicate: "DoTx, duplicate",
	bench.Do: "Do, nothing", bench.Async: "Do, async commit", bench.DoDuplicate: "Do, duplicate"}

// benchName names a variant in the table.
func (s *session) benchName(variant string) string {
	if s.Tables == nil {
		switch variant {
		case bench.Bare:
			return "two writes"
		case bench.Half:
			return "two writes, half the workers"
		}
	}
	return benchNames[variant]
}

func (c *benchCommand) print(s *session, r bench.Report) error {
	if c.json() {
		j := benchJSON{Target: s.String(), Engine: string(s.Engine), Workers: c.Workers, Seconds: c.Seconds,
			Rounds: r.Rounds, Advice: []adviceJSON{}, KeysLeft: r.Keys.Left, KeysDue: stamp(r.Keys.Due)}
		for _, o := range r.Sides {
			j.Operations = append(j.Operations, operationJSON{o.Name, o.Workers, o.Count, rounded(o.PerSecond), seconds(o.P50),
				seconds(o.P95), seconds(o.P99), rounded(o.Cost)})
		}
		for _, a := range r.Advice() {
			j.Advice = append(j.Advice, adviceJSON(a))
		}
		return printJSON(j)
	}
	table := newTable("OPERATION", "PER SECOND", "P50", "P95", "P99", "COST", "")
	for _, o := range r.Sides {
		table.Row(s.benchName(o.Name), fmt.Sprintf("%.0f", o.PerSecond), millis(o.P50), millis(o.P95), millis(o.P99),
			fmt.Sprintf("%.2f", o.Cost), bar(o.Cost))
	}
	if err := table.Print(os.Stdout); err != nil {
		return err
	}
	for i, a := range r.Advice() {
		if i == 0 {
			fmt.Println()
		}
		if _, err := fmt.Println(a.Text); err != nil {
			return err
		}
	}
	return nil
}

// bar draws a cost: ten blocks are that of the bare transaction.
func bar(cost float64) string {
	const most = 40
	switch n := int(math.Round(10 * cost)); {
	case n == 0:
		return "▏"
	case n > most:
		return strings.Repeat("█", most) + "…"
	default:
		return strings.Repeat("█", n)
	}
}

func rounded(f float64) float64 { return math.Round(f*1000) / 1000 }

func millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
