package once_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ownSource are the names of math/rand and math/rand/v2 with which code draws
// from a generator of its own, which it seeds.
var ownSource = []string{"New", "NewPCG", "NewChaCha8", "NewSource", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}

// TestChanceCanBeSeeded forbids the global generators of math/rand: a test cannot
// seed them, so a simulation that draws from them is not repeatable.
func TestChanceCanBeSeeded(t *testing.T) {
	seen := 0
	eachFile(t, func(file, dir string, test bool) {
		folder, _, _ := strings.Cut(dir, "/")
		if test || slices.Contains([]string{"integration", "bench", "examples"}, folder) {
			return
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if path != "math/rand" && path != "math/rand/v2" {
				continue
			}
			seen++
			name := "rand"
			if spec.Name != nil {
				name = spec.Name.Name
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if ok && dotted(s.X) == name && !slices.Contains(ownSource, s.Sel.Name) {
					t.Errorf("%s: %s.%s draws from a generator that cannot be seeded: take internal/chance",
						fset.Position(s.Pos()), name, s.Sel.Name)
				}
				return true
			})
		}
	})
	if seen == 0 {
		t.Error("no import of math/rand was seen, not even that of oncetest: the test reads the wrong files")
	}
}
