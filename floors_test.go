package once_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/effectively-once/once"

// floors are the rooms of the house from the bottom up. A package imports from the floors below its own, or
// from its own room. What stands on no floor (examples, integration, bench) may import everything.
var floors = []struct {
	rooms []string
	depth int // of the folders that are rooms of their own: "store/x" may not import "store/y"
}{
	{[]string{"observe"}, 1},
	{[]string{"internal"}, 1},
	{[]string{"."}, 1},
	{[]string{"broker"}, 1},
	{[]string{"store"}, 1},
	{[]string{"broker/internal", "internal/sqlschema"}, 2}, // what adapters share
	{[]string{"store/*", "broker/*"}, 2},
	{[]string{"inbox", "outbox", "reconcile", "janitor", "httponce", "grpconce", "oncetest"}, 1},
	{[]string{"observe/*"}, 1},
	{[]string{"console"}, 1},
	{[]string{"cmd"}, 2},
}

// hasInner are rooms whose folders stand on a floor above theirs.
var hasInner = map[string]bool{"store": true, "broker": true, "observe": true}

// doubles are what the tests of the same floor may share. sqlstore is one because pgstore works on its tables.
var doubles = map[string]bool{"store/sqlstore": true, "store/storetest": true, "store/memstore": true, "broker/brokertest": true, "broker/membroker": true}

// floorOf takes the room with the longest name that dir is in: what adapters share stands in internal, but not on its floor.
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
			dir = "observe/test" // it imports whatever uses the names
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
