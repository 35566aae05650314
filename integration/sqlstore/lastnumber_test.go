package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

// lastNumber has the next row of a table get the last but one number.
func (e engine) lastNumber(t *testing.T, db *sql.DB, table string) {
	const last = math.MaxInt64 - 1
	switch e.dialect {
	case sqlstore.PostgreSQL:
		mustExec(t, db, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN seq RESTART WITH %d", table, last))
	case sqlstore.MySQL:
		mustExec(t, db, fmt.Sprintf("ALTER TABLE %s AUTO_INCREMENT = %d", table, last))
	default:
		mustExec(t, db, fmt.Sprintf("INSERT INTO sqlite_sequence (name, seq) VALUES ('%s', %d)", table, last-1))
	}
}

// When a table has no number left, what is put aside or into the outbox is refused,
// with an error that says so. Nothing is dropped in silence, and no number is used
// twice.
func TestATableWithoutNumbersDropsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for _, table := range []string{"once_shelf", "once_outbox"} {
			e.lastNumber(t, db, table)
			stored, refused := 0, 0
			for i := range 6 {
				var err error
				if id := fmt.Sprint(i); table == "once_shelf" {
					err = s.Shelve(t.Context(), []store.Shelved{aside(id, "")})
				} else {
					err = putAlone(t, s, db, out(id))
				}
				if err == nil {
					stored++
					continue
				}
				refused++
				want := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "sequence", sqlstore.MySQL: "", sqlstore.SQLite: "no number left"}[e.dialect]
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v", table, err)
				}
			}
			rows, numbers := countOf(t, db, "SELECT count(*) FROM "+table), countOf(t, db, "SELECT count(DISTINCT seq) FROM "+table)
			if rows != stored || numbers != rows || refused == 0 {
				t.Errorf("%s: %d messages were stored and %d refused, and %d rows have %d numbers", table, stored, refused, rows, numbers)
			}
		}
	})
}

// Another program gives a row the last number.
func TestARowWithTheLastNumberDropsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect == sqlstore.PostgreSQL { // which takes no number from a program
			t.Skip("numbers are GENERATED ALWAYS")
		}
		s, db := e.migrated(t)
		must(t, s.Shelve(t.Context(), []store.Shelved{aside("first", "")}))
		mustExec(t, db, "CREATE TABLE copied AS SELECT * FROM once_shelf",
			fmt.Sprintf("UPDATE copied SET seq = %d, id = x'00112233445566778899aabbccddeeff'", math.MaxInt64),
			"INSERT INTO once_shelf SELECT * FROM copied")
		stored := 2
		for i := range 3 {
			if err := s.Shelve(t.Context(), []store.Shelved{aside(fmt.Sprint(i), "")}); err == nil {
				stored++
			}
		}
		if rows := countOf(t, db, "SELECT count(*) FROM once_shelf"); rows != stored {
			t.Errorf("%d messages were stored, and there are %d rows", stored, rows)
		}
	})
}

func putAlone(t *testing.T, s *sqlstore.Store, db *sql.DB, m store.Outgoing) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	if err := s.PutTx(t.Context(), tx, []store.Outgoing{m}); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func countOf(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	must(t, db.QueryRowContext(ctx, query).Scan(&n))
	return n
}
