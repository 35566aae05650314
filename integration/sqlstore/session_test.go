package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
)

// Some settings change what BEGIN and COMMIT do, or what is read. With each of
// them, Migrate and the first use of the tables return an error that names it,
// also in a transaction of the caller's.
func TestUnsafeSettingsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		engine   engine
		settings []string
		says     string
	}{
		"mariadb, autocommit":          {engines[2], []string{"autocommit=0"}, "autocommit"},
		"mariadb, limit":               {engines[2], []string{"sql_select_limit=5"}, "sql_select_limit"},
		"mariadb, converted":           {engines[2], []string{"character_set_client=latin1"}, "character_set_client"},
		"mariadb, chain":               {engines[2], []string{"completion_type=CHAIN"}, "completion_type"},
		"mariadb, release":             {engines[2], []string{"completion_type=%27RELEASE%27"}, "completion_type"},
		"mariadb, a clock that sticks": {engines[2], []string{"timestamp=1000000000"}, "timestamp"},
		"mariadb, uncommitted":         {engines[2], []string{"tx_isolation=%27READ-UNCOMMITTED%27"}, "READ UNCOMMITTED"},
		"postgres, client encoding":    {engines[1], []string{"client_encoding=LATIN1"}, "client_encoding"},
		"sqlite, no journal":           {engines[0], []string{"_pragma=journal_mode(OFF)"}, "journal_mode"},
		"sqlite, journal in memory":    {engines[0], []string{"_pragma=journal_mode(MEMORY)"}, "journal_mode"},
		"sqlite, uncommitted":          {engines[0], []string{"_pragma=read_uncommitted(1)"}, "read_uncommitted"},
	} {
		t.Run(name, func(t *testing.T) {
			open := c.engine.fresh(t)
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s returned %v, want ErrInvalid for %s", what, err, c.says)
				}
			}
			db := open(t, c.settings...)
			refused("Migrate", sqlstore.New(db, c.engine.dialect, nil).Migrate(t.Context()))
			good := open(t)
			if c.engine.dialect == sqlstore.SQLite {
				good = open(t, "_pragma=busy_timeout(5000)") // WAL would stay
			}
			must(t, sqlstore.New(good, c.engine.dialect, nil).Migrate(t.Context()))
			s := sqlstore.New(db, c.engine.dialect, nil)
			_, err := s.Claim(t.Context(), request("1", "a"))
			refused("Claim", err)
			tx, err := db.Begin()
			must(t, err)
			defer tx.Rollback()
			_, err = s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request("1", "a")})
			refused("ClaimTx", err)
		})
	}
}

// These settings need no check: a claim fails, and no work begins.
func TestSettingsThatFailByThemselves(t *testing.T) {
	for name, c := range map[string]struct {
		engine  engine
		setting string
	}{
		"mariadb":  {engines[2], "tx_read_only=1"},
		"postgres": {engines[1], "default_transaction_read_only=on"},
		"sqlite":   {engines[0], "_pragma=query_only(1)"},
	} {
		t.Run(name, func(t *testing.T) {
			open := c.engine.fresh(t)
			must(t, sqlstore.New(open(t), c.engine.dialect, nil).Migrate(t.Context()))
			s := sqlstore.New(open(t, c.setting), c.engine.dialect, nil)
			if _, err := once.Do(t.Context(), s, sends.For("1"), answer); err == nil || errors.Is(err, once.ErrOutcomeUnknown) {
				t.Errorf("Do returned %v", err)
			}
		})
	}
}

// Such databases cannot store every text, or do not know its encoding.
func TestEncodingsOtherThanUTF8AreRefused(t *testing.T) {
	admin := open(t, "pgx", testenv.Postgres(t))
	for _, encoding := range []string{"LATIN1", "SQL_ASCII", "EUC_JP"} {
		t.Run(encoding, func(t *testing.T) {
			database := unique()
			mustExec(t, admin, fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'", database, encoding))
			t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)") })
			dsn := withDatabase(t, testenv.Postgres(t), database)
			s := sqlstore.New(open(t, "pgx", dsn), sqlstore.PostgreSQL, nil)
			for what, err := range map[string]error{"Migrate": s.Migrate(t.Context())} {
				if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "UTF8") {
					t.Errorf("%s returned %v, want ErrInvalid", what, err)
				}
			}
			schema, err := sqlstore.Schema(sqlstore.PostgreSQL, nil, 0) // by a DBA who does not know these rules
			must(t, err)
			db := open(t, "pgx", withSettings(t, dsn, "default_query_exec_mode=simple_protocol"))
			mustExec(t, db, schema)
			_, err = s.Claim(t.Context(), request("ключ", "a"))
			if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "UTF8") {
				t.Errorf("Claim returned %v, want ErrInvalid", err)
			}
		})
	}
}

// No default collation of a database makes two keys equal.
func TestKeysAreComparedByTheirBytes(t *testing.T) {
	ids := []string{"a", "A", "ä", "a\u0308", "à", "a ", " a", "ß", "ss", "ı", "i", "𝕒", "鍵", "\U0001F511"}
	check := func(t *testing.T, db *sql.DB, d sqlstore.Dialect) {
		s := sqlstore.New(db, d, nil)
		must(t, s.Migrate(t.Context()))
		for _, id := range ids {
			r := request(id, "owner")
			r.Key.Scope, r.Key.Operation = id, id
			rec, err := s.Claim(t.Context(), r)
			if must(t, err); rec.Attempt != 1 || rec.Key != r.Key {
				t.Errorf("the claim of %q met %+v", id, rec)
			}
			must(t, s.Settle(t.Context(), settlement(rec, once.Done)))
		}
		for _, id := range ids {
			page, err := s.List(t.Context(), once.RecordQuery{Operation: id, Scopes: []string{id}, Limit: 10})
			if must(t, err); len(page.Records) != 1 || page.Records[0].Key.ID != id {
				t.Errorf("the list of %q has %d records", id, len(page.Records))
			}
		}
	}
	admin := open(t, "mysql", testenv.MariaDB(t))
	for _, charset := range []string{"latin1 COLLATE latin1_swedish_ci", "utf8mb3 COLLATE utf8mb3_general_ci", "utf8mb4 COLLATE utf8mb4_unicode_ci", "ucs2"} {
		t.Run("mariadb "+charset, func(t *testing.T) {
			database := unique()
			mustExec(t, admin, "CREATE DATABASE "+database+" CHARACTER SET "+charset)
			t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+database) })
			check(t, open(t, "mysql", withMariaDB(t, database)), sqlstore.MySQL)
		})
	}
	t.Run("sqlite in UTF-16", func(t *testing.T) {
		check(t, freshSQLite(t)(t, "_pragma=encoding('UTF-16')", "_pragma=busy_timeout(5000)"), sqlstore.SQLite)
	})
	t.Run("postgres", func(t *testing.T) { check(t, freshPostgres(t)(t), sqlstore.PostgreSQL) })
}
