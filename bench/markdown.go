package main

import (
	"fmt"
	"os"
	"strings"
)

// saveMarkdown writes a table for each stage, with a column for each load.
func (r *report) saveMarkdown(file string) error {
	var text strings.Builder
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "- %s\n", note)
	}
	for rest := r.Results; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Stage == rest[0].Stage {
			n++
		}
		writeStage(&text, rest[:n])
		rest = rest[n:]
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

func writeStage(text *strings.Builder, results []result) {
	var loads, variants []string
	cells := map[[2]string]string{}
	for _, r := range results {
		if len(loads) == 0 || loads[len(loads)-1] != r.Load {
			loads = append(loads, r.Load)
		}
		if r.Load == results[0].Load {
			variants = append(variants, r.Variant)
		}
		cells[[2]string{r.Load, r.Variant}] = cell(r, r.Variant == results[0].Variant)
	}
	fmt.Fprintf(text, "\n**%s**\n\n| | %s |\n|---|%s\n", results[0].Stage, strings.Join(loads, " | "), strings.Repeat("---|", len(loads)))
	for _, v := range variants {
		fmt.Fprintf(text, "| %s |", v)
		for _, l := range loads {
			fmt.Fprintf(text, " %s |", cells[[2]string{l, v}])
		}
		text.WriteString("\n")
	}
}

// cell formats the rate of the first variant, and the costs of the others.
func cell(r result, first bool) string {
	latency := ""
	if r.latency {
		latency = fmt.Sprintf("; p50 %.2f ms, p99 %.2f ms", r.P50, r.P99)
	}
	switch {
	case r.Failed != "":
		return "failed"
	case first:
		return fmt.Sprintf("%.0f/s%s", r.PerSecond, latency)
	case r.latency:
		return fmt.Sprintf("%s%s: %s", r.Cost.inline(), latency, r.P99Cost.inline())
	default:
		return r.Cost.inline()
	}
}

func (s spread) inline() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High) }
