package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
)

func TestMigrateMayRunConcurrently(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		open := e.fresh(t)
		var settings []string
		if e.dialect == sqlstore.PostgreSQL { // whose snapshots would be older than the lock
			settings = []string{"default_transaction_isolation=serializable"}
		}
		var stores []*sqlstore.Store
		for range 4 {
			stores = append(stores, sqlstore.New(open(t, settings...), e.dialect, nil))
		}
		failed := make(chan error, 64)
		var wg sync.WaitGroup
		for i := range cap(failed) {
			wg.Go(func() { failed <- stores[i%len(stores)].Migrate(t.Context()) })
		}
		wg.Wait()
		close(failed)
		for err := range failed {
			must(t, err)
		}
		if n := number(t, open(t), "SELECT count(*) FROM once_schema"); n != e.latest(t) {
			t.Errorf("%d versions are recorded, want %d", n, e.latest(t))
		}
		lives(t, stores[0])
	})
}

// lives claims a key, settles it and reads it.
func lives(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	rec, err := s.Claim(t.Context(), request("lives", "a"))
	must(t, err)
	must(t, s.Settle(t.Context(), settlement(rec, once.Done)))
	answers(t, s, "lives")
}

func answers(t *testing.T, s *sqlstore.Store, id string) {
	t.Helper()
	rec, err := s.Get(t.Context(), key(id))
	must(t, err)
	if rec.Status != once.Done || string(rec.Outcome.Body) != "answer" || rec.Key != key(id) || string(rec.Fingerprint) != "print" {
		t.Errorf("the record is %+v, want what was settled", rec)
	}
}

// latest is the latest version that this build knows.
func (e engine) latest(t *testing.T) int {
	names, err := sqlschema.For(sqlschema.Dialect(e.dialect), "", "")
	must(t, err)
	return names.Latest()
}

func TestTablesOfVersion1AreUpgraded(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		db := e.fresh(t)(t)
		names, err := sqlschema.For(sqlschema.Dialect(e.dialect), "", "")
		must(t, err)
		first := names.Migrations()[0]
		mustExec(t, db, append(first.SQL, first.Row)...)
		mustExec(t, db, oldRecord(e.dialect))

		s := sqlstore.New(db, e.dialect, nil)
		if _, err := s.Get(t.Context(), key("old")); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "too old") {
			t.Errorf("Get on version 1 returned %v, want ErrInvalid: too old", err)
		}
		must(t, s.Migrate(t.Context()))
		answers(t, s, "old")
		lives(t, s)
		if n, err := s.Forget(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("Forget returned %d, %v; want nothing to forget", n, err)
		}
	})
}

// oldRecord inserts a done record as a build that knew only version 1 wrote it.
func oldRecord(d sqlstore.Dialect) string {
	id := key("old").UUID()
	bytes := func(b []byte) string {
		if d == sqlstore.PostgreSQL {
			return fmt.Sprintf(`'\x%x'`, b)
		}
		return fmt.Sprintf("x'%x'", b)
	}
	uuid := bytes
	if d == sqlstore.PostgreSQL {
		uuid = func(b []byte) string { return fmt.Sprintf("'%x'", b) }
	}
	column := `"key"`
	if d == sqlstore.MySQL {
		column = "`key`"
	}
	const far = 4_000_000_000_000_000 // the year 2096
	return fmt.Sprintf(`INSERT INTO once_record (%s, scope, operation, id, status, attempt, owner, fingerprint, outcome,
		content_type, sum, outcome_until, key_until, due, created, updated)
		VALUES (%s, 'tenant', 'pay', 'old', 4, 1, %s, %s, %s, 'text/plain', 7, %d, %d, %d, 1, 1)`,
		column, uuid(id[:]), uuid(make([]byte, 16)), bytes([]byte("print")), bytes([]byte("answer")), far, far, far)
}

func TestSchemaPrintsWhatMigrateDoes(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		db := e.fresh(t)(t)
		text, err := sqlstore.Schema(e.dialect, nil, 0)
		must(t, err)
		mustExec(t, db, statements(text)...)
		s := sqlstore.New(db, e.dialect, nil)
		lives(t, s)
		consumes(t, s, db)
		must(t, s.Migrate(t.Context()))
		want := strings.Count(text, "\n-- version ")
		if n := number(t, db, "SELECT count(*) FROM once_schema"); n != want {
			t.Errorf("%d versions are recorded, want %d: Migrate has repeated what was done by hand", n, want)
		}
	})
}

// statements leaves out BEGIN and COMMIT, since a pool may send each statement
// through another connection.
func statements(text string) (all []string) {
	for _, statement := range strings.Split(text, ";\n") {
		if statement != "" && statement != "BEGIN" && statement != "COMMIT" {
			all = append(all, statement)
		}
	}
	return all
}

func TestTablesOfANewerVersionAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		future := func(version, compatible int) *sqlstore.Store {
			mustExec(t, db, fmt.Sprintf("INSERT INTO once_schema (version, compatible, name, applied) VALUES (%d, %d, 'future', 0)", version, compatible))
			return sqlstore.New(db, e.dialect, nil)
		}
		lives(t, s)
		now := e.latest(t)
		kind := future(now+1, now)
		must(t, kind.Migrate(t.Context()))
		answers(t, kind, "lives")

		harsh := future(now+5, now+4)
		_, claimed := harsh.Claim(t.Context(), request("never", "a"))
		for _, err := range []error{harsh.Migrate(t.Context()), claimed} {
			if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "newer than this program") {
				t.Errorf("on a version that needs programs of later ones: got %v, want ErrInvalid: newer than this program", err)
			}
		}
		if n := number(t, db, "SELECT count(*) FROM once_schema"); n != now+2 {
			t.Errorf("%d versions are recorded after the refusal, want %d", n, now+2)
		}
		answers(t, s, "lives") // a store that was there before continues
	})
}

func TestMissingTablesAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		db := e.fresh(t)(t)
		s := sqlstore.New(db, e.dialect, nil)
		tx, err := db.Begin()
		must(t, err)
		defer tx.Rollback()
		if _, err := s.ClaimTx(t.Context(), tx, nil); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "call Migrate") {
			t.Errorf("ClaimTx without tables returned %v, want ErrInvalid: call Migrate", err)
		}
		if _, err := tx.Exec("CREATE TABLE still_usable (n int)"); err != nil {
			t.Errorf("the caller's transaction was ended: %v", err)
		}
	})
}

func TestStoresWithTwoPrefixesAreApart(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		db := e.fresh(t)(t)
		a := sqlstore.New(db, e.dialect, &sqlstore.Options{Prefix: "a_"})
		b := sqlstore.New(db, e.dialect, &sqlstore.Options{Prefix: "a_record_"})
		must(t, errors.Join(a.Migrate(t.Context()), b.Migrate(t.Context())))
		lives(t, a)
		if rec, err := b.Get(t.Context(), key("lives")); rec.Status != once.Absent || err != nil {
			t.Errorf("the other prefix returned %+v, %v", rec, err)
		}
		lives(t, b)
		consumes(t, a, db)
		consumes(t, b, db)
	})
}

func TestStoresInTwoSchemasAreApart(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect == sqlstore.SQLite {
			t.Skip("SQLite has no schemas")
		}
		db := e.fresh(t)(t)
		other := unique()
		if e.dialect == sqlstore.MySQL {
			mustExec(t, db, "CREATE DATABASE "+other)
		}
		t.Cleanup(func() {
			if e.dialect == sqlstore.MySQL {
				mustExec(t, db, "DROP DATABASE "+other)
			} else {
				mustExec(t, db, "DROP SCHEMA "+other+" CASCADE")
			}
		})
		here, there := sqlstore.New(db, e.dialect, nil), sqlstore.New(db, e.dialect, &sqlstore.Options{Schema: other})
		must(t, errors.Join(here.Migrate(t.Context()), there.Migrate(t.Context()), there.Migrate(t.Context())))
		lives(t, there)
		consumes(t, there, db)
		if all, err := here.Consumers(t.Context()); len(all) != 0 || err != nil {
			t.Errorf("the store of the connection's own schema has the consumers %+v, %v", all, err)
		}
		if n := number(t, db, "SELECT count(*) FROM "+other+".once_record"); n != 1 {
			t.Errorf("%d records in the schema, want 1", n)
		}
		if rec, err := here.Get(t.Context(), key("lives")); rec.Status != once.Absent || err != nil {
			t.Errorf("the store of the connection's own schema returned %+v, %v", rec, err)
		}
	})
}

func TestMigrateGoesOnAfterAnInterruption(t *testing.T) {
	names, err := sqlschema.For(sqlschema.MySQL, "", "")
	must(t, err)
	first, second, third := names.Migrations()[0], names.Migrations()[1], names.Migrations()[2]
	for name, done := range map[string][]string{
		"one table":        first.SQL[:1],
		"tables, no row":   first.SQL,
		"indexes, no row":  append(append(first.SQL, first.Row), second.SQL...),
		"one of consumers": append(append(append(append(first.SQL, first.Row), second.SQL...), second.Row), third.SQL[0]),
		"all of consumers": append(append(append(append(first.SQL, first.Row), second.SQL...), second.Row), third.SQL...),
	} {
		t.Run(name, func(t *testing.T) {
			db := freshMariaDB(t)(t)
			mustExec(t, db, done...)
			s := sqlstore.New(db, sqlstore.MySQL, nil)
			must(t, s.Migrate(t.Context()))
			lives(t, s)
		})
	}
}

func TestMigrateRollsBack(t *testing.T) {
	for _, e := range engines[:2] {
		t.Run(e.name, func(t *testing.T) {
			db := e.fresh(t)(t)
			mustExec(t, db, "CREATE TABLE other (n int)", "CREATE INDEX once_record_due ON other (n)")
			s := sqlstore.New(db, e.dialect, nil)
			if err := s.Migrate(t.Context()); err == nil {
				t.Fatal("Migrate took an index of somebody else's for its own")
			}
			if _, err := db.Exec("SELECT count(*) FROM once_record"); err == nil {
				t.Error("what was done before the failure is there")
			}
			mustExec(t, db, "DROP INDEX once_record_due")
			must(t, s.Migrate(t.Context()))
			lives(t, s)
		})
	}
}

func TestRoleThatMayOnlyReadAndWriteRows(t *testing.T) {
	for _, e := range engines[1:] {
		t.Run(e.name, func(t *testing.T) {
			_, db := e.migrated(t)
			limited := asRole(t, e, db)
			s := sqlstore.New(limited, e.dialect, nil)
			lives(t, s)
			consumes(t, s, limited)
			_, err := s.Transact(t.Context(), []once.ClaimRequest{request("tx", "a")},
				func(_ *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
					return []once.Settlement{settlement(recs[0], once.Done)}, nil
				})
			must(t, err)
			answers(t, s, "tx")
			_, err = s.Forget(t.Context(), 10)
			must(t, err)
			_, err = s.List(t.Context(), once.RecordQuery{Operation: "pay"})
			must(t, err)
			must(t, s.Migrate(t.Context())) // if there is nothing to do, no more rights are needed
		})
	}
}

// asRole opens the database of db as a new role that may only read and write
// rows of the store's tables.
func asRole(t *testing.T, e engine, db *sql.DB) *sql.DB {
	role := unique()
	if e.dialect == sqlstore.MySQL {
		var database string
		must(t, db.QueryRow("SELECT DATABASE()").Scan(&database))
		mustExec(t, db, "CREATE USER "+role+"@'%' IDENTIFIED BY 'secret'",
			"GRANT SELECT ON "+database+".once_schema TO "+role+"@'%'")
		for _, table := range []string{"record", "consumer", "position", "shelf"} {
			mustExec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+database+".once_"+table+" TO "+role+"@'%'")
		}
		t.Cleanup(func() { mustExec(t, db, "DROP USER "+role+"@'%'") })
		config, err := mysql.ParseDSN(testenv.MariaDB(t))
		must(t, err)
		config.User, config.Passwd, config.DBName = role, "secret", database
		return open(t, "mysql", config.FormatDSN())
	}
	var schema string
	must(t, db.QueryRow("SELECT current_schema()").Scan(&schema))
	mustExec(t, db, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'", "GRANT USAGE ON SCHEMA "+schema+" TO "+role,
		"GRANT SELECT ON once_schema TO "+role,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON once_record, once_consumer, once_position, once_shelf TO "+role)
	t.Cleanup(func() { mustExec(t, db, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	u, err := url.Parse(withSettings(t, testenv.Postgres(t), "search_path="+schema))
	must(t, err)
	u.User = url.UserPassword(role, "secret")
	return open(t, "pgx", u.String())
}

// Builds of before lock the tables by a name that the server computes. A Migrate
// waits for theirs.
func TestMigrateOfMySQLWaitsForEarlierBuilds(t *testing.T) {
	e := engines[2]
	db := e.fresh(t)(t)
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	var got int
	err = conn.QueryRowContext(t.Context(), "SELECT GET_LOCK(CONCAT('once', MD5(CONCAT(DATABASE(), '.once_'))), 1)").Scan(&got)
	if err != nil {
		t.Skip("the server has no MD5, so no earlier build could migrate here: ", err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- sqlstore.New(db, e.dialect, nil).Migrate(t.Context()) }()
	proof.Await(t, "Migrate waits for the lock", func() bool {
		select {
		case err := <-migrated:
			t.Fatalf("Migrate did not wait: %v", err)
		default:
		}
		return number(t, db, "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()") == 1
	})
	_, err = conn.ExecContext(t.Context(), "DO RELEASE_ALL_LOCKS()")
	must(t, err)
	must(t, <-migrated)
}
