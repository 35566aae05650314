//go:build linux

package brokers_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/brokertest"
	"github.com/effectively-once/once/broker/storebroker"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// carrier is a store that can carry messages.
type carrier interface {
	once.Store
	store.Shelf
	store.Registry
}

// carriers returns a store on each SQL engine.
var carriers = map[string]func(testing.TB) carrier{
	"pgstore":             func(tb testing.TB) carrier { return openCarrier(tb, engines.PGStore, false) },
	"sqlstore postgresql": func(tb testing.TB) carrier { return openCarrier(tb, engines.PGStore, true) },
	"sqlstore mariadb":    func(tb testing.TB) carrier { return openCarrier(tb, engines.MariaDB, true) },
	"sqlstore sqlite":     func(tb testing.TB) carrier { return openCarrier(tb, engines.SQLite, true) },
}

func openCarrier(tb testing.TB, engine string, sql bool) carrier {
	pool, err := engines.New(tb, engine).Open(8)
	proof.Must(tb, err)
	tb.Cleanup(pool.Close)
	var s interface {
		carrier
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
			brokertest.Run(t, brokertest.Harness{
				Fresh:    func(tb testing.TB) brokertest.Place { return carriedBy(tb, open(tb)) },
				Confirms: true, Patience: proof.Patience, Quiet: 100 * time.Millisecond,
			})
		})
	}
}

// carriedBy returns the queue of a consumer on a store.
func carriedBy(tb testing.TB, s carrier) brokertest.Place {
	const consumer, topic = "billing", "orders"
	b := storebroker.New(s, nil)
	_, err := s.Register(tb.Context(), store.Consumer{Name: consumer, Source: b.Queue(topic).Name()})
	proof.Must(tb, err)
	return brokertest.Place{
		Publisher: b.Publisher(),
		Source:    b.Queue(topic).(broker.Subscriber).For(consumer),
		Topic:     topic,
		DeadLetters: func(tb testing.TB) (dead []*broker.Message) {
			rows, err := s.Shelved(tb.Context(), store.ShelfQuery{Consumer: store.QueueOf(consumer), States: []store.ShelfState{store.Parked}})
			proof.Must(tb, err)
			for _, row := range rows {
				m := store.Queued(row)
				m.Header = maps.Clone(m.Header)
				m.Header[broker.ReasonHeader] = row.Reason
				dead = append(dead, &m)
			}
			return dead
		},
		Unroutable: "nowhere",
		OneByOne:   true,
	}
}
