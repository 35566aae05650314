package sqlstore_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/effectively-once/once/store/storetest"
)

// A part of the suite passes under these settings of drivers and sessions.
func TestSettingsThatMakeNoDifference(t *testing.T) {
	for name, c := range map[string]struct {
		engine   engine
		settings []string
	}{
		"mariadb, found rows":     {engines[2], []string{"clientFoundRows=true"}},
		"mariadb, interpolated":   {engines[2], []string{"interpolateParams=true", "collation=latin1_swedish_ci", "charset=latin1"}},
		"mariadb, New York":       {engines[2], []string{"parseTime=true", "loc=America%2FNew_York", "time_zone=%27-05%3A00%27"}},
		"mariadb, committed":      {engines[2], []string{"tx_isolation=%27READ-COMMITTED%27"}},
		"mariadb, ANSI":           {engines[2], []string{"sql_mode=%27" + oddModes + "%27", "sql_auto_is_null=1", "max_statement_time=30"}},
		"postgres, simple":        {engines[1], []string{"default_query_exec_mode=simple_protocol"}},
		"postgres, exec":          {engines[1], []string{"default_query_exec_mode=exec"}},
		"postgres, described":     {engines[1], []string{"default_query_exec_mode=cache_describe"}},
		"postgres, Tokyo":         {engines[1], []string{"timezone=Asia/Tokyo", "DateStyle=German", "bytea_output=escape"}},
		"postgres, escapes":       {engines[1], append(odd, "default_query_exec_mode=simple_protocol")},
		"postgres, exec, escapes": {engines[1], append(odd, "default_query_exec_mode=exec", "standard_conforming_strings=off")},
		"lib/pq, escapes":         {engine{"postgres", sqlstore.PostgreSQL, freshLibPQ}, append(odd, "standard_conforming_strings=off")},
		"sqlite, few settings": {engines[0], []string{"_pragma=busy_timeout(5000)", "_pragma=synchronous(OFF)", "_pragma=reverse_unordered_selects(1)",
			"_pragma=case_sensitive_like(1)", "_pragma=recursive_triggers(1)", "_pragma=automatic_index(0)", "_pragma=count_changes(1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := c.engine.fresh(t)
			db := open(t, c.settings...)
			must(t, sqlstore.New(db, c.engine.dialect, nil).Migrate(t.Context()))
			mustExec(t, db, effectTable)
			h := harness(db, c.engine, func(t testing.TB) *sql.DB { return open(t, c.settings...) })
			quick(t, storetest.TxCases(t, h))
		})
	}
}

// odd are settings of PostgreSQL that change how values are written and read, and
// what statements do.
var odd = []string{"bytea_output=escape", "timezone=Asia/Tokyo", "DateStyle=German", "IntervalStyle=sql_standard",
	"extra_float_digits=-15", "backslash_quote=on", "quote_all_identifiers=on", "transform_null_equals=on",
	"default_transaction_deferrable=on", "plan_cache_mode=force_generic_plan", "row_security=off", "lock_timeout=10s"}

// oddModes change how MySQL reads statements and values.
const oddModes = "ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE"

// freshLibPQ is freshPostgres with the driver lib/pq.
func freshLibPQ(t testing.TB) func(testing.TB, ...string) *sql.DB {
	pgx := freshPostgres(t)
	return func(t testing.TB, settings ...string) *sql.DB {
		dsn, _ := dsns.Load(pgx(t, settings...))
		return open(t, "postgres", dsn.(string))
	}
}

// quick leaves out the slow cases: races, those that use Do and DoTx, and the
// outbox. Settings that change how SQL is read and times are written run those
// too.
func quick(t *testing.T, cases []storetest.Case) {
	ran, outbox := 0, strings.Contains(t.Name(), "ANSI") || strings.Contains(t.Name(), "Tokyo") || strings.Contains(t.Name(), "escapes")
	for _, c := range cases {
		group, name, _ := strings.Cut(c.Name, "/")
		if slices.Contains([]string{"race", "do", "dotx", "flight"}, group) || name == "race" || name == "beside-claims" || name == "largest-page" ||
			group == "outbox" && !outbox {
			continue
		}
		ran++
		if err := c.Check(t.Context()); err != nil {
			t.Errorf("%s: %v\nthe rule: %s", c.Name, err, c.Rule)
		}
	}
	if ran < 40 {
		t.Errorf("only %d cases ran", ran)
	}
}

// These are the fewest settings that SQLite needs.
func TestOneConnectionIsEnoughInSQLite(t *testing.T) {
	open := freshSQLite(t)
	single := func(t testing.TB) *sql.DB {
		db := open(t)
		db.SetMaxOpenConns(1)
		return db
	}
	db := single(t)
	must(t, sqlstore.New(db, sqlstore.SQLite, nil).Migrate(t.Context()))
	mustExec(t, db, effectTable)
	for _, c := range storetest.TxCases(t, harness(db, engines[0], single)) {
		// Of the outbox, what several do at once, or what holds a transaction.
		group, name, _ := strings.Cut(c.Name, "/")
		if group == "outbox" && !slices.Contains([]string{"race", "sent-race", "lease-race", "context", "late", "commits"}, name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t.Context()); err != nil {
				t.Errorf("%v\nthe rule: %s", err, c.Rule)
			}
		})
	}
}

func TestDatabaseInMemoryKeepsTheContract(t *testing.T) {
	db := open(t, "sqlite", ":memory:")
	db.SetMaxOpenConns(1)
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	must(t, s.Migrate(t.Context()))
	lives(t, s)
	for name, do := range map[string]func(*sql.Tx) error{
		"fails": func(*sql.Tx) error { return errors.New("no") }, "ends": (*sql.Tx).Rollback,
	} {
		if _, err := s.Transact(t.Context(), []once.ClaimRequest{request(name, "a")}, doing(do)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	answers(t, s, "lives") // the database is still there
}

func TestPgBouncerKeepsTheContract(t *testing.T) {
	direct := freshPostgres(t)(t)
	var schema string
	must(t, direct.QueryRow("SELECT current_schema()").Scan(&schema))
	pooled := func(t testing.TB) *sql.DB {
		return open(t, "pgx", withSettings(t, testenv.PgBouncer(t), "default_query_exec_mode=exec"))
	}
	options := &sqlstore.Options{Schema: schema}
	must(t, sqlstore.New(pooled(t), sqlstore.PostgreSQL, options).Migrate(t.Context()))
	mustExec(t, direct, effectTable)
	h := harness(direct, engines[1], pooled)
	h.Open = func(t testing.TB) once.TxStore[*sql.Tx] { return sqlstore.New(pooled(t), sqlstore.PostgreSQL, options) }
	h.Effect = effectIn(schema)
	h.Begin = begin(pooled(t))
	quick(t, storetest.TxCases(t, h))
}

func TestClosedPoolIsErrClosed(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		lives(t, s)
		must(t, db.Close())
		_, claimed := s.Claim(t.Context(), request("a", "a"))
		_, transacted := s.Transact(t.Context(), []once.ClaimRequest{request("a", "a")}, nil)
		_, forgotten := s.Forget(t.Context(), 1)
		for _, err := range []error{claimed, transacted, forgotten, s.Migrate(t.Context())} {
			if !errors.Is(err, once.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
	})
}
