package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"text/tabwriter"
)

// report collects and prints the results of a run.
type report struct {
	Machine string   `json:"machine"`
	Notes   []string `json:"notes"`
	Results []result `json:"results"`
}

// note adds a line that belongs to no contest.
func (r *report) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Notes = append(r.Notes, text)
	fmt.Printf("\n%s\n", text)
}

func (r *report) add(s stage, l load, c contest, results []result) {
	for i := range results {
		results[i].Stage, results[i].Load = s.name, l.name
	}
	r.Results = append(r.Results, results...)
	fmt.Printf("\n%s, %s (per %s)\n", s.name, l.name, c.unit)
	printTable(results)
}

func printTable(results []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	defer w.Flush()
	header := "  variant\tcost\tquartiles\tper second\tp50 ms\tp99 ms"
	if results[0].latency {
		header += "\tp50 cost\tquartiles\tp99 cost\tquartiles"
	}
	fmt.Fprintln(w, header)
	for _, r := range results {
		if r.Failed != "" {
			fmt.Fprintf(w, "  %s\tFAILED: %s\n", r.Variant, r.Failed)
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%.0f\t%.2f\t%.2f", r.Variant, r.Cost, r.PerSecond, r.P50, r.P99)
		if r.latency {
			fmt.Fprintf(w, "\t%s\t%s", r.P50Cost, r.P99Cost)
		}
		fmt.Fprintln(w)
	}
}

// String formats two columns of a table.
func (s spread) String() string { return fmt.Sprintf("%.2f\t%.2f to %.2f", s.Median, s.Low, s.High) }

func (r *report) save(file string) error {
	r.Machine = fmt.Sprintf("%s/%s, %s, %s", runtime.GOOS, runtime.GOARCH, plural(runtime.NumCPU(), "processor"), runtime.Version())
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// failures returns an error if a variant was excluded.
func (r *report) failures() error {
	failed := 0
	for _, result := range r.Results {
		if result.Failed != "" {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%s failed and got no cost; the tables say why", plural(failed, "variant"))
}
