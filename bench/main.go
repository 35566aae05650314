// Command bench measures guarded work against the same work without a guard,
// and against other libraries that do the same work. The variants of a contest
// take turns, for many rounds. Results are multiples of the unguarded variant in
// the same round, because absolute times mean little on a machine that also does
// other work.
//
// It uses the servers in ONCE_TEST_POSTGRES and ONCE_TEST_MARIADB ("make bench"
// starts both), and SQLite in a temporary file. It changes only servers that were
// started for tests. docs/benchmarks.md explains the output, and
// bench/results.md describes each contest.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

const usage = `usage: bench [flags]

Measures guarded work side by side with bare work and with other libraries.
"make bench" starts the servers that it needs, and runs everything.

`

// bench is one run.
type bench struct {
	only   *regexp.Regexp
	rounds int
	turn   time.Duration
	short  bool
	large  bool
	rows   int // of the largest table of growthStages
	peers  *peers
	report report
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage); flag.PrintDefaults() }
	only := flag.String("only", "", "run only the contests whose names match this `regexp`; see -list")
	list := flag.Bool("list", false, "print the names of the contests, and end")
	file := flag.String("json", "", "write everything that was measured to this `file`")
	markdown := flag.String("markdown", "", "write the results as Markdown tables to this `file`")
	peersDir := flag.String("peers", "bench/peers", "the `directory` of the module that runs the other libraries; empty: they are left out")
	rounds := flag.Int("rounds", 0, "how often each variant runs (default 7, with -short 3)")
	turn := flag.Duration("turn", 0, "how long one turn takes (default 100ms, with -short 60ms)")
	short := flag.Bool("short", false, "a look in less than a minute: few settings, 8 workers only, few and short rounds")
	large := flag.Bool("large", false, "also the contests that fill large tables")
	rows := flag.Int("rows", 10_000_000, "with -large, the rows of the largest table; 100000000 takes hours and 70 GB")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; -help shows the flags", flag.Arg(0))
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	b := &bench{only: pattern, rounds: cmp.Or(*rounds, 7), turn: cmp.Or(*turn, 100*time.Millisecond), large: *large, rows: *rows}
	if *short {
		b.short, b.rounds, b.turn = true, cmp.Or(*rounds, 3), cmp.Or(*turn, 60*time.Millisecond)
	}
	if b.rounds < 1 || b.turn <= 0 {
		return errors.New("-rounds and -turn are greater than 0")
	}
	if b.rows < smallest {
		return fmt.Errorf("-rows is %d or more", smallest)
	}
	if *list {
		b.list()
		return nil
	}
	return b.run(*peersDir, *file, *markdown)
}

// run holds the selected contests and saves the results when it ends, even
// after an error.
func (b *bench) run(peersDir, file, markdown string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if peersDir != "" {
		b.peers = startPeers(ctx, peersDir, &b.report)
		defer b.peers.stop()
	}
	err := b.hold(ctx)
	if file != "" {
		err = errors.Join(err, b.report.save(file))
	}
	if markdown != "" {
		err = errors.Join(err, b.report.saveMarkdown(markdown))
	}
	return errors.Join(err, b.report.failures())
}

func (b *bench) stages() (stages []stage) {
	for _, s := range [][]stage{guardedStages(), twoPhaseStages(), batchStages(), sizeStages(), growthStages(), forgetStages(), consumeStages(), brokerStages(),
		publishStages(), databaseStages(), cosmosStages(), dynamoStages(), redisStages(), tableStages(), natsStages(), httpStages(), tieredStages()} {
		stages = append(stages, s...)
	}
	return stages
}

// wanted returns the selected loads of a stage.
func (b *bench) wanted(s stage) (loads []load) {
	for _, l := range s.loads {
		fits := (!s.large || b.large) && (!b.short || !s.long && l.workers == 8)
		if fits && b.only.MatchString(s.name+"/"+l.name) {
			loads = append(loads, l)
		}
	}
	return loads
}

func (b *bench) list() {
	for _, s := range b.stages() {
		for _, l := range b.wanted(s) {
			fmt.Println(s.name + "/" + l.name)
		}
	}
}

// hold holds the contests. It skips stages that cannot be opened.
func (b *bench) hold(ctx context.Context) error {
	var errs []error
	for _, s := range b.stages() {
		if loads := b.wanted(s); len(loads) > 0 && ctx.Err() == nil {
			if err := b.holdOn(ctx, s, loads); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			}
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (b *bench) holdOn(ctx context.Context, s stage, loads []load) error {
	a, err := s.open(ctx, b)
	if errors.Is(err, errNoServer) {
		b.report.note("%s is left out: %v", s.name, err)
		return nil
	}
	if err != nil {
		return err
	}
	defer a.close()
	for _, l := range loads {
		c := a.contest(l)
		results, err := measure(ctx, c, l.workers, b.rounds, b.length(c))
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		b.report.add(s, l, c, results)
	}
	return nil
}

// length returns the length of a turn. A 99th percentile needs more units than
// a rate.
func (b *bench) length(c contest) time.Duration {
	if c.latency {
		return 2 * b.turn
	}
	return b.turn
}

// plural formats a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
