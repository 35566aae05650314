package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
)

// The record of an outcome that the database refuses is done, without the
// outcome.
func TestRefusedOutcomesAreLeftOut(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for name, sql := range map[string]string{
			"sqlite": `CREATE TRIGGER small BEFORE UPDATE ON once_record WHEN length(NEW.outcome) > 1000
				BEGIN SELECT RAISE(ABORT, 'too large'); END`,
			"postgres": `ALTER TABLE once_record ADD CHECK (length(outcome) <= 1000)`,
			"mariadb":  `ALTER TABLE once_record ADD CONSTRAINT small CHECK (length(outcome) <= 1000)`,
		} {
			if name == e.name {
				mustExec(t, db, sql)
			}
		}
		wantLeftOut(t, s, 2000)
		_, err := once.DoTx(t.Context(), s, operation.For("tx"), func(context.Context, *sql.Tx) (string, error) {
			return strings.Repeat("x", 2000), nil
		})
		if !errors.Is(err, once.ErrOutcomeRefused) {
			t.Errorf("DoTx: %v", err)
		}
		if rec, err := s.Get(t.Context(), operation.For("tx").Key()); err != nil || rec.Status != once.Absent {
			t.Errorf("DoTx left %v, %v", rec.Status, err)
		}
	})
}

// While a packet is being sent that is much larger than it accepts, MySQL
// closes the connection.
func TestOutcomesOverThePacketOfMySQL(t *testing.T) {
	e := engines[2]
	_, db := e.migrated(t)
	var limit int
	must(t, db.QueryRow(`SELECT @@max_allowed_packet`).Scan(&limit))
	s := sqlstore.New(db, e.dialect, &sqlstore.Options{Options: once.Options{MaxOutcome: 4 * limit}})
	for _, size := range []int{limit, limit + limit/8, 3 * limit} {
		wantLeftOut(t, s, size)
	}
}

var operation = &once.Operation[string]{Name: "large", OnUnknown: once.Park}

func wantLeftOut(t *testing.T, s once.Store, size int) {
	t.Helper()
	work := operation.For(unique())
	got, err := once.Do(t.Context(), s, work, func(context.Context, once.Key) (string, error) {
		return strings.Repeat("x", size), nil
	})
	if len(got) != size || err != nil {
		t.Errorf("%d bytes: %d, %v", size, len(got), err)
	}
	if _, err := once.Do(t.Context(), s, work, func(context.Context, once.Key) (string, error) {
		t.Errorf("%d bytes: run again", size)
		return "", nil
	}); !errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("%d bytes, a duplicate: %v", size, err)
	}
}

// MySQL has no code of its own for a parameter over max_allowed_packet that was
// sent in parts.
func TestALongParameterIsRefused(t *testing.T) {
	for text, want := range map[string]sqlschema.Failure{
		"Parameter of prepared statement which is set through mysql_send_long_data() is longer than 'max_allowed_packet' bytes": sqlschema.Refused,
		"Unknown error": sqlschema.Other,
	} {
		err := fmt.Errorf("settle: %w", &mysql.MySQLError{Number: 1105, Message: text})
		if got := sqlschema.MySQL.Failure(err); got != want {
			t.Errorf("1105 %q means %v, want %v", text, got, want)
		}
	}
}
