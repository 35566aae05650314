package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlstore"
)

func aside(id, orderingKey string) store.Shelved {
	return store.Shelved{Consumer: "billing", State: store.Waiting,
		Message: broker.Message{ID: id, Topic: "orders", OrderingKey: orderingKey, Body: []byte("body")}}
}

// consumes calls each method for consumers.
func consumes(t *testing.T, s *sqlstore.Store, db *sql.DB) {
	t.Helper()
	ctx := t.Context()
	_, err := s.Register(ctx, store.Consumer{Name: "billing", Source: "orders"})
	must(t, err)
	if all, err := s.Consumers(ctx); err != nil || len(all) != 1 {
		t.Errorf("Consumers returned %+v, %v", all, err)
	}
	from, to := opened(t, s)
	must(t, s.TransactAt(ctx, from, to, func(tx *sql.Tx) error {
		if _, err := s.BlockedTx(ctx, tx, "billing", []string{"k"}, true); err != nil {
			return err
		}
		return s.ShelveTx(ctx, tx, []store.Shelved{aside("1", "k"), aside("2", "k")})
	}))
	to.Shelved = true
	wantPosition(t, s, to)
	must(t, s.SetPosition(ctx, from))
	must(t, s.Shelve(ctx, []store.Shelved{aside("3", "")}))
	ready, err := s.Shelved(ctx, store.ShelfQuery{Consumer: "billing", Ready: true})
	if err != nil || len(ready) != 2 || ready[0].Message.ID != "1" || ready[1].Message.ID != "3" {
		t.Fatalf("ready are %+v, %v", ready, err)
	}
	ready[0].State, ready[1].State = store.Handled, store.Discarded
	must(t, s.Change(ctx, ready[1]))
	tx, err := db.BeginTx(ctx, nil)
	must(t, err)
	must(t, errors.Join(s.ChangeTx(ctx, tx, ready[0]), tx.Commit()))
	proof.Await(t, "what is discarded is forgotten", func() bool {
		n, err := s.ForgetShelved(ctx, 0, 10)
		must(t, err)
		return n == 1
	})
}

// The tables lack the latest migration. Each call is refused until Migrate, and
// then works.
func TestTablesOfAnOlderVersionAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		db := e.fresh(t)(t)
		names, err := sqlschema.For(sqlschema.Dialect(e.dialect), "", "")
		must(t, err)
		all := names.Migrations()
		for _, m := range all[:len(all)-1] {
			mustExec(t, db, append(m.SQL, m.Row)...)
		}
		s := sqlstore.New(db, e.dialect, nil)
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		defer tx.Rollback()
		for _, calls := range []map[string]func() error{consumerCalls(t, s, tx), outboxCalls(t, s, tx)} {
			for name, call := range calls {
				if e.dialect == sqlstore.SQLite && !strings.HasSuffix(name, "Tx") {
					continue // it would wait for this transaction
				}
				if err := call(); !errors.Is(err, once.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "call Migrate") {
					t.Errorf("%s on tables of an older version returned %v, want ErrInvalid: call Migrate", name, err)
				}
			}
		}
		must(t, tx.Rollback())
		must(t, s.Migrate(t.Context()))
		mustExec(t, db, effectTable)
		consumes(t, s, db)
		publishes(t, s, db)
	})
}

// consumerCalls are calls that need the tables of consumers.
func consumerCalls(t *testing.T, s *sqlstore.Store, tx *sql.Tx) map[string]func() error {
	ctx, p := t.Context(), store.Position{Consumer: "a", Partition: "0", Epoch: 1}
	to := p
	to.Offset = 1
	ran := func(*sql.Tx) error { return errors.New("it ran") }
	ms := []store.Shelved{aside("1", "k")}
	return map[string]func() error{
		"Register":      func() error { _, err := s.Register(ctx, store.Consumer{Name: "a"}); return err },
		"Consumers":     func() error { _, err := s.Consumers(ctx); return err },
		"OpenPosition":  func() error { _, err := s.OpenPosition(ctx, "a", "0"); return err },
		"TransactAt":    func() error { return s.TransactAt(ctx, p, to, ran) },
		"SetPosition":   func() error { return s.SetPosition(ctx, p) },
		"Positions":     func() error { _, err := s.Positions(ctx, "a"); return err },
		"Shelve":        func() error { return s.Shelve(ctx, ms) },
		"ShelveTx":      func() error { return s.ShelveTx(ctx, tx, ms) },
		"BlockedTx":     func() error { _, err := s.BlockedTx(ctx, tx, "a", []string{"k"}, true); return err },
		"Shelved":       func() error { _, err := s.Shelved(ctx, store.ShelfQuery{}); return err },
		"Change":        func() error { return s.Change(ctx, ms[0]) },
		"ChangeTx":      func() error { return s.ChangeTx(ctx, tx, ms[0]) },
		"ForgetShelved": func() error { _, err := s.ForgetShelved(ctx, time.Hour, 1); return err },
	}
}

func TestBadArgumentsForConsumersAreInvalid(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		ctx, long := t.Context(), strings.Repeat("x", 256)
		p := store.Position{Consumer: "a", Epoch: 1}
		moved := func(change func(*store.Position)) store.Position {
			to := p
			to.Offset = 1
			change(&to)
			return to
		}
		at := func(to store.Position) func() error {
			return func() error { return s.TransactAt(ctx, p, to, func(*sql.Tx) error { return errors.New("it ran") }) }
		}
		shelve := func(change func(*store.Shelved)) func() error {
			return func() error {
				m := aside("1", "k")
				change(&m)
				return s.Shelve(ctx, []store.Shelved{aside("0", ""), m})
			}
		}
		for name, call := range map[string]func() error{
			"no name":               func() error { _, err := s.Register(ctx, store.Consumer{}); return err },
			"a long name":           func() error { _, err := s.Register(ctx, store.Consumer{Name: long}); return err },
			"no consumer":           func() error { _, err := s.OpenPosition(ctx, "", "0"); return err },
			"a zero byte":           func() error { _, err := s.OpenPosition(ctx, "a", "\x00"); return err },
			"a long log":            func() error { return s.SetPosition(ctx, store.Position{Consumer: "a", Log: long}) },
			"another row":           at(moved(func(p *store.Position) { p.Partition = "1" })),
			"another epoch":         at(moved(func(p *store.Position) { p.Epoch = 2 })),
			"no move":               at(p),
			"a message without ID":  shelve(func(m *store.Shelved) { m.Message.ID = "" }),
			"a message of nobody":   shelve(func(m *store.Shelved) { m.Consumer = "" }),
			"a long ordering key":   shelve(func(m *store.Shelved) { m.Message.OrderingKey = long }),
			"a key that is no text": shelve(func(m *store.Shelved) { m.Key = "\xff" }),
			"a state of its own":    shelve(func(m *store.Shelved) { m.State = 5 }),
			"no state":              func() error { return s.Change(ctx, store.Shelved{Seq: 1, Version: 1}) },
			"a long text":           shelve(func(m *store.Shelved) { m.History = strings.Repeat("x", 64<<10+1) }),
			"no transaction":        func() error { return s.ShelveTx(ctx, nil, nil) },
			"no limit":              func() error { _, err := s.ForgetShelved(ctx, time.Hour, 0); return err },
		} {
			if err := call(); !errors.Is(err, once.ErrInvalid) {
				t.Errorf("%s: got %v, want ErrInvalid", name, err)
			}
		}
		for _, table := range []string{"once_consumer", "once_position", "once_shelf"} {
			if n := number(t, db, "SELECT count(*) FROM "+table); n != 0 {
				t.Errorf("%d rows were written into %s", n, table)
			}
		}
	})
}
