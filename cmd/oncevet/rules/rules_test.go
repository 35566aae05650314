package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
	"golang.org/x/tools/go/analysis/passes/inspect"
)

// together is all rules as one analyzer, so that the packages of testdata are
// loaded once, and each rule is silent about the mistakes of the others.
func together() *analysis.Analyzer {
	return &analysis.Analyzer{Name: "oncevet", Doc: "all rules",
		Requires: []*analysis.Analyzer{inspect.Analyzer, indexer},
		Run: func(pass *analysis.Pass) (any, error) {
			for _, a := range Analyzers() {
				if _, err := a.Run(pass); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}}
}

// TestMistakesAreFound runs the rules on planted mistakes, and on code beside
// them that is right. The packages of once are the real ones. Other packages are
// stubs with only what is used.
func TestMistakesAreFound(t *testing.T) {
	dir := analysistest.TestData()
	fetch := exec.Command("go", "mod", "download") // what httponce requires, unless it is there
	fetch.Dir, fetch.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("go mod download: %v\n%s", err, out)
	}
	found := map[string]int{}
	for _, result := range analysistest.RunWithSuggestedFixes(t, dir, together(), "./...") {
		for _, d := range result.Diagnostics {
			found[d.Category]++
			if result.Pass.Pkg.Name() != d.Category && result.Pass.Pkg.Name() != "silence" {
				t.Errorf("%s: a finding of another rule: %s", result.Pass.Pkg.Path(), d.Message)
			}
		}
	}
	for _, r := range all {
		if found[r.name] < 3 {
			t.Errorf("%s has %d findings", r.name, found[r.name])
		}
	}
}

// TestRulesAreExplained checks that docs/vet.md has a section for each rule, and
// for nothing else, and that the rules say in one line what they report.
func TestRulesAreExplained(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "vet.md"))
	if err != nil {
		t.Skipf("this is not the repository: %v", err)
	}
	var sections, names []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			sections = append(sections, strings.TrimSpace(name))
		}
	}
	for _, a := range Analyzers() {
		names = append(names, a.Name)
		title, rest, _ := strings.Cut(a.Doc, "\n")
		if !strings.HasPrefix(title, "report ") || !strings.HasPrefix(rest, "\n") {
			t.Errorf("%s: the doc begins with %q", a.Name, title)
		}
	}
	if !slices.Equal(sections, names) {
		t.Errorf("docs/vet.md explains %v, the rules are %v", sections, names)
	}
	if err := analysis.Validate(Analyzers()); err != nil {
		t.Error(err)
	}
}
