package broker_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker"
)

// spelled returns the texts of a file, in lower case.
func spelled(t *testing.T, file string) (texts []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			texts = append(texts, strings.ToLower(text))
		}
		return true
	})
	return texts
}

// Each reserved name is declared once, and is either a header or a field.
func TestAReservedNameHasOneMeaning(t *testing.T) {
	declared := spelled(t, "headers.go")
	slices.Sort(declared)
	if once := slices.Compact(slices.Clone(declared)); !slices.Equal(once, declared) {
		t.Errorf("a name is declared twice: %q", declared)
	}
	for _, name := range declared {
		header := slices.Contains(broker.Headers(), name)
		if header == broker.IsField(name) && name != broker.HeaderPrefix && name != broker.PlaceHeader {
			t.Errorf("%q is a header: %v, and a field: %v", name, header, broker.IsField(name))
		}
		m := broker.Message{ID: "a", Topic: "b", Header: map[string]string{name: ""}}
		if err := m.Check(); (err != nil) != broker.IsField(name) {
			t.Errorf("a message with the header %q: %v", name, err)
		}
	}
	if len(declared) < len(broker.Headers())+5 {
		t.Errorf("only %d names were seen: the test reads the wrong file", len(declared))
	}
}

// elsewhere are names in adapters that are no names of headers.
var elsewhere = []string{
	"once-",        // the prefix
	"once-created", // a label of a subscription of Pub/Sub
}

// TestReservedNamesAreSpelledInOnePlace keeps an adapter from giving a name a
// second meaning.
func TestReservedNamesAreSpelledInOnePlace(t *testing.T) {
	home, err := filepath.Abs("headers.go")
	if err != nil {
		t.Fatal(err)
	}
	declared, read := spelled(t, home), 0
	err = filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() {
			if file != ".." && strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "integration" {
				return filepath.SkipDir
			}
			return nil
		}
		if path, _ := filepath.Abs(file); path == home || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		read++
		adapter := strings.HasPrefix(filepath.ToSlash(file), "../broker/") && !strings.HasPrefix(filepath.ToSlash(file), "../broker/brokertest/")
		for _, text := range spelled(t, file) {
			if slices.Contains(declared, text) || adapter && strings.HasPrefix(text, "once-") && !slices.Contains(elsewhere, text) {
				t.Errorf("%s spells %q: declare the name with its meaning in headers.go, and use the constant", file, text)
			}
		}
		return nil
	})
	if err != nil || read < 100 {
		t.Errorf("%d files were read: %v", read, err)
	}
}
