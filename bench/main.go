// Command bench measures guarded work against the same work without a guard. The variants of an engine run in turns,
// many times over, and what is reported is the ratio of each turn to the unguarded one of the same round: absolute
// times mean nothing on a machine that does other things too.
//
// It uses SQLite in a temporary file, and the PostgreSQL that ONCE_TEST_POSTGRES names ("make bench" starts one).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// engine is a database with the same work in several variants. The first is the one that others are compared with.
type engine struct {
	name     string
	variants []variant
	close    func()
}

type variant struct {
	name string
	run  func(ctx context.Context, id string) error
}

// result is the cost of a variant: the time per unit of work as a multiple of the first variant's.
type result struct {
	Engine    string  `json:"engine"`
	Workers   int     `json:"workers"`
	Variant   string  `json:"variant"`
	Median    float64 `json:"median"`
	Low       float64 `json:"low"`  // first quartile
	High      float64 `json:"high"` // third quartile
	PerSecond float64 `json:"per_second"`
}

func main() {
	rounds := flag.Int("rounds", 15, "how often each variant runs")
	turn := flag.Duration("turn", 250*time.Millisecond, "how long one turn takes")
	file := flag.String("json", "", "write the results to this file too")
	flag.Parse()
	ctx := context.Background()

	var results []result
	for _, open := range []func(context.Context) (*engine, error){openSQLite, openPostgres} {
		e, err := open(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if e == nil {
			continue
		}
		for _, workers := range []int{1, 8} {
			measured, err := measure(ctx, e, workers, *rounds, *turn)
			if err != nil {
				log.Fatalf("%s: %v", e.name, err)
			}
			results = append(results, measured...)
		}
		e.close()
	}
	table(results)
	if *file != "" {
		text, err := json.MarshalIndent(results, "", "  ")
		if err == nil {
			err = os.WriteFile(*file, append(text, '\n'), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

func measure(ctx context.Context, e *engine, workers, rounds int, turn time.Duration) ([]result, error) {
	rates := make([][]float64, len(e.variants))
	for round := range rounds + 1 {
		for i, v := range e.variants {
			rate, err := oneTurn(ctx, v, workers, turn)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			if round > 0 { // the first one warms up
				rates[i] = append(rates[i], rate)
			}
		}
	}
	results := make([]result, len(e.variants))
	for i, v := range e.variants {
		ratios := make([]float64, rounds)
		for r := range ratios {
			ratios[r] = rates[0][r] / rates[i][r]
		}
		slices.Sort(ratios)
		slices.Sort(rates[i])
		results[i] = result{e.name, workers, v.name, ratios[rounds/2], ratios[rounds/4], ratios[rounds*3/4], rates[i][rounds/2]}
	}
	return results, nil
}

var ids atomic.Int64

// oneTurn returns units of work per second.
func oneTurn(ctx context.Context, v variant, workers int, turn time.Duration) (float64, error) {
	var wg sync.WaitGroup
	var done atomic.Int64
	var failed atomic.Pointer[error]
	begun := time.Now()
	for range workers {
		wg.Go(func() {
			for time.Since(begun) < turn && failed.Load() == nil {
				if err := v.run(ctx, fmt.Sprintf("%d-%d", begun.UnixNano(), ids.Add(1))); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(begun).Seconds(), nil
}

func table(results []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "engine\tworkers\tvariant\tcost\tquartiles\tper second")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%s\t%.2f\t%.2f to %.2f\t%.0f\n", r.Engine, r.Workers, r.Variant, r.Median, r.Low, r.High, r.PerSecond)
	}
	w.Flush()
}
