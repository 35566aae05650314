//go:build linux

package brokers_test

import (
	"context"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/carried"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// carriers returns a store on each SQL engine.
var carriers = map[string]func(testing.TB) carried.Store{
	"pgstore":             func(tb testing.TB) carried.Store { return openCarrier(tb, engines.PGStore, false) },
	"sqlstore postgresql": func(tb testing.TB) carried.Store { return openCarrier(tb, engines.PGStore, true) },
	"sqlstore mariadb":    func(tb testing.TB) carried.Store { return openCarrier(tb, engines.MariaDB, true) },
	"sqlstore sqlite":     func(tb testing.TB) carried.Store { return openCarrier(tb, engines.SQLite, true) },
}

func openCarrier(tb testing.TB, engine string, sql bool) carried.Store {
	pool, err := engines.New(tb, engine).Open(8)
	proof.Must(tb, err)
	tb.Cleanup(pool.Close)
	var s interface {
		carried.Store
		Migrate(context.Context) error
	}
	options := once.Options{Logger: proof.Logger(tb)}
	switch {
	case !sql:
		s = pgstore.New(pool.PGX, &pgstore.Options{Options: options})
	case pool.PGX != nil:
		s = sqlstore.New(pool.SQL, sqlstore.PostgreSQL, &sqlstore.Options{Options: options})
	default:
		s = sqlstore.New(pool.SQL, pool.Dialect, &sqlstore.Options{Options: options})
	}
	proof.Must(tb, s.Migrate(tb.Context()))
	return s
}

func TestConformanceOfStores(t *testing.T) {
	for name, open := range carriers {
		t.Run(name, func(t *testing.T) {
			carried.Run(t, open)
		})
	}
}
