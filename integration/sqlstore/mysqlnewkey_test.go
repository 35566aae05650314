package sqlstore_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
)

// A transaction for a new key takes six statements besides those of its work:
// two for autocommit, BEGIN, the claim, the settlement and COMMIT.
func TestStatementsOfANewKey(t *testing.T) {
	s, db := engines[2].migrated(t)
	db.SetMaxOpenConns(1)
	questions := func() (n int) {
		var name string
		must(t, db.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n))
		return n
	}
	for _, id := range []string{"1", "2", "3"} { // the first ones check the session and prepare statements
		before := questions()
		_, err := once.DoTx(t.Context(), s, books.For(id), nothing)
		must(t, err)
		if sent := questions() - before - 1; id == "3" && sent != 6 {
			t.Errorf("DoTx sent %d statements, want 6", sent)
		}
	}
}

// The lease of a claim that waited for another transaction begins before the
// wait. Its holder must not count on more.
func TestAClaimThatWaitedHasLessOfItsLeaseLeft(t *testing.T) {
	s, _ := engines[2].migrated(t)
	end := inFlight(t, s, "flight")
	const wait, commit = 2 * time.Second, time.Second // at least; at most
	time.AfterFunc(wait, func() { end(false) })
	r := request("flight", "second")
	r.Lease, r.Wait = time.Minute, 10*time.Second
	rec, err := s.Claim(t.Context(), r)
	returned := time.Now()
	must(t, err)
	is, err := s.Get(t.Context(), r.Key)
	must(t, err)
	if left := is.LeaseLeft + time.Since(returned); rec.LeaseLeft > left+commit || !rec.HeldBy(r.Owner) {
		t.Errorf("the claim returned %+v, which has only %v left", rec, left)
	}
	if !rec.Created.Equal(is.Created) || !rec.Updated.Equal(is.Updated) {
		t.Errorf("the claim returned %+v, stored is %+v", rec, is)
	}
}

// A claim in a transaction of the caller's leaves the caller's LAST_INSERT_ID.
func TestClaimTxKeepsTheLastInsertID(t *testing.T) {
	s, db := engines[2].migrated(t)
	mustExec(t, db, "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer tx.Rollback()
	result, err := tx.ExecContext(t.Context(), "INSERT INTO orders VALUES ()")
	must(t, err)
	want, err := result.LastInsertId()
	must(t, err)
	_, err = s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request("key", "a")})
	must(t, err)
	var got int64
	must(t, tx.QueryRowContext(t.Context(), "SELECT LAST_INSERT_ID()").Scan(&got))
	if got != want {
		t.Errorf("LAST_INSERT_ID is %d, want %d", got, want)
	}
}

// The time that a claim returns is the stored one, whatever somebody has added
// to the table.
func TestAClaimReturnsItsTime(t *testing.T) {
	for name, change := range map[string]string{
		"trigger that inserts": "CREATE TRIGGER t AFTER INSERT ON once_record FOR EACH ROW INSERT INTO numbers VALUES ()",
		"trigger that counts":  "CREATE TRIGGER t BEFORE INSERT ON once_record FOR EACH ROW UPDATE numbers SET n = LAST_INSERT_ID(n + 1)",
		"column that counts":   "ALTER TABLE once_record ADD COLUMN n BIGINT NOT NULL AUTO_INCREMENT UNIQUE",
	} {
		t.Run(name, func(t *testing.T) {
			s, db := engines[2].migrated(t)
			mustExec(t, db, "CREATE TABLE numbers (n BIGINT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO numbers VALUES ()", change)
			own, err := s.Claim(t.Context(), request("own", "a"))
			must(t, err)
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			defer tx.Rollback()
			recs, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request("callers", "a")})
			must(t, err)
			must(t, tx.Commit())
			for _, rec := range append(recs, own) {
				is, err := s.Get(t.Context(), rec.Key)
				must(t, err)
				if !rec.Created.Equal(is.Created) || !rec.Updated.Equal(is.Updated) {
					t.Errorf("the claim returned %+v, stored is %+v", rec, is)
				}
			}
		})
	}
}
