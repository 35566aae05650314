package docs

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cosmosstore"
	"github.com/effectively-once/once/store/dynamostore"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/effectively-once/once/store/tablestore"
	"github.com/effectively-once/once/store/tiered"
)

// TestTheTableOfCapabilitiesHoldsForSQLStores compares the documentation of
// package store with sqlstore and pgstore. A test of memstore compares that
// store.
func TestTheTableOfCapabilitiesHoldsForSQLStores(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "store", "store.go"))
	if err != nil {
		t.Fatal(err)
	}
	anySQL, pg := (*sqlstore.Store)(nil), (*pgstore.Store)(nil)
	has := map[string][2]bool{
		"once.TxStore":   {found[once.TxStore[*sql.Tx]](anySQL), found[once.TxStore[pgx.Tx]](pg)},
		"once.Lister":    {found[once.Lister](anySQL), found[once.Lister](pg)},
		"ManyGetter":     {found[store.ManyGetter](anySQL), found[store.ManyGetter](pg)},
		"Reopener":       {found[store.Reopener](anySQL), found[store.Reopener](pg)},
		"IDFinder":       {found[store.IDFinder](anySQL), found[store.IDFinder](pg)},
		"Archivable":     {found[store.Archivable](anySQL), found[store.Archivable](pg)},
		"Registry":       {found[store.Registry](anySQL), found[store.Registry](pg)},
		"RegistryEditor": {found[store.RegistryEditor](anySQL), found[store.RegistryEditor](pg)},
		"Shelf":          {found[store.Shelf](anySQL), found[store.Shelf](pg)},
		"ShelfBatch":     {found[store.ShelfBatch](anySQL), found[store.ShelfBatch](pg)},
		"TxShelf":        {found[store.TxShelf[*sql.Tx]](anySQL), found[store.TxShelf[pgx.Tx]](pg)},
		"Positions":      {found[store.Positions[*sql.Tx]](anySQL), found[store.Positions[pgx.Tx]](pg)},
		"Outbox":         {found[store.Outbox[*sql.Tx]](anySQL), found[store.Outbox[pgx.Tx]](pg)},
		"Relayable":      {found[store.Relayable](anySQL), found[store.Relayable](pg)},
		"OutboxArchive":  {found[store.OutboxArchive](anySQL), found[store.OutboxArchive](pg)},
		"HandOver":       {found[store.HandOver](anySQL), found[store.HandOver](pg)},
		"Bell":           {found[store.Bell](anySQL), found[store.Bell](pg)},
		"Presence":       {found[store.Presence](anySQL), found[store.Presence](pg)},
		"OutboxLog":      {found[store.OutboxLog](anySQL), found[store.OutboxLog](pg)},
		"LogLag":         {found[store.LogLag](anySQL), found[store.LogLag](pg)},
	}
	rows := regexp.MustCompile(`(?m)^//\t(\S+) +(all|SQL|pgstore) `).FindAllStringSubmatch(string(text), -1)
	if len(rows) != len(has) {
		t.Errorf("the table has %d rows, want %d", len(rows), len(has))
	}
	for _, row := range rows {
		if want := [2]bool{row[2] != "pgstore", true}; has[row[1]] != want {
			t.Errorf("the table says that %s have %s, and of sqlstore and pgstore that is %v", row[2], row[1], has[row[1]])
		}
	}
}

// capabilities are those of a store whose transactions are Tx, by their names in
// the documentation of package store.
func capabilities[Tx any](s any) map[string]bool {
	return map[string]bool{
		"once.TxStore":   has[once.TxStore[Tx]](s),
		"once.Lister":    has[once.Lister](s),
		"once.Replayer":  has[once.Replayer](s),
		"ManyGetter":     has[store.ManyGetter](s),
		"Reopener":       has[store.Reopener](s),
		"IDFinder":       has[store.IDFinder](s),
		"Archivable":     has[store.Archivable](s),
		"Registry":       has[store.Registry](s),
		"RegistryEditor": has[store.RegistryEditor](s),
		"Shelf":          has[store.Shelf](s),
		"TxShelf":        has[store.TxShelf[Tx]](s),
		"Positions":      has[store.Positions[Tx]](s),
		"Outbox":         has[store.Outbox[Tx]](s),
		"Relayable":      has[store.Relayable](s),
		"OutboxArchive":  has[store.OutboxArchive](s),
		"HandOver":       has[store.HandOver](s),
		"Bell":           has[store.Bell](s),
		"Presence":       has[store.Presence](s),
		"OutboxLog":      has[store.OutboxLog](s),
		"LogLag":         has[store.LogLag](s),
	}
}

func has[Capability any](s any) bool {
	_, ok := s.(Capability)
	return ok
}

// stores are all stores with their capabilities.
var stores = map[string]map[string]bool{
	"memstore":    capabilities[*memstore.Tx]((*memstore.Store)(nil)),
	"pgstore":     capabilities[pgx.Tx]((*pgstore.Store)(nil)),
	"sqlstore":    capabilities[*sql.Tx]((*sqlstore.Store)(nil)),
	"cosmosstore": capabilities[*cosmosstore.Tx]((*cosmosstore.Store)(nil)),
	"dynamostore": capabilities[*dynamostore.Tx]((*dynamostore.Store)(nil)),
	"natsstore":   capabilities[struct{}]((*natsstore.Store)(nil)),
	"redisstore":  capabilities[*redisstore.Tx]((*redisstore.Store)(nil)),
	"tablestore":  capabilities[*tablestore.Tx]((*tablestore.Store)(nil)),
	"tiered":      capabilities[struct{}]((*tiered.Store)(nil)),
}

// Package store lists what the stores have that do not have all.
func TestTheListOfOtherStoresHolds(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "store", "store.go"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{"memstore": true, "pgstore": true, "sqlstore": true} // in the table
	for _, line := range regexp.MustCompile(`(?m)^//\t(\w+store|tiered)  +(.*(?:\n//\t {5}.*)*)$`).FindAllStringSubmatch(string(text), -1) {
		name, list := line[1], regexp.MustCompile(`[.\w]+`).FindAllString(line[2], -1)
		told[name] = true
		for capability, is := range stores[name] {
			if says := slices.Contains(list, capability); says != is {
				t.Errorf("the documentation says of %s and %s: %v, and it is %v", name, capability, says, is)
			}
		}
	}
	checkNames(t, told)
}

// The guide has a table of the stores.
func TestTheSheetOfStoresHolds(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := make(map[string]bool)
	for _, line := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|(.*)$").FindAllStringSubmatch(string(text), -1) {
		name, cells := line[1], strings.Split(line[2], "|")
		if told[name] = true; name == "tiered" {
			continue // it has what it wraps
		}
		for i, capability := range []string{"once.TxStore", "once.Lister", "TxShelf", "Positions", "Outbox"} {
			cell := strings.TrimSpace(cells[i])
			if capability == "TxShelf" && cell == "apart" { // from the transactions of the work
				if !stores[name]["Shelf"] || stores[name]["TxShelf"] {
					t.Errorf("the sheet says that %s has only a shelf apart from transactions, which is not so", name)
				}
				continue
			}
			if says, is := cell != "–", stores[name][capability]; says != is || cell == "" {
				t.Errorf("the sheet says %q of %s and %s, and it is %v", cell, name, capability, is)
			}
		}
	}
	checkNames(t, told)
}

// checkNames checks that all stores are told of, and that stores has them all.
func checkNames(t *testing.T, told map[string]bool) {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join("..", "..", "store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		name := dir.Name()
		if _, known := stores[name]; dir.IsDir() && !known && !slices.Contains([]string{"cas", "internal", "sqlschema", "storetest"}, name) {
			t.Errorf("%s is not known to this test", name)
		}
	}
	for name := range stores {
		if !told[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

func found[Capability any](s any) bool {
	_, ok := once.As[Capability](s)
	return ok
}
