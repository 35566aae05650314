package store_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// row is a row of the table of capabilities: its interface, and the stores that
// have it.
var row = regexp.MustCompile(`(?m)^//\t(\S+) +(all|SQL|pgstore) `)

func TestTheTableOfCapabilitiesHoldsForMemstore(t *testing.T) {
	s := memstore.New(nil)
	has := map[string]bool{
		"once.TxStore":   found[once.TxStore[*memstore.Tx]](s),
		"once.Lister":    found[once.Lister](s),
		"Reopener":       found[store.Reopener](s),
		"ManyGetter":     found[store.ManyGetter](s),
		"IDFinder":       found[store.IDFinder](s),
		"Archivable":     found[store.Archivable](s),
		"Registry":       found[store.Registry](s),
		"RegistryEditor": found[store.RegistryEditor](s),
		"Shelf":          found[store.Shelf](s),
		"ShelfBatch":     found[store.ShelfBatch](s),
		"TxShelf":        found[store.TxShelf[*memstore.Tx]](s),
		"Positions":      found[store.Positions[*memstore.Tx]](s),
		"Outbox":         found[store.Outbox[*memstore.Tx]](s),
		"Relayable":      found[store.Relayable](s),
		"OutboxArchive":  found[store.OutboxArchive](s),
		"HandOver":       found[store.HandOver](s),
		"Bell":           found[store.Bell](s),
		"Presence":       found[store.Presence](s),
		"OutboxLog":      found[store.OutboxLog](s),
		"LogLag":         found[store.LogLag](s),
	}
	for capability, stores := range table(t) {
		is, known := has[capability]
		if says := stores == "all"; !known || is != says {
			t.Errorf("the table says that %s have %s, and of memstore that is %v", stores, capability, is)
		}
	}
}

func found[Capability any](s once.Store) bool {
	_, ok := once.As[Capability](s)
	return ok
}

func TestEachCapabilityIsInTheTable(t *testing.T) {
	rows := table(t)
	results := []string{"Ear", "Present", "OutboxTail"} // that methods of capabilities return
	for _, name := range interfaces(t) {
		if _, known := rows[name]; !known && !slices.Contains(results, name) {
			t.Errorf("%s is not in the table of the package's documentation", name)
		}
	}
}

// table returns the stores of each capability, as the documentation says.
func table(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("store.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, r := range row.FindAllStringSubmatch(string(text), -1) {
		rows[r[1]] = r[2]
	}
	if len(rows) == 0 {
		t.Fatal("there is no table")
	}
	return rows
}

// interfaces returns the exported interfaces of package store.
func interfaces(t *testing.T) (names []string) {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					names = append(names, spec.Name.Name)
				}
			}
			return true
		})
	}
	return names
}
