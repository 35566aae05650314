package once_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/effectively-once/once"

// floors lists the rooms of the house from the bottom up. A package may import
// from lower floors and from its own room. Folders on no floor (examples,
// integration, bench) may import everything.
var floors = []struct {
	rooms []string
	depth int // of the folders that are rooms of their own: "store/x" may not import "store/y"
}{
	{[]string{"observe"}, 1},
	{[]string{"internal"}, 1},
	{[]string{"."}, 1},
	{[]string{"broker"}, 1},
	{[]string{"store"}, 1},
	{[]string{"broker/internal", "store/cas", "store/sqlschema"}, 2}, // what adapters share
	{[]string{"store/*", "broker/*"}, 2},
	{[]string{"internal/sim"}, 2}, // a world in memory for tests
	{[]string{"admission"}, 1},    // what the guards of requests share
	{[]string{"inbox", "outbox", "reconcile", "crosscheck", "janitor", "httponce", "grpconce"}, 1},
	{[]string{"oncetest"}, 1}, // runs services
	{[]string{"otelonce"}, 1},
	{[]string{"observe/alerts"}, 2}, // rules, and tests that drive them with otelonce
	{[]string{"console"}, 1},
	{[]string{"cmd"}, 2},
}

// hasInner lists rooms whose folders stand on a floor above theirs.
var hasInner = map[string]bool{"store": true, "broker": true}

// doubles lists what the tests of one floor may share. sqlstore is one because
// pgstore works on its tables.
var doubles = map[string]bool{
	"store/sqlstore": true, "store/storetest": true, "store/memstore": true, "store/internal/castest": true,
	"broker/brokertest": true, "broker/membroker": true,
}

// floorOf returns the floor of the room with the longest name that contains
// dir. What adapters share is a folder of store or broker, one floor above it.
func floorOf(dir string) (floor int, room string) {
	parts := strings.Split(dir, "/")
	floor, room = len(floors), dir
	longest := -1
	for i, f := range floors {
		for _, name := range f.rooms {
			inner, below := strings.CutSuffix(name, "/*")
			rest, inside := strings.CutPrefix(dir+"/", inner+"/")
			if inside && (!below || rest != "") && (below || rest == "" || !hasInner[name]) && len(inner) > longest {
				longest, floor, room = len(inner), i, strings.Join(parts[:min(f.depth, len(parts))], "/")
			}
		}
	}
	return floor, room
}

func TestImportsKeepTheFloors(t *testing.T) {
	checked := 0
	eachFile(t, func(file, dir string, test bool) {
		if test && dir == "observe" {
			dir = "observe/alerts" // the tests import whatever uses the names
		}
		floor, room := floorOf(dir)
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			inner, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			checked++
			target := path.Join(".", strings.TrimPrefix(inner, "/"))
			below, otherRoom := floorOf(target)
			if below > floor || below == floor && room != otherRoom && floor < len(floors) {
				if !test || !doubles[target] {
					t.Errorf("%s imports %s: that is not on a floor below", file, imported)
				}
			}
		}
	})
	if checked < 20 {
		t.Errorf("only %d imports of our own were seen: the test reads the wrong files", checked)
	}
}

// hiding are wrappers that hide the capabilities of their stores.
var hiding = []string{"reconcile.notebook", "console.recordsOnly"} // the first makes no changes, the second has no outbox

func TestWrappersOfStoresUnwrap(t *testing.T) {
	wrappers, unwrap := make(map[string]bool), make(map[string]bool)
	eachFile(t, func(file, dir string, test bool) {
		if test {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && slices.ContainsFunc(s.Fields.List, embedsStore) {
					wrappers[dir+"."+n.Name.Name] = true
				}
			case *ast.FuncDecl:
				if n.Recv != nil && n.Name.Name == "Unwrap" {
					unwrap[dir+"."+nameOf(n.Recv.List[0].Type)] = true
				}
			}
			return true
		})
	})
	for name := range wrappers {
		if !unwrap[name] && !slices.Contains(hiding, name) {
			t.Errorf("%s wraps a store and has no Unwrap", name)
		}
	}
	if len(wrappers) < 5 {
		t.Errorf("only %d wrappers were seen: the test reads the wrong files", len(wrappers))
	}
}

// embedsStore reports whether a field embeds once.Store or once.TxStore.
func embedsStore(f *ast.Field) bool {
	of := f.Type
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, ok := of.(*ast.SelectorExpr)
	if !ok || len(f.Names) > 0 {
		return false
	}
	from, ok := name.X.(*ast.Ident)
	return ok && from.Name == "once" && (name.Sel.Name == "Store" || name.Sel.Name == "TxStore")
}

// nameOf returns the name of the type of a receiver.
func nameOf(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.StarExpr:
		return nameOf(of.X)
	case *ast.IndexExpr:
		return nameOf(of.X)
	}
	return ""
}

func TestRootModuleRequiresNothing(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "all")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != module {
		t.Errorf("go list -m all: %v\n%s", err, out)
	}
}

func eachFile(t *testing.T, check func(file, dir string, test bool)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if err == nil && entry.IsDir() && file != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		if err == nil && strings.HasSuffix(name, ".go") {
			check(file, filepath.ToSlash(filepath.Dir(file)), strings.HasSuffix(name, "_test.go"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
