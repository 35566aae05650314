package docs

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
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
		"once.TxStore":  {found[once.TxStore[*sql.Tx]](anySQL), found[once.TxStore[pgx.Tx]](pg)},
		"once.Lister":   {found[once.Lister](anySQL), found[once.Lister](pg)},
		"Reopener":      {found[store.Reopener](anySQL), found[store.Reopener](pg)},
		"Archivable":    {found[store.Archivable](anySQL), found[store.Archivable](pg)},
		"Registry":      {found[store.Registry](anySQL), found[store.Registry](pg)},
		"Shelf":         {found[store.Shelf](anySQL), found[store.Shelf](pg)},
		"TxShelf":       {found[store.TxShelf[*sql.Tx]](anySQL), found[store.TxShelf[pgx.Tx]](pg)},
		"Positions":     {found[store.Positions[*sql.Tx]](anySQL), found[store.Positions[pgx.Tx]](pg)},
		"Outbox":        {found[store.Outbox[*sql.Tx]](anySQL), found[store.Outbox[pgx.Tx]](pg)},
		"Relayable":     {found[store.Relayable](anySQL), found[store.Relayable](pg)},
		"OutboxArchive": {found[store.OutboxArchive](anySQL), found[store.OutboxArchive](pg)},
		"Bell":          {found[store.Bell](anySQL), found[store.Bell](pg)},
		"OutboxLog":     {found[store.OutboxLog](anySQL), found[store.OutboxLog](pg)},
		"LogLag":        {found[store.LogLag](anySQL), found[store.LogLag](pg)},
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

func found[Capability any](s any) bool {
	_, ok := once.As[Capability](s)
	return ok
}
