package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/records"
	"github.com/effectively-once/once/store/sqlstore"
)

// pastTime makes done records. Of every second one, the key is past its time,
// of the others the outcome.
func pastTime(t *testing.T, s *sqlstore.Store, n int) {
	t.Helper()
	for i := range n {
		rec, err := s.Claim(t.Context(), request(fmt.Sprint(i), "a"))
		must(t, err)
		set := settlement(rec, once.Done)
		if set.KeepOutcome, set.KeepKey = 0, time.Hour; i%2 == 0 {
			set.KeepKey = 0
		}
		must(t, s.Settle(t.Context(), set))
	}
}

// Forgetting takes several statements, and counts each record once.
func TestForgetRecordsInManyStatements(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		const n = 230
		pastTime(t, s, n)
		due, more, err := s.Forgettable(t.Context(), n+1)
		if err != nil || len(due) != n || more {
			t.Fatalf("%d of %d are past their time, more: %v, %v", len(due), n, more, err)
		}
		for _, want := range []int{n, 0} {
			if got, err := s.ForgetRecords(t.Context(), due); got != want || err != nil {
				t.Errorf("%d were forgotten, %v; want %d", got, err, want)
			}
		}
		if left := number(t, db, "SELECT count(*) FROM once_record WHERE outcome IS NULL"); left != n/2 {
			t.Errorf("%d rows are left without an outcome, want %d", left, n/2)
		}
	})
}

// A row that another transaction is changing is left to a later call.
func TestForgetRecordsWaitsForNobody(t *testing.T) {
	for _, e := range engines[1:] {
		t.Run(e.name, func(t *testing.T) {
			s, db := e.migrated(t)
			pastTime(t, s, 4)
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted}) // locks only the rows that it changes
			must(t, err)
			defer tx.Rollback()
			_, err = tx.Exec("UPDATE once_record SET reason = 'locked' WHERE id IN ('0', '1')")
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			due, _, err := s.Forgettable(ctx, 10)
			if err != nil || len(due) != 4 {
				t.Fatalf("%d records are past their time, %v", len(due), err)
			}
			for i, want := range []int{2, 2, 0} {
				if n, err := s.ForgetRecords(ctx, due); n != want || err != nil {
					t.Errorf("%d were forgotten, %v; want %d", n, err, want)
				}
				if i == 0 {
					must(t, tx.Rollback())
				}
			}
		})
	}
}

// A damaged row does not tell whose outcome it has. And a page with large
// outcomes ends early.
func TestForgettableRefusesDamagedRowsAndBoundsItsPages(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		pastTime(t, s, 1)
		mustExec(t, db, "UPDATE once_record SET scope = 'another'")
		if _, _, err := s.Forgettable(t.Context(), 10); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("beside a damaged row: %v", err)
		}
		if n, err := s.Forget(t.Context(), 10); n != 1 || err != nil {
			t.Errorf("Forget returned %d, %v", n, err)
		}
		for i := range 3 { // each has half of what a page may have
			rec, err := s.Claim(t.Context(), request(fmt.Sprint("large ", i), "a"))
			must(t, err)
			set := settlement(rec, once.Done)
			set.KeepOutcome, set.Outcome.Body = 0, make([]byte, store.MaxForgettable/2+i)
			must(t, s.Settle(t.Context(), set))
		}
		for _, want := range []int{2, 1} {
			due, more, err := s.Forgettable(t.Context(), 10)
			if err != nil || len(due) != want || more != (want == 2) {
				t.Errorf("%d records, more: %v, %v; want %d", len(due), more, err, want)
			}
			_, err = s.ForgetRecords(t.Context(), due)
			must(t, err)
		}
	})
}

// The server does not send the rows after the end of a page, which may be a
// hundred times as much.
func TestForgettableReadsNoMoreThanItReturns(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect != sqlstore.MySQL {
			t.Skip("only MariaDB counts what it sends")
		}
		s, db := e.migrated(t)
		const outcomes, size = 12, store.MaxForgettable / 2
		for i := range outcomes {
			rec, err := s.Claim(t.Context(), request(fmt.Sprint("large ", i), "a"))
			must(t, err)
			set := settlement(rec, once.Done)
			set.KeepOutcome, set.Outcome.Body = 0, make([]byte, size)
			must(t, s.Settle(t.Context(), set))
		}
		sent := func() int {
			t.Helper()
			return status(t, db, "SHOW GLOBAL STATUS LIKE 'Bytes_sent'")["Bytes_sent"]
		}
		before := sent()
		due, more, err := s.Forgettable(t.Context(), 1000)
		if n := sent() - before; err != nil || len(due) != 2 || !more || n > 5*size {
			t.Errorf("%d records, more: %v, %v, and %d MiB were sent for a page of 16", len(due), more, err, n>>20)
		}
	})
}

// In PostgreSQL, a claim sets due as expected. Rows that turn out to be due
// later do not fill the page.
func TestForgettablePassesOverWhatIsNotDueYet(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect != sqlstore.PostgreSQL {
			t.Skip("here a row is due exactly when it is to be forgotten")
		}
		s, db := e.migrated(t)
		for i, status := range []once.Status{once.Done, once.Absent, once.Parked, once.Running, once.Done, once.Absent} {
			rec, err := s.Claim(t.Context(), request(fmt.Sprint("early ", i), "a"))
			must(t, err)
			if status != once.Running {
				set := settlement(rec, status)
				set.KeepOutcome, set.KeepKey = time.Hour, 2*time.Hour
				must(t, s.Settle(t.Context(), set))
			}
		}
		mustExec(t, db, "UPDATE once_record SET due = 1")
		pastTime(t, s, 2)
		looks, found := 0, 0
		for more := true; more && looks < 20; looks++ {
			var due []once.Record
			var err error
			due, more, err = s.Forgettable(t.Context(), 2)
			must(t, err)
			n, err := s.ForgetRecords(t.Context(), due)
			if err != nil || n != len(due) {
				t.Errorf("%d of %d were forgotten, %v", n, len(due), err)
			}
			found += n
		}
		if found != 2 || looks < 4 || number(t, db, "SELECT count(*) FROM once_record WHERE due = 1") > 0 {
			t.Errorf("%d were found in %d looks", found, looks)
		}
	})
}

// A statement that names keys reads only their rows, however many others are
// due.
func TestPlansOfForgettingInSQLite(t *testing.T) {
	e := engines[0]
	s, db := e.migrated(t)
	_, err := s.List(t.Context(), once.RecordQuery{})
	must(t, err)
	names, err := sqlschema.For(sqlschema.SQLite, "", "")
	must(t, err)
	const byKey, byDue = "sqlite_autoindex_once_record_1 (key=?)", "once_record_due (due<?)"
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			e.fillKeys(t, db, "usual", 4, 5000)
			mustExec(t, db, "UPDATE once_record SET due = 1, key_until = 1, updated = 1", "ANALYZE")
		}
		st := records.New(names)
		forget, expire := st.ForgetOnly(100)
		for want, of := range map[string]sqlschema.Statement{byKey: forget, byKey + " ": expire, byDue: st.Due} {
			plan := e.plan(t, db, of)
			if !strings.Contains(plan, "INDEX "+strings.TrimSpace(want)) || strings.Contains(plan, "SCAN") || want != byDue && strings.Contains(plan, byDue) {
				t.Errorf("analyzed: %v, want %s, got %s", analyzed, want, plan)
			}
		}
	}
}
