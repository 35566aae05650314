package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMarkdownHasATableForEachStage(t *testing.T) {
	r := report{Notes: []string{"a note"}, Results: []result{
		{Stage: "one", Load: "1 worker", Variant: "bare", PerSecond: 100},
		{Stage: "one", Load: "1 worker", Variant: "ours", Cost: spread{1.5, 1.25, 2}},
		{Stage: "one", Load: "8 workers", Variant: "bare", PerSecond: 200},
		{Stage: "one", Load: "8 workers", Variant: "ours", Failed: "broken"},
		{Stage: "two", Load: "1 worker", Variant: "bare", PerSecond: 300, P50: 1, P99: 2, latency: true},
	}}
	file := filepath.Join(t.TempDir(), "tables.md")
	if err := r.saveMarkdown(file); err != nil {
		t.Fatal(err)
	}
	const want = `- a note

**one**

| | 1 worker | 8 workers |
|---|---|---|
| bare | 100/s | 200/s |
| ours | 1.50 (1.25–2.00) | failed |

**two**

| | 1 worker |
|---|---|
| bare | 300/s; p50 1.00 ms, p99 2.00 ms |
`
	if got, _ := os.ReadFile(file); string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
