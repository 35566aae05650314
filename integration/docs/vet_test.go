package docs

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"

	oncevet "github.com/effectively-once/once/cmd/oncevet/rules"
)

// TestRulesFindWhatTheirPageShows runs the rules on the code of docs/vet.md. The
// first block of a section is the mistake, which its rule finds and no other. The
// last is the mended one, in which none finds anything.
func TestRulesFindWhatTheirPageShows(t *testing.T) {
	c := newCompiler(t)
	sections := sectionsOf(read(t, filepath.Join(root, "docs", "vet.md")))
	for _, a := range oncevet.Analyzers() {
		t.Run(a.Name, func(t *testing.T) {
			blocks := sections[a.Name]
			if len(blocks) != 2 {
				t.Fatalf("%d blocks of code, want a mistake and what is right", len(blocks))
			}
			wrong, right := c.vet(t, blocks[0]), c.vet(t, blocks[1])
			if len(wrong) == 0 || len(right) > 0 {
				t.Errorf("the mistake has the findings %q, and the code that is right %q", wrong, right)
			}
			for _, found := range wrong {
				if !strings.HasPrefix(found, a.Name+": ") {
					t.Errorf("another rule finds %q", found)
				}
			}
		})
	}
}

// sectionsOf returns the blocks of Go code in a document by their heading.
func sectionsOf(text string) map[string][]block {
	sections := make(map[string][]block)
	heading, begun, code := "", false, []string(nil)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		name, heads := strings.CutPrefix(line, "### ")
		switch {
		case heads:
			heading = name
		case line == "```go":
			begun, code = true, nil
		case line == "```" && begun:
			place := fmt.Sprintf("vet.md, %s %d", heading, len(sections[heading])+1)
			sections[heading] = append(sections[heading], block{place, strings.Join(code, "\n")})
			begun = false
		default:
			code = append(code, line)
		}
	}
	return sections
}

// vet returns what the rules find in a block.
func (c *compiler) vet(t *testing.T, b block) (found []string) {
	t.Helper()
	var files []*ast.File
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Instances: map[*ast.Ident]types.Instance{},
		Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Implicits: map[ast.Node]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
		Scopes:     map[ast.Node]*types.Scope{}, FileVersions: map[*ast.File]string{}}
	var pkg *types.Package
	var err error
	for _, result := range []string{"error", ""} {
		clear(info.Types)
		clear(info.Defs)
		clear(info.Uses)
		if pkg, files, err = c.check(b, "", result, info); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	results := make(map[*analysis.Analyzer]any)
	var run func(*analysis.Analyzer)
	run = func(a *analysis.Analyzer) {
		if _, done := results[a]; done {
			return
		}
		for _, required := range a.Requires {
			run(required)
		}
		result, err := a.Run(&analysis.Pass{Analyzer: a, Fset: c.files, Files: files, Pkg: pkg, TypesInfo: info,
			ResultOf: maps.Clone(results),
			Report:   func(d analysis.Diagnostic) { found = append(found, d.Message) }})
		if err != nil {
			t.Fatal(err)
		}
		results[a] = result
	}
	for _, a := range oncevet.Analyzers() {
		run(a)
	}
	slices.Sort(found)
	return found
}
