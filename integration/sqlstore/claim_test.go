package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
)

// inFlight begins a transaction that has claimed a key. The caller ends it.
func inFlight(t *testing.T, s *sqlstore.Store, id string) (end func(commit bool)) {
	t.Helper()
	claimed, finish, over := make(chan struct{}), make(chan bool), make(chan error, 1)
	errBack := errors.New("roll back")
	go func() {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(id, "first")}, func(_ *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
			close(claimed)
			if commit := <-finish; !commit {
				return nil, errBack
			}
			return []once.Settlement{settlement(recs[0], once.Done)}, nil
		})
		over <- err
	}()
	select {
	case <-claimed:
	case err := <-over:
		t.Fatalf("the first claim: %v", err)
	}
	t.Cleanup(func() { close(finish) }) // if the test failed before its end
	return func(commit bool) {
		finish <- commit
		if err := <-over; err != nil && !errors.Is(err, errBack) {
			t.Errorf("the first transaction: %v", err)
		}
	}
}

func isInFlight(rec once.Record) bool {
	return rec.Status == once.Running && rec.LeaseLeft == 0 && rec.Owner == [16]byte{}
}

// In PostgreSQL, a claim does not wait for an open transaction on its key.
func TestTransactionInFlightIsSeen(t *testing.T) {
	s, db := engines[1].migrated(t)
	end := inFlight(t, s, "flight")
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	rec, err := s.Claim(ctx, request("flight", "second"))
	if must(t, err); !isInFlight(rec) {
		t.Errorf("Claim returned %+v, want a transaction in flight", rec)
	}
	tx, err := db.Begin()
	must(t, err)
	defer tx.Rollback()
	recs, err := s.ClaimTx(ctx, tx, []once.ClaimRequest{request("flight", "third"), request("other", "third")})
	if must(t, err); !isInFlight(recs[0]) || recs[1].Owner != token("third") {
		t.Errorf("ClaimTx returned %+v", recs)
	}
	end(true)
	recs, err = s.ClaimTx(ctx, tx, []once.ClaimRequest{request("flight", "third")})
	if must(t, err); recs[0].Status != once.Done {
		t.Errorf("after the commit, ClaimTx returned %+v", recs)
	}
}

// In MySQL, a claim waits for an open transaction on its key.
func TestClaimWaitsNoLongerThanAsked(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit ", commit), func(t *testing.T) {
			s, db := engines[2].migrated(t)
			end := inFlight(t, s, "flight")
			r := request("flight", "second")
			r.Wait = 400 * time.Millisecond
			begun := time.Now()
			recs, err := s.Transact(t.Context(), []once.ClaimRequest{r}, writing(t.Context(), "wrong"))
			if must(t, err); !isInFlight(recs[0]) {
				t.Errorf("Transact returned %+v, want a transaction in flight", recs[0])
			}
			if took := time.Since(begun); took < r.Wait || took > 5*time.Second {
				t.Errorf("it waited for %v, want %v", took, r.Wait)
			}
			end(commit)
			r.Wait = 10 * time.Second // the closed connection may still be first in the queue
			recs, err = s.Transact(t.Context(), []once.ClaimRequest{r}, writing(t.Context(), "right"))
			must(t, err)
			if want := map[bool]int{true: 0, false: 1}[commit]; count(t, db, "right") != want || count(t, db, "wrong") != 0 {
				t.Errorf("%d rows after %+v, want %d", count(t, db, "right"), recs[0], want)
			}
			idle(t, db)
		})
	}
}

// In MySQL, a claim that waits long enough gets the answer.
func TestClaimThatWaitsGetsTheAnswer(t *testing.T) {
	s, db := engines[2].migrated(t)
	end := inFlight(t, s, "flight")
	got := make(chan once.Record)
	go func() {
		r := request("flight", "second")
		r.Wait = 10 * time.Second
		recs, err := s.Transact(t.Context(), []once.ClaimRequest{r}, writing(t.Context(), "wrong"))
		if err != nil {
			t.Error(err)
			recs = make([]once.Record, 1)
		}
		got <- recs[0]
	}()
	untilBlocked(t, db)
	end(true)
	if rec := <-got; rec.Status != once.Done || string(rec.Outcome.Body) != "answer" {
		t.Errorf("Transact returned %+v, want the first answer", rec)
	}
}

// In MySQL, the claims before the one that waits are lost with their
// transaction.
func TestBatchThatCannotWaitIsAConflict(t *testing.T) {
	s, db := engines[2].migrated(t)
	end := inFlight(t, s, "flight")
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("free", "second"), request("flight", "second")},
		func(*sql.Tx, []once.Record) ([]once.Settlement, error) {
			t.Error("the body was called")
			return nil, nil
		})
	if !errors.Is(err, once.ErrConflict) {
		t.Errorf("Transact returned %v, want ErrConflict", err)
	}
	end(true)
	absent(t, s, "free")
	idle(t, db)
}

// The snapshot of a caller's transaction may be older than the commit of the
// claim that won.
func TestLostRaceShowsTheWinner(t *testing.T) {
	s, db := engines[2].migrated(t)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	must(t, err)
	defer tx.Rollback()
	var n int
	must(t, tx.QueryRow("SELECT count(*) FROM once_record").Scan(&n)) // now it has its snapshot
	lives(t, s)
	op := &once.Operation[once.Outcome]{Name: "pay"}
	rec, err := s.Get(t.Context(), key("lives"))
	must(t, err)
	recs, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request("lives", "late")})
	if must(t, err); recs[0].Status != once.Done || string(recs[0].Outcome.Body) != "answer" {
		t.Errorf("ClaimTx returned %+v, want the winner's record", recs[0])
	}
	if err := s.SettleTx(t.Context(), tx, []once.Settlement{settlement(rec, once.Done)}); err != nil {
		t.Errorf("SettleTx of what is settled so returned %v: it looked at an old snapshot", err)
	}
	_, err = once.InTx(t.Context(), s, tx, op.For("lives").In("tenant"), func(context.Context) (once.Outcome, error) {
		t.Error("the work ran again")
		return once.Outcome{}, nil
	})
	if !errors.Is(err, once.ErrCorrupt) { // these tests invent the checksum
		t.Errorf("InTx returned %v", err)
	}
	must(t, effect(t.Context(), tx, "usable"))
	must(t, tx.Commit())
}

// PostgreSQL cannot show rows that are newer than the snapshot.
func TestLostRaceUnderSnapshots(t *testing.T) {
	s, db := engines[1].migrated(t)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	must(t, err)
	defer tx.Rollback()
	var n int
	must(t, tx.QueryRow("SELECT count(*) FROM once_record").Scan(&n))
	lives(t, s)
	if _, err := s.ClaimTx(t.Context(), tx, []once.ClaimRequest{request("lives", "late")}); !errors.Is(err, once.ErrConflict) {
		t.Errorf("ClaimTx returned %v, want ErrConflict", err)
	}
}

func TestDamagedRowsAreCorrupt(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for id, damage := range map[string]string{
			"status": "UPDATE once_record SET status = 5 WHERE id = 'status'",
			"parts":  "UPDATE once_record SET scope = 'tenant two' WHERE id = 'parts'",
			"freed":  "UPDATE once_record SET scope = 'tenant two', status = 0, key_until = 1, updated = 1 WHERE id = 'freed'",
		} {
			_, err := s.Claim(t.Context(), request(id, "a"))
			must(t, err)
			mustExec(t, db, damage)
			if _, err := s.Claim(t.Context(), request(id, "b")); !errors.Is(err, once.ErrCorrupt) {
				t.Errorf("%s: Claim returned %v, want ErrCorrupt", id, err)
			}
			if _, err := s.Get(t.Context(), key(id)); !errors.Is(err, once.ErrCorrupt) {
				t.Errorf("%s: Get returned %v, want ErrCorrupt", id, err)
			}
		}
		if n := number(t, db, "SELECT count(*) FROM once_record WHERE status = 0"); n != 1 {
			t.Error("the damaged row of a freed key was claimed")
		}
	})
}

// The text of an error may hold any bytes. They must not prevent a settlement.
func TestAnyReasonIsRecorded(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, _ := e.migrated(t)
		rec, err := s.Claim(t.Context(), request("reason", "a"))
		must(t, err)
		set := settlement(rec, once.Parked)
		set.Reason = "cut\x00 off \xff\xfe 'here' \\ \u2028 \U0001F4A5 \xf0\x9f"
		must(t, s.Settle(t.Context(), set))
		rec, err = s.Get(t.Context(), key("reason"))
		must(t, err)
		if want := "cut\uFFFD off \uFFFD 'here' \\ \u2028 \U0001F4A5 \uFFFD"; rec.Reason != want {
			t.Errorf("the reason is %q, want %q", rec.Reason, want)
		}
	})
}

// Another transaction has locked a due row.
func TestForgetWaitsForNobody(t *testing.T) {
	for _, e := range engines[1:] {
		t.Run(e.name, func(t *testing.T) {
			s, db := e.migrated(t)
			for _, id := range []string{"free", "locked"} {
				rec, err := s.Claim(t.Context(), request(id, "a"))
				must(t, err)
				set := settlement(rec, once.Done)
				set.KeepOutcome, set.KeepKey = 0, 0
				must(t, s.Settle(t.Context(), set))
			}
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted}) // locks only the rows that it changes
			must(t, err)
			defer tx.Rollback()
			_, err = tx.Exec("UPDATE once_record SET reason = 'locked' WHERE id = 'locked'")
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			if n, err := s.Forget(ctx, 10); n != 1 || err != nil {
				t.Errorf("Forget returned %d, %v; want the row that is not locked", n, err)
			}
			must(t, tx.Rollback())
			if n, err := s.Forget(ctx, 10); n != 1 || err != nil {
				t.Errorf("Forget returned %d, %v; want the row that was locked", n, err)
			}
		})
	}
}

// A claim has one effect. SQLite claims with one statement and reads the record with
// the next: others may meanwhile end what was claimed, and its key may be over.
func TestAClaimThatWasEndedDoesNotClaimAgain(t *testing.T) {
	for name, forgotten := range map[string]bool{"a new key": false, "a key that is over": true} {
		t.Run(name, func(t *testing.T) {
			s, db := engines[0].migrated(t)
			if forgotten { // and still has a row, which the claim takes over
				endAndOutlive(t, s, once.Fence{Key: key("late"), Owner: token("before"), Attempt: 1}, request("late", "before"))
			}
			ended := 0
			late := sqlstore.New(hooked(t, db, func(_ context.Context, query string) func() {
				return func() {
					rec, err := s.Get(t.Context(), key("late"))
					if must(t, err); rec.Owner == token("a") {
						ended++
						endAndOutlive(t, s, hold(rec), once.ClaimRequest{})
					}
				}
			}), engines[0].dialect, nil)
			rec, err := late.Claim(t.Context(), request("late", "a"))
			if must(t, err); !isInFlight(rec) || ended != 1 {
				t.Errorf("Claim returned %+v after %d claims; want one, and a record that others have", rec, ended)
			}
			if rec, err := s.Get(t.Context(), key("late")); err != nil || rec.Status != once.Absent {
				t.Errorf("the claim, which had ended, took the key again: %+v, %v", rec, err)
			}
		})
	}
}

// endAndOutlive settles an attempt, claimed first if there is a request, and waits
// until the key is over.
func endAndOutlive(t *testing.T, s *sqlstore.Store, fence once.Fence, r once.ClaimRequest) {
	t.Helper()
	if r.Owner != ([16]byte{}) {
		_, err := s.Claim(t.Context(), r)
		must(t, err)
	}
	must(t, s.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Millisecond, KeepKey: time.Millisecond}))
	proof.Await(t, "the key is over", func() bool {
		rec, err := s.Get(t.Context(), fence.Key)
		return err == nil && rec.Status == once.Absent
	})
}
